//! What an export did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What an export did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Documents put, the tree's own files included.
    pub written: u64,
    /// Documents that were there as they are.
    pub unchanged: u64,
    /// Documents removed.
    pub removed: u64,
    /// Bytes put.
    pub bytes: u64,
    /// Feeds of which something was put or removed.
    pub feeds: u64,
    /// Feeds that could not be exported, and why.
    pub failed: Vec<String>,
    /// How long it took.
    pub took: Duration,
}

/// The same while it goes on.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) written: AtomicU64,
    pub(super) unchanged: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl Counted {
    /// Moves what was counted into a summary.
    pub(super) fn take(&self, summary: &mut Summary) {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        summary.written = take(&self.written);
        summary.unchanged = take(&self.unchanged);
        summary.removed = take(&self.removed);
        summary.bytes = take(&self.bytes);
    }
}
