//! The documents' fields (sections 1, 2 and 5), in the order of their names.
//!
//! Each type serialises to canonical JSON (section 3.1): sorted keys, no white space, and no number that RFC
//! 8785 and Python would write differently.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::buckets::{BucketItems, ElementCount, ItemBuckets};
use super::cursor::Cursor;

/// Value of `schema_version` in every document.
pub const SCHEMA_VERSION: &str = "1.0.0";
/// Name of the global feed, in place of a source's name.
pub const GLOBAL: &str = "_global";
/// Lowest risk score of the flagged bucket (section 9).
pub const FLAGGED_FROM: f64 = 0.4;
/// Bounds of `ttl_sec` in the schema, in seconds.
pub const TTL_SEC: std::ops::RangeInclusive<u64> = 15..=3600;

/// Head pointer (section 1.1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadDocument {
    /// Section 2.3.
    #[serde(default, deserialize_with = "nullable")]
    pub changed: bool,
    /// Section 2.1. Kept as text, because other publishers may use other forms. Empty if it is `null`.
    #[serde(deserialize_with = "nullable")]
    pub cursor: String,
    /// Section 2.4.
    #[serde(default, deserialize_with = "nullable")]
    pub generated_at: String,
    /// The SHA-256 of `latest.json` as written (section 2.6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// URL of `latest.json`, relative to the head.
    #[serde(default, deserialize_with = "nullable")]
    pub latest_url: String,
    /// Section 2.2.
    #[serde(default, deserialize_with = "nullable")]
    pub prev_cursor: String,
    /// Time of the snapshot of `prev_cursor`; tells apart two snapshots with one cursor. Our own addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_generated_at: Option<String>,
    /// Section 2.5, in seconds.
    #[serde(default, deserialize_with = "seconds")]
    pub ttl_sec: u64,
}

impl HeadDocument {
    /// Returns the time of the snapshot of `cursor`, if the head states it.
    pub(in crate::diffdelta) fn minted_at(&self) -> Option<&str> {
        // A minted head has the time of its own snapshot; a carried one that of the snapshot it carries.
        if self.changed { Some(&self.generated_at) } else { self.prev_generated_at.as_deref() }
    }
}

/// A feed document as a follower reads it: `latest.json` or a snapshot. Unknown members are ignored.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "StatedDocument")]
pub struct DeltaDocument {
    /// Section 2.1. Empty if the publisher states `null`.
    pub cursor: String,
    /// Section 2.2.
    pub prev_cursor: String,
    /// Section 2.3.
    pub changed: bool,
    /// Section 2.4.
    pub generated_at: String,
    /// Section 2.5, in seconds.
    pub ttl_sec: u64,
    /// The source; absent in the global feed.
    pub source_id: Option<String>,
    /// The source's state in words of the publisher, which our documents state under `sources` only.
    pub status: Option<String>,
    /// Missing buckets are empty (section 4).
    pub buckets: ItemBuckets,
}

/// The members of a feed document. Version 1.0.0 of other publishers had the buckets beside them.
#[derive(Deserialize)]
struct StatedDocument {
    #[serde(deserialize_with = "nullable")]
    cursor: String,
    #[serde(default, deserialize_with = "nullable")]
    prev_cursor: String,
    #[serde(default, deserialize_with = "nullable")]
    changed: bool,
    #[serde(default, deserialize_with = "nullable")]
    generated_at: String,
    #[serde(default, deserialize_with = "seconds")]
    ttl_sec: u64,
    #[serde(default)]
    source_id: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    buckets: Option<ItemBuckets>,
    #[serde(default)]
    new: BucketItems,
    #[serde(default)]
    updated: BucketItems,
    #[serde(default)]
    removed: BucketItems,
    #[serde(default)]
    flagged: BucketItems,
    #[serde(default)]
    items: BucketItems,
    #[serde(default)]
    resolved: ElementCount,
}

impl From<StatedDocument> for DeltaDocument {
    fn from(stated: StatedDocument) -> Self {
        let beside = || ItemBuckets {
            new: stated.new.0,
            updated: stated.updated.0,
            removed: stated.removed.0,
            flagged: stated.flagged.0,
            items: stated.items.0,
            unknown: (stated.resolved.0 > 0)
                .then(|| ("resolved".to_owned(), stated.resolved.0))
                .into_iter()
                .collect(),
        };
        Self {
            buckets: stated.buckets.unwrap_or_else(beside),
            cursor: stated.cursor,
            prev_cursor: stated.prev_cursor,
            changed: stated.changed,
            generated_at: stated.generated_at,
            ttl_sec: stated.ttl_sec,
            source_id: stated.source_id,
            status: stated.status,
        }
    }
}

/// Reads `null` as the default value: other publishers state it for a source that was never fetched.
fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads a number of seconds: JSON Schema counts `300.0` as an integer. A negative one, and `null`, read as 0.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(SecondsVisitor)
}

struct SecondsVisitor;

impl Visitor<'_> for SecondsVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of seconds")
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<u64, E> {
        Ok(seconds)
    }

    fn visit_i64<E: Error>(self, seconds: i64) -> Result<u64, E> {
        Ok(seconds.max(0).unsigned_abs())
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<u64, E> {
        Ok(seconds.max(0.0) as u64)
    }

    fn visit_unit<E: Error>(self) -> Result<u64, E> {
        Ok(0)
    }
}

/// The index of a source's snapshots. Our own addition: gap repair needs their URLs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArchiveIndex {
    /// Every snapshot, oldest first.
    pub snapshots: Vec<SnapshotEntry>,
    /// The source, or `_global`.
    pub source_id: String,
}

/// A snapshot as an archive index lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotEntry {
    /// The snapshot's cursor.
    pub cursor: String,
    /// Time of the snapshot.
    pub generated_at: String,
    /// The cursor of the snapshot before it.
    pub prev_cursor: String,
    /// The SHA-256 of the file, 64 hex digits.
    pub sha256: String,
    /// URL of the snapshot, relative to the index.
    pub url: String,
}

/// Outcome of a source's last fetch (section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FetchStatus {
    /// The last fetch succeeded.
    Ok,
    /// The last fetch failed.
    Error,
    /// The source is no longer fetched.
    Disabled,
}

/// Reason for the status `error` or `disabled` (section 5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusError {
    /// `HTTP_503`, `TIMEOUT`, `NETWORK_ERROR`, `DISABLED`, …
    pub code: String,
    /// The HTTP status, if there was a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
}

/// A source's entry in `sources` (schema: sourceStatus).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceStatus {
    /// True if this document has deltas of the source.
    pub changed: bool,
    /// The source's cursor.
    pub cursor: Cursor,
    /// Number of changed items, if `changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta_counts: Option<DeltaCounts>,
    /// Set if the source is in error or disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<StatusError>,
    /// Set if `changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impact: Option<Impact>,
    /// Set if `changed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impact_reason: Option<ImpactReason>,
    /// Time of the last successful fetch, if `stale` and if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_ok_at: Option<Timestamp>,
    /// The previous cursor; equal to `cursor` unless `changed`.
    pub prev_cursor: Cursor,
    /// True if the source is in error or disabled, else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<bool>,
    /// Seconds since `last_ok_at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_age_sec: Option<u64>,
    /// Outcome of the last fetch.
    pub status: FetchStatus,
    /// Section 2.5, in seconds.
    pub ttl_sec: u64,
}

/// A `sources` object with sorted keys (section 4).
pub type Sources = BTreeMap<String, SourceStatus>;

/// Numbers of changed items. Flagged items are counted under their kind of change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaCounts {
    /// New items.
    pub new: u64,
    /// Removed items.
    pub removed: u64,
    /// Items whose content changed.
    pub updated: u64,
}

impl DeltaCounts {
    /// Counts one item.
    pub fn add(&mut self, kind: DeltaKind) {
        match kind {
            DeltaKind::New => self.new += 1,
            DeltaKind::Updated => self.updated += 1,
            DeltaKind::Removed => self.removed += 1,
        }
    }
}

/// The kind of change of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeltaKind {
    /// The item is new.
    New,
    /// The content changed.
    Updated,
    /// The item was removed.
    Removed,
}

impl DeltaKind {
    /// Returns `new`, `updated` or `removed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Updated => "updated",
            Self::Removed => "removed",
        }
    }
}

/// Weight of a change (schema: impact).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Impact {
    /// No change of substance.
    Low,
    /// Items were added or removed, or their text changed.
    High,
}

/// Reason for an impact (schema: impact_reason), least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ImpactReason {
    /// Only dates differ.
    TimestampOnly,
    /// Only URLs, authors, tags or extra fields differ; also used without any items.
    MetadataOnly,
    /// Titles differ, and possibly the above.
    TitleOnly,
    /// The text differs in a few characters only.
    MinorEdit,
    /// Items were added or removed, or their text changed.
    Substantive,
}

impl ImpactReason {
    /// Returns `High` for substantive changes, else `Low`.
    pub fn impact(self) -> Impact {
        if self == Self::Substantive { Impact::High } else { Impact::Low }
    }
}

/// Serialises a score of 0 to 1 with at most two decimals, and whole numbers without a point.
///
/// RFC 8785 writes `1`, Python writes `1.0`: an integer is the one form on which both agree.
pub(in crate::diffdelta) fn serialize_score<S: Serializer>(
    score: &f64,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let hundredths = hundredths(*score);
    // Whole scores are integers, see above; all others are exact in two decimals in both forms.
    if hundredths.is_multiple_of(100) {
        serializer.serialize_u64(hundredths / 100)
    } else {
        serializer.serialize_f64(hundredths as f64 / 100.0)
    }
}

/// Returns a score in hundredths, 0 to 100; NaN counts as 0.
pub(in crate::diffdelta) fn hundredths(score: f64) -> u64 {
    (score.clamp(0.0, 1.0) * 100.0).round() as u64
}
