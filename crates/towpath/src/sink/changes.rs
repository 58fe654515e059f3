//! Own feeds with changes that a sink has not read yet.

use std::sync::Arc;

use arc_swap::ArcSwap;
use towpath_proto::FeedId;
use towpath_store::Appended;

use crate::engine::Engine;
use crate::engine::changed_feeds::ChangedFeeds;
use crate::engine::sinks::SinkEntry;

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
                    if changes.is_on() && sink.config.has_feed(id.as_str()) {
                        changes.mark([id.clone()]);
                    }
                }
            }));
        }
    }
}
