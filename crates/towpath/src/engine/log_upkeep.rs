//! Upkeep of a cluster's log, by the node that has the role: its feature level, snapshots, removal of messages.

use std::sync::Arc;
use std::time::Duration;

use towpath_store::lease::Lease;

use crate::engine::Engine;
use crate::stop::{Stop, stopped};

/// Interval of looking whether anything is due.
const INTERVAL: Duration = Duration::from_secs(5);

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
