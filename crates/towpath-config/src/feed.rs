//! `[[feed]]`: a feed, with its snapshots and the retention of its pages.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use toml::Spanned;
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::smart::cursor::CursorKind;
use towpath_proto::{Author, FeedId};

use super::access::{FilterConfig, ReaderConfig};
use super::check::SECOND;
use super::durations::{duration, five_minutes, one_day, some_duration};
use super::problems::Problems;
use super::schema::ByteSize;
use super::sizes::some_bytes;
use super::source::SourceConfig;

/// Place that a feed comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FeedOrigin {
    /// The configuration file.
    #[default]
    File,
    /// A request that made it, with its settings.
    Http,
    /// Publishing to a name that no feed had.
    Publishing,
}

/// A feed: one ordered log of items.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FeedConfig {
    /// Id of the feed, in its addresses: 2 to 32 characters of `a-z`, `0-9`, `_` and `-`.
    #[schemars(with = "FeedId", example = &"orders")]
    pub id: Spanned<FeedId>,
    /// Title for people.
    #[schemars(example = "Known exploited vulnerabilities", extend("x-default" = "the id"))]
    pub title: Option<String>,
    /// Poll interval that is recommended to readers.
    #[schemars(example = &"5m", extend("x-default" = "5 minutes, or the source's `every` if that is shorter"))]
    #[serde(default = "default_ttl", deserialize_with = "duration")]
    pub ttl: Duration,
    /// Language of the items, as a tag (BCP 47).
    #[schemars(example = &"en", extend("x-default" = "`und`"))]
    pub lang: Option<String>,
    /// URL of the web page that the feed is about.
    #[schemars(example = "https://example.com/", extend("x-default" = "the source's, else the feed's page here"))]
    pub home: Option<Box<str>>,
    /// Description of the feed, for people.
    #[schemars(example = "Vulnerabilities that are known to be exploited", extend("x-default" = "the source's"))]
    pub description: Option<Box<str>>,
    /// URL of an image that stands for the feed.
    #[schemars(example = "https://example.com/logo.png", extend("x-default" = "the source's"))]
    pub image: Option<Box<str>>,
    /// Author of the feed, a name or `{ name, email, url }`.
    #[schemars(example = "Ann Author", extend("x-default" = "the source's"))]
    pub author: Option<Box<Author>>,
    /// Tags in DiffDelta's list of sources, by which its clients filter.
    #[schemars(example = ["security"])]
    #[serde(default)]
    pub tags: Box<[String]>,
    /// Schedule and retention of Data Replication's snapshots.
    #[serde(default)]
    pub snapshots: SnapshotConfig,
    /// Retention of pages; without it all of them are served.
    pub retention: Option<RetentionConfig>,
    /// Retention of the feed's log; without it every version is kept.
    #[serde(default)]
    pub log: LogConfig,
    /// Source of its items; without it they are published over HTTP or the command line.
    pub source: Option<Box<SourceConfig>>,
    /// Mapping of the bodies of other programs to items.
    pub publish: Option<Box<PublishConfig>>,
    /// Declares that its documents list all items, so that absence means removal (Feed History's flag 0). For feeds
    /// without a past, such as a "top ten".
    #[serde(default)]
    pub complete: bool,
    /// Maximum number of items in a page, in every paged protocol.
    #[schemars(example = 500, extend("x-default" = "the protocol's"))]
    pub page_items: Option<NonZeroUsize>,
    /// Approximate maximum size of a page in bytes, in every paged protocol.
    #[serde(default, deserialize_with = "some_bytes")]
    #[schemars(with = "Option<ByteSize>", example = "256 KiB", extend("x-default" = "the protocol's"))]
    pub page_bytes: Option<NonZeroUsize>,
    /// Number of changes that the newest Atom, RSS and JSON Feed documents show, at least 8. Older ones are in the archive
    /// documents that they link to. Two pages is the most that they show.
    #[schemars(example = 100)]
    #[serde(default = "recent_items")]
    pub recent_items: u64,
    /// URLs of WebSub hubs of others. The feed's Atom, RSS and JSON Feed documents name them after the feed's own hub, and
    /// each is told of changes. An empty list has only the own one.
    #[schemars(example = ["https://hub.example/"], extend("x-default" = "those of `[server]`; none for a feed that is not public"))]
    pub hubs: Option<Box<[String]>>,
    /// Cursors of Smart Feeds: `sequence` or `toc`. Requests may use both.
    #[serde(default)]
    pub cursor: CursorKind,
    /// Tokens of its readers. With any, the feed is private: reading needs one of these, or a `[[token]]` that may
    /// read the feed. A filter without readers has those of the feed that it filters.
    #[schemars(example = ["${READER_TOKEN}"], extend("x-default" = "none"))]
    #[serde(default)]
    pub readers: Vec<ReaderConfig>,
    /// Permission to read the feed without a token.
    #[schemars(extend("x-default" = "private with `readers`, else public; a filter is as the feed that it filters"))]
    pub visibility: Option<FeedVisibility>,
    /// Filter on another feed, whose items this feed shows. Such a feed has no log of its own.
    pub filter: Option<Box<FilterConfig>>,
    /// Place that it comes from.
    #[serde(skip)]
    pub origin: FeedOrigin,
}

/// Stands for an absent `ttl` until the source is known.
fn default_ttl() -> Duration {
    Duration::MAX
}

/// As many as feed readers are used to.
fn recent_items() -> u64 {
    50
}

/// Permission to read a feed without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedVisibility {
    /// Everybody may read the feed.
    Public,
    /// Reading the feed needs a token.
    Private,
}

/// Bodies of other programs, such as a content management system's webhooks.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishConfig {
    /// Pointers (RFC 6901) to the parts of a JSON body; `items` to an item or to an array of them.
    pub json: Mapping,
    /// Pointer below an item to a value that says that it is deleted: `true`, a number but 0, or a text.
    #[schemars(example = &"/deleted_at", extend("x-default" = "none: nothing is deleted"))]
    pub deleted: Option<String>,
}

impl PublishConfig {
    /// Checks the pointers.
    pub(super) fn check(&self) -> Result<(), String> {
        self.json.check().map_err(|e| format!("publish.json: {e}"))?;
        match &self.deleted {
            Some(pointer) if !pointer.starts_with('/') => {
                Err(format!("publish.deleted is {pointer:?}, which is not a pointer: it must begin with /"))
            }
            _ => Ok(()),
        }
    }
}

/// Schedule and retention of Data Replication's snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotConfig {
    /// Interval between snapshots.
    #[schemars(example = &"1d", extend("x-default" = "a quarter of `log.keep`, an hour with `log.keep_changes`; else none: they are created on demand only"))]
    #[serde(deserialize_with = "some_duration")]
    pub every: Option<Duration>,
    /// Number of snapshots that are retained; the oldest is deleted first.
    pub keep: usize,
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        Self { every: None, keep: 3 }
    }
}

/// Retention of a feed's log: older versions and deletions are let go, and live items stay. With both keys, what either
/// keeps stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Time for which every change is kept. Later, a version that was replaced and a deletion may go.
    #[schemars(example = &"90d", extend("x-default" = "for ever"))]
    #[serde(deserialize_with = "some_duration")]
    pub keep: Option<Duration>,
    /// Number of last changes that are kept, whatever their age.
    #[schemars(example = 100_000, extend("x-default" = "all, or none with `keep`"))]
    pub keep_changes: Option<NonZeroU64>,
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Reason why a node of a cluster does not let go.
pub const NOT_IN_A_CLUSTER: &str = "log: the nodes of a cluster keep every version, because each lets go by itself; remove keep and keep_changes";

impl LogConfig {
    /// Returns true if old versions are let go.
    pub fn is_bounded(&self) -> bool {
        self.keep.is_some() || self.keep_changes.is_some()
    }
}

/// Retention of Data Replication's pages. What the log keeps is `[feed.log]`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetentionConfig {
    /// Maximum age of a page's last change; older pages are dropped.
    #[schemars(example = &"90d", extend("x-default" = "unlimited"))]
    #[serde(default, deserialize_with = "some_duration")]
    pub age: Option<Duration>,
    /// Maximum size of all pages in bytes; the oldest are dropped first.
    #[serde(default, deserialize_with = "some_bytes")]
    #[schemars(with = "Option<ByteSize>", example = "10 GiB", extend("x-default" = "unlimited"))]
    pub bytes: Option<u64>,
    /// Time that a dropped page can still be read, by followers that are on it.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub grace: Duration,
}

/// Reads the list of the feeds, which are shared.
pub(super) fn shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Arc<FeedConfig>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(from = "FeedConfig")]
    struct Shared(Arc<FeedConfig>);

    impl From<FeedConfig> for Shared {
        fn from(feed: FeedConfig) -> Self {
            Self(Arc::new(feed))
        }
    }

    let feeds = Vec::<Shared>::deserialize(deserializer)?;
    Ok(feeds.into_iter().map(|Shared(feed)| feed).collect())
}

/// Checks that the ids of the feeds are distinct; a problem names the second occurrence.
pub(super) fn check_distinct(feeds: &[Arc<FeedConfig>], problems: &mut Problems) {
    let mut ids = std::collections::HashSet::with_capacity(feeds.len());
    for (index, feed) in feeds.iter().enumerate() {
        if !ids.insert(feed.id()) {
            problems.enter("feed", Some(index), String::new());
            let (id, number) = (feed.id().as_str(), index + 1);
            problems.add(
                "id",
                format!("the feed id {id:?} is used twice: the second is [[feed]] number {number}"),
            );
        }
    }
}

impl FeedConfig {
    /// Configuration of a feed that publishing creates: no source, all defaults.
    pub fn unnamed(id: FeedId) -> Self {
        let id = Spanned::new(0..0, id);
        Self {
            id,
            title: None,
            ttl: five_minutes(),
            lang: None,
            home: None,
            description: None,
            image: None,
            author: None,
            tags: Box::default(),
            snapshots: SnapshotConfig::default(),
            retention: None,
            log: LogConfig::default(),
            source: None,
            publish: None,
            complete: false,
            page_items: None,
            page_bytes: None,
            recent_items: recent_items(),
            hubs: None,
            cursor: CursorKind::default(),
            readers: Vec::new(),
            visibility: None,
            filter: None,
            origin: FeedOrigin::Publishing,
        }
    }

    /// Configuration of a log that no configuration names any more, and that was private when one did.
    pub fn unnamed_private(id: FeedId) -> Self {
        Self { visibility: Some(FeedVisibility::Private), ..Self::unnamed(id) }
    }

    /// Replaces the default of `ttl`: readers must not poll less often than the source is polled.
    pub(super) fn resolve_ttl(&mut self) {
        if self.ttl == default_ttl() {
            let every = self.source.as_ref().map_or(Duration::MAX, |source| source.every());
            self.ttl = five_minutes().min(every);
        }
    }

    /// Replaces the defaults of `retention` and `snapshots` where the log lets go.
    pub(super) fn resolve_retention(&mut self) {
        if !self.log.is_bounded() {
            return;
        }
        // Pages are made from the log, so they go before.
        self.retention.get_or_insert(RetentionConfig { age: None, bytes: None, grace: one_day() });
        // Who begins to follow after the first pages are gone begins with a snapshot.
        let every = self.log.keep.map_or(HOUR, |keep| (keep / 4).clamp(SECOND, DAY));
        self.snapshots.every.get_or_insert(every);
    }

    /// Id of the feed.
    pub fn id(&self) -> &FeedId {
        self.id.get_ref()
    }

    /// Title, or the id without one.
    pub fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(self.id().as_str())
    }

    /// Source and URL, if the feed is polled.
    pub fn polled(&self) -> Option<(&SourceConfig, &str)> {
        let source = self.source.as_deref()?;
        Some((source, source.url.as_deref()?))
    }

    /// Source and URL, if the feed mirrors another.
    pub fn mirrored(&self) -> Option<(&SourceConfig, &str)> {
        let source = self.source.as_deref()?;
        Some((source, source.follow.as_deref()?))
    }

    /// Returns true if everybody may read the feed.
    pub fn is_public(&self) -> bool {
        self.visibility.map_or(self.readers.is_empty(), |visibility| visibility == FeedVisibility::Public)
    }
}
