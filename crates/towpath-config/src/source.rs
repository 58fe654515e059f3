//! `[feed.source]`: the polled document or mirrored feed.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_client::redact;
use towpath_proto::diff::Guard;
use towpath_proto::follow::ReadLimits;
use towpath_proto::format::json_pointers::Mapping;
use towpath_proto::format::{DocumentLimits, Format, HtmlMapping, Paging};

use super::durations::{duration, some_duration};
use super::schema::Mebibytes;
use super::secret::Secret;
use super::sizes::mebibytes;

/// Default poll interval.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(900);
/// Default size of the largest document, in MiB.
pub(super) const DEFAULT_MAX_MIB: u64 = 64;

/// Source of the feed's items: a polled document, or another feed.
#[derive(Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// URL (http, https) or path of the document to poll.
    #[schemars(example = "https://example.com/feed.xml", extend("x-default" = "none; `url` or `follow` is needed"))]
    pub url: Option<String>,
    /// URL of a feed to mirror, of any of the five protocols.
    #[schemars(example = "https://example.com/feeds/x", extend("x-default" = "none; `url` or `follow` is needed"))]
    pub follow: Option<String>,
    /// Subscribes to the hub that the source names, which then calls `/feeds/{feed}/callback`. A mirror can follow Smart
    /// Feeds, Atom, RSS and JSON Feed so. A document is polled when its hub delivers, and else every ten intervals; without
    /// a hub it is polled as before.
    pub push: bool,
    /// Copies contents that the mirrored feed keeps as files, up to `[server] large_content_mib` each. The items then have
    /// addresses of this server. Without it they keep the addresses of the mirrored feed. Entities of Data Replication above
    /// `limits.entity_mib` become files, too.
    pub large_content: bool,
    /// Format of the document.
    pub format: SourceFormat,
    /// Poll interval, also of a mirror whose protocol polls.
    #[schemars(example = &"15m", extend("x-default" = "`\"15m\"`"))]
    #[serde(deserialize_with = "some_duration")]
    pub every: Option<Duration>,
    /// Declares that the document lists every item, so that absence means removal.
    pub complete: bool,
    /// Enables polling; the status of other sources is `disabled`.
    pub enabled: bool,
    /// Location of the items and their fields in a JSON document.
    pub json: Option<Mapping>,
    /// Selectors of the items and their fields in an HTML page.
    pub html: Option<HtmlMapping>,
    /// Location of the next page, for a source of several pages.
    pub paging: Option<Paging>,
    /// Body of the request, which makes it a POST.
    #[schemars(example = "{\"query\": \"{ items { id } }\"}", extend("x-default" = "none: a GET"))]
    pub body: Option<Secret>,
    /// Maximum size of the document, in MiB after decompression.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub max_mib: u64,
    /// Limits of what is in the document.
    pub limits: LimitsConfig,
    /// Timeout of one poll.
    #[serde(deserialize_with = "duration")]
    pub timeout: Duration,
    /// Protection against a complete listing that lost items by mistake.
    pub guard: GuardConfig,
    /// Request headers, such as `Authorization`. They are sent to the origin of the source's own URL only.
    #[schemars(example = serde_json::json!({"Authorization": "Bearer ${SOURCE_TOKEN}"}), extend("x-default" = "none"))]
    pub headers: HashMap<String, Secret>,
    /// True if a request over HTTP named it: then it must not lead into private networks.
    #[serde(skip)]
    pub is_from_http: bool,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            url: None,
            follow: None,
            push: false,
            large_content: false,
            format: SourceFormat::Auto,
            every: None,
            complete: false,
            enabled: true,
            json: None,
            html: None,
            paging: None,
            body: None,
            max_mib: DEFAULT_MAX_MIB,
            limits: LimitsConfig::default(),
            // Includes the download of a large document over a slow line.
            timeout: Duration::from_secs(120),
            guard: GuardConfig::default(),
            headers: HashMap::new(),
            is_from_http: false,
        }
    }
}

impl fmt::Debug for SourceConfig {
    /// Shows the addresses without credentials and queries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |url: &Option<String>| url.as_deref().map(redact::url);
        let mut debug = f.debug_struct("SourceConfig");
        debug.field("url", &shown(&self.url)).field("follow", &shown(&self.follow)).finish_non_exhaustive()
    }
}

impl SourceConfig {
    /// Poll interval, or its default.
    pub fn every(&self) -> Duration {
        self.every.unwrap_or(DEFAULT_INTERVAL)
    }

    /// Returns the limits of a followed feed.
    pub fn read_limits(&self) -> ReadLimits {
        self.limits.of_feed(self.max_mib)
    }

    /// Returns the parsed request headers.
    pub fn header_map(&self) -> HeaderMap {
        let parsed = |(name, value): (&String, &Secret)| {
            let mut value: HeaderValue = value.expose().parse().ok()?;
            // Keeps credentials out of debug output and out of HPACK's index.
            value.set_sensitive(true);
            Some((name.parse::<HeaderName>().ok()?, value))
        };
        // Validation has rejected headers that cannot be parsed.
        self.headers.iter().filter_map(parsed).collect()
    }
}

/// Limits of a document. One beyond a limit is refused, and the error names the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Maximum number of items.
    pub items: usize,
    /// Maximum nesting depth of elements or JSON values.
    pub depth: usize,
    /// Maximum number of members of a JSON object, or of attributes of an element.
    pub members: usize,
    /// Maximum length of a text, in MiB.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub string_mib: usize,
    /// Memory that any document may take, in MiB. A larger document may take four times its size.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub memory_mib: usize,
    /// Maximum size of an entity of Data Replication, in MiB.
    #[serde(deserialize_with = "mebibytes")]
    #[schemars(with = "Mebibytes")]
    pub entity_mib: usize,
}

impl LimitsConfig {
    /// Returns the limits of a followed feed whose documents have a largest size.
    pub(super) fn of_feed(self, max_mib: u64) -> ReadLimits {
        // Each protocol has a default of its own, which the default here does not replace.
        let max_document = (max_mib != DEFAULT_MAX_MIB).then_some(max_mib << 20);
        ReadLimits {
            document: self.into(),
            max_document,
            max_entity: self.entity_mib << 20,
            ..ReadLimits::default()
        }
    }

    /// Memory that any document may take, in bytes.
    pub fn memory(self) -> usize {
        self.memory_mib << 20
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let DocumentLimits { items, depth, members, string, memory } = DocumentLimits::default();
        let entity_mib = ReadLimits::default().max_entity >> 20;
        Self { items, depth, members, string_mib: string >> 20, memory_mib: memory >> 20, entity_mib }
    }
}

impl From<LimitsConfig> for DocumentLimits {
    fn from(config: LimitsConfig) -> Self {
        let LimitsConfig { items, depth, members, string_mib, .. } = config;
        Self { items, depth, members, string: string_mib << 20, memory: config.memory() }
    }
}

/// Protection against a complete listing that lost items by mistake.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GuardConfig {
    /// Maximum share of the known items that one poll may remove, from 0 to 1.
    pub max_removed: f64,
    /// Number of known items below which every listing is accepted.
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

/// Format of a polled document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceFormat {
    /// Detected from the content.
    #[default]
    Auto,
    /// RSS.
    Rss,
    /// Atom.
    Atom,
    /// JSON Feed.
    JsonFeed,
    /// Any JSON, mapped by `[feed.source.json]`.
    Json,
    /// A JSON value per line, mapped by `[feed.source.json]`.
    Ndjson,
    /// An HTML page, mapped by `[feed.source.html]`.
    Html,
}

impl SourceFormat {
    /// Returns the format, unless it is to be detected.
    pub fn known(self) -> Option<Format> {
        match self {
            Self::Auto => None,
            Self::Rss => Some(Format::Rss),
            Self::Atom => Some(Format::Atom),
            Self::JsonFeed => Some(Format::JsonFeed),
            Self::Json => Some(Format::Json),
            Self::Ndjson => Some(Format::Ndjson),
            Self::Html => Some(Format::Html),
        }
    }
}
