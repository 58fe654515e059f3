//! `[[sink]]`: a destination to which the server copies feeds.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_client::{Protocol, redact};
use towpath_proto::follow::ReadLimits;
use url::Url;

use super::durations::duration;
use super::feed::FeedConfig;
use super::problems::Problems;
use super::schema::Mebibytes;
use super::secret::Secret;
use super::sizes::mebibytes;
use super::source::{DEFAULT_MAX_MIB, LimitsConfig};
use super::token::{FeedPattern, read_secret};

/// Longest name of a sink. It is a label of metrics and part of keys.
const MAX_NAME: usize = 64;
/// Largest number of changes in a message of a webhook.
const MAX_BATCH: usize = 10_000;

/// A `[[sink]]`. It copies own feeds (`feeds`) or another server's feed (`url`).
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SinkConfig {
    /// Name of the sink, for commands, metrics and its stored position.
    #[schemars(example = "orders-db")]
    pub name: String,
    /// Own feeds, as ids or patterns such as `orders-*`.
    #[serde(default)]
    #[schemars(example = ["orders-*"], extend("x-default" = "none; `feeds` or `url` is needed"))]
    pub feeds: Vec<FeedPattern>,
    /// URL of a feed of another server, of any of the protocols.
    #[schemars(example = "https://example.com/feeds/x", extend("x-default" = "none; `feeds` or `url` is needed"))]
    pub url: Option<Secret>,
    /// Protocol of `url`, instead of discovering it.
    #[schemars(example = &"smart", extend("x-default" = "the strongest that the feed offers"))]
    pub protocol: Option<String>,
    /// Request headers to `url`, such as `Authorization`.
    #[serde(default)]
    #[schemars(example = serde_json::json!({"Authorization": "Bearer ${FEED_TOKEN}"}), extend("x-default" = "none"))]
    pub headers: HashMap<String, Secret>,
    /// Maximum size of a document of `url`, in MiB after decompression.
    #[serde(default = "default_max_mib", deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub max_mib: u64,
    /// Limits of what is in a document of `url`.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// Start position of a new sink.
    #[serde(default)]
    pub from: SinkStart,
    /// Destination, such as `postgres://…` or `webhook:https://…`.
    #[schemars(example = "postgres://towpath@db.example/feeds?schema=feeds")]
    pub into: Secret,
    /// File with the password of the database.
    #[schemars(example = "/run/secrets/db", extend("x-default" = "none"))]
    pub password_file: Option<PathBuf>,
    /// Secrets that sign a webhook's messages; the receiver has one of them.
    #[serde(default)]
    #[schemars(example = ["${HOOK_SECRET}"], extend("x-default" = "none: messages are not signed"))]
    pub secrets: Vec<Secret>,
    /// Files with such secrets.
    #[serde(default)]
    #[schemars(example = ["/run/secrets/hook"], extend("x-default" = "none"))]
    pub secret_files: Vec<PathBuf>,
    /// Permits a webhook to a private or loopback address.
    #[serde(default)]
    pub allow_private: bool,
    /// Maximum number of changes in a message of a webhook.
    #[serde(default = "hundred")]
    pub batch: usize,
    /// Time that a webhook's receiver has for its answer.
    #[serde(default = "twenty_seconds", deserialize_with = "duration")]
    pub timeout: Duration,
    /// Time after which a webhook that takes nothing is stopped.
    #[serde(default = "five_days", deserialize_with = "duration")]
    pub give_up: Duration,
    /// Stops at an item that the destination refuses, instead of keeping it aside.
    #[serde(default)]
    pub stop_at_refused: bool,
}

/// Start position of a new sink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SinkStart {
    /// With everything that the feed has.
    #[default]
    Beginning,
    /// With what comes after the sink was added.
    Now,
}

/// Kind of a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationKind {
    /// Tables of SQLite.
    Sqlite,
    /// Tables of PostgreSQL.
    Postgres,
    /// Files of a folder.
    Folder,
    /// Input of a command.
    Exec,
    /// Messages to a webhook.
    Webhook,
    /// Messages of a NATS stream.
    Nats,
}

impl DestinationKind {
    /// Returns the name, with which the destination begins.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Folder => "dir",
            Self::Exec => "exec",
            Self::Webhook => "webhook",
            Self::Nats => "nats",
        }
    }

    /// Returns true if the destination has the present items, and not every change.
    pub fn keeps_items(self) -> bool {
        matches!(self, Self::Sqlite | Self::Postgres | Self::Folder)
    }
}

fn default_max_mib() -> u64 {
    DEFAULT_MAX_MIB
}

fn hundred() -> usize {
    100
}

fn twenty_seconds() -> Duration {
    Duration::from_secs(20)
}

fn five_days() -> Duration {
    Duration::from_secs(5 * 86_400)
}

impl SinkConfig {
    /// Returns the kind of the destination; `None` for one that does not exist.
    pub fn kind(&self) -> Option<DestinationKind> {
        match self.into.expose().split(':').next()? {
            "sqlite" => Some(DestinationKind::Sqlite),
            "postgres" | "postgresql" => Some(DestinationKind::Postgres),
            "dir" => Some(DestinationKind::Folder),
            "exec" => Some(DestinationKind::Exec),
            "webhook" => Some(DestinationKind::Webhook),
            "nats" => Some(DestinationKind::Nats),
            _ => None,
        }
    }

    /// Returns the destination without credentials, queries and arguments.
    pub fn shown(&self) -> String {
        let into = self.into.expose();
        match into.split_once(':') {
            // The arguments of a command may hold secrets.
            Some(("exec", command)) => {
                format!("exec:{}", command.split_whitespace().next().unwrap_or_default())
            }
            Some(("sqlite", path)) => format!("sqlite:{}", path.split('?').next().unwrap_or_default()),
            _ => redact::url(into),
        }
    }

    /// Returns the folder of a `dir:` sink.
    fn dir(&self) -> Option<&Path> {
        self.into.expose().strip_prefix("dir:").map(Path::new)
    }

    /// Returns true if the sink copies this own feed.
    pub fn has_feed(&self, feed: &str) -> bool {
        self.feeds.iter().any(|pattern| pattern.matches(feed))
    }

    /// Returns the protocol of `url`, if it is set. Validation has made sure that it is one.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol.as_ref().and_then(|name| name.parse().ok())
    }

    /// Returns the limits of what is read from `url`.
    pub fn read_limits(&self) -> ReadLimits {
        self.limits.of_feed(self.max_mib)
    }

    /// Returns the parsed request headers.
    pub fn header_map(&self) -> HeaderMap {
        self.headers.iter().filter_map(|(name, value)| header(name, value)).collect()
    }

    /// Validates the sink, and reads the files with secrets.
    pub(super) fn check(&mut self, folder: &Path, feeds: &[Arc<FeedConfig>], problems: &mut Problems) {
        // The name becomes a label of metrics and a part of keys, where other characters would have to be
        // escaped.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let is_name = (1..=MAX_NAME).contains(&self.name.len()) && self.name.chars().all(is_plain);
        problems.ensure(is_name, "name", format!("name is not 1 to {MAX_NAME} letters, digits, ., _ and -"));
        let destination = "into is empty; it names the destination, such as sqlite:copy.db";
        problems.ensure(!self.into.is_blank(), "into", destination);
        match (&self.url, self.feeds.is_empty()) {
            (None, true) => {
                problems
                    .add("", "it needs feeds, such as [\"*\"] for all, or the url of another server's feed");
            }
            (Some(_), false) => problems.add("url", "it has both feeds and url; make two sinks"),
            (Some(url), true) => problems.check("url", check_url(url)),
            (None, false) => problems.check("feeds", self.check_feeds(feeds)),
        }
        let has_limits = self.read_limits() != ReadLimits::default();
        let is_of_url = self.protocol.is_some() || !self.headers.is_empty() || has_limits;
        problems.ensure(
            self.url.is_some() || !is_of_url,
            "",
            "protocol, headers, max_mib and limits are for a url",
        );
        self.limits.check(self.max_mib, "", problems);
        problems.check(
            "protocol",
            self.protocol.as_ref().map_or(Ok(()), |name| name.parse::<Protocol>().map(drop)),
        );
        for (name, value) in &self.headers {
            let message = format!("headers: {name:?} or its value cannot be sent");
            problems.ensure(header(name, value).is_some(), "headers", message);
        }
        let has_secret = !self.secrets.is_empty() || !self.secret_files.is_empty() || self.allow_private;
        let is_webhook = self.kind() == Some(DestinationKind::Webhook) || !has_secret;
        problems.ensure(is_webhook, "", "secrets, secret_files and allow_private are for a webhook");
        let is_batch = (1..=MAX_BATCH).contains(&self.batch);
        problems.ensure(is_batch, "batch", format!("batch is not between 1 and {MAX_BATCH}"));
        problems.ensure(!self.timeout.is_zero(), "timeout", "timeout is zero");
        let resolved = self.resolve(folder);
        problems.check("", resolved);
    }

    fn check_feeds(&self, feeds: &[Arc<FeedConfig>]) -> Result<(), String> {
        let filters = feeds.iter().filter(|feed| feed.filter.is_some());
        for filter in filters {
            // A pattern passes over filters; the name of one is a mistake.
            if self.feeds.iter().any(|pattern| pattern.as_id() == Some(filter.id().as_str())) {
                return Err(format!(
                    "feed {} is a filter, which has no log: name the feed that it is of",
                    filter.id()
                ));
            }
        }
        Ok(())
    }

    /// Reads the files with secrets. Paths are relative to `folder`.
    fn resolve(&mut self, folder: &Path) -> Result<(), String> {
        for file in &mut self.secret_files {
            *file = folder.join(&file);
            // Read at the start: a wrong path is a mistake of the configuration, not of the first delivery.
            let secret = read_secret(file).map_err(|e| format!("secret_files: {}: {e}", file.display()))?;
            self.secrets.push(secret);
        }
        let Some(file) = &mut self.password_file else { return Ok(()) };
        *file = folder.join(&file);
        // Only tried here: databases rotate passwords, so it is read again for each connection.
        read_secret(file).map(drop).map_err(|e| format!("password_file {}: {e}", file.display()))
    }

    /// Returns the password of the file, which may have changed since the start.
    pub fn password(&self) -> Option<Secret> {
        self.password_file.as_ref().and_then(|file| read_secret(file).ok())
    }
}

fn check_url(url: &Secret) -> Result<(), String> {
    let parsed = Url::parse(url.expose()).map_err(|e| format!("url: {e}"))?;
    if matches!(parsed.scheme(), "http" | "https") {
        Ok(())
    } else {
        Err("url is neither http nor https".into())
    }
}

fn header(name: &str, value: &Secret) -> Option<(HeaderName, HeaderValue)> {
    let mut value: HeaderValue = value.expose().parse().ok()?;
    // Keeps credentials out of debug output and out of HPACK's index.
    value.set_sensitive(true);
    Some((name.parse().ok()?, value))
}

/// Checks that names are distinct, and that each folder has one sink.
pub(super) fn check_distinct(sinks: &[SinkConfig], problems: &mut Problems) {
    for (index, sink) in sinks.iter().enumerate() {
        let same_name = sinks[..index].iter().any(|other| other.name == sink.name);
        let same_folder =
            sinks[..index].iter().find(|other| sink.dir().is_some() && sink.dir() == other.dir());
        if !same_name && same_folder.is_none() {
            continue;
        }
        problems.enter("sink", Some(index), format!("sink {:?}: ", sink.name));
        problems.ensure(!same_name, "name", "the name is used twice");
        if let Some(other) = same_folder {
            problems.add("into", format!("sink {:?} writes this folder already; name another", other.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let text = format!(
            "[[feed]]\nid = 'kev'\n[[feed]]\nid = 'some'\nfilter = {{ of = 'kev' }}\n[[sink]]\n{text}\n"
        );
        Config::parse(&text, Path::new("towpath.toml")).map_err(|e| e.to_string())
    }

    const GOOD: &str = "name = 'db'\nfeeds = ['kev', 'or*']\ninto = 'postgres://me:hush@db/x?schema=a'";

    #[test]
    fn a_sink_and_its_defaults() {
        let config = parse(GOOD).unwrap();
        let sink = &config.sinks[0];
        assert_eq!(
            (sink.kind(), sink.shown().as_str()),
            (Some(DestinationKind::Postgres), "postgres://db/x?…")
        );
        assert_eq!((sink.batch, sink.from), (100, SinkStart::Beginning));
        assert!(sink.has_feed("kev") && sink.has_feed("orders") && !sink.has_feed("kevin"));
        assert!(!format!("{config:?}").contains("hush"));
    }

    #[test]
    fn limits_of_another_servers_feed() {
        let limits = "url = 'http://a/'\nmax_mib = 1\nlimits = { items = 1, entity_mib = 2 }";
        let limits =
            parse(&GOOD.replacen("feeds = ['kev', 'or*']", limits, 1)).unwrap().sinks[0].read_limits();
        let ReadLimits { max_document, document, max_entity, .. } = limits;
        assert_eq!((max_document, document.items, max_entity), (Some(1 << 20), 1, 2 << 20));
        assert_eq!(parse(GOOD).unwrap().sinks[0].read_limits(), ReadLimits::default());
    }

    #[test]
    fn secrets_come_from_files_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "whsec_x\n").unwrap();
        let text = format!(
            "name = 'h'\nfeeds = ['*']\ninto = 'webhook:https://a.example/?k=hush'\nsecrets = ['a']\nsecret_files = ['{}']",
            file.display()
        );
        let config = parse(&text).unwrap();
        let sink = &config.sinks[0];
        assert_eq!(sink.secrets.iter().map(Secret::expose).collect::<Vec<_>>(), ["a", "whsec_x"]);
        assert_eq!(sink.shown(), "webhook:https://a.example/?…");
    }

    #[test]
    fn arguments_of_commands_are_not_shown() {
        let config = parse("name = 'h'\nfeeds = ['*']\ninto = 'exec:send --password hush'").unwrap();
        assert_eq!(config.sinks[0].shown(), "exec:send");
    }

    #[test]
    fn invalid_values_are_named() {
        for (from, to, needle) in [
            ("name = 'db'", "name = 'd b'", "name is not"),
            ("feeds = ['kev', 'or*']", "", "needs feeds"),
            ("feeds = ['kev', 'or*']", "feeds = ['some']", "is a filter"),
            ("into", "url = 'http://a/'\ninto", "both feeds and url"),
            ("feeds = ['kev', 'or*']", "url = 'ftp://a/'", "neither http"),
            ("feeds = ['kev', 'or*']", "url = 'http://a/'\nprotocol = 'carrier'", "protocol"),
            ("into", "secrets = ['a']\ninto", "for a webhook"),
            ("into", "protocol = 'smart'\ninto", "for a url"),
            ("into", "batch = 0\ninto", "batch is not"),
            ("into", "limits = { items = 5 }\ninto", "for a url"),
            ("feeds = ['kev', 'or*']", "url = 'http://a/'\nmax_mib = 0", "max_mib is not between 1 and 4096"),
            (
                "feeds = ['kev', 'or*']",
                "url = 'http://a/'\nlimits = { depth = 999 }",
                "limits.depth is not between",
            ),
            ("into", "password_file = 'no/such'\ninto", "no/such"),
            ("into", "intoo = 5\ninto", "intoo"),
        ] {
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(needle) && error.contains("towpath.toml"), "{to}: {error}");
        }
        let twice = parse(&format!("{GOOD}\n[[sink]]\n{GOOD}")).unwrap_err();
        assert!(twice.contains("\"db\"") && twice.contains("twice"), "{twice}");
    }

    #[test]
    fn a_folder_has_one_sink() {
        let sink =
            |name: &str, into: &str| format!("[[sink]]\nname = '{name}'\nfeeds = ['kev']\ninto = '{into}'\n");
        let config = |second: &str| {
            Config::parse(
                &format!("[[feed]]\nid = 'kev'\n{}{}", sink("one", "dir:copy"), sink("two", second)),
                Path::new("towpath.toml"),
            )
        };
        let error = config("dir:copy/").unwrap_err().to_string();
        assert!(error.contains("sink \"two\": sink \"one\" writes this folder already"), "{error}");
        // Databases tell the tables of feeds apart.
        assert!(config("dir:other").is_ok() && config("sqlite:copy").is_ok());
    }
}
