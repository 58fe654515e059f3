//! Configuration: the TOML file, validated, with defaults filled in.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::Error as _;

mod access;
mod check;
mod check_access;
mod cors;
mod durations;
mod error;
mod export;
mod feed;
mod hub;
mod local_path;
mod rate_limit;
mod reach;
mod secret;
mod server;
mod source;
mod text;
mod token;
mod trusted_proxies;
mod variables;
mod xmpp;

pub use access::{FilterConfig, ReaderConfig};
pub use check::check_base_url;
pub(crate) use cors::origins_for;
pub(crate) use durations::parse_duration;
pub use error::ConfigError;
pub use export::ExportConfig;
pub(crate) use export::ten_seconds;
pub use feed::{FeedConfig, FeedVisibility, RetentionConfig, SnapshotConfig};
pub use hub::HubConfig;
pub use local_path::local_path;
pub use rate_limit::RateLimitConfig;
pub(crate) use reach::is_local;
pub use secret::Secret;
pub use server::{ServerConfig, TlsConfig};
pub use source::{GuardConfig, LimitsConfig, SourceConfig, SourceFormat};
pub use token::{FeedPattern, TokenConfig, TokenDigest, TokenRight};
pub use trusted_proxies::TrustedProxies;
pub use xmpp::XmppConfig;

/// The complete configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[server]`.
    #[serde(default)]
    pub server: ServerConfig,
    /// `[[feed]]`, in the file's order.
    #[serde(default, rename = "feed", deserialize_with = "distinct_feeds")]
    pub feeds: Vec<FeedConfig>,
    /// `[[token]]`, in the file's order.
    #[serde(default, rename = "token")]
    pub tokens: Vec<TokenConfig>,
    /// `[risk]`.
    #[serde(default)]
    pub risk: RiskConfig,
    /// `[hub]`.
    #[serde(default)]
    pub hub: HubConfig,
    /// `[xmpp]`; without it no component runs.
    pub xmpp: Option<XmppConfig>,
    /// `[export]`; without it no static tree is maintained.
    pub export: Option<ExportConfig>,
    /// Base of relative paths: the configuration file's folder.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// `[risk]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RiskConfig {
    /// File with rules that extend or replace the built-in ones.
    pub rules: Option<PathBuf>,
}

/// File that is read by default, if it exists.
pub const DEFAULT_FILE: &str = "towpath.toml";

impl Config {
    /// Reads `file`, or `towpath.toml` if it exists, or else returns defaults with which any feed can be published to.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        match file {
            Some(path) => Self::read(path),
            None if Path::new(DEFAULT_FILE).is_file() => Self::read(Path::new(DEFAULT_FILE)),
            None => {
                // Without a file there is no other way to declare a feed.
                let server = ServerConfig { create_feeds: true, ..ServerConfig::default() };
                let folder = PathBuf::from(".");
                Ok(Self {
                    server,
                    feeds: Vec::new(),
                    tokens: Vec::new(),
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
            .map_err(|e| ConfigError::Read { path: path.to_owned(), reason: read_error(path, &e) })?;
        Self::parse(&text, path)
    }

    /// Parses a configuration. Errors name `path`, and relative paths are relative to its folder.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        let parse_error = |message| ConfigError::Parse { path: path.to_owned(), message };
        let environment = |name: &str| std::env::var(name);
        let read = text::deserialize::<Self>(text, &folder, &environment);
        let (mut config, variables) = read.map_err(parse_error)?;
        config.folder = folder;
        config.check(path).map_err(|e| e.map_message(|message| variables.hide(message)))?;
        check_access::inherit_readers(&mut config.feeds);
        config.feeds.iter_mut().for_each(FeedConfig::resolve_ttl);
        // Relative to the file, not to the working directory: the service manager chooses the latter.
        config.server.data = config.folder.join(&config.server.data);
        if let Some(tls) = &mut config.server.tls {
            tls.cert = config.folder.join(&tls.cert);
            tls.key = config.folder.join(&tls.key);
        }
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
        self.check_tokens(path)?;
        for feed in &self.feeds {
            feed.check().map_err(|message| ConfigError::Feed {
                path: path.to_owned(),
                feed: feed.id().to_string(),
                message,
            })?;
        }
        check_access::check_filters(&self.feeds).map_err(|(feed, message)| ConfigError::Feed {
            path: path.to_owned(),
            feed: feed.to_string(),
            message,
        })
    }

    /// Validates the tokens, and reads those that are in files.
    fn check_tokens(&mut self, path: &Path) -> Result<(), ConfigError> {
        let error = |token: &str, message| ConfigError::Token {
            path: path.to_owned(),
            token: token.to_owned(),
            message,
        };
        for token in &mut self.tokens {
            token.check().and_then(|()| token.resolve(&self.folder)).map_err(|e| error(&token.name, e))?;
        }
        token::check_distinct(&self.tokens, &self.server.tokens).map_err(|(token, e)| error(&token, e))
    }
}

/// Rejects duplicate feed ids; the error names the second occurrence.
fn distinct_feeds<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<FeedConfig>, D::Error> {
    let feeds = Vec::<FeedConfig>::deserialize(deserializer)?;
    let mut ids = std::collections::HashSet::new();
    for (index, feed) in feeds.iter().enumerate() {
        if !ids.insert(feed.id().clone()) {
            let id = feed.id();
            return Err(D::Error::custom(format!(
                "the feed id {id:?} is used twice: the second is [[feed]] number {}",
                index + 1
            )));
        }
    }
    Ok(feeds)
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
