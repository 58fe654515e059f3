//! Applying a decided group: one batch of the storage engine, one sync.
//!
//! The engine writes a batch to its journal, syncs the journal, and then makes the whole batch visible at once.
//! Each reader reads from one snapshot, so it sees only durable data and no half of an append. A batch whose
//! sync failed never becomes visible. After a failed write the engine accepts no more writes until it is opened
//! again; reads continue. A batch with an unknown result may be there, whole, after the next opening: it was
//! never acknowledged.

use bytes::Bytes;
use fjall::{OwnedWriteBatch, PersistMode, Readable as _, Slice};
use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;

use super::decide::{DecidedGroup, IdUpdate, Lookup};
use super::engine_error::{engine_reason, read_error};
use super::keys::{self, FeedNumber, FeedRow, IdRow};
use super::record::bytes_of;
use super::records::NewRecords;
use super::storage_engine::StorageEngine;
use crate::Table;
use crate::error::StorageError;

/// Row of a replica's metadata, written in the batch that it describes; `None` removes the key.
pub(crate) type MetadataRow = (Vec<u8>, Option<Bytes>);

/// Durability of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApplyMode {
    /// Synced before it becomes visible.
    Synced,
    /// Not synced: a replica applies the log again after a crash.
    Unsynced,
    /// Not synced, and its log records were bulk-loaded before.
    Loaded,
}

impl StorageEngine {
    /// Bulk-loads a replica's new log records into tables, past the journal, so that they are written once.
    ///
    /// Call it before the batch that moves the heads. Entries past the head are invisible. Replay after a crash
    /// overwrites them.
    pub(crate) fn load(&self, records: &NewRecords) -> Result<(), String> {
        let load = || {
            let mut loading = self.log.start_ingestion()?;
            for ((feed, seq), record) in records.iter() {
                loading.write(keys::position_key(feed, seq), record.encode())?;
            }
            loading.finish()
        };
        load().map_err(|e| self.fail(&e))
    }

    /// Applies a decided group and a replica's metadata atomically.
    pub(crate) fn apply(
        &self,
        decided: &DecidedGroup,
        metadata: &[MetadataRow],
        mode: ApplyMode,
    ) -> Result<(), String> {
        let mut batch = match mode {
            ApplyMode::Synced => self.durable_batch(),
            ApplyMode::Unsynced | ApplyMode::Loaded => self.db.batch().durability(Some(PersistMode::Buffer)),
        };
        if mode != ApplyMode::Loaded {
            for ((feed, seq), record) in decided.records.iter() {
                batch.insert(&self.log, keys::position_key(feed, seq), record.encode());
            }
        }
        for (key, seq) in time_entries(decided) {
            // A bulk import with one time costs one entry here, not one per change.
            batch.insert(&self.times, key, seq.to_be_bytes());
        }
        // Each index in key order: the memtable finds the position of a key close to the previous one.
        let mut ids: Vec<_> = decided.ids.iter().collect();
        ids.sort_unstable_by_key(|(key, _)| *key);
        for (key, update) in &ids {
            batch.insert(&self.ids, Slice::clone(key), update.after.encode());
        }
        ids.sort_unstable_by_key(|(_, update)| (update.feed, update.after.latest));
        for (_, IdUpdate { feed, before, after }) in &ids {
            if let Some(before) = before {
                // The order of latest versions has each id once: its previous position goes.
                batch.remove(&self.modified, keys::position_key(*feed, *before));
            }
            batch.insert(&self.modified, keys::position_key(*feed, after.latest), []);
        }
        for (_, IdUpdate { feed, after, .. }) in &ids {
            batch.insert(&self.created, keys::position_key(*feed, after.first), after.latest.to_be_bytes());
        }
        for (name, feed) in &decided.feeds {
            batch.insert(&self.feeds, name.as_str(), feed.encode());
        }
        if let Some(next) = decided.next_feed {
            batch.insert(&self.tables, keys::NEXT_FEED, next.to_be_bytes());
        }
        for (number, name) in &decided.created {
            batch.insert(&self.tables, keys::feed_name(*number), name.as_str());
        }
        if let Some(level) = decided.level {
            batch.insert(&self.tables, keys::LEVEL, [level]);
        }
        for ((table, key), value) in &decided.values {
            let (keyspace, key) = (self.keyspace(*table), keys::entry(*table, key));
            match value {
                Some(value) => batch.insert(keyspace, key, &value[..]),
                None => batch.remove(keyspace, key),
            }
        }
        for (key, value) in metadata {
            match value {
                Some(value) => batch.insert(&self.tables, keys::metadata(key), &value[..]),
                None => batch.remove(&self.tables, keys::metadata(key)),
            }
        }
        // A replica's batches are not synced: a power loss may take them, and the cluster's log brings them again.
        if mode == ApplyMode::Synced {
            self.commit_durably(batch)
        } else {
            batch.commit().map_err(|e| self.fail(&e))
        }
    }

    /// Starts a batch that is synced before it becomes visible.
    pub(super) fn durable_batch(&self) -> OwnedWriteBatch {
        // `SyncData` is fdatasync: the journal's file times need not survive.
        self.db.batch().durability(Some(PersistMode::SyncData))
    }

    /// Commits a durable batch, and moves the journal's mark to it.
    pub(super) fn commit_durably(&self, mut batch: OwnedWriteBatch) -> Result<(), String> {
        let commit = self.mark.next();
        batch.insert(&self.tables, keys::COMMIT, commit.to_be_bytes());
        batch.commit().map_err(|e| self.fail(&e))?;
        self.mark.advance(commit);
        Ok(())
    }

    /// Returns a value of the replica's metadata.
    pub(crate) fn metadata(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let value = self.tables.get(keys::metadata(key)).map_err(|e| read_error(&e))?;
        Ok(value.map(bytes_of))
    }

    /// Returns the replica's metadata with a key prefix, ordered by key.
    pub(crate) fn scan_metadata(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Bytes)>, StorageError> {
        let entries = self.db.snapshot().prefix(&self.tables, keys::metadata(prefix));
        entries
            .map(|entry| {
                let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
                Ok((key[keys::metadata(b"").len()..].to_vec(), bytes_of(value)))
            })
            .collect()
    }

    /// Returns true for a replica's folder: one that has metadata.
    pub(crate) fn is_replica(&self) -> Result<bool, StorageError> {
        // Every group of a replica writes its position, so a folder without metadata is not a replica.
        let first = self.db.snapshot().prefix(&self.tables, keys::metadata(b"")).next();
        first.map_or(Ok(false), |entry| entry.key().map(|_| true).map_err(|e| read_error(&e)))
    }

    /// Returns true where nothing was ever written.
    pub(crate) fn is_empty(&self) -> Result<bool, StorageError> {
        let snapshot = self.db.snapshot();
        // The other keyspaces never have entries without a feed row.
        for keyspace in [&self.feeds, &self.tables, &self.documents] {
            if let Some(entry) = snapshot.iter(keyspace).next() {
                entry.key().map_err(|e| read_error(&e))?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn fail(&self, error: &fjall::Error) -> String {
        // The first error is the cause. Later ones only say that the engine is poisoned.
        self.failed.lock().get_or_insert(engine_reason(error)).clone()
    }
}

/// Entries of the time index: one per distinct time, for its last change.
fn time_entries(decided: &DecidedGroup) -> impl Iterator<Item = ([u8; 4 + keys::TIME], Seq)> {
    let mut records = decided.records.iter().peekable();
    std::iter::from_fn(move || {
        loop {
            let ((feed, seq), record) = records.next()?;
            let is_repeated =
                records.peek().is_some_and(|((f, _), r)| (*f, r.modified()) == (feed, record.modified()));
            if !is_repeated {
                // An earlier group may have ended with this time. Its entry has the same key and is replaced.
                return Some((keys::time_key(feed, record.modified()), seq));
            }
        }
    })
}

impl Lookup for StorageEngine {
    fn feed(&self, feed: &FeedId) -> Result<Option<FeedRow>, StorageError> {
        let value = self.db.snapshot().get(&self.feeds, feed.as_str()).map_err(|e| read_error(&e))?;
        value.map(|value| FeedRow::decode(&value)).transpose()
    }

    fn next_feed(&self) -> Result<FeedNumber, StorageError> {
        let value = self.tables.get(keys::NEXT_FEED).map_err(|e| read_error(&e))?;
        let Some(value) = value else { return Ok(0) };
        let number = value[..].try_into().map(u32::from_be_bytes);
        number.map_err(|_| StorageError::Damaged("the next feed number does not have 4 bytes".into()))
    }

    fn version(&self, key: &[u8]) -> Result<Option<IdRow>, StorageError> {
        let value = self.ids.get(key).map_err(|e| read_error(&e))?;
        value.map(|value| IdRow::decode(&value)).transpose()
    }

    fn record(&self, feed: FeedNumber, seq: Seq) -> Result<Bytes, StorageError> {
        let value = self.log.get(keys::position_key(feed, seq)).map_err(|e| read_error(&e))?;
        value.map(bytes_of).ok_or_else(|| StorageError::Damaged(format!("change {seq} is missing")))
    }

    fn level(&self) -> Result<u8, StorageError> {
        let value = self.tables.get(keys::LEVEL).map_err(|e| read_error(&e))?;
        keys::read_level(value.as_deref())
    }

    fn value(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let value = self.keyspace(table).get(keys::entry(table, key)).map_err(|e| read_error(&e))?;
        Ok(value.map(bytes_of))
    }
}
