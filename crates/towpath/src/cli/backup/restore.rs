//! Bringing a backup back: a new data folder, which takes its name once it is whole.

use std::fs;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use tokio::runtime::Handle;
use towpath_store::backup::{self, BACKUPS, BackupStorage, Manifest, StorageAccessError};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{OpenError, Store as _, WriteError};

use super::place::BackupPlace;
use crate::engine::identity;

/// Failure to restore or check a backup. The data folder is as it was.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    /// The backup cannot be read, or its folder not be built.
    #[error(transparent)]
    Backup(#[from] backup::RestoreError),
    /// There is no such backup.
    #[error("{0}")]
    NoBackup(String),
    /// The new folder cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new folder cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The new folder cannot take its name, or is in the way.
    #[error("{}: {reason}", path.display())]
    Folder { path: PathBuf, reason: String },
}

impl From<StorageAccessError> for RestoreError {
    fn from(error: StorageAccessError) -> Self {
        Self::Backup(error.into())
    }
}

/// Finds a backup by its name, or the newest, and reads its list.
pub(super) async fn find(place: &BackupPlace, name: Option<&str>) -> Result<Manifest, RestoreError> {
    let names = place.names(BACKUPS).await?;
    let file = match name {
        Some(name) => names.iter().find(|file| file.strip_suffix(".json") == Some(name)),
        None => names.last(),
    };
    let Some(file) = file else {
        let which = name.map_or_else(|| "no backup".to_owned(), |name| format!("no backup {name}"));
        let hint = if names.is_empty() { "" } else { "; --list shows those that there are" };
        return Err(RestoreError::NoBackup(format!("there is {which} in {}{hint}", place.address())));
    };
    Ok(backup::read(place, file).await?)
}

/// Restores a backup into a folder that does not exist, or is empty.
///
/// With `is_same_log` the folder has the identity of the one that was backed up, so followers go on with their cursors.
/// If anything was published after the backup, those would name other changes.
pub(super) async fn restore(
    place: BackupPlace,
    manifest: Manifest,
    folder: PathBuf,
    is_same_log: bool,
    bar: ProgressBar,
) -> Result<(), RestoreError> {
    let handle = Handle::current();
    let restoring = tokio::task::spawn_blocking(move || {
        restore_blocking(&handle, &place, &manifest, &folder, is_same_log, &bar)
    });
    restoring.await.unwrap_or_else(|e| Err(RestoreError::NoBackup(format!("internal error: {e}"))))
}

fn restore_blocking(
    handle: &Handle,
    place: &BackupPlace,
    manifest: &Manifest,
    folder: &Path,
    is_same_log: bool,
    bar: &ProgressBar,
) -> Result<(), RestoreError> {
    let at = |path: &Path, e: &std::io::Error| RestoreError::Folder {
        path: path.to_owned(),
        reason: e.to_string(),
    };
    // Beside it, because renaming is atomic only within a file system.
    let mut building = folder.as_os_str().to_owned();
    building.push(".restoring");
    let building = PathBuf::from(building);
    // Left behind by an attempt that was killed.
    if building.exists() {
        fs::remove_dir_all(&building).map_err(|e| at(&building, &e))?;
    }
    let built = backup::build(handle, place, manifest, &building, &|bytes| bar.inc(bytes));
    let built = built.map_err(RestoreError::from);
    let built = built.and_then(|()| if is_same_log { Ok(()) } else { begin_anew(handle, &building) });
    let placed = built.and_then(|()| {
        // Removes an empty folder only.
        drop(fs::remove_dir(folder));
        fs::rename(&building, folder).map_err(|e| at(folder, &e))
    });
    if placed.is_err() {
        drop(fs::remove_dir_all(&building));
        return placed;
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(|e| at(parent, &e))
}

/// Takes the identity from a folder.
fn begin_anew(handle: &Handle, folder: &Path) -> Result<(), RestoreError> {
    let store = EmbeddedStore::open(folder, EmbeddedOptions::default())?;
    let written = handle.block_on(store.write(vec![identity::forget()], Vec::new()));
    handle.block_on(store.close());
    Ok(written?)
}
