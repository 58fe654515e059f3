//! Collapses a range of a feed's log into item deltas (section 2): the differences between its two ends.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::change::{Change, Op, Seq};
use crate::diffdelta::wire::cursor::Cursor;
use crate::diffdelta::wire::{DeltaKind, ImpactReason};
use crate::item::{Author, ContentHash, Item};

/// The difference of an item from its last minted version.
#[derive(Debug, Clone, PartialEq)]
pub struct Delta {
    /// The kind of change.
    pub kind: DeltaKind,
    /// The current item; for a removed one, its last known version.
    pub item: Item,
    /// [`Item::content_hash`] of `item`.
    pub hash: ContentHash,
    /// Hash of the last minted version; `None` for a new item.
    pub before: Option<ContentHash>,
    /// Time at which this version was first observed.
    pub observed: Timestamp,
    /// Time of the removal.
    pub removed_at: Option<Timestamp>,
    /// Weight of the difference.
    pub reason: ImpactReason,
}

/// A digest over the (id, content hash) pairs of a source's live items.
///
/// It is the sum modulo 2^256 of a SHA-256 for each pair: independent of the order, and updated from deltas
/// alone. In a minted document it replaces the source's own cursor, which would be circular there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateDigest(Cursor);

impl StateDigest {
    /// Returns the digest as a cursor. Hashed once more, so that a source without items has no zero cursor.
    pub fn cursor(&self) -> Cursor {
        Cursor::of(&self.0.0)
    }

    /// Updates the digest with a delta.
    pub fn apply(&mut self, delta: &Delta) {
        if let Some(before) = &delta.before {
            self.subtract(pair(&delta.item.id, before));
        }
        if delta.kind != DeltaKind::Removed {
            self.add(pair(&delta.item.id, &delta.hash));
        }
    }

    /// Adds a 256-bit number, least significant byte first.
    fn add(&mut self, number: [u8; 32]) {
        self.add_with_carry(number, 0);
    }

    fn subtract(&mut self, number: [u8; 32]) {
        // Two's complement: subtracting is adding the inverted bytes with an initial carry.
        self.add_with_carry(number.map(|byte| !byte), 1);
    }

    fn add_with_carry(&mut self, number: [u8; 32], mut carry: u16) {
        for (sum, byte) in self.0.0.iter_mut().zip(number) {
            carry += u16::from(*sum) + u16::from(byte);
            *sum = carry.to_le_bytes()[0];
            // The carry out of the last byte is dropped: the sum is modulo 2^256.
            carry >>= 8;
        }
    }
}

fn pair(id: &str, hash: &ContentHash) -> [u8; 32] {
    let mut hasher = Sha256::new();
    // The length separates id and hash: no two pairs have the same input.
    hasher.update((id.len() as u64).to_le_bytes());
    hasher.update(id);
    hasher.update(hash.0);
    hasher.finalize().into()
}

/// A version of an item.
struct ItemVersion {
    item: Item,
    hash: ContentHash,
    modified: Timestamp,
}

/// The versions of an item at the two ends of a window.
struct TrackedItem {
    /// The last minted version, if the item existed then.
    base: Option<ItemVersion>,
    /// The last known version, if it differs from `base`.
    last: Option<ItemVersion>,
    /// Time of the deletion, if the item is deleted now.
    deleted: Option<Timestamp>,
}

/// The changes after the last minted one, to be collapsed into deltas.
///
/// A window is bounded: a longer log is minted in several windows, with a snapshot each. For every change, in
/// order, call [`missing_version`](Self::missing_version) and then [`add`](Self::add). Mint when the window
/// [`is_full`](Self::is_full) or the log ends.
#[derive(Default)]
pub struct DeltaWindow {
    /// Items in the order of their first changes.
    items: Vec<TrackedItem>,
    /// Places of the items by id.
    // Apart from the items: a map that grows would move all of them again and again.
    places: HashMap<String, usize>,
    changes: usize,
    bytes: usize,
    last_seq: Option<Seq>,
}

impl DeltaWindow {
    /// Most changes of a window.
    // A window is in memory until its mint. A bulk import becomes several snapshots.
    pub const MAX_CHANGES: usize = 10_000;
    /// Approximate limit of the items' bytes. A single item may be larger.
    pub const MAX_BYTES: usize = 16 << 20;

    /// Creates a window without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the sequence number of the earlier version that [`add`](Self::add) needs with this change.
    pub fn missing_version(&self, change: &Change) -> Option<Seq> {
        // Only the first change of an item in the window needs its base.
        change.previous.filter(|_| !self.places.contains_key(&change.item.id))
    }

    /// Adds the next change of the log.
    ///
    /// If the earlier version is missing because the log was trimmed, the item counts as new.
    pub fn add(&mut self, change: Change, earlier: Option<Change>) {
        self.changes += 1;
        self.bytes += weight(&change.item);
        self.last_seq = Some(change.seq);
        let place = *self.places.entry(change.item.id.clone()).or_insert_with(|| {
            // A deleted version counts as absent: the item is new when it comes back.
            let earlier = earlier.filter(|e| e.op != Op::Delete);
            // Both ends are in memory until the mint, so both count.
            self.bytes += earlier.as_ref().map_or(0, |e| weight(&e.item));
            let base = earlier.map(ItemVersion::of);
            self.items.push(TrackedItem { base, last: None, deleted: None });
            self.items.len() - 1
        });
        let track = &mut self.items[place];
        if change.op == Op::Delete {
            // `last` stays: a removed item is shown in its last known version.
            track.deleted = Some(change.modified);
        } else {
            track.deleted = None;
            track.last = Some(ItemVersion::of(change));
        }
    }

    /// Returns true at the limit of changes or bytes. Mint then.
    pub fn is_full(&self) -> bool {
        self.changes >= Self::MAX_CHANGES || self.bytes >= Self::MAX_BYTES
    }

    /// Returns the sequence number of the last change, if any.
    pub fn last_seq(&self) -> Option<Seq> {
        self.last_seq
    }

    /// Returns the deltas between the window's two ends, in the order of the items' first changes.
    ///
    /// An item is new if it did not exist before, updated if its content hash differs, and removed if it no
    /// longer exists. An item that came and went, or is the same again, has no delta.
    pub fn into_deltas(self) -> Vec<Delta> {
        self.items.into_iter().filter_map(TrackedItem::into_delta).collect()
    }
}

impl ItemVersion {
    fn of(change: Change) -> Self {
        Self { item: change.item, hash: change.hash, modified: change.modified }
    }
}

impl TrackedItem {
    fn into_delta(self) -> Option<Delta> {
        let before = self.base.as_ref().map(|b| b.hash);
        let (kind, reason) = match (&self.base, &self.last, self.deleted) {
            // Created and deleted within the window, or only deleted again: no reader ever saw a change.
            (None, _, Some(_)) | (_, None, None) => return None,
            (Some(_), _, Some(_)) => (DeltaKind::Removed, ImpactReason::Substantive),
            (None, Some(_), None) => (DeltaKind::New, ImpactReason::Substantive),
            // Changed and changed back.
            (Some(base), Some(last), None) if base.hash == last.hash => return None,
            (Some(base), Some(last), None) => (DeltaKind::Updated, reason(&base.item, &last.item)),
        };
        // A removed item is published whole, in its last known version.
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

/// Estimates the size of an item in bytes.
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
        + 500 // hashes, times and names of a delta item
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

/// Returns the weight of the difference between two versions of an item.
///
/// In this order: a different content or summary is substantive, or a minor edit if it [`is_minor`]; then a
/// different title; then a different URL, author, tag or extra field; otherwise only the dates differ.
fn reason(before: &Item, after: &Item) -> ImpactReason {
    let text = |item: &Item| {
        let content = item.content.as_ref();
        (content.map(|c| c.media_type.clone()), content.map(|c| c.bytes.clone()), item.summary.clone())
    };
    let (old, new) = (text(before), text(after));
    if old != new {
        let bytes = |b: &Option<bytes::Bytes>| b.clone().unwrap_or_default();
        let summary = |s: &Option<String>| s.clone().unwrap_or_default();
        // Another media type is never minor, even for equal bytes.
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

/// Returns true if two texts differ in a single range of at most 40 bytes and a tenth of the longer text.
fn is_minor(a: &[u8], b: &[u8]) -> bool {
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(x, y)| x == y).count();
    let longer = a.len().max(b.len());
    // Common prefix and suffix are found in linear time. A real diff would be quadratic on large contents.
    let edited = longer - head - tail;
    edited <= 40 && edited * 10 <= longer
}

#[cfg(test)]
mod tests;
