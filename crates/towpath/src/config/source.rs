//! `[feed.source]`: what is polled or mirrored, and how.

use std::collections::HashMap;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use towpath_proto::diff::Guard;
use towpath_proto::format::json_pointers::Mapping;

use super::durations::{duration, some_duration};

/// How often a source is polled of which nothing is said.
const QUARTER_HOUR: Duration = Duration::from_secs(900);

/// `[feed.source]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// An http(s) address or a path, to poll.
    pub url: Option<String>,
    /// A feed of one of the five protocols, to mirror.
    pub follow: Option<String>,
    /// Whether the hub of the feed that is followed is to push: its calls come to `/feeds/{feed}/callback`.
    pub push: bool,
    /// What the document is.
    pub format: SourceFormat,
    /// How often to poll; a mirror, where its protocol polls. See [`SourceConfig::every`].
    #[serde(deserialize_with = "some_duration")]
    pub every: Option<Duration>,
    /// Whether the document lists every item, so that absence means removal.
    pub complete: bool,
    /// Whether to poll at all; a source that is off is shown as `disabled`.
    pub enabled: bool,
    /// Where a JSON document has what.
    pub json: Option<Mapping>,
    /// The largest document, in MiB after decompression.
    pub max_mib: u64,
    /// How long one poll may take.
    #[serde(deserialize_with = "duration")]
    pub timeout: Duration,
    /// When a complete listing that lost items is disbelieved.
    pub guard: GuardConfig,
    /// Headers to send, an `Authorization` for example: to the origin of the address above, and no other one.
    pub headers: HashMap<String, String>,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            url: None,
            follow: None,
            push: false,
            format: SourceFormat::Auto,
            every: None,
            complete: false,
            enabled: true,
            json: None,
            max_mib: 64,
            timeout: Duration::from_secs(120),
            guard: GuardConfig::default(),
            headers: HashMap::new(),
        }
    }
}

impl SourceConfig {
    /// How often a source is polled.
    pub fn every(&self) -> Duration {
        self.every.unwrap_or(QUARTER_HOUR)
    }

    /// The headers to send.
    pub fn header_map(&self) -> HeaderMap {
        let parsed = |(name, value): (&String, &String)| {
            let mut value: HeaderValue = value.parse().ok()?;
            value.set_sensitive(true);
            Some((name.parse::<HeaderName>().ok()?, value))
        };
        // All can be: the configuration was checked.
        self.headers.iter().filter_map(parsed).collect()
    }
}

/// `[feed.source.guard]`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GuardConfig {
    /// The largest share of the known items that one poll may remove, from 0 to 1.
    pub max_removed: f64,
    /// Listings of fewer known items than this are always believed.
    pub min_items: usize,
}

impl Default for GuardConfig {
    fn default() -> Self {
        let Guard { max_removed, min_items } = Guard::default();
        Self { max_removed, min_items }
    }
}

impl From<GuardConfig> for Guard {
    fn from(config: GuardConfig) -> Self {
        Self { max_removed: config.max_removed, min_items: config.min_items }
    }
}

/// What a polled document is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceFormat {
    /// What its content says.
    #[default]
    Auto,
    /// RSS.
    Rss,
    /// Atom.
    Atom,
    /// JSON Feed.
    JsonFeed,
    /// Any JSON, through `[feed.source.json]`.
    Json,
}
