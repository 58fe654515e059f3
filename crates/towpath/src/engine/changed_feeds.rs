//! Feeds that changed, collected for a task beside the log.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_proto::FeedId;
use towpath_store::Appended;

use crate::engine::Engine;

/// Feeds with changes since they were last taken.
#[derive(Default)]
pub(crate) struct ChangedFeeds {
    feeds: Mutex<HashSet<FeedId>>,
    changed: Notify,
    /// True while a task takes them. Without that, the set would only grow.
    is_on: AtomicBool,
}

/// Collects changes until it is dropped, also with the future of a task that is broken off.
#[must_use]
pub(crate) struct CollectingGuard<'a>(&'a ChangedFeeds);

impl Drop for CollectingGuard<'_> {
    fn drop(&mut self) {
        self.0.set_on(false);
        self.0.take();
    }
}

impl ChangedFeeds {
    /// Collects the appends to all feeds, while it is on. It stays for the life of the store.
    pub(crate) fn of(engine: &Engine) -> Arc<Self> {
        let changes = Arc::new(Self::default());
        let marked = changes.clone();
        engine.store.on_append(Arc::new(move |id: &FeedId, _: &Appended| {
            if marked.is_on() {
                marked.mark([id.clone()]);
            }
        }));
        changes
    }

    /// Returns true while it collects.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Collects until the guard is dropped, and then forgets what was collected: the next task begins with all feeds.
    pub(crate) fn collect(&self) -> CollectingGuard<'_> {
        self.set_on(true);
        CollectingGuard(self)
    }

    /// Begins or ends to collect.
    pub(crate) fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }

    /// Marks feeds as changed.
    pub(crate) fn mark(&self, feeds: impl IntoIterator<Item = FeedId>) {
        self.feeds.lock().extend(feeds);
        self.changed.notify_one();
    }

    /// Takes the feeds that changed.
    pub(crate) fn take(&self) -> Vec<FeedId> {
        self.feeds.lock().drain().collect()
    }

    /// Waits for a change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_task_that_is_broken_off_collects_no_more() {
        let (changes, feed) = (ChangedFeeds::default(), FeedId::new("notes").unwrap());
        let task = async {
            let _collecting = changes.collect();
            changes.mark([feed]);
            std::future::pending::<()>().await;
        };
        assert_eq!(task.now_or_never(), None);
        assert!(!changes.is_on() && changes.take().is_empty());
    }
}
