//! Delivers a verified document as changes.

use std::collections::HashMap;
use std::vec::IntoIter;

use jiff::Timestamp;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::state::{DiffDeltaFollowState, PartialDocument, position};
use crate::change::Op;
use crate::diffdelta::wire::delta_item::{ReadDelta, read};
use crate::diffdelta::wire::{DeltaDocument, DeltaKind, ItemBuckets};
use crate::follow::{Event, Followed};
use crate::format::budget::Budget;
use crate::format::json_numbers::numbers_as_text;
use crate::format::json_value::read_value;
use crate::format::{DocumentLimits, FormatError};

/// Maximum number of reported items that cannot be read.
const MAX_PROBLEMS: usize = 100;

/// A document whose changes are being delivered.
#[derive(Debug)]
pub(super) struct DocumentDelivery {
    /// The changes that are left, each with its number in the document, from 1.
    // As text: the values of many small items would take many times the document's size.
    changes: IntoIter<(usize, RawDelta)>,
    /// Name of the feed in changes that state no source.
    feed: String,
    budget: Budget,
    cursor: String,
    generated_at: String,
    /// The cursor before, unless the document is carried: then it names itself.
    prev_cursor: Option<String>,
    /// Number of the last delivered change.
    delivered: usize,
}

/// An item of a document as it was written.
#[derive(Debug)]
struct RawDelta {
    text: Box<RawValue>,
    /// Kind of change of its bucket.
    usual: DeltaKind,
}

/// A change whose place in the document is not known yet.
struct UnsortedDelta {
    modified: Option<Timestamp>,
    /// Digest of the feed's name and the item's id.
    item: [u8; 16],
    /// Digest of the operation and the item.
    version: [u8; 16],
    /// `None` if the change is only counted: a position is the same whatever the start.
    delta: Option<RawDelta>,
}

impl DocumentDelivery {
    /// Creates a delivery of the remaining changes of a document, ordered by time.
    ///
    /// Items that are left out are reported in `problems`. A document or item that takes too much memory is an error.
    pub(super) fn new(
        document: DeltaDocument,
        feed: &str,
        state: &DiffDeltaFollowState,
        limits: DocumentLimits,
        problems: &mut Vec<Event>,
    ) -> Result<Self, FormatError> {
        let DeltaDocument { cursor, generated_at, prev_cursor, changed, source_id, buckets, .. } = document;
        let prev_cursor = changed.then_some(prev_cursor);
        let feed = source_id.as_deref().unwrap_or(feed);
        for (name, count) in &buckets.unknown {
            let items = if *count == 1 { "item is" } else { "items are" };
            let text = format!("the bucket {name:?} is unknown, and its {count} {items} left out");
            problems.push(Event::Warning(text));
        }
        let filter = SinceFilter::new(state.since, &generated_at);
        let buckets = buckets_with_kinds(buckets);
        let length = buckets.iter().flat_map(|(_, _, items)| items).map(|item| item.get().len()).sum();
        let mut budget = Budget::new(length, limits);
        // The items' texts were copied from the document.
        budget.store(length)?;
        let mut changes = Vec::new();
        for (name, usual, items) in buckets {
            for (index, text) in items.into_iter().enumerate() {
                budget.store(size_of::<UnsortedDelta>())?;
                let delta = RawDelta { text, usual };
                match delta.sorted_in(feed, &filter, &mut budget) {
                    Ok(Some(change)) => changes.push(change),
                    // The chain leads to the document that had it first.
                    Ok(None) => {}
                    Err(ItemError::Limit(error)) => return Err(error),
                    Err(ItemError::Invalid(_)) if problems.len() >= MAX_PROBLEMS => {}
                    Err(ItemError::Invalid(reason)) => {
                        let text = format!("item {} of bucket {name} is left out: {reason}", index + 1);
                        problems.push(Event::Incomplete(text));
                    }
                }
            }
        }
        // Stable: changes without a time, or with equal times, keep the order of the buckets.
        changes.sort_by_key(|change| change.modified);
        drop_repeats(&mut changes);
        // The order is a function of the document alone, so a number identifies a change.
        let delivered = state.delivered_of(&cursor);
        let numbered = changes.into_iter().enumerate().filter_map(|(index, change)| {
            let number = index + 1;
            change.delta.filter(|_| number > delivered).map(|delta| (number, delta))
        });
        let changes = numbered.collect::<Vec<_>>().into_iter();
        let feed = feed.to_owned();
        Ok(Self { changes, feed, budget, cursor, generated_at, prev_cursor, delivered })
    }

    /// Returns the next change, if any is left.
    pub(super) fn next_change(&mut self) -> Option<Box<Followed>> {
        let (number, delta) = self.changes.next()?;
        self.delivered = number;
        // After the last change the whole document is delivered, whose cursor is the position.
        let position = if self.is_done() { self.cursor.clone() } else { position(&self.cursor, number) };
        // It was read before, to find its place.
        let (_, change) = delta.read(&self.feed, &mut self.budget).ok()??;
        Some(Box::new(Followed { position, ..change }))
    }

    /// Returns true if every change was delivered.
    pub(super) fn is_done(&self) -> bool {
        self.changes.len() == 0
    }

    /// Records in `state` how much of the document was delivered.
    pub(super) fn record_progress(&self, state: &mut DiffDeltaFollowState) {
        if self.is_done() {
            state.record_document(&self.cursor, &self.generated_at, self.prev_cursor.as_deref());
        } else {
            state.partial = Some(PartialDocument { cursor: self.cursor.clone(), delivered: self.delivered });
        }
    }
}

/// Reason why an item cannot be delivered.
enum ItemError {
    Limit(FormatError),
    Invalid(String),
}

impl RawDelta {
    /// Reads the item, with the time of its change; `None` if an earlier document has the change.
    fn read(
        &self,
        feed: &str,
        budget: &mut Budget,
    ) -> Result<Option<(Option<Timestamp>, Followed)>, ItemError> {
        let before = budget.left();
        let value = read_value(&numbers_as_text(self.text.get()), budget);
        // The values are gone before the next item is read.
        budget.refund(before.saturating_sub(budget.left()));
        let value = value.map_err(|error| match error {
            FormatError::Limit(_) => ItemError::Limit(error),
            error => ItemError::Invalid(error.to_string()),
        })?;
        let read = read(value).map_err(ItemError::Invalid)?;
        if read.is_repeated {
            return Ok(None);
        }
        Ok(Some((read.changed_at, followed(read, self.usual, feed))))
    }

    /// Reads the item for its place among the others.
    fn sorted_in(
        self,
        feed: &str,
        filter: &SinceFilter,
        budget: &mut Budget,
    ) -> Result<Option<UnsortedDelta>, ItemError> {
        let Some((changed_at, change)) = self.read(feed, budget)? else { return Ok(None) };
        let before = budget.left();
        budget.item(&change.item).map_err(ItemError::Limit)?;
        budget.refund(before.saturating_sub(budget.left()));
        let item = digest(&[change.feed.as_bytes(), b"\0", change.item.id.as_bytes()]);
        let version = digest(&[change.op.as_str().as_bytes(), &change.item.content_hash().0]);
        let delta = Some(self).filter(|_| filter.accepts(changed_at));
        Ok(Some(UnsortedDelta { modified: change.modified, item, version, delta }))
    }
}

/// Returns the first half of the SHA-256 of these parts.
// Half is enough: a publisher that finds equal ones only drops changes of its own.
fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hasher = Sha256::new();
    parts.iter().for_each(|part| hasher.update(part));
    let whole: [u8; 32] = hasher.finalize().into();
    let mut half = [0; 16];
    half.copy_from_slice(&whole[..16]);
    half
}

/// Drops each change that says of an item what the one before said: some publishers list an item twice.
fn drop_repeats(changes: &mut [UnsortedDelta]) {
    let mut latest: HashMap<[u8; 16], [u8; 16]> = HashMap::new();
    // Those that are dropped are counted, so that the positions of the others are the same.
    for change in changes.iter_mut().filter(|change| change.delta.is_some()) {
        if latest.insert(change.item, change.version) == Some(change.version) {
            change.delta = None;
        }
    }
}

/// Returns the buckets with the kind of change that applies if an item states none.
fn buckets_with_kinds(buckets: ItemBuckets) -> [(&'static str, DeltaKind, Vec<Box<RawValue>>); 5] {
    [
        ("new", DeltaKind::New, buckets.new),
        ("updated", DeltaKind::Updated, buckets.updated),
        ("items", DeltaKind::Updated, buckets.items),
        ("flagged", DeltaKind::Updated, buckets.flagged),
        ("removed", DeltaKind::Removed, buckets.removed),
    ]
}

fn followed(read: ReadDelta, bucket: DeltaKind, feed: &str) -> Followed {
    // Section 1.2: the bucket decides. Only a flagged item states its own kind, which may be a removal.
    let kind = if bucket == DeltaKind::Updated { read.kind.unwrap_or(bucket) } else { bucket };
    Followed {
        feed: if read.source.is_empty() { feed.to_owned() } else { read.source },
        op: if kind == DeltaKind::Removed { Op::Delete } else { Op::Put },
        item: read.item,
        patch: None,
        modified: read.modified,
        position: String::new(),
        entry_id: None,
    }
}

/// Filter for a start from a time.
struct SinceFilter {
    since: Option<Timestamp>,
    /// True if the whole document is older than the start.
    is_earlier: bool,
}

impl SinceFilter {
    /// Documents have whole seconds. A document without a valid time counts as later.
    fn new(since: Option<Timestamp>, generated_at: &str) -> Self {
        let earlier = |since: Timestamp| {
            generated_at.parse::<Timestamp>().is_ok_and(|made| made.as_second() < since.as_second())
        };
        Self { since, is_earlier: since.is_some_and(earlier) }
    }

    /// Returns true if a change at this time is to be delivered.
    ///
    /// Without a time of its own, the time of its document decides.
    fn accepts(&self, changed_at: Option<Timestamp>) -> bool {
        match (self.since, changed_at) {
            (Some(since), Some(changed_at)) => changed_at >= since,
            _ => !self.is_earlier,
        }
    }
}
