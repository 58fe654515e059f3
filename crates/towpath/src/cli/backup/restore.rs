//! Bringing a backup back: a new data folder, which takes its name once it is whole.

use std::fs;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use tokio::runtime::Handle;
use towpath_store::embedded::copy::{CopyEntry, CopySection, StoreBuilder};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{OpenError, Store as _, WriteError};

use super::manifest::{BACKUPS, Manifest, PieceRow};
use super::pieces::read_piece;
use super::place::{BackupPlace, PlaceError};
use crate::engine::identity;

/// Failure to restore or check a backup. The data folder is as it was.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    /// The place cannot be read.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// There is no such backup.
    #[error("{0}")]
    NoBackup(String),
    /// The backup is damaged.
    #[error("the backup {name} cannot be used: {reason}")]
    Damaged { name: String, reason: String },
    /// The new folder cannot be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new folder cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The new folder cannot take its name, or is in the way.
    #[error("{}: {reason}", path.display())]
    Folder { path: PathBuf, reason: String },
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
        return Err(RestoreError::NoBackup(format!("there is {which} in {}{hint}", place.shown())));
    };
    read(place, file).await
}

/// Reads the list of a backup by the name of its file.
pub(super) async fn read(place: &BackupPlace, file: &str) -> Result<Manifest, RestoreError> {
    let list = place.get(&format!("{BACKUPS}/{file}")).await?.unwrap_or_default();
    let name = file.trim_end_matches(".json").to_owned();
    Manifest::parse(&list).map_err(|reason| RestoreError::Damaged { name, reason })
}

/// Reads one piece.
///
/// # Errors
///
/// That it is missing or damaged, as text.
async fn piece(place: &BackupPlace, row: &PieceRow) -> Result<Vec<CopyEntry>, String> {
    let path = row.path();
    let at = |reason: String| format!("{}/{path}: {reason}", place.shown());
    let stored = place.get(&path).await.map_err(|e| e.to_string())?;
    let stored = stored.ok_or_else(|| at("it is missing".into()))?;
    let entries = read_piece(&stored, &row.sha256, row.bytes).map_err(at)?;
    if entries.len() as u64 == row.entries {
        Ok(entries)
    } else {
        Err(at("it has another number of entries".into()))
    }
}

/// Reads every piece of a backup, and returns what is wrong with them.
pub(super) async fn check(place: &BackupPlace, manifest: &Manifest, bar: &ProgressBar) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in &manifest.pieces {
        wrong.extend(piece(place, row).await.err());
        bar.inc(row.bytes);
    }
    wrong
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
    let built = build(handle, place, manifest, &building, bar);
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

fn build(
    handle: &Handle,
    place: &BackupPlace,
    manifest: &Manifest,
    folder: &Path,
    bar: &ProgressBar,
) -> Result<(), RestoreError> {
    let builder = StoreBuilder::create(folder)?;
    for section in CopySection::ALL {
        let rows = manifest.pieces.iter().filter(|row| row.section == section.name());
        let entries = rows.flat_map(|row| {
            let read = handle.block_on(piece(place, row));
            bar.inc(row.bytes);
            match read {
                Ok(entries) => entries.into_iter().map(Ok).collect(),
                Err(reason) => vec![Err(reason)],
            }
        });
        let loaded = builder.load(section, entries);
        loaded.map_err(|reason| RestoreError::Damaged { name: manifest.name(), reason })?;
    }
    Ok(builder.finish()?)
}
