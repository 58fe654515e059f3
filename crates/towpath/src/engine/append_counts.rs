//! Numbers of a feed's changes since the start, for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};

use towpath_store::OpCounts;

use super::Feed;

/// Changes of a feed by operation, since this process started.
#[derive(Debug, Default)]
pub(crate) struct AppendCounts {
    puts: AtomicU64,
    patches: AtomicU64,
    deletes: AtomicU64,
}

impl AppendCounts {
    /// Returns the counts of a feed.
    pub(crate) fn of(feed: &Feed) -> &Self {
        feed.extensions.get_or_insert_with(Self::default)
    }

    /// Adds those of a batch.
    pub(crate) fn add(&self, ops: OpCounts) {
        self.puts.fetch_add(ops.puts, Ordering::Relaxed);
        self.patches.fetch_add(ops.patches, Ordering::Relaxed);
        self.deletes.fetch_add(ops.deletes, Ordering::Relaxed);
    }

    /// Returns the present counts.
    pub(crate) fn get(&self) -> OpCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        OpCounts { puts: get(&self.puts), patches: get(&self.patches), deletes: get(&self.deletes) }
    }
}
