//! The data folder: its lock, its format, and the engine's files.
//!
//! ```text
//! towpath.lock     locked by the process that has the folder open
//! towpath.new      there while a new folder is created
//! towpath.format   "towpath store 2\n"; written once the engine has created its files
//! towpath.version  version of the program that wrote the format; a program that cannot read it names that version
//! format-N/        copy from before a migration from format N, see `migration`
//! before-repair-N/ copy from before a repair
//! towpath.journal  how far the engine's journal reached, see `journal_mark`
//! engine/          the engine's files
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::journal_mark::{ACCEPT, JournalMark, MARK};
use super::migration::copy_beside;
use super::permissions;
use crate::OpenError;

const LOCK: &str = "towpath.lock";
const FORMAT: &str = "towpath.format";
const NEW: &str = "towpath.new";
const ENGINE: &str = "engine";
const FORMAT_NAME: &str = "towpath store ";
/// 2: a feed's row has the horizon of its log, and its name stands a second time.
pub(super) const FORMAT_VERSION: u32 = 2;
/// File with the version of the program that wrote the format.
pub(super) const PROGRAM: &str = "towpath.version";

/// A data folder that this process has locked.
pub(crate) struct DataFolder {
    path: PathBuf,
    new: bool,
    /// Format that it has.
    format: u32,
    // Never read: closing the file releases the lock.
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if needed, locks it, and checks its format.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let refuse = |reason: String| refuse(path, reason);
        let found = entries(path).map_err(|e| refuse(io_reason(&e)))?;
        let has = |name: &str| found.iter().any(|entry| entry == name);
        // A folder with a lock and no format is one whose creation crashed: it is ours, too. A lost power may leave the
        // mark of a new folder without the lock.
        if !found.is_empty() && !has(FORMAT) && !has(LOCK) && !has(NEW) {
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
            Ok(format) => Some(check_format(path, &format).map_err(refuse)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(refuse(io_reason(&e))),
        };
        let (new, format) = (new.is_none(), new.unwrap_or(FORMAT_VERSION));
        if new {
            mark_unfinished(path).map_err(refuse)?;
        }
        Ok(Self { path: path.to_owned(), new, format, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
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
            // The engine does not sync the folders that it creates. Without their names a lost power takes all that is in
            // them.
            sync_folders(&self.engine())?;
            self.write_format()?;
            fs::remove_file(self.path.join(NEW))?;
            sync_parents(&self.path);
            Ok(())
        };
        write().map_err(|e: io::Error| self.refuse(io_reason(&e)))
    }

    /// Returns true for a folder of an earlier format.
    pub(crate) fn is_old(&self) -> bool {
        self.format < FORMAT_VERSION
    }

    /// Copies a folder of an earlier format beside itself. Comes before anything in it is changed.
    pub(crate) fn copy_before_migration(&self) -> Result<(), OpenError> {
        let copied =
            copy_beside(&self.path, &format!("format-{}", self.format), &[FORMAT, PROGRAM, MARK, ENGINE]);
        copied.map_err(|e| {
            let (from, reason) = (self.format, io_reason(&e));
            self.refuse(format!("it cannot be copied before its migration from format {from}: {reason}"))
        })
    }

    /// Copies the store beside itself before a repair takes its place. Returns the copy, which is a data folder.
    pub(crate) fn copy_before_repair(&self) -> Result<PathBuf, OpenError> {
        let mut copies = (1_u32..).map(|number| format!("before-repair-{number}"));
        let name = copies.find(|name| !self.path.join(name).exists()).unwrap_or_default();
        let copied = copy_beside(&self.path, &name, &[FORMAT, PROGRAM, MARK, ENGINE]);
        copied
            .map_err(|e| self.refuse(format!("it cannot be copied before its repair: {}", io_reason(&e))))?;
        Ok(self.path.join(name))
    }

    /// Copies the store into a folder of this name, in which a repair leaves out what is damaged. Tables are links there.
    pub(crate) fn copy_for_repair(&self, name: &str) -> Result<PathBuf, OpenError> {
        let copy = self.path.join(name);
        let copied = remove_folder(&copy)
            .and_then(|()| copy_beside(&self.path, name, &[FORMAT, PROGRAM, ENGINE]))
            // What its journals lack is lost, and the repair tells it.
            .and_then(|()| fs::write(copy.join(MARK), ACCEPT));
        copied.map_err(|e| self.refuse(format!("it cannot be copied for its repair: {}", io_reason(&e))))?;
        Ok(copy)
    }

    /// Writes the current format, once everything has it.
    pub(crate) fn finish_migration(&self) -> Result<(), OpenError> {
        self.write_format().map_err(|e| self.refuse(io_reason(&e)))?;
        tracing::warn!(
            folder = %self.path.display(),
            "migrated the data folder from format {} to {FORMAT_VERSION}; as it was, it is in {}/format-{}, which can be \
             removed once no earlier version is needed",
            self.format,
            self.path.display(),
            self.format
        );
        Ok(())
    }

    fn write_format(&self) -> io::Result<()> {
        self.write_format_of(FORMAT_VERSION)
    }

    fn write_format_of(&self, format: u32) -> io::Result<()> {
        let write = |name: &str, text: String| {
            // Renamed into place: half a format would make the folder unreadable.
            let unfinished = self.path.join(format!("{name}.new"));
            let mut file = File::create(&unfinished)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&unfinished, self.path.join(name))
        };
        if format == FORMAT_VERSION {
            write(PROGRAM, format!("{}\n", env!("CARGO_PKG_VERSION")))?;
        }
        write(FORMAT, format!("{FORMAT_NAME}{format}\n"))?;
        // The folder as well, or a power loss could undo the new directory entry.
        File::open(&self.path)?.sync_all()
    }

    /// Replaces the store by the one in the folder `from`, which is within this folder and closed.
    ///
    /// A crash on the way leaves a folder that counts as new, so that nothing of the two stores is mixed.
    pub(crate) fn replace(mut self, from: &Path) -> Result<(), OpenError> {
        let replace = || {
            File::create(self.path.join(NEW))?.sync_all()?;
            remove_file(&self.path.join(FORMAT))?;
            File::open(&self.path)?.sync_all()?;
            remove_folder(&self.engine())?;
            remove_file(&self.path.join(MARK))?;
            fs::rename(from.join(ENGINE), self.engine())?;
            fs::rename(from.join(MARK), self.path.join(MARK))?;
            File::open(&self.path)?.sync_all()
        };
        replace().map_err(|e: io::Error| self.refuse(io_reason(&e)))?;
        (self.new, self.format) = (true, FORMAT_VERSION);
        self.finish()?;
        // What is left of it does no harm, and goes with the next replacement.
        drop(remove_folder(from));
        Ok(())
    }

    /// Returns the error of a folder that cannot be opened.
    pub(crate) fn refuse(&self, reason: String) -> OpenError {
        refuse(&self.path, reason)
    }
}

/// Syncs the names in a folder and in all folders below it.
fn sync_folders(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    File::open(path)?.sync_all()
}

/// Syncs the names of a new folder and of the folders above it, as far as they can be opened.
fn sync_parents(path: &Path) {
    let Ok(path) = path.canonicalize() else { return };
    for folder in path.ancestors().skip(1) {
        drop(File::open(folder).and_then(|folder| folder.sync_all()));
    }
}

/// Removes a folder with all that it holds, if it is there.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Returns true for a folder with data whose format file is lost.
pub(super) fn has_lost_format(path: &Path) -> bool {
    !path.join(FORMAT).exists() && !path.join(NEW).exists() && holds_files(&path.join(ENGINE))
}

/// Writes the format file of a folder that lost it.
///
/// The file with the version of the program tells which format it was: it came with format 2.
pub(super) fn write_lost_format(path: &Path) -> Result<(), OpenError> {
    let refuse = |reason: String| refuse(path, reason);
    let lock = lock(path).map_err(refuse)?;
    if !has_lost_format(path) {
        return Ok(());
    }
    let own = env!("CARGO_PKG_VERSION");
    let format = match fs::read_to_string(path.join(PROGRAM)) {
        Ok(program) if program.trim() == own => FORMAT_VERSION,
        // Another program may have had another format, and what it wrote must not be taken for this one's.
        Ok(program) => {
            return Err(refuse(format!(
                "its file {FORMAT} is missing, and towpath {} wrote it; repair it by that version, or restore a backup",
                program.trim()
            )));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => 1,
        Err(e) => return Err(refuse(io_reason(&e))),
    };
    let folder = DataFolder { path: path.to_owned(), new: false, format, _lock: lock };
    folder.write_format_of(format).map_err(|e| folder.refuse(io_reason(&e)))
}

fn holds_files(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some())
}

/// Marks a folder as one that is being created, so that a crash until it is complete loses nothing.
fn mark_unfinished(path: &Path) -> Result<(), String> {
    let engine = path.join(ENGINE);
    let is_unfinished = path.join(NEW).exists();
    let holds_files = holds_files(&engine);
    if holds_files && !is_unfinished {
        // Somebody removed the file, or a copy left it out: the engine may hold everything.
        return Err(format!(
            "its file {FORMAT} is missing, and {ENGINE} holds data; `towpath repair` writes the file again and checks the \
             rest, or restore a backup; nothing was changed"
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
    match write_holder(&mut file) {
        // Nothing else needs the process id, and a full disk must not keep a store from being read.
        Err(e) if is_without_space(&e) => {
            tracing::debug!(error = %e, file = %path.display(), "cannot write the process id");
        }
        written => written.map_err(|e| io_reason(&e))?,
    }
    Ok(file)
}

/// Writes the process id, for the error of the next process. The lock itself is that of the operating system.
fn write_holder(file: &mut File) -> io::Result<()> {
    let id = format!("{}\n", std::process::id());
    // Over the id before, and cut behind it: a full disk has no block for a file that was emptied first.
    file.write_all(id.as_bytes())?;
    file.set_len(id.len() as u64)
}

fn is_without_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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

/// Returns the format of a folder, if this program reads it.
fn check_format(folder: &Path, format: &str) -> Result<u32, String> {
    let version = format.trim_end().strip_prefix(FORMAT_NAME).and_then(|v| v.parse::<u32>().ok());
    match version {
        Some(version @ 1..=FORMAT_VERSION) => Ok(version),
        // Refused, not converted: an older program would damage what a newer one wrote.
        Some(version) => {
            let program = fs::read_to_string(folder.join(PROGRAM)).unwrap_or_default();
            let program = match program.trim() {
                "" => "the newer program that wrote it".to_owned(),
                program => format!("towpath {program} or later, which wrote it"),
            };
            Err(format!(
                "its format has version {version}, and this program reads up to {FORMAT_VERSION}; use {program}"
            ))
        }
        None => Err(format!(
            "its file {FORMAT} was not written by towpath; use another folder or, if this one is towpath's, remove the \
             file and run `towpath repair`, which writes it again and checks the rest"
        )),
    }
}

pub(super) fn io_reason(error: &io::Error) -> String {
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Every write to `/dev/full` fails as one on a full disk does.
    #[test]
    fn a_full_disk_without_room_for_the_process_id_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join(LOCK)).unwrap();
        lock(folder.path()).unwrap();
    }

    /// The id before is longer or shorter, and has its place on the disk.
    #[test]
    fn the_process_id_takes_the_place_of_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        for before in ["", "1\n", "12345678901234567890\n"] {
            fs::write(folder.path().join(LOCK), before).unwrap();
            let _lock = lock(folder.path()).unwrap();
            assert_eq!(holder(folder.path()), Some(std::process::id().to_string()));
        }
    }
}
