//! New entries of the logs, before they are stored.

use std::collections::BTreeMap;

use fjall::Slice;
use jiff::Timestamp;
use towpath_proto::change::Seq;

use super::keys::FeedNumber;
use super::record::{Draft, Place};

/// A new entry of a log. It is put together only when it is needed, so that a large group is not held twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) draft: Draft,
    pub(crate) place: Place,
}

impl Record {
    /// What is stored of it.
    pub(crate) fn encode(&self) -> Slice {
        self.draft.at(&self.place)
    }

    /// When it was made.
    pub(crate) fn modified(&self) -> Timestamp {
        self.place.modified
    }

    /// How many bytes it will have.
    pub(crate) fn bytes(&self) -> usize {
        self.draft.bytes()
    }
}

/// New entries of the logs of several feeds, in their order. Those of one feed follow each other without a gap.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Records(BTreeMap<FeedNumber, Stretch>);

/// New entries of one feed's log.
#[derive(Debug, PartialEq, Eq)]
struct Stretch {
    /// The place of the first.
    first: Seq,
    records: Vec<Record>,
}

impl Records {
    /// Adds entries of a feed: the first at `first`, which follows what there is of that feed.
    pub(crate) fn add(&mut self, feed: FeedNumber, first: Seq, mut records: Vec<Record>) {
        let stretch = self.0.entry(feed).or_insert_with(|| Stretch { first, records: Vec::new() });
        if stretch.records.is_empty() {
            stretch.records = records;
        } else {
            stretch.records.append(&mut records);
        }
    }

    /// The entry at a place, where it is a new one.
    pub(crate) fn get(&self, feed: FeedNumber, seq: Seq) -> Option<&Record> {
        let stretch = self.0.get(&feed)?;
        stretch.records.get(usize::try_from(seq.checked_sub(stretch.first)?).ok()?)
    }

    /// All entries, by feed and place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ((FeedNumber, Seq), &Record)> {
        self.0.iter().flat_map(|(feed, stretch)| {
            (stretch.first..).zip(&stretch.records).map(|(seq, record)| ((*feed, seq), record))
        })
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
