//! Where what was decided is applied: one batch of the engine, one sync.
//!
//! The engine writes a batch to its journal, syncs the journal, and only then lets readers see the batch,
//! all of it at once: so readers, who each read from one snapshot, see only what is durable, and no half of
//! an append. A batch whose sync failed is never seen; after a failed write the engine takes no more writes
//! until it is opened again, and goes on answering reads. A batch that the engine could not report on may
//! turn out to be there then, whole: it was never acknowledged.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Readable,
    Slice,
};
use parking_lot::Mutex;
use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;

use super::Options;
use super::decide::{Decided, Lookup, Touched};
use super::folder::Folder;
use super::keys::{self, Feed, FeedNumber, Version};
use super::record::bytes_of;
use super::records::Records;
use crate::{StoreError, Table};

/// The engine with its keyspaces.
pub(crate) struct Engine {
    pub(super) db: Database,
    pub(super) feeds: Keyspace,
    pub(super) log: Keyspace,
    pub(super) ids: Keyspace,
    pub(super) modified: Keyspace,
    pub(super) created: Keyspace,
    pub(super) times: Keyspace,
    pub(super) tables: Keyspace,
    pub(super) documents: Keyspace,
    path: PathBuf,
    reserve: u64,
    /// How the first write failed after which the engine takes no more.
    failed: Mutex<Option<String>>,
    // Last, so that the folder is unlocked when the engine has let go of it.
    folder: Folder,
}

/// What a replica keeps beside the store's data, in the same batch: a key and its value; `None` removes it.
pub(crate) type Note = (Vec<u8>, Option<Bytes>);

/// How a batch is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Durably.
    Synced,
    /// A replica's: what a crash takes is applied again.
    Unsynced,
    /// The same, where the entries of the logs were loaded.
    Loaded,
}

/// What values a keyspace holds.
#[derive(Clone, Copy)]
enum Values {
    /// Records and documents: stored apart from their keys, so that they are written once and not again
    /// with every compaction.
    Large,
    /// Entries of an index.
    Small,
}

impl Engine {
    /// Opens the engine in a folder that is locked and known to be ours.
    pub(crate) fn open(folder: Folder, options: &Options) -> Result<Self, StoreError> {
        let path = folder.engine();
        let opened = Self::open_keyspaces(&path, options);
        let (db, keyspaces) = opened.map_err(|e| folder.refuse(engine_reason(&e)))?;
        let [feeds, log, ids, modified, created, times, tables, documents] = keyspaces;
        folder.finish()?;
        let (reserve, failed) = (options.reserve, Mutex::default());
        Ok(Self {
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
            failed,
            folder,
        })
    }

    /// The error of a folder that cannot be opened.
    pub(crate) fn refuse(&self, reason: &str) -> StoreError {
        self.folder.refuse(reason.to_owned())
    }

    fn open_keyspaces(path: &Path, options: &Options) -> fjall::Result<(Database, [Keyspace; 8])> {
        let db = Database::builder(path)
            // With several, the first, which does not compact, spins while the others do: it takes their next job
            // and puts it back, again and again.
            .worker_threads(1)
            .cache_size(options.cache)
            .max_journaling_size(options.journal.max(64 << 20))
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .open()?;
        let open = |name: &str, values| db.keyspace(name, || keyspace_options(values, options));
        let keyspaces = [
            open("feeds", Values::Small)?,
            open("log", Values::Large)?,
            open("ids", Values::Small)?,
            open("modified", Values::Small)?,
            open("created", Values::Small)?,
            open("times", Values::Small)?,
            open("tables", Values::Small)?,
            open("documents", Values::Large)?,
        ];
        Ok((db, keyspaces))
    }

    /// Fails where a write would: early, before the engine is in the middle of it.
    ///
    /// A disk that is nearly full is found here, so that the engine, which could not go on after a write
    /// that failed half-way, never meets a full one; appends are taken again as soon as there is space.
    pub(crate) fn check_writable(&self) -> Result<(), String> {
        if let Some(failed) = &*self.failed.lock() {
            return Err(format!(
                "an earlier write failed ({failed}); nothing more is written until the store is opened again"
            ));
        }
        match free_space(&self.path) {
            Some(free) if free < self.reserve => Err(format!(
                "the disk is full: {} MiB are free, and {} MiB are kept in reserve",
                free >> 20,
                self.reserve >> 20
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.lock().is_some()
    }

    /// Puts a replica's new entries of the logs where they stay, past the journal, so that they are written once.
    ///
    /// That is to be done before the batch that they belong to, which moves the heads: nobody reads behind a head. What
    /// a crash leaves behind one is written over when the replica comes to these places again.
    pub(crate) fn load(&self, records: &Records) -> Result<(), String> {
        let load = || {
            let mut loading = self.log.start_ingestion()?;
            for ((feed, seq), record) in records.iter() {
                loading.write(keys::place(feed, seq), record.encode())?;
            }
            loading.finish()
        };
        load().map_err(|e| self.fail(&e))
    }

    /// Applies all that was decided, and a replica's own notes, or nothing of it.
    pub(crate) fn apply(&self, decided: &Decided, notes: &[Note], how: How) -> Result<(), String> {
        let persist = if how == How::Synced { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.db.batch().durability(Some(persist));
        if how != How::Loaded {
            for ((feed, seq), record) in decided.records.iter() {
                batch.insert(&self.log, keys::place(feed, seq), record.encode());
            }
        }
        for (key, seq) in moments(decided) {
            batch.insert(&self.times, key, seq.to_be_bytes());
        }
        // Each index in its order, so that one entry's place in the engine is found close to the last one's.
        let mut ids: Vec<_> = decided.ids.iter().collect();
        ids.sort_unstable_by_key(|(key, _)| *key);
        for (key, touched) in &ids {
            batch.insert(&self.ids, Slice::clone(key), touched.now.encode());
        }
        ids.sort_unstable_by_key(|(_, touched)| (touched.feed, touched.now.latest));
        for (_, Touched { feed, before, now }) in &ids {
            if let Some(before) = before {
                batch.remove(&self.modified, keys::place(*feed, *before));
            }
            batch.insert(&self.modified, keys::place(*feed, now.latest), []);
        }
        for (_, Touched { feed, now, .. }) in &ids {
            batch.insert(&self.created, keys::place(*feed, now.first), now.latest.to_be_bytes());
        }
        for (name, feed) in &decided.feeds {
            batch.insert(&self.feeds, name.as_str(), feed.encode());
        }
        if let Some(next) = decided.next_feed {
            batch.insert(&self.tables, keys::NEXT_FEED, next.to_be_bytes());
        }
        for ((table, key), value) in &decided.values {
            let (keyspace, key) = (self.keyspace(*table), keys::entry(*table, key));
            match value {
                Some(value) => batch.insert(keyspace, key, &value[..]),
                None => batch.remove(keyspace, key),
            }
        }
        for (key, value) in notes {
            match value {
                Some(value) => batch.insert(&self.tables, keys::note(key), &value[..]),
                None => batch.remove(&self.tables, keys::note(key)),
            }
        }
        batch.commit().map_err(|e| self.fail(&e))
    }

    /// A replica's own note.
    pub(crate) fn note(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let value = self.tables.get(keys::note(key)).map_err(|e| read_error(&e))?;
        Ok(value.map(bytes_of))
    }

    /// A replica's own notes whose keys begin with `prefix`, in the order of their keys.
    pub(crate) fn notes(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Bytes)>, StoreError> {
        let entries = self.db.snapshot().prefix(&self.tables, keys::note(prefix));
        entries
            .map(|entry| {
                let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
                Ok((key[keys::note(b"").len()..].to_vec(), bytes_of(value)))
            })
            .collect()
    }

    /// Whether this is a replica's folder: one that has notes.
    pub(crate) fn is_replica(&self) -> Result<bool, StoreError> {
        let first = self.db.snapshot().prefix(&self.tables, keys::note(b"")).next();
        first.map_or(Ok(false), |entry| entry.key().map(|_| true).map_err(|e| read_error(&e)))
    }

    /// Whether nothing was ever written.
    pub(crate) fn is_empty(&self) -> Result<bool, StoreError> {
        let snapshot = self.db.snapshot();
        for keyspace in [&self.feeds, &self.tables, &self.documents] {
            if let Some(entry) = snapshot.iter(keyspace).next() {
                entry.key().map_err(|e| read_error(&e))?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fail(&self, error: &fjall::Error) -> String {
        self.failed.lock().get_or_insert(engine_reason(error)).clone()
    }

    pub(super) fn keyspace(&self, table: Table) -> &Keyspace {
        match table {
            Table::Documents => &self.documents,
            Table::Sources | Table::Chains | Table::Subscriptions | Table::Leases => &self.tables,
        }
    }
}

/// The entries of the index of times: of several changes with one time, the last.
fn moments(decided: &Decided) -> impl Iterator<Item = ([u8; 4 + keys::TIME], Seq)> {
    let mut records = decided.records.iter().peekable();
    std::iter::from_fn(move || {
        loop {
            let ((feed, seq), record) = records.next()?;
            let again =
                records.peek().is_some_and(|((f, _), r)| (*f, r.modified()) == (feed, record.modified()));
            if !again {
                return Some((keys::moment(feed, record.modified()), seq));
            }
        }
    })
}

impl Lookup for Engine {
    fn feed(&self, feed: &FeedId) -> Result<Option<Feed>, StoreError> {
        let value = self.db.snapshot().get(&self.feeds, feed.as_str()).map_err(|e| read_error(&e))?;
        value.map(|value| Feed::decode(&value)).transpose()
    }

    fn next_feed(&self) -> Result<FeedNumber, StoreError> {
        let value = self.tables.get(keys::NEXT_FEED).map_err(|e| read_error(&e))?;
        let Some(value) = value else { return Ok(0) };
        let number = value[..].try_into().map(u32::from_be_bytes);
        number.map_err(|_| StoreError::Damaged("the number of the next feed has not 4 bytes".into()))
    }

    fn version(&self, key: &[u8]) -> Result<Option<Version>, StoreError> {
        let value = self.ids.get(key).map_err(|e| read_error(&e))?;
        value.map(|value| Version::decode(&value)).transpose()
    }

    fn record(&self, feed: FeedNumber, seq: Seq) -> Result<Bytes, StoreError> {
        let value = self.log.get(keys::place(feed, seq)).map_err(|e| read_error(&e))?;
        value.map(bytes_of).ok_or_else(|| StoreError::Damaged(format!("change {seq} is missing")))
    }

    fn value(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let value = self.keyspace(table).get(keys::entry(table, key)).map_err(|e| read_error(&e))?;
        Ok(value.map(bytes_of))
    }
}

pub(super) fn read_error(error: &fjall::Error) -> StoreError {
    StoreError::Read(engine_reason(error))
}

/// The engine's error in words.
fn engine_reason(error: &fjall::Error) -> String {
    match error {
        fjall::Error::Io(e) => e.to_string(),
        fjall::Error::Storage(e) => format!("{e:?}"),
        fjall::Error::Poisoned => "a write in the background failed before".into(),
        fjall::Error::Locked => "another process has it open".into(),
        fjall::Error::InvalidVersion(_) => "it was written by another version of the engine".into(),
        other => format!("{other:?}"),
    }
}

fn keyspace_options(values: Values, options: &Options) -> KeyspaceCreateOptions {
    let keyspace = KeyspaceCreateOptions::default().manual_journal_persist(true);
    match values {
        Values::Large => keyspace
            .max_memtable_size(options.memtable)
            .with_kv_separation(Some(KvSeparationOptions::default().separation_threshold(256))),
        Values::Small => keyspace
            .max_memtable_size(options.memtable / 4)
            .data_block_size_policy(BlockSizePolicy::all(4 << 10))
            .data_block_compression_policy(CompressionPolicy::all(CompressionType::None)),
    }
}

/// The bytes that are free on the disk of `path`; `None` where the system does not tell.
#[cfg(not(unix))]
fn free_space(_path: &Path) -> Option<u64> {
    None
}

#[cfg(unix)]
fn free_space(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
