//! Decisions on requests: positions in the log, versions of items, preconditions.
//!
//! A decision depends only on the stored state ([`Lookup`]) and on the requests before it in the same group, so
//! that every node of a cluster decides alike. A [`CommitGroup`] takes requests in order. Each request sees the
//! ones before it as if they were stored; a refused request leaves no trace. The result, a [`DecidedGroup`], is
//! applied as one batch.

mod prepare;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use fjall::Slice;
use jiff::Timestamp;
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{ContentHash, Item};
use towpath_proto::patch::{self, PatchError};

pub(crate) use self::prepare::{PreparedChange, PreparedOp, check_keys, prepare};
use super::keys::{self, FeedNumber, FeedRow, IdRow};
use super::precondition::LoggedPrecondition;
use super::record::{self, ChangeMeta, RecordDraft};
use super::records::{NewRecord, NewRecords};

use crate::error::{ReadTarget, StorageError};
use crate::{AppendError, Appended, Expected, LogHead, OpCounts, ReadError, Table, TableWrite, WriteError};

/// Stored state that decisions read.
pub(crate) trait Lookup {
    /// Returns a feed, if anything was ever appended to it.
    fn feed(&self, feed: &FeedId) -> Result<Option<FeedRow>, StorageError>;
    /// Returns the number of the next new feed.
    fn next_feed(&self) -> Result<FeedNumber, StorageError>;
    /// Returns an id's row, by its key in the id index.
    fn version(&self, key: &[u8]) -> Result<Option<IdRow>, StorageError>;
    /// Returns the record at a position, which must exist.
    fn record(&self, feed: FeedNumber, seq: Seq) -> Result<Bytes, StorageError>;
    /// Returns the feature level of a replica's cluster.
    fn level(&self) -> Result<u8, StorageError>;
    /// Returns a value of a table.
    fn value(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StorageError>;
}

/// Effect of a group on one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdUpdate {
    /// Number of the feed.
    pub(crate) feed: FeedNumber,
    /// Position of its latest version before the group.
    pub(crate) before: Option<Seq>,
    /// Its row after the group.
    pub(crate) after: IdRow,
}

/// Result of a group, to be applied atomically.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DecidedGroup {
    /// New log records.
    pub(crate) records: NewRecords,
    /// Ids with a new version, by their keys in the id index.
    pub(crate) ids: HashMap<Slice, IdUpdate>,
    /// Feeds with a new head.
    pub(crate) feeds: BTreeMap<FeedId, FeedRow>,
    /// Number of the next new feed, if the group created feeds.
    pub(crate) next_feed: Option<FeedNumber>,
    /// Feeds that the group created, by their numbers.
    pub(crate) created: Vec<(FeedNumber, FeedId)>,
    /// New feature level of a replica's cluster.
    pub(crate) level: Option<u8>,
    /// New values of table rows; `None` removes the row.
    pub(crate) values: HashMap<(Table, Vec<u8>), Option<Bytes>>,
}

impl DecidedGroup {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.values.is_empty() && self.level.is_none()
    }
}

/// Requests that are decided one after another and applied together.
pub(crate) struct CommitGroup<'a, L> {
    lookup: &'a L,
    now: Timestamp,
    decided: DecidedGroup,
}

impl<'a, L: Lookup> CommitGroup<'a, L> {
    /// Creates an empty group whose changes get the time `now`.
    pub(crate) fn new(lookup: &'a L, now: Timestamp) -> Self {
        Self { lookup, now, decided: DecidedGroup::default() }
    }

    /// Sets the time of later changes.
    pub(crate) fn set_time(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// Returns the decisions.
    pub(crate) fn finish(self) -> DecidedGroup {
        self.decided
    }

    /// Decides an append.
    pub(crate) fn append(
        &mut self,
        name: &FeedId,
        expected: Expected,
        changes: Vec<PreparedChange>,
    ) -> Result<Appended, AppendError> {
        let mut batch = self.start_batch(name, changes.len())?;
        // Before any change is decided: `Store::append` promises a conflict before a patch error.
        batch.expect(expected, changes.first().map(|change| change.id.as_str()))?;
        for (index, change) in changes.into_iter().enumerate() {
            batch.decide(index, change)?;
        }
        let decided = batch.finish();
        Ok(self.add(name, decided))
    }

    /// Accepts changes that were decided elsewhere. Their positions must follow the log's end.
    pub(crate) fn replicate(&mut self, name: &FeedId, changes: &[Change]) -> Result<Appended, AppendError> {
        let mut batch = self.start_batch(name, changes.len())?;
        for (index, change) in changes.iter().enumerate() {
            // For each change, not once: a batch with a gap inside is refused, too.
            batch.expect(Expected::Last(change.seq.saturating_sub(1)), None)?;
            batch.accept(index, change)?;
        }
        let decided = batch.finish();
        Ok(self.add(name, decided))
    }

    /// Decides table writes.
    pub(crate) fn write(
        &mut self,
        writes: Vec<TableWrite>,
        conditions: Vec<impl Into<LoggedPrecondition>>,
    ) -> Result<(), WriteError> {
        // All preconditions come before the first write, so that a refused batch leaves no trace.
        for LoggedPrecondition { table, key, value } in conditions.into_iter().map(Into::into) {
            let row = (table, key);
            let current = match self.decided.values.get(&row) {
                Some(value) => value.clone(),
                None => {
                    let target = || ReadTarget::Table(table, row.1.clone());
                    self.lookup.value(table, &row.1).map_err(|e| e.of(target()))?
                }
            };
            if !value.matches(current.as_ref()) {
                let (table, key) = row;
                return Err(WriteError::Precondition { table, key });
            }
        }
        let entries = writes.into_iter().map(|write| ((write.table, write.key), write.value));
        self.decided.values.extend(entries);
        Ok(())
    }

    /// Decides a raise to the next feature level, and returns the level after it.
    ///
    /// A raise to another level has no effect: nodes may propose the same one at the same time.
    pub(crate) fn raise_level(&mut self, to: u8) -> Result<u8, StorageError> {
        let current = self.decided.level.map_or_else(|| self.lookup.level(), Ok)?;
        if current.checked_add(1) != Some(to) {
            return Ok(current);
        }
        self.decided.level = Some(to);
        Ok(to)
    }

    fn start_batch<'b>(
        &'b self,
        name: &'b FeedId,
        changes: usize,
    ) -> Result<AppendBatch<'b, L>, AppendError> {
        let known = match self.decided.feeds.get(name) {
            Some(feed) => Some(*feed),
            None => self.lookup.feed(name).map_err(|e| e.of(ReadTarget::Feed(name.clone())))?,
        };
        let feed = match known {
            Some(feed) => feed,
            None => FeedRow { number: self.next_feed(name)?, head: LogHead::EMPTY, appended: self.now },
        };
        Ok(AppendBatch {
            group: self,
            name,
            feed,
            start: feed.head.seq,
            records: Vec::with_capacity(changes),
            ids: HashMap::with_capacity(changes),
            ops: OpCounts::default(),
        })
    }

    fn next_feed(&self, name: &FeedId) -> Result<FeedNumber, ReadError> {
        let stored = || self.lookup.next_feed().map_err(|e| e.of(ReadTarget::Feed(name.clone())));
        self.decided.next_feed.map_or_else(stored, Ok)
    }

    fn add(&mut self, name: &FeedId, batch: DecidedBatch) -> Appended {
        let DecidedBatch { feed, start, records, ids, ops } = batch;
        // An empty batch does not create its feed.
        if feed.head.seq > start {
            if start == 0 {
                self.decided.next_feed = Some(feed.number + 1);
                self.decided.created.push((feed.number, name.clone()));
            }
            let decided = &mut self.decided;
            decided.records.add(feed.number, start + 1, records);
            // The first batch of a group is moved, not copied: most groups under light load have only one.
            if decided.ids.is_empty() {
                decided.ids = ids;
            } else {
                decided.ids.extend(ids);
            }
            // By our clock, also for a mirror, whose changes have its publisher's times.
            self.decided.feeds.insert(name.clone(), FeedRow { appended: self.now, ..feed });
        }
        Appended { first: start + 1, head: feed.head, ops }
    }
}

/// Changes of one request, until all of them are decided.
struct AppendBatch<'a, L> {
    group: &'a CommitGroup<'a, L>,
    name: &'a FeedId,
    feed: FeedRow,
    start: Seq,
    /// Records from `start + 1` on.
    records: Vec<NewRecord>,
    ids: HashMap<Slice, IdUpdate>,
    ops: OpCounts,
}

/// Decided [`AppendBatch`], which no longer borrows the group.
struct DecidedBatch {
    feed: FeedRow,
    start: Seq,
    /// Records from `start + 1` on.
    records: Vec<NewRecord>,
    ids: HashMap<Slice, IdUpdate>,
    ops: OpCounts,
}

impl<L: Lookup> AppendBatch<'_, L> {
    fn finish(self) -> DecidedBatch {
        let Self { feed, start, records, ids, ops, .. } = self;
        DecidedBatch { feed, start, records, ids, ops }
    }

    /// Checks the condition of a batch whose first change is of the item `first`.
    fn expect(&self, expected: Expected, first: Option<&str>) -> Result<(), AppendError> {
        let actual = self.feed.head.seq;
        match (expected, first) {
            (Expected::Last(expected), _) if expected != actual => {
                Err(AppendError::Conflict { feed: self.name.clone(), expected, actual })
            }
            (Expected::Version(expected), Some(id)) => {
                let update = self.id_update(&keys::id(self.feed.number, id))?;
                let live = update.map(|update| update.after).filter(|version| version.hash.is_some());
                let actual = live.map(|version| version.latest);
                if actual == expected {
                    return Ok(());
                }
                Err(AppendError::ItemConflict { feed: self.name.clone(), id: id.to_owned(), actual })
            }
            (Expected::Last(_) | Expected::Any | Expected::Version(_), _) => Ok(()),
        }
    }

    /// Decides the next change.
    fn decide(&mut self, index: usize, change: PreparedChange) -> Result<(), AppendError> {
        let key = keys::id(self.feed.number, &change.id);
        let update = self.id_update(&key)?;
        let known = update.map(|update| update.after);
        let modified = change.modified.unwrap_or(self.group.now);
        let (op, draft, hash) = self.resolve(index, change, known)?;
        let head = &self.feed.head;
        // Times never decrease along the log, whatever the clock does: reads by time rely on it.
        // The epoch in an empty head is no time of a change: the first one may be earlier.
        let modified = if head.seq == 0 { modified } else { modified.max(head.modified) };
        let meta = ChangeMeta {
            modified,
            // A tombstone counts: an id that is created again continues its chain of versions.
            created: known.map_or(modified, |version| version.created),
            first_seq: known.map_or(head.seq + 1, |version| version.first),
            previous: known.map(|version| version.latest),
            hash,
        };
        self.push(key, update, op, meta, draft);
        Ok(())
    }

    /// Accepts the next change as another store decided it.
    fn accept(&mut self, index: usize, change: &Change) -> Result<(), AppendError> {
        let invalid = |reason: String| AppendError::Invalid { feed: self.name.clone(), index, reason };
        change.item.check().map_err(|e| invalid(e.to_string()))?;
        let key = keys::id(self.feed.number, &change.item.id);
        let update = self.id_update(&key)?;
        let meta = ChangeMeta::of(change);
        let head = &self.feed.head;
        let follows = match update.map(|update| update.after) {
            Some(known) => {
                (meta.previous, meta.first_seq, meta.created)
                    == (Some(known.latest), known.first, known.created)
            }
            None => (meta.previous, meta.first_seq) == (None, change.seq),
        };
        if !follows {
            return Err(invalid("it does not follow the item's latest version in this store".into()));
        }
        // Refused, not raised as in `decide`: a replicated change must stay as it is.
        if head.seq > 0 && meta.modified < head.modified {
            return Err(invalid("its time is before that of the previous change".into()));
        }
        let draft =
            RecordDraft::new(change.op, &change.item, change.patch.as_ref(), change.entry_id.as_deref());
        self.push(key, update, change.op, meta, draft.map_err(invalid)?);
        Ok(())
    }

    /// Returns the operation, record and hash of a change, given the item's latest version.
    fn resolve(
        &self,
        index: usize,
        change: PreparedChange,
        known: Option<IdRow>,
    ) -> Result<(Op, RecordDraft, ContentHash), AppendError> {
        let invalid = |reason: String| AppendError::Invalid { feed: self.name.clone(), index, reason };
        let entry_id = change.entry_id.as_deref();
        match change.op {
            PreparedOp::Put { draft, hash } => Ok((Op::Put, draft, hash)),
            PreparedOp::Patch(patch) => {
                let refuse = |source| AppendError::Patch {
                    feed: self.name.clone(),
                    index,
                    id: change.id.clone(),
                    source,
                };
                // A tombstone has no content that a patch could apply to.
                let live = known.filter(|version| version.hash.is_some());
                let live = live.ok_or_else(|| refuse(PatchError::NoItem(change.id.clone())))?;
                let item = patch::apply(&self.item(live.latest)?, &patch).map_err(refuse)?;
                let draft = RecordDraft::new(Op::Patch, &item, Some(&patch), entry_id).map_err(invalid)?;
                Ok((Op::Patch, draft, item.content_hash()))
            }
            PreparedOp::Delete => {
                // A tombstone keeps the times of the item, which protocols show, and nothing else.
                let mut item = Item::new(change.id);
                if let Some(known) = known {
                    let last = self.item(known.latest)?;
                    (item.published, item.updated) = (last.published, last.updated);
                }
                let draft = RecordDraft::new(Op::Delete, &item, None, entry_id).map_err(invalid)?;
                Ok((Op::Delete, draft, ContentHash::default()))
            }
        }
    }

    /// Adds a record and advances the head.
    fn push(&mut self, key: Slice, update: Option<IdUpdate>, op: Op, meta: ChangeMeta, draft: RecordDraft) {
        let FeedRow { number, head, .. } = &mut self.feed;
        let was_live = update.is_some_and(|update| update.after.hash.is_some());
        let is_live = op != Op::Delete;
        *head = LogHead {
            seq: head.seq + 1,
            modified: meta.modified,
            items: head.items + u64::from(update.is_none()),
            live: head.live + u64::from(is_live) - u64::from(was_live),
            horizon: head.horizon,
        };
        let (feed, seq) = (*number, head.seq);
        // The position before the group: the index never had the positions within it.
        let before = update.and_then(|update| update.before);
        self.ids.insert(key, IdUpdate { feed, before, after: meta.id_row(seq, op) });
        self.records.push(NewRecord { draft, meta });
        self.ops.add(op);
    }

    /// Returns the state of an id: from this batch, else from the group, else from the store.
    fn id_update(&self, key: &Slice) -> Result<Option<IdUpdate>, ReadError> {
        if let Some(update) = self.ids.get(key).or_else(|| self.group.decided.ids.get(key)) {
            return Ok(Some(*update));
        }
        // A new feed has no stored ids: its bulk import does not look up each one.
        if self.start == 0 {
            return Ok(None);
        }
        let stored = self.group.lookup.version(key).map_err(|e| self.read_error(e))?;
        let feed = self.feed.number;
        Ok(stored.map(|row| IdUpdate { feed, before: Some(row.latest), after: row }))
    }

    /// Returns the item at a position: from this batch, else from the group, else from the store.
    fn item(&self, seq: Seq) -> Result<Item, ReadError> {
        let number = self.feed.number;
        // A patch may follow a put of its own batch, which is stored nowhere yet.
        let own = seq.checked_sub(self.start + 1).and_then(|place| self.records.get(place as usize));
        let bytes = match own.or_else(|| self.group.decided.records.get(number, seq)) {
            Some(record) => record::bytes_of(record.encode()),
            None => self.group.lookup.record(number, seq).map_err(|e| self.read_error(e))?,
        };
        let change = record::decode(seq, &bytes).map_err(|e| self.read_error(e))?;
        Ok(change.item)
    }

    fn read_error(&self, error: StorageError) -> ReadError {
        error.of(ReadTarget::Feed(self.name.clone()))
    }
}
