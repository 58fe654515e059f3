//! The documents' fields (sections 1, 2 and 5), in the order of their names.
//!
//! Serialising any of these gives canonical JSON (section 3.1): keys in order, no white space, and no number
//! that JCS and Python would write differently.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::cursor::Cursor;

/// The version that every document states.
pub const SCHEMA_VERSION: &str = "1.0.0";
/// The name of the global feed where a source's name would stand.
pub const GLOBAL: &str = "_global";
/// From this risk score on an item stands in the flagged bucket (section 9).
pub const FLAGGED_FROM: f64 = 0.4;
/// The bounds of `ttl_sec` in the schema, in seconds.
pub const TTL_SEC: std::ops::RangeInclusive<u64> = 15..=3600;

/// Head pointer (section 1.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Section 2.3.
    #[serde(default)]
    pub changed: bool,
    /// Section 2.1. As it was written: foreign publishers may have other forms.
    pub cursor: String,
    /// Section 2.4.
    #[serde(default)]
    pub generated_at: String,
    /// The SHA-256 of `latest.json` as written (section 2.6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Where the latest feed is, relative to the head.
    #[serde(default)]
    pub latest_url: String,
    /// Section 2.2.
    #[serde(default)]
    pub prev_cursor: String,
    /// When the snapshot of `prev_cursor` was made: it tells apart two snapshots with one cursor. Not in the
    /// text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_generated_at: Option<String>,
    /// Section 2.5, in seconds.
    #[serde(default)]
    pub ttl_sec: u64,
}

impl Head {
    /// When the snapshot of `cursor` was made, where the head tells.
    pub(super) fn minted_at(&self) -> Option<&str> {
        if self.changed { Some(&self.generated_at) } else { self.prev_generated_at.as_deref() }
    }
}

/// A feed document as it is read: what a client needs, whatever else is there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Latest {
    /// Section 2.1.
    pub cursor: String,
    /// Section 2.2.
    #[serde(default)]
    pub prev_cursor: String,
    /// Section 2.3.
    #[serde(default)]
    pub changed: bool,
    /// Section 2.4.
    #[serde(default)]
    pub generated_at: String,
    /// Section 2.5, in seconds.
    #[serde(default)]
    pub ttl_sec: u64,
    /// The source; absent from the global feed.
    #[serde(default)]
    pub source_id: Option<String>,
    /// Missing buckets are empty, unknown ones ignored (section 4).
    #[serde(default)]
    pub buckets: Buckets,
}

/// The buckets as they are read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Buckets {
    /// Items that were not there before.
    pub new: Vec<Value>,
    /// Items with another content than before.
    pub updated: Vec<Value>,
    /// Items that are gone, as last known.
    pub removed: Vec<Value>,
    /// Items with a risk score of 0.4 or more (section 9).
    pub flagged: Vec<Value>,
}

/// The list of a source's snapshots, oldest first. Not in the text: gap repair needs an address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArchiveIndex {
    /// Every snapshot, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// The source, or `_global`.
    pub source_id: String,
}

/// One archive snapshot, as its index lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The snapshot's cursor.
    pub cursor: String,
    /// When it was made.
    pub generated_at: String,
    /// The cursor before it.
    pub prev_cursor: String,
    /// The SHA-256 of the file, 64 hex digits.
    pub sha256: String,
    /// Where it is, relative to the index.
    pub url: String,
}

/// How a source is (section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Its last fetch succeeded.
    Ok,
    /// Its last fetch failed.
    Error,
    /// It is not fetched any more.
    Disabled,
}

/// Why a source is in error or disabled (section 5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceError {
    /// `HTTP_503`, `TIMEOUT`, `NETWORK_ERROR`, `DISABLED`, …
    pub code: String,
    /// The HTTP status, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
}

/// A source's entry in `sources` (schema: sourceStatus).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceStatus {
    /// Whether the source has deltas in this document.
    pub changed: bool,
    /// The source's cursor.
    pub cursor: Cursor,
    /// How many items changed, where `changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta_counts: Option<DeltaCounts>,
    /// Of a source in error or disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<SourceError>,
    /// Where `changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impact: Option<Impact>,
    /// Where `changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impact_reason: Option<ImpactReason>,
    /// The last successful fetch, where `stale` and if there ever was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ok_at: Option<Timestamp>,
    /// The cursor before; the same where not `changed`.
    pub prev_cursor: Cursor,
    /// True while the source is in error or disabled, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<bool>,
    /// Seconds since `last_ok_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_age_sec: Option<u64>,
    /// How the source is.
    pub status: Status,
    /// Section 2.5, in seconds.
    pub ttl_sec: u64,
}

/// A `sources` object: keys in order (section 4).
pub type Sources = BTreeMap<String, SourceStatus>;

/// How many items changed, flagged ones counted by what happened to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaCounts {
    /// Items that were not there before.
    pub new: u64,
    /// Items that are gone.
    pub removed: u64,
    /// Items with another content.
    pub updated: u64,
}

impl DeltaCounts {
    /// Counts one more item.
    pub fn add(&mut self, kind: Kind) {
        match kind {
            Kind::New => self.new += 1,
            Kind::Updated => self.updated += 1,
            Kind::Removed => self.removed += 1,
        }
    }
}

/// What happened to an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It was not there before.
    New,
    /// It has another content than before.
    Updated,
    /// It is gone.
    Removed,
}

impl Kind {
    /// `new`, `updated` or `removed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Updated => "updated",
            Self::Removed => "removed",
        }
    }
}

/// How much a change matters (schema: impact).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Impact {
    /// Nothing of substance.
    Low,
    /// Items came, went, or say something else.
    High,
}

/// Why an impact is what it is (schema: impact_reason), least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImpactReason {
    /// Only dates differ.
    TimestampOnly,
    /// Only addresses, authors, tags or extra fields differ; also: no items at all.
    MetadataOnly,
    /// Only titles differ, beside the above.
    TitleOnly,
    /// The text differs in a few characters.
    MinorEdit,
    /// Items came, went, or have another text.
    Substantive,
}

impl ImpactReason {
    /// High for what is substantive.
    pub fn impact(self) -> Impact {
        if self == Self::Substantive { Impact::High } else { Impact::Low }
    }
}

/// Writes a score of 0 to 1 with two places at most, whole numbers without a point, so that JCS and Python
/// write the same.
pub(super) fn serialize_score<S: Serializer>(score: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let hundredths = hundredths(*score);
    if hundredths.is_multiple_of(100) {
        serializer.serialize_u64(hundredths / 100)
    } else {
        serializer.serialize_f64(hundredths as f64 / 100.0)
    }
}

/// A score in hundredths, 0 to 100; what is not a number counts as 0.
pub(super) fn hundredths(score: f64) -> u64 {
    (score.clamp(0.0, 1.0) * 100.0).round() as u64
}
