//! Conformance suite on the store in memory, so that the suite does not require habits of the embedded one.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use towpath_store::conformance::Backend;
use towpath_store::memory::MemoryStore;
use towpath_store::{Store, WallClock};

/// Last opened store, which has the only copy of the data.
#[derive(Default)]
struct MemoryBackend(Mutex<Option<Arc<MemoryStore>>>);

#[async_trait]
impl Backend for MemoryBackend {
    async fn open(&self, clock: WallClock) -> Arc<dyn Store> {
        let mut kept = self.0.lock();
        let store = match kept.take() {
            Some(store) => Arc::new(store.reopen(clock)),
            None => Arc::new(MemoryStore::new(clock)),
        };
        *kept = Some(Arc::clone(&store));
        store
    }
}

towpath_store::conformance!(MemoryBackend::default());
