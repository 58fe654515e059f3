//! Upkeep of a cluster's log, by the node that has the role: its feature level, snapshots, removal of messages.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use towpath_store::lease::Lease;

use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// Interval of looking whether anything is due.
const INTERVAL: Duration = Duration::from_secs(5);

/// Reason why the last pass failed here.
#[derive(Debug, Default)]
pub(super) struct LogUpkeepHealth(Mutex<Option<String>>);

impl LogUpkeepHealth {
    /// Returns the reason; `None` after a pass that succeeded, and on a node without the role.
    pub(super) fn failure(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Sets the reason, and logs one that is new.
    fn set(&self, failure: Option<String>) {
        let mut current = self.0.lock();
        if let Some(reason) = failure.as_ref().filter(|_| *current != failure) {
            tracing::warn!("{reason}");
        }
        *current = failure;
    }
}

/// Keeps the log until the role is lost or the server stops.
pub(crate) async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    loop {
        tokio::select! {
            // A snapshot that is not finished leaves no list behind, and the next one uses its pieces.
            done = engine.store.keep_log(&lease) => engine.log_upkeep.set(done.err().map(|e| e.to_string())),
            () = stopped(&stop) => break,
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = stopped(&stop) => break,
        }
    }
    engine.log_upkeep.set(None);
}
