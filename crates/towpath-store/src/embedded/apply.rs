//! Applying a decided group: one batch of the storage engine, one sync.
//!
//! The engine writes a batch to its journal, syncs the journal, and then makes the whole batch visible at once.
//! Each reader reads from one snapshot, so it sees only durable data and no half of an append. A batch whose
//! sync failed never becomes visible. After a failed write the engine accepts no more writes until it is opened
//! again; reads continue. A batch with an unknown result may be there, whole, after the next opening: it was
//! never acknowledged.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{
    CompressionType, Database, JournalRecoveryError, Keyspace, KeyspaceCreateOptions, KvSeparationOptions,
    OwnedWriteBatch, PersistMode, Readable, Slice,
};
use parking_lot::Mutex;
use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;

use super::EmbeddedOptions;
use super::decide::{DecidedGroup, IdUpdate, Lookup};
use super::engine_error::{engine_reason, open_reason, read_error};
use super::folder::{DataFolder, FORMAT_VERSION, io_reason};
use super::journal_mark::JournalMark;
use super::journal_tail::{JournalBatches, cut_torn_batch};
use super::keys::{self, FeedNumber, FeedRow, IdRow};
use super::record::bytes_of;
use super::records::NewRecords;
use super::table_lists::check_table_lists;
use crate::Table;
use crate::error::{OpenError, StorageError};

/// Storage engine with its keyspaces.
pub(crate) struct StorageEngine {
    pub(super) db: Database,
    pub(super) feeds: Keyspace,
    pub(super) log: Keyspace,
    pub(super) ids: Keyspace,
    pub(super) modified: Keyspace,
    pub(super) created: Keyspace,
    pub(super) times: Keyspace,
    pub(super) tables: Keyspace,
    pub(super) documents: Keyspace,
    pub(super) path: PathBuf,
    reserve: u64,
    mark: JournalMark,
    /// Error of the first failed write. No write is accepted after it.
    failed: Mutex<Option<String>>,
    // Last field, dropped last: the folder is unlocked only after the engine has closed its files.
    folder: DataFolder,
}

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

/// Size of the values of a keyspace.
#[derive(Clone, Copy)]
enum ValueSize {
    /// Records and documents. They are stored apart from their keys, so that a compaction does not rewrite them.
    Large,
    /// Index entries.
    Small,
}

impl StorageEngine {
    /// Opens the engine in a folder that is locked and checked.
    pub(crate) fn open(folder: DataFolder, options: &EmbeddedOptions) -> Result<Self, OpenError> {
        Self::open_journal(folder, options, JournalBatches::Synced)
    }

    /// Opens the engine in a replica's folder that is locked and checked.
    pub(crate) fn open_replica(folder: DataFolder, options: &EmbeddedOptions) -> Result<Self, OpenError> {
        Self::open_journal(folder, options, JournalBatches::Replayed)
    }

    fn open_journal(
        folder: DataFolder,
        options: &EmbeddedOptions,
        batches: JournalBatches,
    ) -> Result<Self, OpenError> {
        let path = folder.engine();
        if folder.is_old() {
            folder.copy_before_migration()?;
        }
        // Before the engine, which cuts a damaged journal at the damage.
        let mark = folder.journal_mark()?;
        check_table_lists(&path).map_err(|reason| folder.refuse(reason))?;
        let opened = match Self::open_keyspaces(&path, options) {
            // Nothing acknowledged was in a batch with holes.
            Err(fjall::Error::JournalRecovery(JournalRecoveryError::ChecksumMismatch))
                if cut_torn_batch(&path, batches).map_err(|e| folder.refuse(io_reason(&e)))? =>
            {
                Self::open_keyspaces(&path, options)
            }
            opened => opened,
        };
        let (db, keyspaces) = opened.map_err(|e| folder.refuse(open_reason(&e, &path)))?;
        let [feeds, log, ids, modified, created, times, tables, documents] = keyspaces;
        let commit = last_commit(&tables).map_err(|e| folder.refuse(e.to_string()))?;
        mark.check(commit).map_err(|reason| folder.refuse(reason))?;
        // Only after the engine has opened: a folder without the format file is created anew.
        folder.finish()?;
        let (reserve, failed) = (options.reserve, Mutex::default());
        let engine = Self {
            db,
            feeds,
            log,
            ids,
            modified,
            created,
            times,
            tables,
            documents,
            path,
            reserve,
            mark,
            failed,
            folder,
        };
        if engine.folder.is_old() {
            engine.migrate().map_err(|reason| {
                engine.refuse(&format!("its migration to format {FORMAT_VERSION} failed: {reason}"))
            })?;
            engine.folder.finish_migration()?;
        }
        Ok(engine)
    }

    /// Closes the engine, and leaves its folder locked.
    pub(crate) fn into_folder(self) -> DataFolder {
        let Self { folder, .. } = self;
        folder
    }

    /// Returns the error of a folder that cannot be opened.
    pub(crate) fn refuse(&self, reason: &str) -> OpenError {
        self.folder.refuse(reason.to_owned())
    }

    fn open_keyspaces(path: &Path, options: &EmbeddedOptions) -> fjall::Result<(Database, [Keyspace; 8])> {
        let db = Database::builder(path)
            // One thread: with more, the first one, which never compacts, spins while the others do. It takes their
            // next job and puts it back, again and again.
            .worker_threads(1)
            .cache_size(options.cache)
            // The engine panics below 10.
            .max_cached_files(Some(options.max_files.max(10)))
            // The engine panics below 64 MiB.
            .max_journaling_size(options.journal.max(64 << 20))
            .journal_compression(CompressionType::None)
            // Every batch names its own persist mode; the engine must not sync in between.
            .manual_journal_persist(true)
            .open()?;
        let open = |name: &str, values| db.keyspace(name, || keyspace_options(values, options));
        let keyspaces = [
            open("feeds", ValueSize::Small)?,
            open("log", ValueSize::Large)?,
            open("ids", ValueSize::Small)?,
            open("modified", ValueSize::Small)?,
            open("created", ValueSize::Small)?,
            open("times", ValueSize::Small)?,
            open("tables", ValueSize::Small)?,
            open("documents", ValueSize::Large)?,
        ];
        Ok((db, keyspaces))
    }

    /// Fails where a write would fail, before the engine starts it.
    ///
    /// The engine cannot continue after a write that failed half-way. This check keeps it from meeting a full
    /// disk, so that appends resume as soon as there is space.
    pub(crate) fn check_writable(&self) -> Result<(), String> {
        if let Some(failed) = &*self.failed.lock() {
            return Err(format!(
                "an earlier write failed ({failed}), and the store was not opened again since"
            ));
        }
        // Once per group: a statvfs call is cheap, but not for each append.
        self.full_disk().map_or(Ok(()), Err)
    }

    /// Returns the size of all tables and journals in bytes.
    pub(crate) fn disk_space(&self) -> u64 {
        self.db.disk_space().unwrap_or(0)
    }

    /// Returns an error if less space is free than is reserved.
    pub(crate) fn full_disk(&self) -> Option<String> {
        // Free space that the system cannot tell does not stop the store.
        let free = free_space(&self.path).filter(|free| *free < self.reserve)?;
        Some(format!(
            "the disk is full: {} MiB are free, and {} MiB are reserved; free some space",
            free >> 20,
            self.reserve >> 20
        ))
    }

    /// Returns the error of a flush or compaction that failed in the background: no write succeeds after it.
    pub(crate) fn background_failure(&self) -> Option<String> {
        // Writes nothing new: every batch has persisted what it wrote. It fails where the engine is poisoned.
        self.db.persist(PersistMode::Buffer).err().map(|e| self.fail(&e))
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.lock().is_some()
    }

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

    pub(super) fn keyspaces(&self) -> [&Keyspace; 8] {
        [
            &self.feeds,
            &self.log,
            &self.ids,
            &self.modified,
            &self.created,
            &self.times,
            &self.tables,
            &self.documents,
        ]
    }

    /// Compacts every keyspace. Returns the bytes of the tables before and after.
    pub(crate) fn compact(&self) -> Result<(u64, u64), StorageError> {
        let keyspaces = self.keyspaces();
        // What is in memory yet counts as well, before and after.
        for keyspace in keyspaces {
            keyspace.rotate_memtable_and_wait().map_err(|e| read_error(&e))?;
        }
        let bytes = || keyspaces.iter().map(|keyspace| keyspace.disk_space()).sum();
        let before = bytes();
        for keyspace in keyspaces {
            keyspace.major_compact().map_err(|e| read_error(&e))?;
        }
        Ok((before, bytes()))
    }

    fn fail(&self, error: &fjall::Error) -> String {
        // The first error is the cause. Later ones only say that the engine is poisoned.
        self.failed.lock().get_or_insert(engine_reason(error)).clone()
    }

    pub(super) fn keyspace(&self, table: Table) -> &Keyspace {
        match table {
            // Documents are large: they need the keyspace with separated values.
            Table::Documents => &self.documents,
            Table::Sources | Table::Chains | Table::Subscriptions | Table::Leases => &self.tables,
        }
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

/// Returns the number of the last commit; 0 in folders of earlier versions.
fn last_commit(tables: &Keyspace) -> Result<u64, StorageError> {
    let value = tables.get(keys::COMMIT).map_err(|e| read_error(&e))?;
    value.map_or(Ok(0), |value| keys::read_seq(&value))
}

fn keyspace_options(values: ValueSize, options: &EmbeddedOptions) -> KeyspaceCreateOptions {
    let keyspace = KeyspaceCreateOptions::default().manual_journal_persist(true);
    match values {
        ValueSize::Large => keyspace
            .max_memtable_size(options.memtable)
            .with_kv_separation(Some(KvSeparationOptions::default().separation_threshold(256))),
        ValueSize::Small => keyspace
            .max_memtable_size(options.memtable / 4)
            .data_block_size_policy(BlockSizePolicy::all(4 << 10))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::None)),
    }
}

/// Free bytes on the disk of `path`; `None` where the system cannot say.
#[cfg(not(unix))]
fn free_space(_path: &Path) -> Option<u64> {
    None
}

#[cfg(unix)]
fn free_space(path: &Path) -> Option<u64> {
    // `f_bavail`, not `f_bfree`: blocks that are reserved for root are of no use to us.
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
