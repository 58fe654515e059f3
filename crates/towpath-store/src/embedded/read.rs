//! Reads. Each reads from one snapshot of the engine, so it sees whole appends only.

use bytes::Bytes;
use fjall::{Guard, Readable, Snapshot};
use jiff::Timestamp;
use towpath_proto::change::{Change, Seq};
use towpath_proto::diff::Known;
use towpath_proto::feed_id::FeedId;

use super::apply::{Engine, read_error};
use super::keys::{self, Feed, FeedNumber, Version};
use super::record::{self, bytes_of};
use crate::{FeedHead, Limit, Order, StoreError, Stretch, Table};

impl Engine {
    /// The names of all feeds.
    pub(crate) fn feed_names(&self) -> Result<Vec<FeedId>, StoreError> {
        let names = self.db.snapshot().iter(&self.feeds);
        names.map(|entry| name(&entry.key().map_err(|e| read_error(&e))?)).collect()
    }

    /// The heads of all feeds.
    pub(crate) fn feed_heads(&self) -> Result<Vec<FeedHead>, StoreError> {
        let entries = self.db.snapshot().iter(&self.feeds);
        let head = |entry: Guard| {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let Feed { head, appended, .. } = Feed::decode(&value)?;
            Ok(FeedHead { feed: name(&key)?, head, appended })
        };
        entries.map(head).collect()
    }

    /// Changes after a place, up to the feed's head.
    pub(crate) fn changes(&self, feed: Feed, after: Seq, limit: Limit) -> Result<Vec<Change>, StoreError> {
        if after >= feed.head.seq {
            return Ok(Vec::new());
        }
        let range = keys::place(feed.number, after + 1)..=keys::place(feed.number, feed.head.seq);
        let mut page = Page::new(limit);
        for entry in self.db.snapshot().range(&self.log, range) {
            if page.is_full() {
                break;
            }
            let (key, record) = entry.into_inner().map_err(|e| read_error(&e))?;
            if !page.add(keys::read_place(&key)?, &bytes_of(record))? {
                break;
            }
        }
        Ok(page.changes)
    }

    /// The change at a place.
    pub(crate) fn change(&self, feed: Feed, seq: Seq) -> Result<Option<Change>, StoreError> {
        if seq > feed.head.seq {
            return Ok(None);
        }
        let key = keys::place(feed.number, seq);
        let record = self.db.snapshot().get(&self.log, key).map_err(|e| read_error(&e))?;
        record.map(|record| record::decode(seq, &bytes_of(record))).transpose()
    }

    /// The latest version of an item.
    pub(crate) fn latest(&self, feed: FeedNumber, id: &str) -> Result<Option<Change>, StoreError> {
        let snapshot = self.db.snapshot();
        let version = snapshot.get(&self.ids, keys::id(feed, id)).map_err(|e| read_error(&e))?;
        let Some(version) = version else { return Ok(None) };
        let seq = Version::decode(&version)?.latest;
        record::decode(seq, &self.record_in(&snapshot, feed, seq)?).map(Some)
    }

    /// The last place whose change was made before `time`: one seek in the index of times.
    pub(crate) fn last_before(&self, feed: FeedNumber, time: Timestamp) -> Result<Seq, StoreError> {
        let range = keys::moment(feed, Timestamp::MIN)..keys::moment(feed, time);
        let last = self.db.snapshot().range(&self.times, range).next_back();
        last.map_or(Ok(0), |entry| keys::read_seq(&entry.value().map_err(|e| read_error(&e))?))
    }

    /// Items along an order.
    pub(crate) fn items(
        &self,
        feed: FeedNumber,
        order: Order,
        stretch: Stretch,
        limit: Limit,
    ) -> Result<Vec<Change>, StoreError> {
        let first = stretch.after.map_or(Some(0), |after| after.checked_add(1));
        let last = stretch.before.map_or(Some(Seq::MAX), |before| before.checked_sub(1));
        let (Some(first), Some(last)) = (first, last) else { return Ok(Vec::new()) };
        if first > last {
            return Ok(Vec::new());
        }
        let range = keys::place(feed, first)..=keys::place(feed, last);
        let snapshot = self.db.snapshot();
        let index = match order {
            Order::Created => &self.created,
            Order::Modified => &self.modified,
        };
        let along = snapshot.range(index, range);
        let along: &mut dyn Iterator<Item = Guard> =
            if stretch.descending { &mut along.rev() } else { &mut { along } };
        let mut page = Page::new(limit);
        for entry in along {
            if page.is_full() {
                break;
            }
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let seq = match order {
                Order::Created => keys::read_seq(&value)?,
                Order::Modified => keys::read_place(&key)?,
            };
            if !page.add(seq, &self.record_in(&snapshot, feed, seq)?)? {
                break;
            }
        }
        Ok(page.changes)
    }

    fn record_in(&self, snapshot: &Snapshot, feed: FeedNumber, seq: Seq) -> Result<Bytes, StoreError> {
        let record = snapshot.get(&self.log, keys::place(feed, seq)).map_err(|e| read_error(&e))?;
        record.map(bytes_of).ok_or_else(|| StoreError::Damaged(format!("change {seq} is missing")))
    }

    /// The hashes of the ids of a feed.
    pub(crate) fn known(&self, feed: FeedNumber, ids: Option<&[String]>) -> Result<Known, StoreError> {
        let snapshot = self.db.snapshot();
        let Some(ids) = ids else {
            let entries = snapshot.prefix(&self.ids, feed.to_be_bytes());
            return entries
                .map(|entry| {
                    let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
                    Ok((keys::read_id(&key)?.to_owned(), Version::decode(&value)?.hash))
                })
                .collect();
        };
        let mut known = Known::with_capacity(ids.len());
        for id in ids {
            let value = snapshot.get(&self.ids, keys::id(feed, id)).map_err(|e| read_error(&e))?;
            if let Some(value) = value {
                known.insert(id.clone(), Version::decode(&value)?.hash);
            }
        }
        Ok(known)
    }

    /// A value of a table.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let snapshot = self.db.snapshot();
        let value =
            snapshot.get(self.keyspace(table), keys::entry(table, key)).map_err(|e| read_error(&e))?;
        Ok(value.map(bytes_of))
    }

    /// Keys and values of a table.
    pub(crate) fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let prefix = keys::entry(table, prefix);
        // The least key after `after` is `after` with a zero byte.
        let start = after.map(|after| [&keys::entry(table, after)[..], &[0]].concat());
        let start = start.filter(|start| *start > prefix).unwrap_or_else(|| prefix.clone());
        let mut found = Vec::new();
        for entry in self.db.snapshot().range(self.keyspace(table), start..) {
            if found.len() == limit {
                break;
            }
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            if !key.starts_with(&prefix) {
                break;
            }
            found.push((bytes_of(key).slice(1..), bytes_of(value)));
        }
        Ok(found)
    }
}

/// Reads a feed's name.
pub(super) fn name(key: &[u8]) -> Result<FeedId, StoreError> {
    let name = std::str::from_utf8(key).ok().and_then(|text| FeedId::new(text).ok());
    name.ok_or_else(|| StoreError::Damaged(format!("{:?} is no feed's name", String::from_utf8_lossy(key))))
}

/// Changes up to a limit.
struct Page {
    changes: Vec<Change>,
    limit: Limit,
    bytes: usize,
}

impl Page {
    fn new(limit: Limit) -> Self {
        Self { changes: Vec::new(), limit, bytes: 0 }
    }

    fn is_full(&self) -> bool {
        self.changes.len() >= self.limit.items.max(1)
    }

    /// Adds a change where there is room for it; the first is always added.
    fn add(&mut self, seq: Seq, record: &Bytes) -> Result<bool, StoreError> {
        self.bytes = self.bytes.saturating_add(record.len());
        if self.bytes > self.limit.bytes && !self.changes.is_empty() {
            return Ok(false);
        }
        self.changes.push(record::decode(seq, record)?);
        Ok(true)
    }
}
