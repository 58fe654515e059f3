//! Reading a backup: its list, its pieces, and a new data folder from them.

use std::path::Path;

use tokio::runtime::Handle;

use super::Progress;
use super::manifest::{BACKUPS, Manifest, PieceRow};
use super::pieces::read_piece;
use super::storage::{BackupStorage, StorageAccessError};
use crate::embedded::copy::{CopyEntry, CopySection, StoreBuilder};
use crate::{OpenError, WriteError};

/// Failure to read a backup, or to build a folder from it.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The storage cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageAccessError),
    /// The backup is damaged.
    #[error("the backup {name} cannot be used: {reason}")]
    Damaged {
        /// Name of the backup.
        name: String,
        /// The damage.
        reason: String,
    },
    /// The new folder cannot be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new folder cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Reads the list of a backup by the name of its file.
///
/// # Errors
///
/// [`RestoreError::Storage`] and [`RestoreError::Damaged`].
pub async fn read(storage: &dyn BackupStorage, file: &str) -> Result<Manifest, RestoreError> {
    let list = storage.get(&format!("{BACKUPS}/{file}")).await?.unwrap_or_default();
    let name = file.trim_end_matches(".json").to_owned();
    Manifest::parse(&list).map_err(|reason| RestoreError::Damaged { name, reason })
}

/// Fault of a piece.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PieceFault(StorageAccessError, bool);

impl PieceFault {
    /// Returns true where the piece was read and is damaged. Else it is missing, or the storage failed.
    pub fn is_damage(&self) -> bool {
        self.1
    }
}

/// Reads one piece.
async fn piece(storage: &dyn BackupStorage, row: &PieceRow) -> Result<Vec<CopyEntry>, PieceFault> {
    let path = row.path();
    let fault = |reason: String, is_damage: bool| {
        PieceFault(StorageAccessError { at: format!("{}/{path}", storage.address()), reason }, is_damage)
    };
    let stored = storage.get(&path).await.map_err(|e| PieceFault(e, false))?;
    let stored = stored.ok_or_else(|| fault("it is missing".into(), false))?;
    let entries = read_piece(&stored, &row.sha256, row.bytes).map_err(|reason| fault(reason, true))?;
    if entries.len() as u64 == row.entries {
        Ok(entries)
    } else {
        // Its content is what its name says, so the list is wrong, and the piece may be one of other lists.
        Err(fault("it has another number of entries".into(), false))
    }
}

/// Reads every piece of a backup, and returns what is wrong with them.
pub async fn check(
    storage: &dyn BackupStorage,
    manifest: &Manifest,
    progress: Progress<'_>,
) -> Vec<PieceFault> {
    let mut wrong = Vec::new();
    for row in &manifest.pieces {
        wrong.extend(piece(storage, row).await.err());
        progress(row.bytes);
    }
    wrong
}

/// Reads every piece of a backup, and removes those that are damaged, so that the next backup writes them anew. Returns
/// the first fault.
///
/// # Errors
///
/// The storage's, when a damaged piece cannot be removed.
pub async fn check_and_clear(
    storage: &dyn BackupStorage,
    manifest: &Manifest,
) -> Result<Option<PieceFault>, StorageAccessError> {
    let mut first = None;
    for row in &manifest.pieces {
        if let Err(fault) = piece(storage, row).await {
            if fault.is_damage() {
                storage.remove(&row.path()).await?;
            }
            first.get_or_insert(fault);
        }
    }
    Ok(first)
}

/// Builds a new data folder from a backup. Blocks: call it on a thread for blocking work, with the runtime's handle.
///
/// Remove the folder if this fails.
///
/// # Errors
///
/// All of [`RestoreError`].
pub fn build(
    handle: &Handle,
    storage: &dyn BackupStorage,
    manifest: &Manifest,
    folder: &Path,
    progress: Progress<'_>,
) -> Result<(), RestoreError> {
    let builder = StoreBuilder::create(folder)?;
    for section in CopySection::ALL {
        let rows = manifest.pieces.iter().filter(|row| row.section == section.name());
        let entries = rows.flat_map(|row| {
            let read = handle.block_on(piece(storage, row));
            progress(row.bytes);
            match read {
                Ok(entries) => entries.into_iter().map(Ok).collect(),
                Err(fault) => vec![Err(fault.to_string())],
            }
        });
        let loaded = builder.load(section, entries);
        loaded.map_err(|reason| RestoreError::Damaged { name: manifest.name(), reason })?;
    }
    Ok(builder.finish()?)
}
