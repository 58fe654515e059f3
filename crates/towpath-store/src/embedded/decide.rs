//! Where an append is decided: which place in the order it takes and what follows from that.
//!
//! A pure function of what is stored ([`Lookup`]) and of the requests before it in the same group. A
//! [`Group`] takes requests one after another: each sees the ones before it as if they were stored already;
//! one that is refused leaves no trace. What comes out, [`Decided`], is applied as one batch.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use fjall::Slice;
use jiff::Timestamp;
use towpath_proto::change::{Change, NewChange, Op, Seq};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, ContentHash, Item};
use towpath_proto::patch::{self, PatchError};

use super::MAX_KEY_BYTES;
use super::demand::Demand;
use super::keys::{self, Feed, FeedNumber, Version};
use super::record::{self, Draft, Place};
use super::records::{Record, Records};
use crate::{AppendError, Appended, EMPTY, Expected, Head, StoreError, Table, Write};

/// What deciding needs to know of what is stored.
pub(crate) trait Lookup {
    /// A feed, if anything was ever appended to it.
    fn feed(&self, feed: &FeedId) -> Result<Option<Feed>, StoreError>;
    /// The number of the next new feed.
    fn next_feed(&self) -> Result<FeedNumber, StoreError>;
    /// An id's entry, by its key in the index of ids.
    fn version(&self, key: &[u8]) -> Result<Option<Version>, StoreError>;
    /// The record at a place that is taken.
    fn record(&self, feed: FeedNumber, seq: Seq) -> Result<Bytes, StoreError>;
    /// A value of a table.
    fn value(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError>;
}

/// A change as far as it can be made ready before its place is known: on the caller's thread, so that many
/// writers share the work.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(super) id: String,
    pub(super) modified: Option<Timestamp>,
    pub(super) entry_id: Option<String>,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Put { draft: Draft, hash: ContentHash },
    Patch(Content),
    Delete,
}

impl Prepared {
    /// Checks a change and lays out what it stores.
    pub(crate) fn new(change: NewChange) -> Result<Self, String> {
        change.item.check().map_err(|e| e.to_string())?;
        let kind = match (change.op, change.patch) {
            (Op::Put, _) => Kind::Put {
                draft: Draft::new(Op::Put, &change.item, None, change.entry_id.as_deref())?,
                hash: change.hash.unwrap_or_else(|| change.item.content_hash()),
            },
            (Op::Patch, Some(patch)) => Kind::Patch(patch),
            (Op::Patch, None) => return Err("it is a patch, and has none".into()),
            (Op::Delete, _) => Kind::Delete,
        };
        Ok(Self { id: change.item.id, modified: change.modified, entry_id: change.entry_id, kind })
    }

    /// How many bytes it has, about.
    pub(crate) fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Put { draft, .. } => draft.bytes(),
            Kind::Patch(patch) => self.id.len() + patch.bytes.len(),
            Kind::Delete => self.id.len(),
        }
    }
}

/// Makes changes ready to be appended.
pub(crate) fn prepare(changes: Vec<NewChange>) -> Result<Vec<Prepared>, AppendError> {
    let prepare =
        |(index, change)| Prepared::new(change).map_err(|reason| AppendError::Invalid { index, reason });
    changes.into_iter().enumerate().map(prepare).collect()
}

/// Refuses writes whose keys are too long.
pub(crate) fn check_keys(writes: &[Write]) -> Result<(), StoreError> {
    match writes.iter().map(|write| write.key.len()).find(|length| *length > MAX_KEY_BYTES) {
        Some(length) => {
            Err(StoreError::Write(format!("a key of {length} bytes, over the limit of {MAX_KEY_BYTES}")))
        }
        None => Ok(()),
    }
}

/// What a group does to one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touched {
    /// The feed's number.
    pub(crate) feed: FeedNumber,
    /// The place of its latest version before the group.
    pub(crate) before: Option<Seq>,
    /// Its entry after the group.
    pub(crate) now: Version,
}

/// What is to be applied: all at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Decided {
    /// The new entries of the logs.
    pub(crate) records: Records,
    /// The ids that have a new version, by their keys in the index of ids.
    pub(crate) ids: HashMap<Slice, Touched>,
    /// The feeds that moved.
    pub(crate) feeds: BTreeMap<FeedId, Feed>,
    /// The number of the next new feed, where the group has new ones.
    pub(crate) next_feed: Option<FeedNumber>,
    /// Values of tables; `None` removes.
    pub(crate) values: HashMap<(Table, Vec<u8>), Option<Bytes>>,
}

impl Decided {
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.values.is_empty()
    }
}

/// Requests that are applied together.
pub(crate) struct Group<'a, L> {
    lookup: &'a L,
    now: Timestamp,
    decided: Decided,
}

impl<'a, L: Lookup> Group<'a, L> {
    /// An empty group whose changes are made at `now`.
    pub(crate) fn new(lookup: &'a L, now: Timestamp) -> Self {
        Self { lookup, now, decided: Decided::default() }
    }

    /// Changes from here on are made at `now`.
    pub(crate) fn at(&mut self, now: Timestamp) {
        self.now = now;
    }

    /// What was decided.
    pub(crate) fn finish(self) -> Decided {
        self.decided
    }

    /// Decides an append.
    pub(crate) fn append(
        &mut self,
        name: &FeedId,
        expected: Expected,
        changes: Vec<Prepared>,
    ) -> Result<Appended, AppendError> {
        let mut batch = self.batch(name)?;
        batch.expect(expected)?;
        for (index, change) in changes.into_iter().enumerate() {
            batch.take(index, change)?;
        }
        let done = batch.done();
        Ok(self.keep(name, done))
    }

    /// Takes changes over that were decided elsewhere: their places must follow the feed's last.
    pub(crate) fn replicate(&mut self, name: &FeedId, changes: &[Change]) -> Result<Appended, AppendError> {
        let mut batch = self.batch(name)?;
        for (index, change) in changes.iter().enumerate() {
            batch.expect(Expected::Last(change.seq.saturating_sub(1)))?;
            batch.take_decided(index, change)?;
        }
        let done = batch.done();
        Ok(self.keep(name, done))
    }

    /// Decides writes to the tables.
    pub(crate) fn write(
        &mut self,
        writes: Vec<Write>,
        conditions: Vec<impl Into<Demand>>,
    ) -> Result<(), StoreError> {
        for Demand { table, key, value } in conditions.into_iter().map(Into::into) {
            let entry = (table, key);
            let there = match self.decided.values.get(&entry) {
                Some(value) => value.clone(),
                None => self.lookup.value(entry.0, &entry.1)?,
            };
            if !value.is(there.as_ref()) {
                return Err(StoreError::Condition);
            }
        }
        let entries = writes.into_iter().map(|write| ((write.table, write.key), write.value));
        self.decided.values.extend(entries);
        Ok(())
    }

    fn batch(&self, name: &FeedId) -> Result<Batch<'_, L>, StoreError> {
        let known = match self.decided.feeds.get(name) {
            Some(feed) => Some(*feed),
            None => self.lookup.feed(name)?,
        };
        let feed = match known {
            Some(feed) => feed,
            None => Feed { number: self.next_feed()?, head: EMPTY, appended: self.now },
        };
        Ok(Batch { group: self, feed, start: feed.head.seq, records: Vec::new(), ids: HashMap::new() })
    }

    fn next_feed(&self) -> Result<FeedNumber, StoreError> {
        self.decided.next_feed.map_or_else(|| self.lookup.next_feed(), Ok)
    }

    fn keep(&mut self, name: &FeedId, done: Done) -> Appended {
        let Done { feed, start, records, ids } = done;
        if feed.head.seq > start {
            if start == 0 {
                self.decided.next_feed = Some(feed.number + 1);
            }
            let decided = &mut self.decided;
            decided.records.add(feed.number, start + 1, records);
            // A batch that is alone in its group, or the first, is not copied.
            if decided.ids.is_empty() {
                decided.ids = ids;
            } else {
                decided.ids.extend(ids);
            }
            self.decided.feeds.insert(name.clone(), Feed { appended: self.now, ..feed });
        }
        Appended { first: start + 1, head: feed.head }
    }
}

/// One request's changes, until all of them are decided.
struct Batch<'a, L> {
    group: &'a Group<'a, L>,
    feed: Feed,
    start: Seq,
    /// Behind `start`, one after another.
    records: Vec<Record>,
    ids: HashMap<Slice, Touched>,
}

/// A [`Batch`] that was not refused.
struct Done {
    feed: Feed,
    start: Seq,
    /// Behind `start`, one after another.
    records: Vec<Record>,
    ids: HashMap<Slice, Touched>,
}

impl<L: Lookup> Batch<'_, L> {
    fn done(self) -> Done {
        Done { feed: self.feed, start: self.start, records: self.records, ids: self.ids }
    }

    fn expect(&self, expected: Expected) -> Result<(), AppendError> {
        let actual = self.feed.head.seq;
        match expected {
            Expected::Last(expected) if expected != actual => Err(AppendError::Conflict { expected, actual }),
            Expected::Last(_) | Expected::Any => Ok(()),
        }
    }

    /// Decides the next change.
    fn take(&mut self, index: usize, change: Prepared) -> Result<(), AppendError> {
        let key = keys::id(self.feed.number, &change.id);
        let touched = self.touched(&key)?;
        let known = touched.map(|touched| touched.now);
        let modified = change.modified.unwrap_or(self.group.now);
        let (op, draft, hash) = self.resolve(index, change, known)?;
        let head = &self.feed.head;
        let modified = if head.seq == 0 { modified } else { modified.max(head.modified) };
        let place = Place {
            modified,
            created: known.map_or(modified, |version| version.created),
            first_seq: known.map_or(head.seq + 1, |version| version.first),
            previous: known.map(|version| version.latest),
            hash,
        };
        self.push(key, touched, op, place, draft);
        Ok(())
    }

    /// Takes over the next change as it is.
    fn take_decided(&mut self, index: usize, change: &Change) -> Result<(), AppendError> {
        let invalid = |reason: String| AppendError::Invalid { index, reason };
        change.item.check().map_err(|e| invalid(e.to_string()))?;
        let key = keys::id(self.feed.number, &change.item.id);
        let touched = self.touched(&key)?;
        let place = Place::of(change);
        let head = &self.feed.head;
        let follows = match touched.map(|touched| touched.now) {
            Some(known) => {
                (place.previous, place.first_seq, place.created)
                    == (Some(known.latest), known.first, known.created)
            }
            None => (place.previous, place.first_seq) == (None, change.seq),
        };
        if !follows {
            return Err(invalid("it does not follow the item's version here".into()));
        }
        if head.seq > 0 && place.modified < head.modified {
            return Err(invalid("it was made before the change before it".into()));
        }
        let draft = Draft::new(change.op, &change.item, change.patch.as_ref(), change.entry_id.as_deref());
        self.push(key, touched, change.op, place, draft.map_err(invalid)?);
        Ok(())
    }

    /// What a change stores, given the item's latest version.
    fn resolve(
        &self,
        index: usize,
        change: Prepared,
        known: Option<Version>,
    ) -> Result<(Op, Draft, ContentHash), AppendError> {
        let invalid = |reason: String| AppendError::Invalid { index, reason };
        let entry_id = change.entry_id.as_deref();
        match change.kind {
            Kind::Put { draft, hash } => Ok((Op::Put, draft, hash)),
            Kind::Patch(patch) => {
                let refuse = |source| AppendError::Patch { index, source };
                let live = known.filter(|version| version.hash.is_some());
                let live = live.ok_or_else(|| refuse(PatchError::NoItem(change.id)))?;
                let item = patch::apply(&self.item(live.latest)?, &patch).map_err(refuse)?;
                let draft = Draft::new(Op::Patch, &item, Some(&patch), entry_id).map_err(invalid)?;
                Ok((Op::Patch, draft, item.content_hash()))
            }
            Kind::Delete => {
                let mut item = Item::new(change.id);
                if let Some(known) = known {
                    let last = self.item(known.latest)?;
                    (item.published, item.updated) = (last.published, last.updated);
                }
                let draft = Draft::new(Op::Delete, &item, None, entry_id).map_err(invalid)?;
                Ok((Op::Delete, draft, ContentHash::default()))
            }
        }
    }

    /// Appends a record and moves the head.
    fn push(&mut self, key: Slice, touched: Option<Touched>, op: Op, place: Place, draft: Draft) {
        let Feed { number, head, .. } = &mut self.feed;
        let lived = touched.is_some_and(|touched| touched.now.hash.is_some());
        let lives = op != Op::Delete;
        *head = Head {
            seq: head.seq + 1,
            modified: place.modified,
            items: head.items + u64::from(touched.is_none()),
            live: head.live + u64::from(lives) - u64::from(lived),
        };
        let (feed, seq) = (*number, head.seq);
        let before = touched.and_then(|touched| touched.before);
        self.ids.insert(key, Touched { feed, before, now: place.version(seq, op) });
        self.records.push(Record { draft, place });
    }

    /// What is known of an id: from this batch, else from the group, else from what is stored.
    fn touched(&self, key: &Slice) -> Result<Option<Touched>, StoreError> {
        if let Some(touched) = self.ids.get(key).or_else(|| self.group.decided.ids.get(key)) {
            return Ok(Some(*touched));
        }
        if self.start == 0 {
            return Ok(None);
        }
        let stored = self.group.lookup.version(key)?;
        let feed = self.feed.number;
        Ok(stored.map(|now| Touched { feed, before: Some(now.latest), now }))
    }

    /// The item as it was at a place: from this batch, else from the group, else from what is stored.
    fn item(&self, seq: Seq) -> Result<Item, StoreError> {
        let number = self.feed.number;
        let own = seq.checked_sub(self.start + 1).and_then(|place| self.records.get(place as usize));
        let bytes = match own.or_else(|| self.group.decided.records.get(number, seq)) {
            Some(record) => record::bytes_of(record.encode()),
            None => self.group.lookup.record(number, seq)?,
        };
        Ok(record::decode(seq, &bytes)?.item)
    }
}

#[cfg(test)]
mod tests;
