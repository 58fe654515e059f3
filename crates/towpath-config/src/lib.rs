//! Configuration: the TOML file, validated, with defaults filled in.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

mod access;
mod access_log;
mod alerts;
mod check;
mod check_access;
mod cluster;
mod cors;
mod durations;
mod environment;
mod error;
mod export;
mod feed;
mod feed_json;
mod files;
mod hints;
mod hub;
mod include;
mod listen;
mod local_path;
mod number_or_text;
mod problems;
mod rate_limit;
mod reach;
mod reference;
mod reload;
mod schema;
mod secret;
mod server;
mod sink;
mod sizes;
mod source;
mod starter;
mod text;
mod token;
mod tree;
mod trusted_proxies;
mod unknown_feeds;
mod variables;
mod xmpp;

pub use access::{FilterConfig, ReaderConfig};
pub use access_log::AccessLogConfig;
pub use alerts::{AlertEmailConfig, AlertWebhookConfig, AlertsConfig, EVENTS_FEED};
pub use check::check_base_url;
pub use cluster::{ClusterConfig, ClusterSnapshotsConfig};
pub use cors::origins_for;
pub use durations::parse_duration;
pub use error::{ConfigError, ConfigProblem, ValueError};
pub use export::ExportConfig;
pub use export::ten_seconds;
pub use feed::{
    FeedConfig, FeedOrigin, FeedVisibility, LogConfig, NOT_IN_A_CLUSTER, PublishConfig, RetentionConfig,
    SnapshotConfig,
};
pub use hints::nearest;
pub use hub::HubConfig;
pub use include::IncludeConfig;
pub use listen::{ListenAddress, ListenConfig};
pub use local_path::local_path;
pub use rate_limit::RateLimitConfig;
pub use reach::is_local;
pub use reference::{complete_since, example, reference};
pub use reload::{AtReload, SettingChanges};
pub use schema::json_schema;
pub use secret::Secret;
pub use server::{PrivateFetchesConfig, ServerConfig, TlsConfig};
pub use sink::{DestinationKind, SinkConfig, SinkStart};
pub use sizes::parse_size;
pub use source::{GuardConfig, LimitsConfig, SourceConfig, SourceFormat};
pub use starter::{StarterFeed, starter};
pub use token::{FeedPattern, TokenConfig, TokenDigest, TokenRight};
pub use trusted_proxies::TrustedProxies;
pub use xmpp::XmppConfig;

use problems::Problems;
use text::ConfigSource;
use variables::Environment;

/// The configuration of towpath: the file `towpath.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Further files, which are read as if they stood in this one. Paths in them are relative to this file's folder.
    #[serde(default)]
    #[schemars(example = "feeds.d/*.toml", extend("x-default" = "none"))]
    pub include: IncludeConfig,
    /// The address, the data folder and the limits of the server.
    #[serde(default)]
    pub server: ServerConfig,
    /// The cluster that a node belongs to, beside its address in `[server] cluster`. Equal on every node.
    #[serde(default)]
    pub cluster: ClusterConfig,
    /// Feeds, in the file's order.
    // Shared with the running feeds: a server may have a million.
    #[serde(default, rename = "feed", deserialize_with = "feed::shared")]
    pub feeds: Vec<Arc<FeedConfig>>,
    /// Named tokens, with their rights.
    #[serde(default, rename = "token")]
    pub tokens: Vec<TokenConfig>,
    /// Rules by which items get a risk score.
    #[serde(default)]
    pub risk: RiskConfig,
    /// Limits of the WebSub hub.
    #[serde(default)]
    pub hub: HubConfig,
    /// The component of an XMPP server. Without this table none runs.
    pub xmpp: Option<XmppConfig>,
    /// A static tree of every feed, which the server keeps up to date. Without this table there is none.
    pub export: Option<ExportConfig>,
    /// Events that operators are told of, and where. Without this table nobody is told.
    pub alerts: Option<AlertsConfig>,
    /// Destinations to which feeds are copied.
    #[serde(default, rename = "sink")]
    pub sinks: Vec<SinkConfig>,
    /// Base of relative paths: the configuration file's folder.
    #[serde(skip)]
    pub folder: PathBuf,
    /// Files that it was read from, the main one first.
    #[serde(skip)]
    pub files: Vec<PathBuf>,
}

/// Rules by which items get a risk score.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RiskConfig {
    /// File with rules that extend or replace the built-in ones.
    #[schemars(example = "/etc/towpath/risk-rules.toml", extend("x-default" = "the built-in rules"))]
    pub rules: Option<PathBuf>,
}

/// Checks of values that only other parts of the program can judge, such as destinations of sinks.
pub type FurtherCheck<'a> = &'a dyn Fn(&Config) -> Vec<ValueError>;

/// File that is read by default, if it exists.
pub const DEFAULT_FILE: &str = "towpath.toml";

impl Config {
    /// Reads `file`, or `towpath.toml` if it exists, or else returns defaults with which any feed can be published to.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        Self::load_checked(file, &|_| Vec::new())
    }

    /// Like [`Self::load`], with further checks of the program. Their errors are told with all others.
    pub fn load_checked(file: Option<&Path>, check: FurtherCheck<'_>) -> Result<Self, ConfigError> {
        match file_to_read(file) {
            Some(path) => Self::read(path, check),
            None => {
                // Without a file there is no other way to declare a feed.
                let defaults = "[server]\ncreate_feeds = true\n";
                let config = Self::parse(defaults, Path::new("built-in defaults"))?;
                Ok(Self { files: Vec::new(), ..config })
            }
        }
    }

    /// Returns the data folder of the configuration that [`Self::load`] reads, without reading its feeds: of a hundred
    /// thousand, that would take most of the time. `None` where [`Self::load`] has to tell a mistake.
    pub fn data_folder(file: Option<&Path>) -> Option<PathBuf> {
        let Some(path) = file_to_read(file) else { return Some(ServerConfig::default().data) };
        let text = std::fs::read_to_string(path).ok()?;
        let folder = folder_of(path);
        ConfigSource::new(&text, path, &folder, &|name: &str| std::env::var(name)).data_folder(&folder)
    }

    fn read(path: &Path, check: FurtherCheck<'_>) -> Result<Self, ConfigError> {
        let bytes = std::fs::read(path)
            .map_err(|e| ConfigError::Read { path: path.to_owned(), reason: read_error(path, &e) })?;
        let text = files::utf8_text(path, bytes).map_err(|problem| ConfigError::Invalid(vec![problem]))?;
        Self::parse_checked(&text, path, &|name: &str| std::env::var(name), check)
    }

    /// Parses a configuration. Errors name `path`, and relative paths are relative to its folder.
    ///
    /// # Errors
    ///
    /// All mistakes, with their places.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::parse_with(text, path, &|name: &str| std::env::var(name))
    }

    fn parse_with(text: &str, path: &Path, environment: &Environment<'_>) -> Result<Self, ConfigError> {
        Self::parse_checked(text, path, environment, &|_| Vec::new())
    }

    fn parse_checked(
        text: &str,
        path: &Path,
        environment: &Environment<'_>,
        further: FurtherCheck<'_>,
    ) -> Result<Self, ConfigError> {
        let folder = folder_of(path);
        let source = ConfigSource::new(text, path, &folder, environment);
        let mut read = source.read(&folder);
        let mut problems = Problems::default();
        let mut config = read.config.take();
        if let Some(config) = &mut config {
            config.folder.clone_from(&folder);
            config.check(&mut problems);
            for ValueError { table, index, subject, key, message } in further(config) {
                problems.enter(table, Some(index), subject);
                problems.add(key, message);
            }
        }
        let mut problems = source.with_values(read, problems.into_found(), &folder);
        // Files come in the order of their reading; the sort keeps it.
        let files = source.files();
        let number = |problem: &ConfigProblem| {
            files.iter().position(|file| problem.source == file.display().to_string())
        };
        problems.sort_by_key(|problem| (number(problem), problem.place));
        match config {
            Some(config) if problems.is_empty() => Ok(config.resolved(files.clone())),
            _ => Err(ConfigError::Invalid(problems)),
        }
    }

    /// Fills in what depends on other keys, and makes paths independent of the working directory.
    fn resolved(mut self, files: Vec<PathBuf>) -> Self {
        if let Some(alerts) = &self.alerts {
            alerts.add_feed(&mut self.feeds);
        }
        check_access::inherit_readers(&mut self.feeds);
        for feed in self.feeds.iter_mut().map(Arc::make_mut) {
            feed.resolve_ttl();
            feed.resolve_retention();
        }
        // Relative to the file, not to the working directory: the service manager chooses the latter.
        self.server.data = self.folder.join(&self.server.data);
        self.server.listen.resolve(&self.folder);
        if let Some(tls) = &mut self.server.tls {
            tls.cert = self.folder.join(&tls.cert);
            tls.key = self.folder.join(&tls.key);
        }
        if let Some(export) = &mut self.export {
            export.resolve(&self.folder);
        }
        self.cluster.resolve(&self.folder);
        self.risk.rules = self.risk.rules.map(|file| self.folder.join(file));
        self.files = files;
        self
    }

    fn check(&mut self, problems: &mut Problems) {
        problems.enter("server", None, "[server] ".into());
        self.server.check(problems);
        problems.enter("cluster", None, "[cluster] ".into());
        self.cluster.check(problems);
        problems.enter("hub", None, "[hub] ".into());
        self.hub.check(problems);
        if let Some(xmpp) = &self.xmpp {
            problems.enter("xmpp", None, "[xmpp] ".into());
            xmpp.check(problems);
        }
        if let Some(export) = &mut self.export {
            problems.enter("export", None, "[export] ".into());
            export.check(problems);
        }
        self.check_tokens(problems);
        feed::check_distinct(&self.feeds, problems);
        for (index, feed) in self.feeds.iter().enumerate() {
            problems.enter("feed", Some(index), format!("feed {:?}: ", feed.id().as_str()));
            feed.check(problems);
            let is_alone = self.server.cluster.is_none();
            problems.ensure(is_alone || !feed.log.is_bounded(), "log", NOT_IN_A_CLUSTER);
        }
        check_access::check_filters(&self.feeds, problems);
        for (index, sink) in self.sinks.iter_mut().enumerate() {
            problems.enter("sink", Some(index), format!("sink {:?}: ", sink.name));
            sink.check(&self.folder, &self.feeds, problems);
        }
        sink::check_distinct(&self.sinks, problems);
        if let Some(alerts) = &mut self.alerts {
            problems.enter("alerts", None, "[alerts] ".into());
            alerts.check(&self.folder, &self.feeds, problems);
        }
    }

    /// Validates the tokens, and reads those that are in files.
    fn check_tokens(&mut self, problems: &mut Problems) {
        for (index, token) in self.tokens.iter_mut().enumerate() {
            problems.enter("token", Some(index), format!("token {:?}: ", token.name));
            problems.check("", token.check().and_then(|()| token.resolve(&self.folder)));
        }
        token::check_distinct(&self.tokens, &self.server.tokens, problems);
    }
}

/// Returns the file that a command reads: the one that it was given, or `towpath.toml` if it exists.
fn file_to_read(file: Option<&Path>) -> Option<&Path> {
    file.or_else(|| Some(Path::new(DEFAULT_FILE)).filter(|path| path.is_file()))
}

/// Returns the folder of a file, from which its relative paths begin.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Explains why a configuration cannot be read.
///
/// For a missing file with a relative path it names the folder: most often the command was started in another one.
fn read_error(path: &Path, error: &std::io::Error) -> String {
    if error.kind() != std::io::ErrorKind::NotFound || path.is_absolute() {
        return error.to_string();
    }
    let searched = std::env::current_dir().map_or_else(|_| ".".into(), |folder| folder.display().to_string());
    format!(
        "there is no such file in {searched}; start the command in the folder that the path is relative to, or \
         give an absolute path"
    )
}

#[cfg(test)]
mod tests;
