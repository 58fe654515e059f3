//! The data folder: its lock, its format, and the engine's files.
//!
//! ```text
//! towpath.lock     locked by the process that has the folder open
//! towpath.new      there while a new folder is created
//! towpath.format   "towpath store 1\n"; written once the engine has created its files
//! towpath.journal  how far the engine's journal reached, see `journal_mark`
//! engine/          the engine's files
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::journal_mark::JournalMark;
use super::permissions;
use crate::OpenError;

const LOCK: &str = "towpath.lock";
const FORMAT: &str = "towpath.format";
const NEW: &str = "towpath.new";
const ENGINE: &str = "engine";
const FORMAT_NAME: &str = "towpath store ";
pub(super) const FORMAT_VERSION: u32 = 1;

/// A data folder that this process has locked.
pub(crate) struct DataFolder {
    path: PathBuf,
    new: bool,
    // Never read: closing the file releases the lock.
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if needed, locks it, and checks its format.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let refuse = |reason: String| refuse(path, reason);
        let found = entries(path).map_err(|e| refuse(io_reason(&e)))?;
        let has = |name: &str| found.iter().any(|entry| entry == name);
        // A folder with a lock and no format is one whose creation crashed: it is ours, too.
        if !found.is_empty() && !has(FORMAT) && !has(LOCK) {
            return Err(refuse(format!(
                "it holds other files ({:?}) and is not a data folder of towpath; use an empty or new folder",
                found[0]
            )));
        }
        let lock = lock(path).map_err(refuse)?;
        // Folders of earlier versions were open to all users of the machine.
        permissions::restrict(path);
        // Only after locking: before that, another process may have been about to write the format file.
        let new = match fs::read_to_string(path.join(FORMAT)) {
            Ok(format) => check_format(&format).map(|()| false).map_err(refuse)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => true,
            Err(e) => return Err(refuse(io_reason(&e))),
        };
        if new {
            begin(path).map_err(refuse)?;
        }
        Ok(Self { path: path.to_owned(), new, _lock: lock })
    }

    /// Path of the engine's files.
    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join(ENGINE)
    }

    /// Opens the mark of the journal, and compares it with the engine's files.
    pub(crate) fn journal_mark(&self) -> Result<JournalMark, OpenError> {
        JournalMark::open(&self.path, self.engine(), self.new).map_err(|reason| self.refuse(reason))
    }

    /// Marks a new folder as complete, once the engine has created its files.
    pub(crate) fn finish(&self) -> Result<(), OpenError> {
        if !self.new {
            return Ok(());
        }
        let write = || {
            let mut file = File::create(self.path.join(FORMAT))?;
            file.write_all(format!("{FORMAT_NAME}{FORMAT_VERSION}\n").as_bytes())?;
            file.sync_all()?;
            // The folder as well, or a power loss could undo the new directory entry.
            File::open(&self.path)?.sync_all()?;
            fs::remove_file(self.path.join(NEW))
        };
        write().map_err(|e: io::Error| self.refuse(io_reason(&e)))
    }

    /// Returns the error of a folder that cannot be opened.
    pub(crate) fn refuse(&self, reason: String) -> OpenError {
        refuse(&self.path, reason)
    }
}

/// Marks a folder as one that is being created, so that a crash until it is complete loses nothing.
fn begin(path: &Path) -> Result<(), String> {
    let engine = path.join(ENGINE);
    let is_unfinished = path.join(NEW).exists();
    let holds_files = fs::read_dir(&engine).is_ok_and(|mut files| files.next().is_some());
    if holds_files && !is_unfinished {
        // Somebody removed the file, or a copy left it out: the engine may hold everything.
        return Err(format!(
            "its file {FORMAT} is missing, and {ENGINE} holds data; bring the file back from a backup, or write \
             \"{FORMAT_NAME}{FORMAT_VERSION}\" into it if the rest is whole; nothing was changed"
        ));
    }
    let start = || {
        if is_unfinished && holds_files {
            // Left behind by a creation that crashed. Nothing in it was ever acknowledged.
            fs::remove_dir_all(&engine)?;
        }
        File::create(path.join(NEW))?.sync_all()?;
        // Before the engine creates its first file: without the mark, its files would count as data.
        File::open(path)?.sync_all()
    };
    start().map_err(|e: io::Error| io_reason(&e))
}

fn refuse(path: &Path, reason: String) -> OpenError {
    OpenError { folder: path.display().to_string(), reason }
}

/// Returns the names in the folder, which is created if needed.
fn entries(path: &Path) -> io::Result<Vec<String>> {
    permissions::create(path)?;
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn lock(path: &Path) -> Result<File, String> {
    let path = path.join(LOCK);
    // Not truncated yet: until the lock is ours, the file has the process id of its holder.
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(|e| io_reason(&e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.trim();
            let holder = if holder.is_empty() { String::new() } else { format!(" (process {holder})") };
            return Err(format!(
                "another process{holder} has it open, and only one can; stop that process, or use another folder with \
                 --data or [server] data"
            ));
        }
        Err(TryLockError::Error(e)) => return Err(io_reason(&e)),
    }
    // For the error of the next process. The lock itself is that of the operating system.
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|e| io_reason(&e))?;
    Ok(file)
}

/// Returns the id of the process that has a folder open, empty if it is unknown; `None` if none has it open.
pub fn holder(folder: &Path) -> Option<String> {
    let path = folder.join(LOCK);
    let file = File::open(&path).ok()?;
    // Released at once. A process that opens the folder in this moment finds it in use.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            Some(fs::read_to_string(&path).unwrap_or_default().trim().to_owned())
        }
        _ => None,
    }
}

fn check_format(format: &str) -> Result<(), String> {
    let version = format.trim_end().strip_prefix(FORMAT_NAME).and_then(|v| v.parse::<u32>().ok());
    match version {
        Some(FORMAT_VERSION) => Ok(()),
        // Refused, not converted: an older program would damage what a newer one wrote.
        Some(version) => Err(format!(
            "its format has version {version}, and this program reads up to {FORMAT_VERSION}; \
             use the newer program that wrote it"
        )),
        None => Err(format!("its file {FORMAT} was not written by towpath")),
    }
}

fn io_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("it cannot be written to ({error}); the store needs to write even to be read")
        }
        // `create_dir_all` fails with `AlreadyExists` where the path is a file.
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            format!("it is not a folder ({error})")
        }
        _ => error.to_string(),
    }
}
