//! Result of an export.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Result of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Documents put, including the tree's own files.
    pub written: u64,
    /// Documents that were up to date.
    pub unchanged: u64,
    /// Documents removed.
    pub removed: u64,
    /// Bytes put.
    pub bytes: u64,
    /// Feeds with a document that was put or removed.
    pub feeds: u64,
    /// Feeds that could not be exported, with the cause.
    pub failed: Vec<String>,
    /// Duration.
    pub took: Duration,
}

/// Counts of a running export.
#[derive(Default)]
pub(super) struct ExportCounters {
    pub(super) written: AtomicU64,
    pub(super) unchanged: AtomicU64,
    pub(super) removed: AtomicU64,
    pub(super) bytes: AtomicU64,
}

impl ExportCounters {
    /// Moves the counts into a summary.
    pub(super) fn take(&self, summary: &mut ExportSummary) {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        summary.written = take(&self.written);
        summary.unchanged = take(&self.unchanged);
        summary.removed = take(&self.removed);
        summary.bytes = take(&self.bytes);
    }
}
