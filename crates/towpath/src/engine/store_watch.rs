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
    let mut was_full = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stopped(stop) => return None,
        }
        let store = engine.store.clone();
        // It may wait for a sync that is under way.
        let seen = tokio::task::spawn_blocking(move || (store.failure(), store.damage())).await;
        let (failure, damage) = seen.unwrap_or_default();
        let failure = failure.map(Arc::new);
        report_full_disk(was_full, failure.as_deref());
        was_full = failure.as_ref().is_some_and(|failure| failure.is_full);
        engine.metrics.store_failed.set(failure.is_some().into());
        engine.metrics.disk_full.set(was_full.into());
        let reads = damage.as_ref().map_or(0, |damage| damage.reads);
        engine.metrics.damaged_reads.set(i64::try_from(reads).unwrap_or(i64::MAX));
        engine.store_health.set(failure.clone(), damage);
        if failure.as_ref().is_some_and(|failure| failure.is_final) {
            return failure;
        }
    }
}

/// Logs the beginning and the end of a full disk: a refused append is told to its client only.
fn report_full_disk(was_full: bool, failure: Option<&StoreFailure>) {
    match failure.filter(|failure| failure.is_full) {
        Some(full) if !was_full => tracing::error!(reason = full.reason, "nothing can be written"),
        None if was_full => tracing::info!("the disk has space again"),
        _ => {}
    }
}
