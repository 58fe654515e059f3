//! `[[feed]]`: a feed, with its snapshots and the retention of its pages.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use towpath_proto::smart::cursor::CursorKind;
use towpath_proto::{Author, FeedId};

use super::access::{FilterConfig, ReaderConfig};
use super::durations::{duration, five_minutes, one_day, some_duration};
use super::source::SourceConfig;

/// A `[[feed]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedConfig {
    /// Id of the feed.
    pub id: Spanned<FeedId>,
    /// Title; default: the id.
    pub title: Option<String>,
    /// Poll interval that is recommended to readers; default: 5 minutes, or the source's `every` if that is shorter.
    #[serde(default = "default_ttl", deserialize_with = "duration")]
    pub ttl: Duration,
    /// Language tag (BCP 47); default: `und`.
    pub lang: Option<String>,
    /// URL of the web page that the feed is about; default: the source's, else the feed's page here.
    pub home: Option<Box<str>>,
    /// Description; default: the source's.
    pub description: Option<Box<str>>,
    /// URL of an image; default: the source's.
    pub image: Option<Box<str>>,
    /// Author of the feed, a name or `{ name, email, url }`; default: the source's.
    pub author: Option<Box<Author>>,
    /// Tags in DiffDelta's list of sources, by which its clients filter.
    #[serde(default)]
    pub tags: Box<[String]>,
    /// Schedule and retention of Data Replication's snapshots.
    #[serde(default)]
    pub snapshots: SnapshotConfig,
    /// Retention of pages; without it all of them are served.
    pub retention: Option<RetentionConfig>,
    /// Source of its items; without it they are published over HTTP or the command line.
    pub source: Option<Box<SourceConfig>>,
    /// Declares that its documents list all items, so that absence means removal (Feed History's flag 0). For feeds
    /// without a past, such as a "top ten".
    #[serde(default)]
    pub complete: bool,
    /// Maximum number of items in a page, in every paged protocol.
    pub page_items: Option<NonZeroUsize>,
    /// Approximate maximum size of a page in bytes, in every paged protocol.
    pub page_bytes: Option<NonZeroUsize>,
    /// Cursors of Smart Feeds: `sequence` or `toc`. Requests may use both.
    #[serde(default)]
    pub cursor: CursorKind,
    /// Tokens of its readers. With any, the feed is private: reading needs one of these, or a `[[token]]` that may
    /// read the feed. A filter without readers has those of the feed that it filters.
    #[serde(default)]
    pub readers: Vec<ReaderConfig>,
    /// `public` or `private`. Default: private with `readers`; a filter is as the feed that it filters.
    pub visibility: Option<FeedVisibility>,
    /// Filter on another feed, whose items this feed shows. Such a feed has no log of its own.
    pub filter: Option<Box<FilterConfig>>,
}

/// Stands for an absent `ttl` until the source is known.
fn default_ttl() -> Duration {
    Duration::MAX
}

/// `visibility` of a `[[feed]]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedVisibility {
    /// Everybody may read the feed.
    Public,
    /// Reading the feed needs a token.
    Private,
}

/// `[feed.snapshots]`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotConfig {
    /// Interval between snapshots; without it they are created on demand only.
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

/// `[feed.retention]`: retention of Data Replication's pages. The log itself keeps everything.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionConfig {
    /// Maximum age of a page's last change; older pages are dropped.
    #[serde(default, deserialize_with = "some_duration")]
    pub age: Option<Duration>,
    /// Maximum size of all pages in bytes; the oldest are dropped first.
    pub bytes: Option<u64>,
    /// Time that a dropped page can still be read, by followers that are on it.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub grace: Duration,
}

impl FeedConfig {
    /// Configuration of a feed that the file does not name: no source, all defaults.
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
            source: None,
            complete: false,
            page_items: None,
            page_bytes: None,
            cursor: CursorKind::default(),
            readers: Vec::new(),
            visibility: None,
            filter: None,
        }
    }

    /// Replaces the default of `ttl`: readers must not poll less often than the source is polled.
    pub(super) fn resolve_ttl(&mut self) {
        if self.ttl == default_ttl() {
            let every = self.source.as_ref().map_or(Duration::MAX, |source| source.every());
            self.ttl = five_minutes().min(every);
        }
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
