//! New log records of a group, before they are stored.

use std::collections::BTreeMap;

use fjall::Slice;
use jiff::Timestamp;
use towpath_proto::change::Seq;

use super::keys::FeedNumber;
use super::record::{ChangeMeta, RecordDraft};

/// New record of a log. Header and body are joined only when written, so that a large group is not in memory twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewRecord {
    pub(crate) draft: RecordDraft,
    pub(crate) meta: ChangeMeta,
}

impl NewRecord {
    /// Returns the stored bytes.
    pub(crate) fn encode(&self) -> Slice {
        self.draft.complete(&self.meta)
    }

    /// Time of the change.
    pub(crate) fn modified(&self) -> Timestamp {
        self.meta.modified
    }

    /// Length of the stored record.
    pub(crate) fn bytes(&self) -> usize {
        self.draft.bytes()
    }
}

/// New records of several feeds, ordered by feed and position. Positions of one feed have no gaps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NewRecords(BTreeMap<FeedNumber, RecordRun>);

/// Consecutive new records of one feed.
#[derive(Debug, PartialEq, Eq)]
struct RecordRun {
    /// Position of the first record.
    first: Seq,
    records: Vec<NewRecord>,
}

impl NewRecords {
    /// Adds records of a feed. `first` follows the feed's records that are already here.
    pub(crate) fn add(&mut self, feed: FeedNumber, first: Seq, mut records: Vec<NewRecord>) {
        let run = self.0.entry(feed).or_insert_with(|| RecordRun { first, records: Vec::new() });
        if run.records.is_empty() {
            // Moved, not copied: with one writer, a group has one batch of a feed.
            run.records = records;
        } else {
            run.records.append(&mut records);
        }
    }

    /// Returns the record at a position, if it is one of the new ones.
    pub(crate) fn get(&self, feed: FeedNumber, seq: Seq) -> Option<&NewRecord> {
        let run = self.0.get(&feed)?;
        run.records.get(usize::try_from(seq.checked_sub(run.first)?).ok()?)
    }

    /// Iterates over all records by feed and position.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ((FeedNumber, Seq), &NewRecord)> {
        self.0.iter().flat_map(|(feed, run)| {
            (run.first..).zip(&run.records).map(|(seq, record)| ((*feed, seq), record))
        })
    }

    /// Returns true where there are no records.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
