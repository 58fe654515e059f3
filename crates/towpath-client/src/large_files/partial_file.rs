//! A file that is being written. Its name ends in `.part` until it is complete, and one process at a time has it.

use std::fs::{OpenOptions, TryLockError};
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use super::LargeFileError;

/// Size of the pieces in which a file is read again.
const READ_PIECE: usize = 256 << 10;

/// An open file, locked against other processes and other follows of this one.
#[derive(Debug)]
pub(super) struct PartialFile {
    path: PathBuf,
    file: File,
}

impl PartialFile {
    /// Opens the file for `name`, with what an earlier run has written. `None` while another holds it.
    pub(super) async fn open(folder: &Path, name: &str) -> Result<Option<Self>, LargeFileError> {
        let path = folder.join(format!("{name}.part"));
        let opened = async {
            fs::create_dir_all(folder).await?;
            let path = path.clone();
            tokio::task::spawn_blocking(move || open_locked(&path)).await?
        };
        let file = opened.await.map_err(LargeFileError::at(&path))?;
        Ok(file.map(|file| Self { path, file: File::from_std(file) }))
    }

    /// Opens an empty file of any name.
    pub(super) async fn open_free(folder: &Path) -> Result<Self, LargeFileError> {
        // The first name that nobody holds: so what a crash left is overwritten.
        for number in 1_u64.. {
            if let Some(mut partial) = Self::open(folder, &number.to_string()).await? {
                partial.clear().await?;
                return Ok(partial);
            }
        }
        Err(LargeFileError::at(folder)(io::ErrorKind::StorageFull.into()))
    }

    /// Reads what an earlier run has written, and returns its length and digest. Then writes go behind it.
    pub(super) async fn digest(&mut self) -> Result<(u64, Sha256), LargeFileError> {
        let (mut length, mut sha256) = (0, Sha256::new());
        let mut piece = vec![0; READ_PIECE];
        loop {
            let read = self.file.read(&mut piece).await.map_err(LargeFileError::at(&self.path))?;
            if read == 0 {
                return Ok((length, sha256));
            }
            sha256.update(&piece[..read]);
            length += read as u64;
        }
    }

    /// Removes the content.
    pub(super) async fn clear(&mut self) -> Result<(), LargeFileError> {
        let cleared = async {
            self.file.set_len(0).await?;
            self.file.seek(SeekFrom::Start(0)).await
        };
        cleared.await.map(drop).map_err(LargeFileError::at(&self.path))
    }

    /// Appends bytes.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), LargeFileError> {
        self.file.write_all(bytes).await.map_err(LargeFileError::at(&self.path))
    }

    /// Passes what was appended on to the operating system.
    pub(super) async fn flush(&mut self) -> Result<(), LargeFileError> {
        self.file.flush().await.map_err(LargeFileError::at(&self.path))
    }

    /// Gives the complete file its name. File and name are durable afterwards.
    pub(super) async fn keep(mut self, folder: &Path, name: &str) -> Result<(), LargeFileError> {
        let kept = async {
            self.file.flush().await?;
            self.file.sync_all().await?;
            fs::rename(&self.path, folder.join(name)).await?;
            sync_names(folder).await
        };
        kept.await.map_err(LargeFileError::at(&folder.join(name)))
    }

    /// Removes the file.
    pub(super) async fn remove(self) -> Result<(), LargeFileError> {
        // Removed while it is locked: whoever waits for the lock then opens a file of its own.
        fs::remove_file(&self.path).await.map_err(LargeFileError::at(&self.path))
    }
}

/// Makes the names in a folder durable.
pub(super) async fn sync_names(folder: &Path) -> io::Result<()> {
    File::open(folder).await?.sync_all().await
}

/// Opens and locks a file, which is made if it is missing. `None` if it is locked already.
fn open_locked(path: &Path) -> io::Result<Option<std::fs::File>> {
    loop {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            // Some network file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Its last holder may have renamed or removed it between the two calls.
        if is_at(&file, path)? {
            return Ok(Some(file));
        }
    }
}

#[cfg(unix)]
fn is_at(file: &std::fs::File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;

    let own = file.metadata()?;
    match path.metadata() {
        Ok(found) => Ok((own.dev(), own.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_file: &std::fs::File, path: &Path) -> io::Result<bool> {
    path.try_exists()
}
