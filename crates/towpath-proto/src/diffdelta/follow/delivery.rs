//! From a verified document to the changes that it tells of.

use std::vec::IntoIter;

use jiff::Timestamp;
use serde_json::Value;

use super::state::{Partial, State};
use crate::change::Op;
use crate::diffdelta::delta_item::{ReadDelta, read};
use crate::diffdelta::wire::{Buckets, Kind, Latest};
use crate::follow::Followed;

/// A document that is being handed over.
#[derive(Debug)]
pub(super) struct Delivery {
    changes: IntoIter<Followed>,
    cursor: String,
    generated_at: String,
    delivered: usize,
}

/// A delivery's next step.
pub(super) enum Step {
    /// A change to hand over.
    Change(Box<Followed>),
    /// The document was handed over whole.
    Done,
}

impl Delivery {
    /// What of a document is still to be handed over, in the order in which it happened as far as the
    /// document tells. Items that cannot be read are named in `problems`.
    pub(super) fn new(document: Latest, feed: &str, state: &State, problems: &mut Vec<String>) -> Self {
        let Latest { cursor, generated_at, source_id, buckets, .. } = document;
        let feed = source_id.as_deref().unwrap_or(feed);
        let wanted = Wanted::new(state.since, &generated_at);
        let mut changes = Vec::new();
        for (name, usual, items) in named(buckets) {
            for (index, item) in items.into_iter().enumerate() {
                let read = read(item).and_then(|r| Ok((r.changed_at, followed(r, usual, feed, &cursor)?)));
                match read {
                    Ok((changed_at, change)) if wanted.has(changed_at) => changes.push(change),
                    Ok(_) => {}
                    Err(reason) => problems.push(format!("item {} of bucket {name}: {reason}", index + 1)),
                }
            }
        }
        changes.sort_by_key(|c| c.modified);
        let delivered = state.delivered_of(&cursor).min(changes.len());
        changes.drain(..delivered);
        Self { changes: changes.into_iter(), cursor, generated_at, delivered }
    }

    /// The next step.
    pub(super) fn step(&mut self) -> Step {
        match self.changes.next() {
            Some(change) => {
                self.delivered += 1;
                Step::Change(Box::new(change))
            }
            None => Step::Done,
        }
    }

    /// Whether every change was handed over.
    pub(super) fn is_spent(&self) -> bool {
        self.changes.len() == 0
    }

    /// Takes down in `state` how far the document was handed over.
    pub(super) fn note(&self, state: &mut State) {
        if self.is_spent() {
            state.cursor = Some(self.cursor.clone());
            state.generated_at = Some(self.generated_at.clone());
            state.partial = None;
        } else {
            state.partial = Some(Partial { cursor: self.cursor.clone(), delivered: self.delivered });
        }
    }
}

/// The buckets with what happened to the items in them, where those do not say so themselves.
fn named(buckets: Buckets) -> [(&'static str, Kind, Vec<Value>); 4] {
    [
        ("new", Kind::New, buckets.new),
        ("updated", Kind::Updated, buckets.updated),
        ("flagged", Kind::Updated, buckets.flagged),
        ("removed", Kind::Removed, buckets.removed),
    ]
}

fn followed(read: ReadDelta, bucket: Kind, feed: &str, cursor: &str) -> Result<Followed, String> {
    read.item.check().map_err(|e| e.to_string())?;
    // Only in the flagged bucket does it matter what the item says; elsewhere the bucket does (section 1.2).
    let kind = if bucket == Kind::Updated { read.kind.unwrap_or(bucket) } else { bucket };
    Ok(Followed {
        feed: if read.source.is_empty() { feed.to_owned() } else { read.source },
        op: if kind == Kind::Removed { Op::Delete } else { Op::Put },
        item: read.item,
        patch: None,
        modified: read.modified,
        position: cursor.to_owned(),
        entry_id: None,
    })
}

/// Which changes of a document are wanted.
struct Wanted {
    since: Option<Timestamp>,
    /// Whether the document is early enough to be without any wanted change.
    is_earlier: bool,
}

impl Wanted {
    /// Documents are stamped in whole seconds; one without a readable time counts as later.
    fn new(since: Option<Timestamp>, generated_at: &str) -> Self {
        let earlier = |since: Timestamp| {
            generated_at.parse::<Timestamp>().is_ok_and(|made| made.as_second() < since.as_second())
        };
        Self { since, is_earlier: since.is_some_and(earlier) }
    }

    /// Whether a change made at this time is wanted. Of one that does not say when it was made only its
    /// document's time is known.
    fn has(&self, changed_at: Option<Timestamp>) -> bool {
        match (self.since, changed_at) {
            (Some(since), Some(changed_at)) => changed_at >= since,
            _ => !self.is_earlier,
        }
    }
}
