//! Health of the upkeep of a cluster's log.

use parking_lot::Mutex;

/// Reason why the last pass failed here.
#[derive(Debug, Default)]
pub(super) struct LogUpkeepHealth(Mutex<Option<String>>);

impl LogUpkeepHealth {
    /// Returns the reason; `None` after a pass that succeeded, and on a node without the role.
    pub(super) fn failure(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Sets the reason, and logs one that is new.
    pub(super) fn set(&self, failure: Option<String>) {
        let mut current = self.0.lock();
        if let Some(reason) = failure.as_ref().filter(|_| *current != failure) {
            tracing::warn!(reason, "the upkeep of the cluster's log failed");
        }
        *current = failure;
    }
}
