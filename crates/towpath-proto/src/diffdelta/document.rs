//! Writing a feed document: canonical text, with the volatile members put in their places.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::cursor::{BASIS, Cursor, VOLATILE};
use super::delta_item::Rendered;
use super::wire::{ImpactReason, Kind, SCHEMA_VERSION, Sources, Status};
use crate::feed_id::FeedId;

/// JSON text of something that JSON can write: texts, finite numbers, keys that are texts.
pub(super) fn json<T: Serialize>(value: &T) -> Bytes {
    let text = serde_json::to_vec(value);
    debug_assert!(text.is_ok());
    text.unwrap_or_default().into()
}

/// The text of a `buckets` object.
pub(super) struct Buckets(Vec<u8>);

impl Buckets {
    /// Buckets without items.
    pub(super) const EMPTY: &[u8] = br#"{"flagged":[],"new":[],"removed":[],"updated":[]}"#;

    /// Sorts the items (section 4) and puts each in its bucket: a flagged one there only (section 9).
    pub(super) fn of(items: &mut [Rendered]) -> Self {
        items.sort_unstable_by(|a, b| a.order().cmp(&b.order()));
        let mut text = Vec::with_capacity(items.iter().map(Rendered::len).sum::<usize>() + 100);
        for (name, kind) in [
            ("{\"flagged\":[", None),
            (",\"new\":[", Some(Kind::New)),
            (",\"removed\":[", Some(Kind::Removed)),
            (",\"updated\":[", Some(Kind::Updated)),
        ] {
            text.extend_from_slice(name.as_bytes());
            let inside = |item: &&Rendered| match kind {
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

/// Everything of a document but its buckets and its volatile members.
pub(super) struct Envelope {
    pub(super) narrative: String,
    pub(super) changed: bool,
    /// Where it is changed.
    pub(super) reason: Option<ImpactReason>,
    /// Of a source's document.
    pub(super) source_id: Option<FeedId>,
    /// Of a source's document.
    pub(super) status: Option<Status>,
    pub(super) ttl_sec: u64,
    pub(super) sources: Sources,
}

/// The volatile members, and when the snapshot of `prev_cursor` was made.
pub(super) struct Stamps {
    pub(super) cursor: Cursor,
    pub(super) prev_cursor: Cursor,
    pub(super) prev_generated_at: Option<Timestamp>,
    pub(super) prev_hash: Option<Cursor>,
    pub(super) generated_at: Timestamp,
}

/// The members of a document that its cursor covers, in the order of their names.
pub(super) struct Document<'a> {
    members: Vec<(&'static str, Cow<'a, [u8]>)>,
}

/// A document as it is served.
pub(super) struct Written {
    pub(super) bytes: Bytes,
    pub(super) hash: Cursor,
    /// Where the buckets stand in `bytes`.
    pub(super) buckets: Range<usize>,
}

impl Envelope {
    /// The document with these buckets, which are JSON text.
    pub(super) fn with<'a>(&self, buckets: &'a [u8]) -> Document<'a> {
        let mut document = Document { members: Vec::with_capacity(16) };
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

impl Document<'_> {
    fn add<T: Serialize>(&mut self, name: &'static str, value: &T) {
        self.members.push((name, Cow::Owned(json(value).into())));
    }

    /// The cursor by canonical_v1 (section 3.1): the members are canonical already.
    pub(super) fn cursor(&self) -> Cursor {
        debug_assert!(self.members.is_sorted_by_key(|(name, _)| *name));
        debug_assert!(!self.members.iter().any(|(name, _)| VOLATILE.contains(name)));
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

    /// The whole document, members in the order of their names.
    pub(super) fn write(mut self, stamps: &Stamps) -> Written {
        self.add("cursor", &stamps.cursor);
        self.add("cursor_basis", &BASIS);
        self.add("generated_at", &stamps.generated_at);
        self.add("prev_cursor", &stamps.prev_cursor);
        if let Some(hash) = &stamps.prev_hash {
            self.add("prev_hash", hash);
        }
        self.members.sort_by_key(|(name, _)| *name);
        let size: usize = self.members.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut text = Vec::with_capacity(size + 2);
        let mut buckets = 0..0;
        for (index, (name, value)) in self.members.iter().enumerate() {
            text.extend_from_slice(if index == 0 { b"{\"" } else { b",\"" });
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            if *name == "buckets" {
                buckets = text.len()..text.len() + value.len();
            }
            text.extend_from_slice(value);
        }
        text.push(b'}');
        Written { hash: Cursor::of(&text), bytes: text.into(), buckets }
    }
}
