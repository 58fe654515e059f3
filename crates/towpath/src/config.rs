//! The configuration: what the TOML file says, checked, with every default filled in.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::Error as _;
use toml::Spanned;
use towpath_proto::FeedId;
use towpath_proto::smart::cursor::CursorKind;

mod access;
mod check;
mod durations;
mod export;
mod hub;
mod reach;
mod source;
mod xmpp;

pub use access::{FilterConfig, ReaderConfig};
pub use check::check_base_url;
pub(crate) use durations::parse_duration;
use durations::{duration, five_minutes, one_day, some_duration};
pub use export::ExportConfig;
pub(crate) use export::ten_seconds;
pub use hub::HubConfig;
pub use source::{GuardConfig, SourceConfig, SourceFormat};
pub use xmpp::XmppConfig;

/// The whole configuration of one towpath.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[server]`.
    #[serde(default)]
    pub server: ServerConfig,
    /// `[[feed]]`, in the file's order.
    #[serde(default, rename = "feed", deserialize_with = "distinct_feeds")]
    pub feeds: Vec<FeedConfig>,
    /// `[risk]`.
    #[serde(default)]
    pub risk: RiskConfig,
    /// `[hub]`.
    #[serde(default)]
    pub hub: HubConfig,
    /// `[xmpp]`; no component where absent.
    pub xmpp: Option<XmppConfig>,
    /// `[export]`; no tree is kept where absent.
    pub export: Option<ExportConfig>,
    /// What relative paths are relative to: the file's folder.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// `[server]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: SocketAddr,
    /// The address that readers use, without a slash at its end; `http://` and `listen` where absent, with loopback in
    /// place of all addresses.
    pub base_url: Option<String>,
    /// The data folder.
    pub data: PathBuf,
    /// The cluster whose log this node follows, with its replica in the data folder: `nats://host:port,host:port`. The
    /// data folder is the log itself where absent.
    pub cluster: Option<String>,
    /// Who may publish: bearer tokens. With none, programs of this machine may; behind a proxy there must be some.
    pub tokens: Vec<String>,
    /// Whether publishing to a feed that the file does not name creates it. True where there is no file.
    pub create_feeds: bool,
    /// How many threads serve requests; as many as there are cores where absent.
    pub threads: Option<usize>,
    /// How much memory prebuilt documents may take, in MiB.
    pub cache_mib: u64,
    /// How many sources are fetched at the same time.
    pub fetches: usize,
    /// How many clients may wait at the same time for feeds to move: long polls and event streams.
    pub waiters: usize,
    /// The longest that one request may wait, whatever it asks for.
    #[serde(deserialize_with = "duration")]
    pub longest_wait: Duration,
    /// How often an event stream without events gets a comment, so that nobody between takes it for dead.
    #[serde(deserialize_with = "duration")]
    pub heartbeat: Duration,
    /// Whether subscribers' callbacks may be on this machine or in private networks.
    pub allow_private_callbacks: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            base_url: None,
            data: PathBuf::from("data"),
            cluster: None,
            tokens: Vec::new(),
            create_feeds: false,
            threads: None,
            cache_mib: 64,
            fetches: 16,
            waiters: 50_000,
            longest_wait: five_minutes(),
            heartbeat: Duration::from_secs(25),
            allow_private_callbacks: false,
        }
    }
}

/// One `[[feed]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedConfig {
    /// Its name.
    pub id: Spanned<FeedId>,
    /// Its title; the name where absent.
    pub title: Option<String>,
    /// How often readers are asked to poll.
    #[serde(default = "five_minutes", deserialize_with = "duration")]
    pub ttl: Duration,
    /// Its language, as a tag; `und` where absent.
    pub lang: Option<String>,
    /// Data Replication's snapshots: when they are made, and how many are kept.
    #[serde(default)]
    pub snapshots: SnapshotConfig,
    /// How much of the history is served; all of it where absent.
    pub retention: Option<RetentionConfig>,
    /// Where its items come from; published over HTTP or the command line where absent.
    pub source: Option<Box<SourceConfig>>,
    /// Whether its documents show all items there are, and absence means removal (Feed History's flag 0): a "top
    /// ten", of which the past does not count.
    #[serde(default)]
    pub complete: bool,
    /// The most items of a page, whatever the protocol.
    pub page_items: Option<NonZeroUsize>,
    /// About the most bytes of a page, whatever the protocol.
    pub page_bytes: Option<NonZeroUsize>,
    /// Which cursors Smart Feeds' readers get: `sequence` or `toc`. Both are understood.
    #[serde(default)]
    pub cursor: CursorKind,
    /// Who may read: everybody where this is empty, else only who has one of these tokens, or one to publish.
    #[serde(default)]
    pub readers: Vec<ReaderConfig>,
    /// Which items of another feed these are. Such a feed has no log of its own.
    pub filter: Option<Box<FilterConfig>>,
}

/// `[feed.snapshots]`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotConfig {
    /// How often one is made; only on demand where absent.
    #[serde(deserialize_with = "some_duration")]
    pub every: Option<Duration>,
    /// How many are kept; the oldest goes when there is one more.
    pub keep: usize,
}

impl Default for SnapshotConfig {
    fn default() -> Self {
        Self { every: None, keep: 3 }
    }
}

/// `[feed.retention]`: pages of Data Replication that are let go. The log itself keeps everything.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionConfig {
    /// Pages of which the last change is older than this are let go.
    #[serde(default, deserialize_with = "some_duration")]
    pub age: Option<Duration>,
    /// The oldest pages are let go while all together have more than so many bytes.
    pub bytes: Option<u64>,
    /// How long a page that was let go can still be read.
    #[serde(default = "one_day", deserialize_with = "duration")]
    pub grace: Duration,
}

/// `[risk]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RiskConfig {
    /// A file of rules that extend or replace the built-in ones.
    pub rules: Option<PathBuf>,
}

/// Why there is no usable configuration. The user's fault; every message says where.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not TOML, or says something that it cannot.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column, and what is wrong there.
        message: String,
    },
    /// A value that does not make sense.
    #[error("{path}: feed {feed:?}: {message}")]
    Feed {
        /// The file.
        path: PathBuf,
        /// The feed.
        feed: String,
        /// What is wrong.
        message: String,
    },
    /// A value of `[xmpp]` that does not make sense.
    #[error("{path}: [xmpp] {message}")]
    Xmpp {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A value of `[export]` that does not make sense.
    #[error("{path}: [export] {message}")]
    Export {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A value of `[server]` that does not make sense.
    #[error("{path}: [server] {message}")]
    Server {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// The file that is read where none is named, if it is there.
pub const DEFAULT_FILE: &str = "towpath.toml";

impl Config {
    /// Reads the file; without one `towpath.toml`, and where that is not there either the defaults, with which
    /// any feed can be published to.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        match file {
            Some(path) => Self::read(path),
            None if Path::new(DEFAULT_FILE).is_file() => Self::read(Path::new(DEFAULT_FILE)),
            None => {
                let server = ServerConfig { create_feeds: true, ..ServerConfig::default() };
                let folder = PathBuf::from(".");
                Ok(Self {
                    server,
                    feeds: Vec::new(),
                    risk: RiskConfig::default(),
                    hub: HubConfig::default(),
                    xmpp: None,
                    export: None,
                    folder,
                })
            }
        }
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Reads the text of a configuration; `path` is what errors name, and its folder what paths are relative to.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let parse_error = |e: toml::de::Error| ConfigError::Parse {
            path: path.to_owned(),
            message: e.to_string().trim_end().to_owned(),
        };
        let mut config: Self = toml::from_str(text).map_err(parse_error)?;
        config.folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        config.check(path)?;
        config.server.data = config.folder.join(&config.server.data);
        if let Some(export) = &mut config.export {
            export.resolve(&config.folder);
        }
        config.risk.rules = config.risk.rules.map(|file| config.folder.join(file));
        Ok(config)
    }

    fn check(&mut self, path: &Path) -> Result<(), ConfigError> {
        let server_error = |message| ConfigError::Server { path: path.to_owned(), message };
        self.server.check().and_then(|()| self.hub.check()).map_err(server_error)?;
        let xmpp_error = |message| ConfigError::Xmpp { path: path.to_owned(), message };
        self.xmpp.as_ref().map_or(Ok(()), XmppConfig::check).map_err(xmpp_error)?;
        let export_error = |message| ConfigError::Export { path: path.to_owned(), message };
        self.export.as_mut().map_or(Ok(()), ExportConfig::check).map_err(export_error)?;
        for feed in &self.feeds {
            feed.check().map_err(|message| ConfigError::Feed {
                path: path.to_owned(),
                feed: feed.id().to_string(),
                message,
            })?;
        }
        access::check_filters(&self.feeds).map_err(|(feed, message)| ConfigError::Feed {
            path: path.to_owned(),
            feed: feed.to_string(),
            message,
        })
    }
}

impl FeedConfig {
    /// A feed that the file does not name: no source, all defaults.
    pub fn unnamed(id: FeedId) -> Self {
        let id = Spanned::new(0..0, id);
        Self {
            id,
            title: None,
            ttl: five_minutes(),
            lang: None,
            snapshots: SnapshotConfig::default(),
            retention: None,
            source: None,
            complete: false,
            page_items: None,
            page_bytes: None,
            cursor: CursorKind::default(),
            readers: Vec::new(),
            filter: None,
        }
    }

    /// Its name.
    pub fn id(&self) -> &FeedId {
        self.id.get_ref()
    }

    /// Its title, or its name where it has none.
    pub fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(self.id().as_str())
    }

    /// Its language tag, or `und`.
    pub fn lang(&self) -> &str {
        self.lang.as_deref().unwrap_or("und")
    }

    /// The source, where it is one that is polled.
    pub fn polled(&self) -> Option<(&SourceConfig, &str)> {
        let source = self.source.as_deref()?;
        Some((source, source.url.as_deref()?))
    }

    /// The source, where it is a feed that is followed.
    pub fn mirrored(&self) -> Option<(&SourceConfig, &str)> {
        let source = self.source.as_deref()?;
        Some((source, source.follow.as_deref()?))
    }

    /// Whether everybody may read it.
    pub fn is_public(&self) -> bool {
        self.readers.is_empty()
    }
}

/// A feed's name stands in the file once; the error points at the second place.
fn distinct_feeds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<FeedConfig>, D::Error> {
    let feeds = Vec::<FeedConfig>::deserialize(deserializer)?;
    let mut seen = std::collections::HashSet::new();
    for (index, feed) in feeds.iter().enumerate() {
        if !seen.insert(feed.id().clone()) {
            let id = feed.id();
            return Err(D::Error::custom(format!(
                "the feed id {id:?} stands there twice: the second is [[feed]] number {}",
                index + 1
            )));
        }
    }
    Ok(feeds)
}

#[cfg(test)]
mod tests;
