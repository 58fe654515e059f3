//! One feed of a running towpath.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use towpath_proto::FeedId;
use towpath_proto::format::FeedLink;
use towpath_proto::smart::pull::FeedSettings;
use towpath_proto::sup::id::SupId;

use super::Engine;
use super::pages::FeedPages;
use super::sup::FeedMoves;
use crate::config::FeedConfig;
use crate::shown;

/// One feed: what the configuration says of it, and where its log ends. Small, for there may be a million.
pub struct Feed {
    /// What the configuration says.
    pub config: FeedConfig,
    /// The last place of its log, as it moves; of a filter, of the log that it filters.
    pub head: Arc<AtomicU64>,
    /// Held while the feed's documents are being made, so that chains grow one link at a time.
    pub publishing: tokio::sync::Mutex<()>,
    /// Its pages.
    pub(super) pages: FeedPages,
    /// How it is told of by SUP.
    pub(super) moves: FeedMoves,
    settings: OnceLock<Box<FeedSettings>>,
}

impl Feed {
    /// A feed of which the log is empty, as far as is known.
    pub fn new(config: FeedConfig, sup_id: SupId) -> Self {
        Self::on(config, sup_id, Arc::default())
    }

    /// A feed on a log whose last place is `head`.
    pub fn on(config: FeedConfig, sup_id: SupId, head: Arc<AtomicU64>) -> Self {
        let (publishing, pages) = (tokio::sync::Mutex::default(), FeedPages::default());
        let moves = FeedMoves::new(sup_id);
        Self { config, head, publishing, pages, moves, settings: OnceLock::new() }
    }

    /// Its name.
    pub fn id(&self) -> &FeedId {
        self.config.id()
    }

    /// Whether its items come from a source that is polled (and not over HTTP, or from a feed it mirrors).
    pub fn is_polled(&self) -> bool {
        self.config.polled().is_some()
    }

    /// Whether it shows items of another feed, and has no log of its own.
    pub fn is_filter(&self) -> bool {
        self.config.filter.is_some()
    }

    /// Why it has no log of its own, where that is so.
    pub fn without_log(&self) -> Option<String> {
        let log = || format!("feed {} shows items of feed {}: go to that one", self.id(), self.log());
        self.is_filter().then(log)
    }

    /// Why nothing can be published to it, where that is so: it has another one's items, and no others.
    pub fn not_published_to(&self) -> Option<String> {
        if self.is_filter() {
            return self.without_log();
        }
        let (source, id) = (self.config.source.as_ref()?, self.id());
        if let Some(origin) = &source.follow {
            return Some(format!("feed {id} mirrors {}: publish there", shown::address(origin)));
        }
        let why = "its source lists all of its items, so the next poll would remove what is published here";
        source.complete.then(|| format!("feed {id} is not published to: {why}"))
    }

    /// Whether the documents over all feeds show it: everybody may read it, and it is not there twice.
    pub fn is_listed(&self) -> bool {
        self.config.is_public() && !self.is_filter()
    }

    /// The name of the log that its items come from.
    pub fn log(&self) -> &FeedId {
        self.config.filter.as_ref().map_or(self.id(), |filter| &filter.of)
    }

    /// The links that every document of the feed has, in whatever format that has links: they follow from its
    /// address. A hub belongs here.
    pub fn links(&self, engine: &Engine) -> Vec<FeedLink> {
        vec![engine.announcer.link(self.id()).feed_link()]
    }

    /// What it is as a Smart Feed.
    pub fn settings(&self, engine: &Engine) -> &FeedSettings {
        self.settings.get_or_init(|| Box::new(engine.smart.settings(engine, self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be a million of them. A name shares its text with what else knows the feed.
    #[test]
    fn an_idle_feed_takes_little_room() {
        let (of_arcs, of_atomics) = (4 * size_of::<usize>(), 2 * size_of::<AtomicU64>());
        let entry = size_of::<(FeedId, Arc<Feed>)>();
        let all = size_of::<Feed>() + of_arcs + of_atomics + entry;
        assert!(all < 640, "{all} bytes, {} of them the configuration", size_of::<FeedConfig>());
    }
}
