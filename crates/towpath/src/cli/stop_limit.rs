//! Bound on the time that a server takes to stop.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use towpath_store::Store;

use crate::stop::{Stop, stopped};

/// Longest time from the signal to the end of a cluster's node. Service managers kill after 30 s and more.
const NODE_LIMIT: Duration = Duration::from_secs(20);
/// Longest time for a single server, which finishes a large document first. The packaged unit allows 60 s.
const LIMIT: Duration = Duration::from_secs(50);
/// Time for which the last writes wait for a cluster: within the time that running answers have.
const WRITES: Duration = Duration::from_secs(8);

/// Watch over a server that stops.
pub(crate) struct StopLimit {
    waits_for: Mutex<&'static str>,
}

impl StopLimit {
    /// Bounds the writes of a store once `stop` is set, and the time until the process has ended.
    pub(crate) fn watch(store: Arc<dyn Store>, is_shared: bool, stop: Stop) -> Arc<Self> {
        let limit = Arc::new(Self { waits_for: Mutex::new("the start") });
        let watched = limit.clone();
        tokio::spawn(async move {
            stopped(&stop).await;
            store.bound_writes(WRITES);
            drop(store);
            // A thread, for it must come to its turn even if all of the runtime's threads are blocked.
            std::thread::spawn(move || watched.end_after(if is_shared { NODE_LIMIT } else { LIMIT }));
        });
        limit
    }

    /// Tells what the server waits for from now on.
    pub(crate) fn waits_for(&self, what: &'static str) {
        *self.waits_for.lock() = what;
    }

    /// Ends the process after the limit. What was acknowledged is on disk: it is as safe as a crash.
    fn end_after(&self, limit: Duration) {
        std::thread::sleep(limit);
        let waits_for = *self.waits_for.lock();
        tracing::error!(
            waits_for,
            seconds = limit.as_secs(),
            "did not stop in time, and ends without the rest"
        );
        std::process::exit(1);
    }
}
