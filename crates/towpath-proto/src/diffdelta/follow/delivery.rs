//! Delivers a verified document as changes.

use std::collections::HashMap;
use std::vec::IntoIter;

use jiff::Timestamp;
use serde_json::value::RawValue;

use super::state::{DiffDeltaFollowState, PartialDocument, position};
use crate::change::Op;
use crate::diffdelta::wire::delta_item::{ReadDelta, read};
use crate::diffdelta::wire::{DeltaDocument, DeltaKind, ItemBuckets};
use crate::follow::Followed;
use crate::format::budget::Budget;
use crate::format::json_value::read_value;
use crate::format::{DocumentLimits, FormatError};

/// Maximum number of reported items that cannot be read.
const MAX_PROBLEMS: usize = 100;

/// A document whose changes are being delivered.
#[derive(Debug)]
pub(super) struct DocumentDelivery {
    /// The changes that are left, each with its number in the document, from 1.
    changes: IntoIter<(usize, Followed)>,
    cursor: String,
    generated_at: String,
    /// The cursor before, unless the document is carried: then it names itself.
    prev_cursor: Option<String>,
    /// Number of the last delivered change.
    delivered: usize,
}

impl DocumentDelivery {
    /// Creates a delivery of the remaining changes of a document, ordered by time.
    ///
    /// Items that cannot be read are reported in `problems`. A document that takes too much memory is an error.
    pub(super) fn new(
        document: DeltaDocument,
        feed: &str,
        state: &DiffDeltaFollowState,
        limits: DocumentLimits,
        problems: &mut Vec<String>,
    ) -> Result<Self, FormatError> {
        let DeltaDocument { cursor, generated_at, prev_cursor, changed, source_id, buckets, .. } = document;
        let prev_cursor = changed.then_some(prev_cursor);
        let feed = source_id.as_deref().unwrap_or(feed);
        for (name, count) in &buckets.unknown {
            let items = if *count == 1 { "item is" } else { "items are" };
            problems.push(format!("the bucket {name:?} is unknown, and its {count} {items} left out"));
        }
        let filter = SinceFilter::new(state.since, &generated_at);
        let buckets = buckets_with_kinds(buckets);
        let length = buckets.iter().flat_map(|(_, _, items)| items).map(|item| item.get().len()).sum();
        let mut budget = Budget::new(length, limits);
        // The items' texts were copied from the document.
        budget.store(length)?;
        let mut changes = Vec::new();
        for (name, usual, items) in buckets {
            for (index, item) in items.into_iter().enumerate() {
                let before = budget.left();
                let item = read_value(item.get(), &mut budget)?;
                let tree = before.saturating_sub(budget.left());
                let read = read(item);
                // Reading moves an item's texts out of its tree.
                budget.refund(tree);
                if read.as_ref().is_ok_and(|read| read.is_repeated) {
                    // The chain leads to the document that had it first.
                    continue;
                }
                let read = read.and_then(|r| Ok((r.changed_at, followed(r, usual, feed, &cursor)?)));
                match read {
                    Ok((changed_at, change)) if filter.accepts(changed_at) => {
                        budget.item(&change.item)?;
                        changes.push((change.modified, Some(change)));
                    }
                    // Counted: a position is the same whatever the start.
                    Ok((_, change)) => changes.push((change.modified, None)),
                    Err(_) if problems.len() >= MAX_PROBLEMS => {}
                    Err(reason) => problems.push(format!("item {} of bucket {name}: {reason}", index + 1)),
                }
            }
        }
        // Stable: changes without a time, or with equal times, keep the order of the buckets.
        changes.sort_by_key(|(modified, _)| *modified);
        drop_repeats(&mut changes);
        // The order is a function of the document alone, so a number identifies a change.
        let delivered = state.delivered_of(&cursor);
        let numbered = changes.into_iter().enumerate().filter_map(|(index, (_, change))| {
            let number = index + 1;
            change.filter(|_| number > delivered).map(|change| (number, change))
        });
        let mut changes: Vec<(usize, Followed)> = numbered.collect();
        // After the last change the whole document is delivered, whose cursor is the position.
        if let Some((_, earlier)) = changes.split_last_mut() {
            earlier.iter_mut().for_each(|(number, change)| change.position = position(&cursor, *number));
        }
        Ok(Self { changes: changes.into_iter(), cursor, generated_at, prev_cursor, delivered })
    }

    /// Returns the next change, if any is left.
    pub(super) fn next_change(&mut self) -> Option<Box<Followed>> {
        let (number, change) = self.changes.next()?;
        self.delivered = number;
        Some(Box::new(change))
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

/// Drops each change that says of an item what the one before said: some publishers list an item twice.
fn drop_repeats(changes: &mut [(Option<Timestamp>, Option<Followed>)]) {
    let mut latest: HashMap<(&str, &str), &Followed> = HashMap::new();
    let mut repeats = Vec::new();
    for (index, (_, change)) in changes.iter().enumerate() {
        let Some(change) = change else { continue };
        let before = latest.insert((&change.feed, &change.item.id), change);
        if before.is_some_and(|before| before.op == change.op && before.item == change.item) {
            repeats.push(index);
        }
    }
    for index in repeats {
        // Counted, so that the positions of the others are the same.
        changes[index].1 = None;
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

fn followed(read: ReadDelta, bucket: DeltaKind, feed: &str, cursor: &str) -> Result<Followed, String> {
    // Section 1.2: the bucket decides. Only a flagged item states its own kind, which may be a removal.
    let kind = if bucket == DeltaKind::Updated { read.kind.unwrap_or(bucket) } else { bucket };
    Ok(Followed {
        feed: if read.source.is_empty() { feed.to_owned() } else { read.source },
        op: if kind == DeltaKind::Removed { Op::Delete } else { Op::Put },
        item: read.item,
        patch: None,
        modified: read.modified,
        position: cursor.to_owned(),
        entry_id: None,
    })
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
