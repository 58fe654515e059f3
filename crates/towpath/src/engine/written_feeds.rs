//! Records of feeds that some node of a cluster wrote, and that this one has not taken over yet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_proto::FeedId;

/// Records that were written, and not taken over yet.
#[derive(Default)]
pub(super) struct WrittenFeeds {
    /// Number of the write of each feed's record: one that comes meanwhile is a reason to read again.
    ids: Mutex<BTreeMap<FeedId, u64>>,
    count: AtomicU64,
    wake: Notify,
}

impl WrittenFeeds {
    /// Adds a record that was written.
    pub(super) fn add(&self, id: FeedId) {
        self.ids.lock().insert(id, self.count.fetch_add(1, Ordering::Relaxed));
        self.wake.notify_one();
    }

    /// Waits until a record was written.
    pub(super) async fn added(&self) {
        self.wake.notified().await;
    }

    /// Returns true for a feed whose record is not taken over yet.
    pub(super) fn contains(&self, id: &FeedId) -> bool {
        self.ids.lock().contains_key(id)
    }

    /// Returns the feeds with the numbers of their writes.
    pub(super) fn all(&self) -> BTreeMap<FeedId, u64> {
        self.ids.lock().clone()
    }

    /// Removes a record that was taken over, unless it was written again.
    pub(super) fn remove(&self, id: &FeedId, number: u64) {
        let mut ids = self.ids.lock();
        if ids.get(id) == Some(&number) {
            ids.remove(id);
        }
    }
}
