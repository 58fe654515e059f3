//! The data folder: whose it is, and that only one process has it open.
//!
//! ```text
//! towpath.lock     locked by the process that has the folder open
//! towpath.format   "towpath store 1\n"; written last, so a folder without it was never finished
//! engine/          the engine's files
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::StoreError;

const LOCK: &str = "towpath.lock";
const FORMAT: &str = "towpath.format";
const ENGINE: &str = "engine";
const FORMAT_NAME: &str = "towpath store ";
const FORMAT_VERSION: u32 = 1;

/// A data folder that this process has locked.
pub(crate) struct Folder {
    path: PathBuf,
    new: bool,
    _lock: File,
}

impl Folder {
    /// Makes the folder where there is none, locks it, and checks that it is a data folder of ours.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let refuse = |reason: String| refuse(path, reason);
        let found = entries(path).map_err(|e| refuse(io_reason(&e)))?;
        let ours = |name: &str| found.iter().any(|entry| entry == name);
        if !found.is_empty() && !ours(FORMAT) && !ours(LOCK) {
            return Err(refuse(format!(
                "it holds other files ({:?}) and is no data folder of towpath; name an empty or new one",
                found[0]
            )));
        }
        let lock = lock(path).map_err(refuse)?;
        // Whether the format is there counts only now: before, another process may have been writing it.
        let new = match fs::read_to_string(path.join(FORMAT)) {
            Ok(format) => check_format(&format).map(|()| false).map_err(refuse)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => true,
            Err(e) => return Err(refuse(io_reason(&e))),
        };
        if new {
            // What an opening left that did not come to its end; nothing in it was ever acknowledged.
            match fs::remove_dir_all(path.join(ENGINE)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(refuse(io_reason(&e))),
                _ => {}
            }
        }
        Ok(Self { path: path.to_owned(), new, _lock: lock })
    }

    /// Where the engine keeps its files.
    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join(ENGINE)
    }

    /// Marks a new folder as whole, once the engine has made its files.
    pub(crate) fn finish(&self) -> Result<(), StoreError> {
        if !self.new {
            return Ok(());
        }
        let write = || {
            let mut file = File::create(self.path.join(FORMAT))?;
            file.write_all(format!("{FORMAT_NAME}{FORMAT_VERSION}\n").as_bytes())?;
            file.sync_all()?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|e: io::Error| self.refuse(io_reason(&e)))
    }

    /// The error of a folder that cannot be opened.
    pub(crate) fn refuse(&self, reason: String) -> StoreError {
        refuse(&self.path, reason)
    }
}

fn refuse(path: &Path, reason: String) -> StoreError {
    StoreError::Open { folder: path.display().to_string(), reason }
}

/// The names in the folder, which is made where it is not there.
fn entries(path: &Path) -> io::Result<Vec<String>> {
    fs::create_dir_all(path)?;
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn lock(path: &Path) -> Result<File, String> {
    let path = path.join(LOCK);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(|e| io_reason(&e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = holder.trim();
            let holder = if holder.is_empty() { String::new() } else { format!(" (process {holder})") };
            return Err(format!("another process{holder} has it open; only one can, stop that one first"));
        }
        Err(TryLockError::Error(e)) => return Err(io_reason(&e)),
    }
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(|e| io_reason(&e))?;
    Ok(file)
}

fn check_format(format: &str) -> Result<(), String> {
    let version = format.trim_end().strip_prefix(FORMAT_NAME).and_then(|v| v.parse::<u32>().ok());
    match version {
        Some(FORMAT_VERSION) => Ok(()),
        Some(version) => Err(format!(
            "its format has version {version}, and this program knows up to {FORMAT_VERSION}; \
             use the newer program that wrote it"
        )),
        None => Err(format!("its file {FORMAT} is not one of towpath's")),
    }
}

fn io_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            format!("it cannot be written to ({error}); the store needs to write even to be read")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            format!("it is not a folder ({error})")
        }
        _ => error.to_string(),
    }
}
