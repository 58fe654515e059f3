//! Writes a feed document as canonical JSON, with the volatile members inserted in key order.
//!
//! A document is hashed and written from the same members, so its cursor needs no second serialisation.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::delta_item::RenderedItem;
use crate::diffdelta::wire::cursor::{BASIS, Cursor, VOLATILE};
use crate::diffdelta::wire::{DeltaKind, FetchStatus, ImpactReason, SCHEMA_VERSION, Sources};
use crate::feed_id::FeedId;

/// Serialises a value that JSON can always represent: text keys and finite numbers.
pub(super) fn json<T: Serialize>(value: &T) -> Bytes {
    let text = serde_json::to_vec(value);
    debug_assert!(text.is_ok());
    text.unwrap_or_default().into()
}

/// A `buckets` object as JSON text.
pub(super) struct BucketsText(Vec<u8>);

impl BucketsText {
    /// Empty buckets.
    pub(super) const EMPTY: &[u8] = br#"{"flagged":[],"new":[],"removed":[],"updated":[]}"#;

    /// Sorts the items (section 4) and writes each into its bucket. A flagged item is in that bucket only
    /// (section 9).
    pub(super) fn of(mut items: Vec<&RenderedItem>) -> Self {
        // Ids are unique in a document, so an unstable sort is deterministic.
        items.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        let mut text = Vec::with_capacity(items.iter().map(|item| item.len()).sum::<usize>() + 100);
        for (name, kind) in [
            // In the order of the names, as canonical JSON needs it.
            ("{\"flagged\":[", None),
            (",\"new\":[", Some(DeltaKind::New)),
            (",\"removed\":[", Some(DeltaKind::Removed)),
            (",\"updated\":[", Some(DeltaKind::Updated)),
        ] {
            text.extend_from_slice(name.as_bytes());
            let inside = |item: &&&RenderedItem| match kind {
                None => item.flagged,
                Some(kind) => !item.flagged && item.kind == kind,
            };
            for (index, item) in items.iter().filter(inside).enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                item.write(&mut text);
            }
            text.push(b']');
        }
        text.push(b'}');
        Self(text)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// All members of a document but its buckets and its volatile members.
pub(super) struct Envelope {
    pub(super) narrative: String,
    pub(super) changed: bool,
    /// Set if the document is changed.
    pub(super) reason: Option<ImpactReason>,
    /// Set in a source's document.
    pub(super) source_id: Option<FeedId>,
    /// Set in a source's document.
    pub(super) status: Option<FetchStatus>,
    pub(super) ttl_sec: u64,
    pub(super) sources: Sources,
}

/// The members that the cursor does not cover, and the time of the snapshot of `prev_cursor`.
pub(super) struct VolatileMembers {
    pub(super) cursor: Cursor,
    pub(super) prev_cursor: Cursor,
    pub(super) prev_generated_at: Option<Timestamp>,
    pub(super) prev_hash: Option<Cursor>,
    pub(super) generated_at: Timestamp,
}

/// The members that the cursor covers, as JSON texts in the order of their names.
pub(super) struct CanonicalDocument<'a> {
    members: Vec<(&'static str, Cow<'a, [u8]>)>,
}

/// A document as bytes, with its hash.
pub(super) struct WrittenDocument {
    pub(super) bytes: Bytes,
    pub(super) hash: Cursor,
    /// Range of the buckets in `bytes`.
    pub(super) buckets: Range<usize>,
}

impl Envelope {
    /// Combines the envelope with buckets, which are JSON text.
    pub(super) fn with<'a>(&self, buckets: &'a [u8]) -> CanonicalDocument<'a> {
        let mut document = CanonicalDocument { members: Vec::with_capacity(16) };
        document.add("batch_narrative", &self.narrative);
        document.members.push(("buckets", Cow::Borrowed(buckets)));
        document.add("changed", &self.changed);
        if let Some(reason) = self.reason {
            document.add("impact", &reason.impact());
            document.add("impact_reason", &reason);
        }
        document.add("schema_version", &SCHEMA_VERSION);
        if let Some(id) = &self.source_id {
            document.add("source_id", id);
        }
        document.add("sources", &self.sources);
        document.add("sources_included", &self.sources.keys().collect::<Vec<_>>());
        if let Some(status) = &self.status {
            document.add("status", status);
        }
        document.add("ttl_sec", &self.ttl_sec);
        document
    }
}

impl CanonicalDocument<'_> {
    fn add<T: Serialize>(&mut self, name: &'static str, value: &T) {
        self.members.push((name, Cow::Owned(json(value).into())));
    }

    /// Computes the cursor by canonical_v1 (section 3.1). The members are canonical already.
    pub(super) fn cursor(&self) -> Cursor {
        // Members are added in order and values are canonical, so hashing them as they are is canonical_v1.
        debug_assert!(self.members.is_sorted_by_key(|(name, _)| *name));
        debug_assert!(!self.members.iter().any(|(name, _)| VOLATILE.contains(name)));
        // The parts are hashed without joining them: a document may have many megabytes.
        let mut hasher = Sha256::new();
        for (index, (name, value)) in self.members.iter().enumerate() {
            hasher.update(if index == 0 { "{\"" } else { ",\"" });
            hasher.update(name);
            hasher.update("\":");
            hasher.update(value);
        }
        hasher.update("}");
        Cursor(hasher.finalize().into())
    }

    /// Writes the whole document, with members in the order of their names.
    pub(super) fn write(mut self, stamps: &VolatileMembers) -> WrittenDocument {
        self.add("cursor", &stamps.cursor);
        self.add("cursor_basis", &BASIS);
        self.add("generated_at", &stamps.generated_at);
        self.add("prev_cursor", &stamps.prev_cursor);
        // Section 2.6: the hash of the file before. The first one has none.
        if let Some(hash) = &stamps.prev_hash {
            self.add("prev_hash", hash);
        }
        // The volatile members go between the others. The names are distinct, so the order is total.
        self.members.sort_by_key(|(name, _)| *name);
        let size: usize = self.members.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut text = Vec::with_capacity(size + 2);
        let mut buckets = 0..0;
        for (index, (name, value)) in self.members.iter().enumerate() {
            text.extend_from_slice(if index == 0 { b"{\"" } else { b",\"" });
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            // The range lets a later carry copy the buckets without parsing the document.
            if *name == "buckets" {
                buckets = text.len()..text.len() + value.len();
            }
            text.extend_from_slice(value);
        }
        text.push(b'}');
        WrittenDocument { hash: Cursor::of(&text), bytes: text.into(), buckets }
    }
}
