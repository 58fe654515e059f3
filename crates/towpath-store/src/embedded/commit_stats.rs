//! Counts of the commit thread, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::StoreStats;

/// Groups that were committed since the start.
#[derive(Debug, Default)]
pub(crate) struct CommitStats {
    groups: AtomicU64,
    requests: AtomicU64,
    micros: AtomicU64,
    errors: AtomicU64,
}

impl CommitStats {
    /// Counts a group that was written and synced, or was not.
    pub(crate) fn add(&self, requests: usize, took: Duration, is_ok: bool) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        if !is_ok {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn get(&self, bytes: u64) -> StoreStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreStats {
            groups: read(&self.groups),
            requests: read(&self.requests),
            commit_time: Duration::from_micros(read(&self.micros)),
            errors: read(&self.errors),
            bytes,
        }
    }
}
