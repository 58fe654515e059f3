//! Age of the replica that a node of a cluster reads from.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

/// Age below which a replica counts as current: learning that nothing changed takes that long.
const CURRENT: Duration = Duration::from_secs(4);
/// Age in seconds above which a load balancer should prefer other nodes.
const STALE_SECONDS: u64 = 60;
/// Stored age of a current replica.
const NONE: u64 = u64::MAX;
/// Stored age of a replica that was not compared with the cluster since the start.
const UNKNOWN: u64 = u64::MAX - 1;

/// Age of the replica in seconds, or one of the two special values.
#[derive(Debug)]
pub(crate) struct ReplicaAge(AtomicU64);

impl Default for ReplicaAge {
    fn default() -> Self {
        // A single process never sets it, and its answers must carry no age.
        Self(AtomicU64::new(NONE))
    }
}

impl ReplicaAge {
    /// Returns the age in seconds, `Some(None)` if it is unknown, or `None` if the replica is current.
    pub(crate) fn get(&self) -> Option<Option<u64>> {
        match self.0.load(Ordering::Relaxed) {
            NONE => None,
            UNKNOWN => Some(None),
            seconds => Some(Some(seconds)),
        }
    }

    /// Returns true if a load balancer should prefer other nodes.
    pub(crate) fn is_stale(&self) -> bool {
        self.get().is_some_and(|age| age.is_none_or(|seconds| seconds > STALE_SECONDS))
    }

    /// Sets the age from the time at which the replica was current last. Returns the age for the metrics.
    pub(crate) fn set(&self, current_at: Option<Timestamp>, now: Timestamp) -> i64 {
        // A clock that was set back gives a negative duration, which counts as current.
        let age = current_at.map(|at| Duration::try_from(now.duration_since(at)).unwrap_or_default());
        let age = match age {
            Some(age) if age < CURRENT => NONE,
            Some(age) => age.as_secs(),
            None => UNKNOWN,
        };
        // Nothing else is published with this number, so no ordering is needed.
        self.0.store(age, Ordering::Relaxed);
        if age == NONE { 0 } else { i64::try_from(age).unwrap_or(i64::MAX) }
    }
}
