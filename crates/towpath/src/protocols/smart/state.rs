//! State of Smart Feeds: the waiting requests, the filtered views, and each feed's settings.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use towpath_proto::change::Seq;
use towpath_proto::smart::cursor::LogTag;
use towpath_proto::smart::pull::FeedSettings;
use towpath_proto::smart::query::PullLimits;

use crate::config::FeedConfig;
use crate::engine::access::Access;
use crate::engine::{Append, Engine, Feed};
use crate::protocols::addresses::{feed_links, hub_url};
use crate::protocols::smart::shared_poll::{PullWaitRegistry, SharedFormat};
use crate::protocols::smart::view::{View, Views};

/// Smart Feeds' part of the engine.
pub struct Smart {
    /// The long polls that wait for an append.
    pub wait_registry: Arc<PullWaitRegistry>,
    views: Mutex<Views>,
}

/// Numbers of requests that have all changes of a feed, and wait for the next one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WaitingReaders {
    /// Long polls.
    pub(crate) long_polls: usize,
    /// Event streams.
    pub(crate) streams: usize,
}

impl Smart {
    /// Returns the engine's part of Smart Feeds.
    ///
    /// The first call must come from within a runtime: shared polls run there.
    pub fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(|| {
            let (limit, gauge) = (engine.server.load().waiters, engine.metrics.waiters.clone());
            Self { wait_registry: Arc::new(PullWaitRegistry::new(limit, gauge)), views: Mutex::default() }
        })
    }

    /// Changes the maximum number of clients that wait.
    pub(crate) fn set_waiters(&self, limit: usize) {
        self.wait_registry.set_limit(limit);
    }

    /// Counts the requests that wait at the head of a feed.
    pub(crate) fn waiting(&self, feed: &Feed) -> WaitingReaders {
        let mut waiting = WaitingReaders::default();
        for (key, count) in self.wait_registry.of_feed(feed.id()) {
            match key.format {
                SharedFormat::Events | SharedFormat::LineEvents => waiting.streams += count,
                SharedFormat::Json | SharedFormat::Atom | SharedFormat::Lines => waiting.long_polls += count,
            }
        }
        waiting
    }

    pub(super) fn view(&self, engine: &Engine, feed: &Feed, access: Access) -> Option<Arc<View>> {
        let own = feed.config.filter.as_ref().map(|filter| &filter.filter);
        // A reader of a part of the filtered feed sees what both filters let through.
        let readers = match access {
            Access::Reader(index) => Some(feed.config.readers.get(index)?.filter.as_ref()?),
            Access::Whole => None,
        };
        let filters: Vec<_> = own.into_iter().chain(readers).collect();
        if filters.is_empty() {
            return None;
        }
        let mut views = self.views.lock();
        let key = (feed.id().clone(), access);
        let new = || {
            let filters = filters.into_iter().cloned().collect();
            Arc::new(View::new(feed.log().clone(), filters, engine.scorer.clone()))
        };
        Some(views.entry(key).or_insert_with(new).clone())
    }

    /// Brings every filter up to its log's head, so that the first reader does not wait for that.
    pub async fn warm_up(engine: &Arc<Engine>) {
        for feed in engine.feeds() {
            // Each reader's filter is a view of its own, beside the feed's own filter.
            let readers = (0..feed.config.readers.len()).map(Access::Reader);
            for access in readers.chain([Access::Whole]) {
                let Some(view) = Self::of(engine).view(engine, &feed, access) else { continue };
                if let Err(e) = view.catch_up(engine, Seq::MAX).await {
                    // The first reader catches up instead, and gets the error if it lasts.
                    tracing::error!(feed = %feed.id(), error = %e, "cannot read the log for a filter");
                }
            }
        }
    }
}

/// Runs the shared polls of a feed whose log grew.
pub(crate) fn on_append(engine: &Arc<Engine>, feed: &Arc<Feed>, _: Append) {
    Smart::of(engine).wait_registry.log_changed(feed.id());
}

/// Answers the requests that wait for a feed that was removed.
pub(crate) fn on_removed(engine: &Engine, feed: &Arc<Feed>) {
    Smart::of(engine).wait_registry.log_changed(feed.log());
}

/// Returns the settings by which a feed is published.
pub fn settings<'a>(engine: &Engine, feed: &'a Feed) -> &'a FeedSettings {
    feed.config_extensions.get_or_insert_with(|| {
        let config = &feed.config;
        FeedSettings {
            name: config.id().to_string(),
            base: format!("{}/feeds/{}/items", engine.base_url, config.id()),
            title: config.title().to_owned(),
            // With the identity, a cursor of another data folder is not misread as a position.
            tag: LogTag::new(&format!("{}/{}", engine.identity, config.id())),
            kind: config.cursor,
            limits: limits(config, engine.server.load().longest_wait),
            links: feed_links(engine, feed),
            hub: Some(hub_url(engine, config.id())),
        }
    })
}

fn limits(config: &FeedConfig, max_timeout: Duration) -> PullLimits {
    let default = PullLimits::default();
    let max_items = config.page_items.map_or(default.max_items, usize::from);
    PullLimits {
        default_items: default.default_items.min(max_items),
        max_items,
        page_bytes: config.page_bytes.map_or(default.page_bytes, usize::from),
        max_timeout,
    }
}
