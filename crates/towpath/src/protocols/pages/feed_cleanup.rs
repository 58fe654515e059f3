//! Retention of one feed, as far as this node knows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use towpath_proto::replication::pages::Cleanup;

use crate::engine::Feed;

/// Pages that retention removed, kept with the feed.
#[derive(Default)]
pub(super) struct FeedCleanup {
    /// Removed pages; `None` before they were read.
    pub(super) cleanup: Mutex<Option<Cleanup>>,
    /// Version of `cleanup`. A document that was built before a change may have a link too many.
    pub(super) version: Arc<AtomicU64>,
}

impl FeedCleanup {
    pub(super) fn of(feed: &Feed) -> &Self {
        feed.extensions.get_or_insert_with(Self::default)
    }
}

/// Removed pages, with the version that was current before they were read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VersionedCleanup {
    pub(crate) cleanup: Cleanup,
    pub(super) version: u64,
}

impl VersionedCleanup {
    /// Returns false if retention may have removed more pages since.
    pub(crate) fn is_current(&self, feed: &Feed) -> bool {
        FeedCleanup::of(feed).version.load(Ordering::Acquire) == self.version
    }
}

/// Returns a counter that changes whenever retention removes pages of a feed.
pub(crate) fn cleanup_version(feed: &Feed) -> &Arc<AtomicU64> {
    &FeedCleanup::of(feed).version
}
