//! Own feeds with changes that a sink has not read yet.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
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
    pub(super) fn add(&self, feeds: impl IntoIterator<Item = FeedId>) {
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

/// Sinks of own feeds, with their collections.
type Collections = Vec<(Arc<SinkEntry>, Arc<ChangedFeeds>)>;

/// Collects appends for the sinks that copy own feeds.
#[derive(Default)]
pub(super) struct AppendCollector {
    sinks: Arc<ArcSwap<Collections>>,
    is_registered: bool,
}

impl AppendCollector {
    /// Replaces the sinks.
    pub(super) fn set(
        &mut self,
        engine: &Engine,
        sinks: impl Iterator<Item = (Arc<SinkEntry>, Arc<ChangedFeeds>)>,
    ) {
        let own: Collections = sinks.filter(|(sink, _)| sink.config.url.is_none()).collect();
        let is_needed = !own.is_empty();
        self.sinks.store(Arc::new(own));
        // Once, because the store keeps its hooks, and not before: without sinks, appends cost nothing here.
        if is_needed && !std::mem::replace(&mut self.is_registered, true) {
            let sinks = self.sinks.clone();
            engine.store.on_append(Arc::new(move |id: &FeedId, _: &Appended| {
                for (sink, changes) in sinks.load().iter() {
                    if changes.is_read.load(Ordering::Acquire) && sink.config.has_feed(id.as_str()) {
                        changes.add([id.clone()]);
                    }
                }
            }));
        }
    }
}
