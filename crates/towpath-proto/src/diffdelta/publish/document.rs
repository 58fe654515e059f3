//! Writes a feed document as canonical JSON, with the volatile members inserted in key order.
//!
//! A document is hashed and written from the same members, so its cursor needs no second serialisation.

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

/// The items of a `buckets` object, in their order.
pub(super) struct Buckets<'a>(Vec<&'a RenderedItem>);

impl<'a> Buckets<'a> {
    /// Empty buckets.
    pub(super) const EMPTY: &'static [u8] = br#"{"flagged":[],"new":[],"removed":[],"updated":[]}"#;

    /// Sorts the items (section 4).
    pub(super) fn of(mut items: Vec<&'a RenderedItem>) -> Self {
        // Ids are unique in a document, so an unstable sort is deterministic.
        items.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        Self(items)
    }

    /// Returns the approximate size as JSON text, in bytes.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|item| item.len() + 1).sum::<usize>() + Self::EMPTY.len()
    }

    /// Writes each item into its bucket. A flagged item is in that bucket only (section 9).
    pub(super) fn write(&self, text: &mut Vec<u8>) {
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
            for (index, item) in self.0.iter().filter(inside).enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                item.write(text);
            }
            text.push(b']');
        }
        text.push(b'}');
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

/// A document up to its buckets, which are most of it, and the other members that the cursor covers.
///
/// The document, and the members that the cursor covers, begin with the same bytes. They are written and hashed once for
/// both.
pub(super) struct DocumentDraft {
    text: Vec<u8>,
    /// Hash of `text`.
    hasher: Sha256,
    /// Range of the buckets in `text`.
    buckets: Range<usize>,
    /// The members after the buckets, in the order of their names.
    rest: Vec<Member>,
}

/// Name and JSON text of a member.
type Member = (&'static str, Bytes);

/// A document as bytes, with its hash.
pub(super) struct WrittenDocument {
    pub(super) bytes: Bytes,
    pub(super) hash: Cursor,
    /// Range of the buckets in `bytes`.
    pub(super) buckets: Range<usize>,
}

impl Envelope {
    /// Begins a document with buckets of at most about `length` bytes, which `write` appends as JSON text.
    pub(super) fn with(&self, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> DocumentDraft {
        let mut rest = Vec::with_capacity(16);
        add(&mut rest, "changed", &self.changed);
        if let Some(reason) = self.reason {
            add(&mut rest, "impact", &reason.impact());
            add(&mut rest, "impact_reason", &reason);
        }
        add(&mut rest, "schema_version", &SCHEMA_VERSION);
        if let Some(id) = &self.source_id {
            add(&mut rest, "source_id", id);
        }
        add(&mut rest, "sources", &self.sources);
        add(&mut rest, "sources_included", &self.sources.keys().collect::<Vec<_>>());
        if let Some(status) = &self.status {
            add(&mut rest, "status", status);
        }
        add(&mut rest, "ttl_sec", &self.ttl_sec);
        // Allocated once: a document may have many megabytes.
        let members: usize = rest.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut text = Vec::with_capacity(length + self.narrative.len() + members + 600);
        text.extend_from_slice(b"{\"batch_narrative\":");
        text.extend_from_slice(&json(&self.narrative));
        text.extend_from_slice(b",\"buckets\":");
        let begin = text.len();
        write(&mut text);
        let buckets = begin..text.len();
        DocumentDraft { hasher: Sha256::new_with_prefix(&text), text, buckets, rest }
    }
}

fn add<T: Serialize>(members: &mut Vec<Member>, name: &'static str, value: &T) {
    members.push((name, json(value)));
}

/// Returns the text of the last members of a document.
fn end(members: &[Member]) -> Vec<u8> {
    let mut text = Vec::new();
    for (name, value) in members {
        text.extend_from_slice(b",\"");
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        text.extend_from_slice(value);
    }
    text.push(b'}');
    text
}

impl DocumentDraft {
    /// Computes the cursor by canonical_v1 (section 3.1). The members are canonical already.
    pub(super) fn cursor(&self) -> Cursor {
        // Members are added in order and values are canonical, so hashing them as they are is canonical_v1.
        debug_assert!(self.rest.is_sorted_by_key(|(name, _)| *name));
        debug_assert!(!self.rest.iter().any(|(name, _)| VOLATILE.contains(name)));
        Cursor(self.hasher.clone().chain_update(end(&self.rest)).finalize().into())
    }

    /// Writes the whole document, with members in the order of their names.
    pub(super) fn write(mut self, stamps: &VolatileMembers) -> WrittenDocument {
        add(&mut self.rest, "cursor", &stamps.cursor);
        add(&mut self.rest, "cursor_basis", &BASIS);
        add(&mut self.rest, "generated_at", &stamps.generated_at);
        add(&mut self.rest, "prev_cursor", &stamps.prev_cursor);
        // Section 2.6: the hash of the file before. The first one has none.
        if let Some(hash) = &stamps.prev_hash {
            add(&mut self.rest, "prev_hash", hash);
        }
        // The volatile members go between the others. The names are distinct, so the order is total.
        self.rest.sort_by_key(|(name, _)| *name);
        debug_assert!(self.rest.first().is_some_and(|(name, _)| *name > "buckets"));
        let end = end(&self.rest);
        self.text.extend_from_slice(&end);
        // The range of the buckets lets a later carry copy them without parsing the document.
        WrittenDocument {
            hash: Cursor(self.hasher.chain_update(&end).finalize().into()),
            bytes: self.text.into(),
            buckets: self.buckets,
        }
    }
}
