//! A feed of a running towpath.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use jiff::Timestamp;
use towpath_client::redact;
use towpath_proto::FeedId;

use crate::config::{EVENTS_FEED, FeedConfig};
use crate::engine::Extensions;

/// A feed: its configuration, and the end of its log. Small, because a server may have a million feeds.
pub struct Feed {
    /// Configuration of the feed.
    pub config: Arc<FeedConfig>,
    /// Last position of its log, kept current; for a filter, of the log that it filters.
    pub head: Arc<AtomicU64>,
    /// Time of the last append in milliseconds since 1970, or [`NEVER`].
    last_append: AtomicI64,
    /// Time of the log's last change, as [`Self::last_append`]. It is later where the clock was ahead once.
    last_change: AtomicI64,
    /// Number of items that are not deleted, kept current; zero for a filter.
    live: AtomicU64,
    /// Position up to which old versions were let go, kept current; zero for a filter.
    horizon: AtomicU64,
    /// State that protocols keep for this feed. A feed that nobody reads has none.
    // Shared by the feed before and after a change of its settings: locks are among them.
    pub extensions: Arc<Extensions>,
    /// State that depends on the configuration.
    pub config_extensions: Extensions,
}

// Outside the range of a timestamp, so its conversion fails and gives `None`.
const NEVER: i64 = i64::MIN;

impl Feed {
    /// Makes a feed with an empty log.
    pub fn new(config: impl Into<Arc<FeedConfig>>) -> Self {
        Self::on(config.into(), Arc::default())
    }

    /// Makes a feed on a log whose last position is `head`.
    pub fn on(config: Arc<FeedConfig>, head: Arc<AtomicU64>) -> Self {
        Self {
            config,
            head,
            last_append: AtomicI64::new(NEVER),
            last_change: AtomicI64::new(NEVER),
            live: AtomicU64::new(0),
            horizon: AtomicU64::new(0),
            extensions: Arc::default(),
            config_extensions: Extensions::default(),
        }
    }

    /// Returns the same feed with other settings.
    pub(super) fn with_config(&self, config: Arc<FeedConfig>) -> Arc<Self> {
        Arc::new(Self {
            config,
            head: self.head.clone(),
            // Copies will do for statistics: the next append sets them. The head is shared, because readers must never
            // see it go back.
            last_append: AtomicI64::new(self.last_append.load(Ordering::Acquire)),
            last_change: AtomicI64::new(self.last_change.load(Ordering::Acquire)),
            live: AtomicU64::new(self.live()),
            horizon: AtomicU64::new(self.horizon()),
            extensions: self.extensions.clone(),
            config_extensions: Extensions::default(),
        })
    }

    /// Time of the last append by this machine's clock, if it is known.
    pub fn last_append(&self) -> Option<Timestamp> {
        Timestamp::from_millisecond(self.last_append.load(Ordering::Acquire)).ok()
    }

    /// Time of the log's last change, if it is known: for a mirror by its publisher's clock.
    pub(crate) fn last_change(&self) -> Option<Timestamp> {
        Timestamp::from_millisecond(self.last_change.load(Ordering::Acquire)).ok()
    }

    /// Records the times of an append and of its last change.
    pub(crate) fn set_last_append(&self, at: Timestamp, change: Timestamp) {
        self.last_append.store(at.as_millisecond(), Ordering::Release);
        self.last_change.store(change.as_millisecond(), Ordering::Release);
    }

    /// Number of items that are not deleted.
    pub(crate) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Records the number of items that are not deleted.
    pub(crate) fn set_live(&self, items: u64) {
        self.live.store(items, Ordering::Relaxed);
    }

    /// Position up to which old versions were let go.
    pub(crate) fn horizon(&self) -> u64 {
        self.horizon.load(Ordering::Relaxed)
    }

    /// Records the position up to which old versions were let go.
    pub(crate) fn set_horizon(&self, horizon: u64) {
        self.horizon.store(horizon, Ordering::Relaxed);
    }

    /// Id of the feed.
    pub fn id(&self) -> &FeedId {
        self.config.id()
    }

    /// Returns true if the items come from a polled source, not over HTTP nor from a mirrored feed.
    pub fn is_polled(&self) -> bool {
        self.config.polled().is_some()
    }

    /// Returns true if the feed shows items of another feed, and has no log of its own.
    pub fn is_filter(&self) -> bool {
        self.config.filter.is_some()
    }

    /// Returns the reason for having no log, for a filter.
    pub fn without_log(&self) -> Option<String> {
        let log = || format!("feed {} shows items of feed {}: go to that one", self.id(), self.log());
        self.is_filter().then(log)
    }

    /// Returns the reason why nothing can be published to the feed, if so: a filter, a mirror, or a complete source.
    pub fn not_published_to(&self) -> Option<String> {
        if self.is_filter() {
            return self.without_log();
        }
        if self.id().as_str() == EVENTS_FEED {
            return Some(format!("feed {EVENTS_FEED} is written by the server itself"));
        }
        let (source, id) = (self.config.source.as_ref()?, self.id());
        if let Some(origin) = &source.follow {
            return Some(format!("feed {id} mirrors {}: publish there", redact::url(origin)));
        }
        let why = "its source lists all of its items, so the next poll would remove what is published here";
        source.complete.then(|| format!("feed {id} is not published to: {why}"))
    }

    /// Returns true if documents over all feeds include it: it is public, and no filter (which would list items twice).
    pub fn is_listed(&self) -> bool {
        self.config.is_public() && !self.is_filter()
    }

    /// Name of the log that the items come from.
    pub fn log(&self) -> &FeedId {
        self.config.filter.as_ref().map_or(self.id(), |filter| &filter.of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may have a million feeds. A feed's name shares its text with every other copy of it.
    #[test]
    fn an_idle_feed_takes_little_room() {
        let (of_arcs, of_atomics) = (6 * size_of::<usize>(), 2 * size_of::<AtomicU64>());
        let entry = size_of::<(FeedId, Arc<Feed>)>();
        let config = size_of::<FeedConfig>();
        let all = size_of::<Feed>() + config + of_arcs + of_atomics + entry;
        assert!(all < 560, "{all} bytes, {config} of them the configuration");
    }

    #[test]
    fn feeds_share_their_settings_with_the_configuration() {
        let config = Arc::new(FeedConfig::unnamed(FeedId::new("orders").unwrap()));
        assert!(Arc::ptr_eq(&Feed::new(config.clone()).config, &config));
    }
}
