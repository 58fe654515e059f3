//! The store in memory passes the battery: so the battery holds no backend's habits for the contract.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use towpath_store::battery::Backend;
use towpath_store::memory::MemoryStore;
use towpath_store::{Clock, Store};

/// Keeps the store, since its data is nowhere else.
#[derive(Default)]
struct Memory(Mutex<Option<Arc<MemoryStore>>>);

#[async_trait]
impl Backend for Memory {
    async fn open(&self, clock: Clock) -> Arc<dyn Store> {
        let mut kept = self.0.lock();
        let store = match kept.take() {
            Some(store) => Arc::new(store.reopen(clock)),
            None => Arc::new(MemoryStore::new(clock)),
        };
        *kept = Some(Arc::clone(&store));
        store
    }
}

towpath_store::battery!(Memory::default());
