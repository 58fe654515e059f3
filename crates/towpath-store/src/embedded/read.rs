//! Reads. Each uses one snapshot of the engine, so it sees whole appends only.

use std::ops::{Bound, RangeInclusive};

use bytes::Bytes;
use fjall::{Guard, Readable, Snapshot};
use jiff::Timestamp;
use towpath_proto::change::{Change, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;

use super::engine_error::read_error;
use super::keys::{self, FeedNumber, FeedRow, IdRow};
use super::record::{self, bytes_of};
use super::storage_engine::StorageEngine;
use crate::error::StorageError;
use crate::{FeedSummary, ItemOrder, ReadLimit, SeqRange, Table};

/// Largest number of positions that are read before their changes.
const POSITIONS: usize = 256;

/// Number of changes for which a pass over the log does not pay.
const FEW: usize = 4;

impl StorageEngine {
    /// Returns the names of all feeds.
    pub(crate) fn feed_names(&self) -> Result<Vec<FeedId>, StorageError> {
        let names = self.db.snapshot().iter(&self.feeds);
        names.map(|entry| name(&entry.key().map_err(|e| read_error(&e))?)).collect()
    }

    /// Returns all feeds with their heads.
    pub(crate) fn feed_heads(&self) -> Result<Vec<FeedSummary>, StorageError> {
        let entries = self.db.snapshot().iter(&self.feeds);
        let head = |entry: Guard| {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let FeedRow { head, appended, .. } = FeedRow::decode(&value)?;
            Ok(FeedSummary { feed: name(&key)?, head, appended })
        };
        entries.map(head).collect()
    }

    /// Returns the changes after a position, up to the head.
    ///
    /// The head is the caller's: records past it may be bulk-loaded by a replica and not applied yet.
    pub(crate) fn changes(
        &self,
        feed: FeedRow,
        after: Seq,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, StorageError> {
        // Also keeps `after + 1` from overflowing: a client may ask for `u64::MAX`.
        if after >= feed.head.seq {
            return Ok(Vec::new());
        }
        let range =
            keys::position_key(feed.number, after + 1)..=keys::position_key(feed.number, feed.head.seq);
        let mut page = ChangePage::new(limit);
        for entry in self.db.snapshot().range(&self.log, range) {
            // Before the next entry is touched: that would read its value from disk.
            if page.is_full() {
                break;
            }
            let (key, record) = entry.into_inner().map_err(|e| read_error(&e))?;
            if !page.add(keys::read_position(&key)?, &bytes_of(record))? {
                break;
            }
        }
        Ok(page.changes)
    }

    /// Returns the change at a position.
    pub(crate) fn change(&self, feed: FeedRow, seq: Seq) -> Result<Option<Change>, StorageError> {
        // A replica may have a bulk-loaded record there that is not applied yet.
        if seq > feed.head.seq {
            return Ok(None);
        }
        let key = keys::position_key(feed.number, seq);
        let record = self.db.snapshot().get(&self.log, key).map_err(|e| read_error(&e))?;
        record.map(|record| record::decode(seq, &bytes_of(record))).transpose()
    }

    /// Returns the latest version of an item.
    pub(crate) fn latest(&self, feed: FeedNumber, id: &str) -> Result<Option<Change>, StorageError> {
        let snapshot = self.db.snapshot();
        let version = snapshot.get(&self.ids, keys::id(feed, id)).map_err(|e| read_error(&e))?;
        let Some(version) = version else { return Ok(None) };
        let seq = IdRow::decode(&version)?.latest;
        record::decode(seq, &self.record_in(&snapshot, feed, seq)?).map(Some)
    }

    /// Returns the last position before `time` up to the head, by one seek in the time index.
    pub(crate) fn last_before(&self, feed: FeedRow, time: Timestamp) -> Result<Seq, StorageError> {
        let range = keys::time_key(feed.number, Timestamp::MIN)..keys::time_key(feed.number, time);
        let last = self.db.snapshot().range(&self.times, range).next_back();
        let last = last.map_or(Ok(0), |entry| keys::read_seq(&entry.value().map_err(|e| read_error(&e))?));
        last.map(|seq| seq.min(feed.head.seq))
    }

    /// Returns items along an order, at positions up to the head.
    ///
    /// The head is the caller's: the engine has a group some time before the head is published. A reader who got a
    /// position beyond the head would seem to have one of another log.
    pub(crate) fn items(
        &self,
        feed: FeedRow,
        order: ItemOrder,
        range: SeqRange,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, StorageError> {
        // Checked arithmetic: a bound of `Seq::MAX` selects nothing, and does not overflow.
        let first = range.after.map_or(Some(0), |after| after.checked_add(1));
        let last = range.before.map_or(Some(Seq::MAX), |before| before.checked_sub(1));
        let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
        let (feed, last) = (feed.number, last.min(feed.head.seq));
        if first > last {
            return Ok(Vec::new());
        }
        let places = keys::position_key(feed, first)..=keys::position_key(feed, last);
        let snapshot = self.db.snapshot();
        let index = match order {
            ItemOrder::Created => &self.created,
            ItemOrder::Modified => &self.modified,
        };
        let entries = snapshot.range(index, places);
        let entries: &mut dyn Iterator<Item = Guard> =
            if range.descending { &mut entries.rev() } else { &mut { entries } };
        let mut positions = entries.map(|entry| {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            match order {
                ItemOrder::Created => keys::read_seq(&value),
                ItemOrder::Modified => keys::read_position(&key),
            }
        });
        let mut page = ChangePage::new(limit);
        loop {
            let next = positions.by_ref().take(page.room().min(POSITIONS));
            let next = next.collect::<Result<Vec<Seq>, StorageError>>()?;
            if next.is_empty() || !self.add_records(&snapshot, feed, &next, &mut page)? {
                return Ok(page.changes);
            }
        }
    }

    /// Adds the changes at positions, in their order; returns false once the page is full.
    fn add_records(
        &self,
        snapshot: &Snapshot,
        feed: FeedNumber,
        positions: &[Seq],
        page: &mut ChangePage,
    ) -> Result<bool, StorageError> {
        let Some(range) = dense_range(positions) else {
            for seq in positions {
                if !page.add(*seq, &self.record_in(snapshot, feed, *seq)?)? {
                    return Ok(false);
                }
            }
            return Ok(true);
        };
        // One pass over neighbours costs less than a search for each.
        let is_rising = positions[0] == *range.start();
        let keys = keys::position_key(feed, *range.start())..=keys::position_key(feed, *range.end());
        let records = snapshot.range(&self.log, keys);
        let records: &mut dyn Iterator<Item = Guard> =
            if is_rising { &mut { records } } else { &mut records.rev() };
        for seq in positions {
            let key = keys::position_key(feed, *seq);
            // Positions between are of versions that were replaced: their values stay unread.
            let record = loop {
                let Some(entry) = records.next() else { return Err(missing(*seq)) };
                let (found, value) =
                    entry.into_inner_if(|found| found[..] == key[..]).map_err(|e| read_error(&e))?;
                match value {
                    Some(value) => break value,
                    None if (found[..] > key[..]) == is_rising => return Err(missing(*seq)),
                    None => {}
                }
            };
            if !page.add(*seq, &bytes_of(record))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn record_in(&self, snapshot: &Snapshot, feed: FeedNumber, seq: Seq) -> Result<Bytes, StorageError> {
        let record = snapshot.get(&self.log, keys::position_key(feed, seq)).map_err(|e| read_error(&e))?;
        record.map(bytes_of).ok_or_else(|| missing(seq))
    }

    /// Returns the content hashes of a feed's ids.
    pub(crate) fn content_hashes(
        &self,
        feed: FeedNumber,
        ids: Option<&[String]>,
    ) -> Result<KnownItems, StorageError> {
        let snapshot = self.db.snapshot();
        let Some(ids) = ids else {
            // The id index has the hashes, so that a source with many items reads no records.
            let entries = snapshot.prefix(&self.ids, feed.to_be_bytes());
            return entries
                .map(|entry| {
                    let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
                    Ok((keys::read_id(&key)?.to_owned(), IdRow::decode(&value)?.hash))
                })
                .collect();
        };
        let mut known = KnownItems::with_capacity(ids.len());
        for id in ids {
            let value = snapshot.get(&self.ids, keys::id(feed, id)).map_err(|e| read_error(&e))?;
            if let Some(value) = value {
                known.insert(id.clone(), IdRow::decode(&value)?.hash);
            }
        }
        Ok(known)
    }

    /// Returns a value of a table.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let snapshot = self.db.snapshot();
        let value =
            snapshot.get(self.keyspace(table), keys::entry(table, key)).map_err(|e| read_error(&e))?;
        Ok(value.map(bytes_of))
    }

    /// Returns rows of a table.
    pub(crate) fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StorageError> {
        let prefix = keys::entry(table, prefix);
        // The smallest key greater than `after` is `after` followed by a zero byte.
        let start = after.map(|after| [&keys::entry(table, after)[..], &[0]].concat());
        // `after` may come before the whole prefix: the prefix is the start then.
        let start = start.filter(|start| *start > prefix).unwrap_or_else(|| prefix.clone());
        let mut found = Vec::new();
        // Bounded on both sides: the row behind the last one may have megabytes, and would be read for nothing.
        let end = end_of_prefix(&prefix);
        // `after` may come behind the whole prefix.
        if matches!(&end, Bound::Excluded(end) if start >= *end) {
            return Ok(found);
        }
        for entry in self.db.snapshot().range(self.keyspace(table), (Bound::Included(start), end)) {
            if found.len() == limit {
                break;
            }
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            // The first byte is the tag of the table.
            found.push((bytes_of(key).slice(1..), bytes_of(value)));
        }
        Ok(found)
    }
}

/// Returns the end of the keys with a prefix.
fn end_of_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    // No byte is greater than 255, so the byte before counts.
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

/// Decodes a feed's name.
pub(super) fn name(key: &[u8]) -> Result<FeedId, StorageError> {
    let name = std::str::from_utf8(key).ok().and_then(|text| FeedId::new(text).ok());
    name.ok_or_else(|| {
        StorageError::Damaged(format!("{:?} is not a feed name", String::from_utf8_lossy(key)))
    })
}

fn missing(seq: Seq) -> StorageError {
    StorageError::Damaged(format!("change {seq} is missing"))
}

/// Returns the range of positions that rise or fall, unless most of it is other positions.
fn dense_range(positions: &[Seq]) -> Option<RangeInclusive<Seq>> {
    let (first, last) = (*positions.first()?, *positions.last()?);
    let is_ordered = positions.is_sorted() || positions.is_sorted_by(|a, b| a > b);
    let range = first.min(last)..=first.max(last);
    let is_dense = range.end() - range.start() < 2 * positions.len() as u64;
    (positions.len() >= FEW && is_ordered && is_dense).then_some(range)
}

/// Changes collected up to a limit.
struct ChangePage {
    changes: Vec<Change>,
    limit: ReadLimit,
    bytes: usize,
}

impl ChangePage {
    fn new(limit: ReadLimit) -> Self {
        Self { changes: Vec::new(), limit, bytes: 0 }
    }

    /// Number of changes that the limit still allows.
    fn room(&self) -> usize {
        self.limit.items.max(1) - self.changes.len()
    }

    fn is_full(&self) -> bool {
        // A limit of 0 counts as 1: an empty page would mean the end of the log.
        self.changes.len() >= self.limit.items.max(1)
    }

    /// Adds a change if the limit allows; the first change always fits. Returns whether it was added.
    fn add(&mut self, seq: Seq, record: &Bytes) -> Result<bool, StorageError> {
        self.bytes = self.bytes.saturating_add(record.len());
        // A record above the limit comes alone, or a reader could never get past it.
        if self.bytes > self.limit.bytes && !self.changes.is_empty() {
            return Ok(false);
        }
        self.changes.push(record::decode(seq, record)?);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::{Item, NewChange};

    use super::super::{EmbeddedOptions, EmbeddedStore};
    use super::*;
    use crate::{Expected, Store};

    /// The engine has a group before its head is published. A reader that saw it would have a position beyond the head.
    #[tokio::test]
    async fn nothing_is_read_beyond_the_published_head() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
        let store = EmbeddedStore::open(folder.path(), options).unwrap();
        let feed = FeedId::new("f1").unwrap();
        let append = async |id: &str| {
            store.append(&feed, Expected::Any, vec![NewChange::put(Item::new(id))]).await.unwrap();
        };
        append("a").await;
        let before = store.feed(&store.engine().unwrap(), &feed).unwrap().unwrap();
        append("b").await;
        store.notifier.set_head(&feed, before);
        let (range, limit) = (SeqRange::default(), ReadLimit::items(10));
        for order in [ItemOrder::Created, ItemOrder::Modified] {
            let items = store.items(&feed, order, range, limit).await.unwrap();
            assert_eq!(items.iter().map(|change| change.seq).collect::<Vec<_>>(), [1], "{order:?}");
        }
        assert_eq!(store.last_before(&feed, Timestamp::MAX).await.unwrap(), 1);
        assert_eq!(store.read(&feed, 0, limit).await.unwrap().len(), 1);
    }
}
