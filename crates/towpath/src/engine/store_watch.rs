//! Watch of the store: metrics and health say when nothing can be written.

use std::sync::Arc;
use std::time::Duration;

use towpath_store::StoreFailure;

use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// Interval of looking at the store.
const INTERVAL: Duration = Duration::from_secs(1);

/// Watches the store until the server stops, or the store cannot recover. Returns the failure in that case.
pub(crate) async fn watch_store(engine: &Arc<Engine>, stop: &Stop) -> Option<Arc<StoreFailure>> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stopped(stop) => return None,
        }
        let store = engine.store.clone();
        // It may wait for a sync that is under way.
        let failure = tokio::task::spawn_blocking(move || store.failure()).await.ok().flatten().map(Arc::new);
        engine.metrics.store_failed.set(failure.is_some().into());
        engine.store_health.set(failure.clone());
        if failure.as_ref().is_some_and(|failure| failure.is_final) {
            return failure;
        }
    }
}
