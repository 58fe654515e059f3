//! Repair of a data folder: a new store is built beside it from all that can be read.
//!
//! The log is the source: every index, the heads and the numbers are made from it. A change that cannot be read is lost,
//! and named. The horizon of its log then moves to it, as it does by retention: up to there a log has the latest version
//! of each item, and what is after it is whole. The old store is left as it is until the new one takes its place, and stays
//! beside it after that.

mod damaged_files;
mod feed;
mod log;
mod sources;
mod writes;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use fjall::{Keyspace, PersistMode, Readable as _, Snapshot};
use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;

use super::EmbeddedOptions;
use super::engine_error::{engine_reason, read_error};
use super::folder::{DataFolder, has_lost_format, remove_folder, write_lost_format};
use super::keys;
use super::storage_engine::StorageEngine;
use super::verify::VerifyProgress;
use crate::OpenError;
use crate::error::StorageError;

use self::damaged_files::{LeftOut, WORKING_COPY, open_readable, open_without};
use self::writes::PendingWrites;

/// Folder in which the new store is built.
const BUILDING: &str = "towpath.repair";

/// Change that cannot be read any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostChange {
    /// The feed.
    pub feed: FeedId,
    /// Position in its log.
    pub position: Seq,
    /// Id of its item, where an index or a later version has it.
    pub item: Option<String>,
    /// Damage that was found there.
    pub reason: String,
}

/// Result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Number of feeds.
    pub feeds: u64,
    /// Number of changes that the new logs have.
    pub changes: u64,
    /// Number of changes whose links to earlier versions were mended.
    pub mended: u64,
    /// Changes that are lost.
    pub lost: Vec<LostChange>,
    /// Parts of tables that are lost, as text.
    pub lost_rows: Vec<String>,
    /// Damaged files whose entries were made from the log again.
    pub rebuilt_files: Vec<String>,
    /// Feeds whose horizon moved, with the new one.
    pub moved: Vec<(FeedId, Seq)>,
}

/// Failure of a repair. The data folder is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// A folder cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new store cannot be written.
    #[error("cannot write the repaired store beside the data folder: {0}")]
    Write(String),
}

impl From<StorageError> for RepairError {
    fn from(error: StorageError) -> Self {
        // The old store is read with its errors. Only the new one is to have none.
        Self::Write(error.to_string())
    }
}

/// Repair of one data folder, which stays locked.
pub struct FolderRepair {
    path: PathBuf,
    engine: StorageEngine,
    /// The folder itself, where the engine is that of a working copy.
    original: Option<DataFolder>,
    left_out: LeftOut,
}

impl FolderRepair {
    /// Returns true for a data folder that does not open because its format file is lost.
    pub fn has_lost_format(path: &Path) -> bool {
        has_lost_format(path)
    }

    /// Writes the lost format file of a data folder, which opens then.
    ///
    /// # Errors
    ///
    /// If another process has it open, another version of the program wrote it, or it cannot be written.
    pub fn write_lost_format(path: &Path) -> Result<(), OpenError> {
        write_lost_format(path)
    }

    /// Opens a data folder. One that does not open is copied, and the copy opened without its damaged files.
    ///
    /// # Errors
    ///
    /// If another process has it open, it is a replica, or not even a part of it can be read.
    pub fn begin(path: &Path) -> Result<Self, OpenError> {
        // Tried first as it is: a folder that opens needs no copy, which takes as much space again.
        let (engine, original, left_out) = match open_readable(DataFolder::open(path)?) {
            Ok(engine) => (engine, None, LeftOut::default()),
            Err(_) => {
                // Locked again before the copy is made: a server that starts now must not write to what is
                // being repaired.
                let original = DataFolder::open(path)?;
                let opened = open_without(&original);
                // The copy is of use only while it is repaired.
                let (engine, left_out) =
                    opened.inspect_err(|_| drop(remove_folder(&path.join(WORKING_COPY))))?;
                (engine, Some(original), left_out)
            }
        };
        if engine.opened_as_replica()? {
            return Err(engine.refuse("it is a cluster's replica; replace it by an empty folder"));
        }
        Ok(Self { path: path.to_owned(), engine, original, left_out })
    }

    /// Builds the new store. Returns its folder, which is a data folder, and what was lost on the way.
    ///
    /// # Errors
    ///
    /// If the new store cannot be written.
    pub fn build(&self, progress: &VerifyProgress) -> Result<(PathBuf, RepairReport), RepairError> {
        let building = self.path.join(BUILDING);
        remove_folder(&building).map_err(|e| self.engine.refuse(&e.to_string()))?;
        let new = StorageEngine::open(DataFolder::open(&building)?, &EmbeddedOptions::default())?;
        let mut salvage = Salvage {
            old: &self.engine,
            snapshot: self.engine.db.snapshot(),
            new: &new,
            report: RepairReport {
                lost_rows: self.left_out.lost.clone(),
                rebuilt_files: self.left_out.rebuilt.clone(),
                ..RepairReport::default()
            },
        };
        salvage.run(progress)?;
        let report = salvage.report;
        // The report is shown next and may be acted on, so the new store is on disk before it.
        new.db.persist(PersistMode::SyncAll).map_err(|e| RepairError::Write(engine_reason(&e)))?;
        Ok((building, report))
    }

    /// Puts the new store in the place of the old one. Returns the folder with the old one, a data folder.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written.
    pub fn install(self) -> Result<PathBuf, OpenError> {
        // Closed before its files are copied, and locked until the new store is there.
        let folder = match self.original {
            None => self.engine.into_folder(),
            Some(original) => {
                drop(self.engine);
                drop(remove_folder(&self.path.join(WORKING_COPY)));
                original
            }
        };
        let kept = folder.copy_before_repair()?;
        folder.replace(&self.path.join(BUILDING))?;
        Ok(kept)
    }

    /// Removes the new store, and leaves the folder as it was.
    ///
    /// # Errors
    ///
    /// If the folder cannot be written.
    pub fn discard(self) -> Result<(), OpenError> {
        let Self { path, engine, original, .. } = self;
        let folder = match original {
            None => engine.into_folder(),
            Some(original) => {
                // Closed before its files go.
                drop(engine);
                original
            }
        };
        let removed =
            remove_folder(&path.join(BUILDING)).and_then(|()| remove_folder(&path.join(WORKING_COPY)));
        removed.map_err(|e| folder.refuse(e.to_string()))
    }
}

/// Building of the new store from the old one.
struct Salvage<'a> {
    old: &'a StorageEngine,
    snapshot: Snapshot,
    new: &'a StorageEngine,
    report: RepairReport,
}

impl Salvage<'_> {
    fn run(&mut self, progress: &VerifyProgress) -> Result<(), RepairError> {
        self.copy_rows(&self.old.tables, &self.new.tables, "tables")?;
        self.copy_rows(&self.old.documents, &self.new.documents, "documents")?;
        let sources = self.sources();
        let total = sources.iter().map(|source| source.end);
        progress.expect(total.fold(0, u64::saturating_add));
        let mut next = 0;
        for source in &sources {
            next = next.max(source.number.saturating_add(1));
            self.build_feed(source, progress)?;
        }
        // A row that cannot be read counts as 0: the feeds themselves give a lower bound.
        let found = self.snapshot.get(&self.old.tables, keys::NEXT_FEED).ok().flatten();
        let found = found.and_then(|found| found[..].try_into().ok()).map_or(0, u32::from_be_bytes);
        let mut writes = PendingWrites::new(self.new);
        // Above every feed's own: two feeds of one number would share all keys.
        writes.put(&self.new.tables, keys::NEXT_FEED, next.max(found).to_be_bytes().to_vec());
        writes.flush()
    }

    /// Copies the rows of a keyspace: forwards up to a key that cannot be read, and then backwards to it. Values that cannot
    /// be read are left out one by one.
    fn copy_rows(&mut self, from: &Keyspace, to: &Keyspace, name: &str) -> Result<(), RepairError> {
        let mut writes = PendingWrites::new(self.new);
        let (mut last, mut damage) = (None, None);
        for entry in self.snapshot.iter(from) {
            match read_row(entry) {
                Ok((key, value)) => {
                    self.copy_or_lose(&mut writes, to, name, &key, value)?;
                    last = Some(key);
                }
                Err(reason) => {
                    damage = Some(reason);
                    break;
                }
            }
        }
        let Some(damage) = damage else { return writes.flush() };
        let mut first = None;
        for entry in self.snapshot.iter(from).rev() {
            let Ok((key, value)) = read_row(entry) else { break };
            if last.as_ref().is_some_and(|last| *last >= key) {
                break;
            }
            self.copy_or_lose(&mut writes, to, name, &key, value)?;
            first = Some(key);
        }
        let text = |key: Option<fjall::Slice>| {
            key.map_or_else(|| "the end".to_owned(), |key| format!("{:?}", String::from_utf8_lossy(&key)))
        };
        let (after, before) =
            (last.map_or_else(|| "the begin".to_owned(), |key| text(Some(key))), text(first));
        self.report.lost_rows.push(format!("{name}: rows between {after} and {before}: {damage}"));
        writes.flush()
    }

    fn copy_or_lose(
        &mut self,
        writes: &mut PendingWrites<'_>,
        to: &Keyspace,
        name: &str,
        key: &[u8],
        value: Result<fjall::Slice, String>,
    ) -> Result<(), RepairError> {
        match value {
            Ok(value) => copy_row(writes, to, key, &value),
            Err(reason) => {
                // Without the number of its table.
                let row = String::from_utf8_lossy(key.get(1..).unwrap_or(key));
                self.report.lost_rows.push(format!("{name}: row {row:?}: {reason}"));
                Ok(())
            }
        }
    }
}

/// A key, and its value or the damage of that.
type ReadRow = (fjall::Slice, Result<fjall::Slice, String>);

/// Reads an entry. Values that stand apart from their keys may be damaged alone.
fn read_row(entry: fjall::Guard) -> Result<ReadRow, String> {
    let found = RefCell::new(None);
    let read = entry.into_inner_if(|key| {
        *found.borrow_mut() = Some(key.clone());
        true
    });
    match (read, found.into_inner()) {
        (Ok((key, value)), _) => Ok((key, value.ok_or_else(|| "it has no value".to_owned()))),
        (Err(error), Some(key)) => Ok((key, Err(read_error(&error).to_string()))),
        (Err(error), None) => Err(read_error(&error).to_string()),
    }
}

/// Copies a row, unless it is one that the new store writes itself.
fn copy_row(
    writes: &mut PendingWrites<'_>,
    to: &Keyspace,
    key: &[u8],
    value: &[u8],
) -> Result<(), RepairError> {
    let is_own = key == keys::COMMIT || key == keys::NEXT_FEED || key.starts_with(keys::FEED_NAMES);
    if !is_own {
        writes.put(to, key, value.to_vec());
        writes.flush_if_large()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
