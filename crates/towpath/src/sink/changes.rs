//! Own feeds with changes that a sink has not read yet.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_proto::FeedId;
use towpath_store::Appended;

use crate::engine::Engine;
use crate::engine::sinks::SinkEntry;

/// Feeds that were appended to, for one sink.
#[derive(Default)]
pub(super) struct ChangedFeeds {
    feeds: Mutex<HashSet<FeedId>>,
    changed: Notify,
    /// True while a task reads it. Without that, the set would only grow.
    is_read: AtomicBool,
}

impl ChangedFeeds {
    /// Collects appends for each sink that copies own feeds. Registered once, because the store keeps its hooks.
    pub(super) fn of_all(engine: &Engine) -> Vec<(Arc<SinkEntry>, Arc<Self>)> {
        let all: Vec<_> =
            engine.sinks.all().iter().map(|sink| (sink.clone(), Arc::new(Self::default()))).collect();
        let noted: Vec<_> = all.iter().filter(|(sink, _)| sink.config.url.is_none()).cloned().collect();
        if !noted.is_empty() {
            engine.store.on_append(Arc::new(move |id: &FeedId, _: &Appended| {
                for (sink, changes) in &noted {
                    if changes.is_read.load(Ordering::Acquire) && sink.config.has_feed(id.as_str()) {
                        changes.note([id.clone()]);
                    }
                }
            }));
        }
        all
    }

    /// Begins to collect.
    pub(super) fn start(&self) {
        self.is_read.store(true, Ordering::Release);
    }

    /// Ends collecting, and forgets what was collected: the next task begins with all feeds.
    pub(super) fn end(&self) {
        self.is_read.store(false, Ordering::Release);
        self.feeds.lock().clear();
    }

    /// Adds feeds.
    pub(super) fn note(&self, feeds: impl IntoIterator<Item = FeedId>) {
        self.feeds.lock().extend(feeds);
        self.changed.notify_one();
    }

    /// Takes what was collected.
    pub(super) fn take(&self) -> Vec<FeedId> {
        self.feeds.lock().drain().collect()
    }

    /// Returns once a feed was added since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
