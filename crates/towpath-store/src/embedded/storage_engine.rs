//! The storage engine with its keyspaces: opening it in a data folder, its state, its place on the disk.

use std::path::{Path, PathBuf};

use fjall::config::{BlockSizePolicy, CompressionPolicy};
use fjall::{
    CompressionType, Database, JournalRecoveryError, Keyspace, KeyspaceCreateOptions, KvSeparationOptions,
    PersistMode,
};
use parking_lot::Mutex;

use super::EmbeddedOptions;
use super::engine_error::{first_read_reason, open_reason, read_error};
use super::folder::{DataFolder, FORMAT_VERSION, io_reason};
use super::journal_mark::{ENGINE_VERSION, JournalMark, journals};
use super::journal_tail::{BatchDurability, cut_torn_batch};
use super::keys;
use super::table_lists::check_table_lists;
use crate::Table;
use crate::error::{OpenError, StorageError};

/// Most runs of one compaction of a keyspace: each removes what the one before has found to be gone.
const MAX_RUNS: usize = 16;

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
    pub(super) mark: JournalMark,
    /// Error of the first failed write. No write is accepted after it.
    pub(super) failed: Mutex<Option<String>>,
    // Last field, dropped last: the folder is unlocked only after the engine has closed its files.
    folder: DataFolder,
}

/// Need of a write for space, which decides how full the disk may be.
#[derive(Clone, Copy)]
pub(crate) enum DiskNeed {
    /// Contents or documents: refused below the reserve.
    Much,
    /// Removals, and rows of some bytes: refused below half of the reserve.
    Little,
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
        Self::open_journal(folder, options, BatchDurability::Synced)
    }

    /// Opens the engine in a replica's folder that is locked and checked.
    pub(crate) fn open_replica(folder: DataFolder, options: &EmbeddedOptions) -> Result<Self, OpenError> {
        Self::open_journal(folder, options, BatchDurability::Replayed)
    }

    fn open_journal(
        folder: DataFolder,
        options: &EmbeddedOptions,
        durability: BatchDurability,
    ) -> Result<Self, OpenError> {
        let path = folder.engine();
        if folder.is_old() {
            folder.copy_before_migration()?;
        }
        // Before the engine, which cuts a damaged journal at the damage.
        let mark = folder.journal_mark()?;
        check_table_lists(&path).map_err(|reason| folder.refuse(reason))?;
        create_lost_files(&path).map_err(|e| folder.refuse(format!("its folder engine: {e}")))?;
        let opened = match Self::open_keyspaces(&path, options) {
            // Nothing acknowledged was in a batch with holes.
            Err(fjall::Error::JournalRecovery(JournalRecoveryError::ChecksumMismatch))
                if cut_torn_batch(&path, durability).map_err(|e| folder.refuse(io_reason(&e)))? =>
            {
                Self::open_keyspaces(&path, options)
            }
            opened => opened,
        };
        let (db, keyspaces) = opened.map_err(|e| folder.refuse(open_reason(&e, &path)))?;
        let [feeds, log, ids, modified, created, times, tables, documents] = keyspaces;
        let commit = last_commit(&tables).map_err(|e| folder.refuse(first_read_reason(&e, &path)))?;
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

    /// Returns true for a replica's folder.
    ///
    /// # Errors
    ///
    /// A folder in which not even that can be read.
    pub(crate) fn opened_as_replica(&self) -> Result<bool, OpenError> {
        self.is_replica().map_err(|e| self.refuse(&first_read_reason(&e, &self.path)))
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
    pub(crate) fn check_writable(&self, need: DiskNeed) -> Result<(), String> {
        if let Some(failed) = &*self.failed.lock() {
            return Err(format!(
                "an earlier write failed ({failed}), and the store was not opened again since"
            ));
        }
        // Once per group: a statvfs call is cheap, but not for each append.
        let kept_free = match need {
            DiskNeed::Much => self.reserve,
            // Else a server whose own data fill the disk could never remove them.
            DiskNeed::Little => self.reserve / 2,
        };
        self.less_is_free_than(kept_free).map_or(Ok(()), Err)
    }

    /// Returns the size of all tables and journals in bytes.
    pub(crate) fn disk_space(&self) -> u64 {
        self.db.disk_space().unwrap_or(0)
    }

    /// Returns an error if less space is free than is reserved.
    pub(crate) fn full_disk(&self) -> Option<String> {
        self.less_is_free_than(self.reserve)
    }

    fn less_is_free_than(&self, bytes: u64) -> Option<String> {
        if bytes == 0 {
            return None;
        }
        let free = low_space(&self.path, bytes)?;
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

    /// Writes what every keyspace has in memory to tables.
    pub(crate) fn flush(&self) -> Result<(), StorageError> {
        for keyspace in self.keyspaces() {
            keyspace.rotate_memtable_and_wait().map_err(|e| read_error(&e))?;
        }
        Ok(())
    }

    /// Compacts every keyspace. Returns the bytes of the tables before and after.
    pub(crate) fn compact(&self) -> Result<(u64, u64), StorageError> {
        let keyspaces = self.keyspaces();
        // What is in memory yet counts as well, before and after.
        self.flush()?;
        let bytes = || keyspaces.iter().map(|keyspace| keyspace.disk_space()).sum();
        let before = bytes();
        for keyspace in keyspaces {
            // The first run counts which separated values are gone. Later ones remove the files of which nothing is left, and
            // rewrite some of those with gaps, until a run gains nothing.
            let runs = if keyspace.is_kv_separated() { MAX_RUNS } else { 1 };
            let mut last = u64::MAX;
            for run in 0..runs {
                keyspace.major_compact().map_err(|e| read_error(&e))?;
                let now = keyspace.disk_space();
                if run > 0 && now >= last {
                    break;
                }
                last = now;
            }
        }
        Ok((before, bytes()))
    }

    /// Writes the documents that are in memory to a table.
    // The engine's one thread seals a full memtable when it comes to it. Beside a slow disk, gigabytes that are written at
    // the same time fill it to hundreds of MiB.
    pub(super) fn flush_documents(&self) {
        if let Err(e) = self.documents.rotate_memtable_and_wait() {
            tracing::debug!(error = %e, "cannot flush documents now");
        }
    }

    pub(super) fn keyspace(&self, table: Table) -> &Keyspace {
        match table {
            // Documents are large: they need the keyspace with separated values.
            Table::Documents => &self.documents,
            Table::Sources | Table::Chains | Table::Subscriptions | Table::Leases => &self.tables,
        }
    }
}

/// Returns the number of the last commit; 0 in folders of earlier versions.
pub(super) fn last_commit(tables: &Keyspace) -> Result<u64, StorageError> {
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

/// Creates files that an engine has lost and that may be empty: its lock, for the data folder is locked already, and its only
/// journal, once that loss is accepted.
fn create_lost_files(engine: &Path) -> std::io::Result<()> {
    if !engine.join(ENGINE_VERSION).exists() {
        return Ok(());
    }
    if !engine.join("lock").exists() {
        std::fs::File::create(engine.join("lock"))?;
    }
    // Without a journal the engine begins to count its writes anew, and sees nothing of what the tables have.
    if journals(engine)?.is_empty() {
        std::fs::File::create(engine.join("0.jnl"))?;
    }
    Ok(())
}

/// Returns the free bytes on the disk of `path` if they are fewer than `bytes`.
pub(super) fn low_space(path: &Path, bytes: u64) -> Option<u64> {
    // Free space that the system cannot tell does not stop the store.
    free_space(path).filter(|free| *free < bytes)
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
