//! Migration of a data folder from an earlier format, after a copy of it was made beside.
//!
//! The copy `format-N` in the data folder is a data folder itself, which the program that wrote it opens. Tables and blobs
//! are never changed once they are written, so they are hard links there. The copy gets its name once it is whole, and
//! the new format is written last. So a migration that was cut off begins again, from the same state.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use fjall::Readable as _;

use super::engine_error::read_error;
use super::keys::{self, FeedRow};
use super::permissions;
use super::storage_engine::StorageEngine;

/// Feeds whose rows are written together.
const BATCH: usize = 10_000;
/// Folders of the engine whose files never change.
const IMMUTABLE: [&str; 2] = ["tables", "blobs"];

/// Copies the files of a data folder into a folder of this name beside them. A copy that is there already stays.
pub(super) fn copy_beside(folder: &Path, name: &str, files: &[&str]) -> io::Result<()> {
    let copy = folder.join(name);
    if copy.exists() {
        return Ok(());
    }
    let unfinished = folder.join(format!("{name}.new"));
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    permissions::create(&unfinished)?;
    for name in files {
        copy_entry(&folder.join(name), &unfinished.join(name))?;
    }
    File::open(&unfinished)?.sync_all()?;
    fs::rename(&unfinished, &copy)?;
    File::open(folder)?.sync_all()
}

/// Way to copy a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CopyMethod {
    Copy,
    /// A link, where that is possible: for a file that never changes.
    Link,
}

/// Copies a file or a folder, if it is there. Immutable files in folders are linked, where that is possible.
pub(super) fn copy_entry(from: &Path, to: &Path) -> io::Result<()> {
    copy_with(from, to, CopyMethod::Copy)
}

fn copy_with(from: &Path, to: &Path, method: CopyMethod) -> io::Result<()> {
    if from.is_dir() {
        permissions::create(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            let is_immutable = IMMUTABLE.iter().any(|folder| from.file_name() == Some(folder.as_ref()));
            let method = if is_immutable { CopyMethod::Link } else { CopyMethod::Copy };
            copy_with(&from.join(&name), &to.join(&name), method)?;
        }
        return File::open(to)?.sync_all();
    }
    // Not every file system has links.
    if method == CopyMethod::Link && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    match fs::copy(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
        Ok(_) => File::open(to)?.sync_all(),
    }
}

impl StorageEngine {
    /// Brings what an earlier format wrote to the current one. Doing it again changes nothing.
    pub(super) fn migrate(&self) -> Result<(), String> {
        let snapshot = self.db.snapshot();
        let mut feeds = snapshot.iter(&self.feeds).peekable();
        while feeds.peek().is_some() {
            let mut batch = self.durable_batch();
            for entry in feeds.by_ref().take(BATCH) {
                let (name, row) = entry.into_inner().map_err(|e| read_error(&e).to_string())?;
                // Format 2 has the names of feeds a second time, by their numbers.
                let row = FeedRow::decode(&row).map_err(|e| e.to_string())?;
                batch.insert(&self.tables, keys::feed_name(row.number), name);
            }
            self.commit_durably(batch)?;
        }
        Ok(())
    }
}
