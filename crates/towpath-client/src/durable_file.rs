//! Files that are replaced as a whole: after a crash a file has its old content or the new one.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Replaces a file atomically and durably. Its folder must exist.
///
/// A symbolic link is replaced itself: resolve it before.
///
/// # Errors
///
/// Errors of the file or its folder; then the file has its old content.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let draft = beside(path, "tmp");
    let written = write_and_rename(&draft, path, content);
    if written.is_err() {
        // A draft on a full disk takes what the next attempt needs.
        let _ = fs::remove_file(&draft);
    }
    written
}

fn write_and_rename(draft: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(draft)?;
    file.write_all(content)?;
    // Without the sync, a crash after the rename could leave an empty file.
    file.sync_all()?;
    fs::rename(draft, path)?;
    sync_folder(path)
}

/// Makes the name of a file durable: a file that was made or renamed can otherwise vanish in a power loss.
///
/// # Errors
///
/// Errors of the folder.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// Returns the folder of a file.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// Returns the path of a hidden file beside one.
///
/// One name, because a rename cannot cross file systems, and so that kills leave one file at most.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}

/// Locks a hidden file beside one that is replaced, and so cannot hold a lock itself.
///
/// # Errors
///
/// [`TryLockError::WouldBlock`] if another process has the lock.
pub fn lock_beside(path: &Path) -> Result<File, TryLockError> {
    let lock = File::create(beside(path, "lock")).map_err(TryLockError::Error)?;
    lock.try_lock()?;
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for content in ["first", "second, which is longer", "3"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        let taken = folder.path().join("taken");
        fs::create_dir_all(taken.join("inside")).unwrap();
        replace(&taken, b"x").unwrap_err();
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["file", "taken"], "no draft is left");
    }
}
