//! From a stretch of a feed's log to item deltas (section 2): what differs between its two ends.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cursor::Cursor;
use super::wire::{ImpactReason, Kind};
use crate::change::{Change, Op, Seq};
use crate::item::{Author, ContentHash, Item};

/// How one item differs from what was minted before.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta {
    /// What happened.
    pub kind: Kind,
    /// The item as it is now; of a removed one as last known.
    pub item: Item,
    /// [`Item::content_hash`] of `item`.
    pub hash: ContentHash,
    /// The hash of what was minted before; `None` for a new item.
    pub before: Option<ContentHash>,
    /// When this version was first observed.
    pub observed: Timestamp,
    /// When it was removed.
    pub removed_at: Option<Timestamp>,
    /// How much the difference matters.
    pub reason: ImpactReason,
}

/// A digest over the (id, content hash) pairs of a source's live items, independent of their order and
/// updated with the deltas alone: the sum modulo 2^256 of one SHA-256 for each pair. While a source mints, it
/// stands where the source's own cursor would be circular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateDigest(Cursor);

impl StateDigest {
    /// As it stands in a document. Never the zero cursor, also of a source without items.
    pub fn cursor(&self) -> Cursor {
        Cursor::of(&self.0.0)
    }

    /// Takes a delta into account.
    pub fn apply(&mut self, delta: &Delta) {
        if let Some(before) = &delta.before {
            self.add(pair(&delta.item.id, before), true);
        }
        if delta.kind != Kind::Removed {
            self.add(pair(&delta.item.id, &delta.hash), false);
        }
    }

    /// Adds or subtracts a number of 256 bits, least significant byte first.
    fn add(&mut self, number: [u8; 32], subtract: bool) {
        let mut carry = u16::from(subtract);
        for (sum, byte) in self.0.0.iter_mut().zip(number) {
            let byte = if subtract { !byte } else { byte };
            carry += u16::from(*sum) + u16::from(byte);
            *sum = carry.to_le_bytes()[0];
            carry >>= 8;
        }
    }
}

fn pair(id: &str, hash: &ContentHash) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update((id.len() as u64).to_le_bytes());
    hasher.update(id);
    hasher.update(hash.0);
    hasher.finalize().into()
}

/// One version of an item.
struct Version {
    item: Item,
    hash: ContentHash,
    modified: Timestamp,
}

/// What a window knows of one item.
struct Track {
    /// As it was when it was last minted, where it was there then.
    base: Option<Version>,
    /// As last known, where that is another version than `base`.
    last: Option<Version>,
    /// When it was deleted, where it is not there now.
    deleted: Option<Timestamp>,
}

/// The changes after the last minted place, to be collapsed into deltas.
///
/// Bounded: a longer log is minted in several windows, one snapshot each. For every change, in order:
/// [`needs`](Self::needs) which earlier version, then [`add`](Self::add); mint when it
/// [`is_full`](Self::is_full) or the log ends.
#[derive(Default)]
pub struct Window {
    items: HashMap<String, Track>,
    changes: usize,
    bytes: usize,
    last_seq: Option<Seq>,
}

impl Window {
    /// How many changes a window takes.
    pub const MAX_CHANGES: usize = 10_000;
    /// How many bytes of items a window takes, about; one item may be larger.
    pub const MAX_BYTES: usize = 16 << 20;

    /// A window without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The place of the earlier version that must be given to [`add`](Self::add) with this change.
    pub fn needs(&self, change: &Change) -> Option<Seq> {
        change.previous.filter(|_| !self.items.contains_key(&change.item.id))
    }

    /// Takes the next change of the log. Where the earlier version that it needs is missing (the log was
    /// trimmed), the item counts as one that was not there.
    pub fn add(&mut self, change: Change, earlier: Option<Change>) {
        self.changes += 1;
        self.bytes += weight(&change.item);
        self.last_seq = Some(change.seq);
        let track = self.items.entry(change.item.id.clone()).or_insert_with(|| {
            let earlier = earlier.filter(|e| e.op != Op::Delete);
            self.bytes += earlier.as_ref().map_or(0, |e| weight(&e.item));
            Track { base: earlier.map(Version::of), last: None, deleted: None }
        });
        if change.op == Op::Delete {
            track.deleted = Some(change.modified);
        } else {
            track.deleted = None;
            track.last = Some(Version::of(change));
        }
    }

    /// Whether it is time to mint.
    pub fn is_full(&self) -> bool {
        self.changes >= Self::MAX_CHANGES || self.bytes >= Self::MAX_BYTES
    }

    /// The place of the last change, if there was any: the new minted place.
    pub fn last_seq(&self) -> Option<Seq> {
        self.last_seq
    }

    /// The item deltas between the window's two ends, in no particular order: new where the item was not
    /// there before, updated where its content hash differs, removed where it is not there any more. What
    /// came and went, or is again what it was, is none.
    pub fn into_deltas(self) -> Vec<Delta> {
        self.items.into_values().filter_map(Track::into_delta).collect()
    }
}

impl Version {
    fn of(change: Change) -> Self {
        Self { item: change.item, hash: change.hash, modified: change.modified }
    }
}

impl Track {
    fn into_delta(self) -> Option<Delta> {
        let before = self.base.as_ref().map(|b| b.hash);
        let (kind, reason) = match (&self.base, &self.last, self.deleted) {
            (None, _, Some(_)) | (_, None, None) => return None,
            (Some(_), _, Some(_)) => (Kind::Removed, ImpactReason::Substantive),
            (None, Some(_), None) => (Kind::New, ImpactReason::Substantive),
            (Some(base), Some(last), None) if base.hash == last.hash => return None,
            (Some(base), Some(last), None) => (Kind::Updated, reason(&base.item, &last.item)),
        };
        let version = self.last.or(self.base)?;
        Some(Delta {
            kind,
            hash: version.hash,
            before,
            observed: version.modified,
            removed_at: self.deleted,
            reason,
            item: version.item,
        })
    }
}

/// About how many bytes an item takes.
fn weight(item: &Item) -> usize {
    let text = |t: &Option<String>| t.as_ref().map_or(0, String::len);
    let author = |a: &Author| a.name.len() + text(&a.email) + text(&a.url);
    let content = item.content.as_ref().map_or(0, |c| c.bytes.len() + c.media_type.len());
    let extra: usize = item.extra.iter().map(|(name, value)| name.len() + value_weight(value)).sum();
    item.id.len()
        + content
        + text(&item.url)
        + text(&item.title)
        + text(&item.summary)
        + item.authors.iter().map(author).sum::<usize>()
        + item.tags.iter().map(String::len).sum::<usize>()
        + extra
        + 500 // what every delta item has
}

fn value_weight(value: &serde_json::Value) -> usize {
    use serde_json::Value::{Array, Object, String};
    match value {
        String(text) => text.len() + 2,
        Array(values) => values.iter().map(value_weight).sum::<usize>() + 2,
        Object(members) => members.iter().map(|(n, v)| n.len() + 4 + value_weight(v)).sum::<usize>() + 2,
        _ => 8,
    }
}

/// How much the difference between two versions of an item matters. In this order: another content or
/// summary is substantive, or a minor edit where it [`is_minor`]; else another title; else another address,
/// author, tag or extra field; else only the dates differ.
fn reason(before: &Item, after: &Item) -> ImpactReason {
    let text = |item: &Item| {
        let content = item.content.as_ref();
        (content.map(|c| c.media_type.clone()), content.map(|c| c.bytes.clone()), item.summary.clone())
    };
    let (old, new) = (text(before), text(after));
    if old != new {
        let bytes = |b: &Option<bytes::Bytes>| b.clone().unwrap_or_default();
        let summary = |s: &Option<String>| s.clone().unwrap_or_default();
        let minor = old.0 == new.0
            && is_minor(&bytes(&old.1), &bytes(&new.1))
            && is_minor(summary(&old.2).as_bytes(), summary(&new.2).as_bytes());
        return if minor { ImpactReason::MinorEdit } else { ImpactReason::Substantive };
    }
    if before.title != after.title {
        return ImpactReason::TitleOnly;
    }
    let rest = |item: &Item| (item.url.clone(), item.authors.clone(), item.tags.clone(), item.extra.clone());
    if rest(before) != rest(after) { ImpactReason::MetadataOnly } else { ImpactReason::TimestampOnly }
}

/// Whether two texts differ in one place only, by at most 40 bytes and a tenth of the longer text.
fn is_minor(a: &[u8], b: &[u8]) -> bool {
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(x, y)| x == y).count();
    let longer = a.len().max(b.len());
    let edited = longer - head - tail;
    edited <= 40 && edited * 10 <= longer
}

#[cfg(test)]
mod tests;
