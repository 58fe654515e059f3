//! Folders of downloaded files, each named by its SHA-256. Follows and processes may share one.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::fs;
use towpath_proto::follow::{FileChange, FileLimit};

use super::file_store::{FilePart, FileStore, OpenedFile, StoredBytes};
use super::partial_file::{PartialFile, sync_names};
use super::{LargeFileError, folder_of};

/// Longest entity tag that is read from a file.
const MAX_ETAG: usize = 8 << 10;

/// The folders that changes name.
#[derive(Debug)]
pub(crate) struct FolderFiles;

#[async_trait]
impl FileStore<LargeFileError> for FolderFiles {
    fn limit(&self, change: &FileChange) -> FileLimit {
        FileLimit { bytes: change.folder.max_file, name: "file_mib" }
    }

    fn url(&self, change: &FileChange) -> String {
        change.url_in_folder()
    }

    async fn open(&self, change: &FileChange) -> Result<OpenedFile<LargeFileError>, LargeFileError> {
        let FileChange { file, folder, .. } = change;
        let (folder, name) = (folder_of(&folder.base), file.sha256.clone());
        let opened = PartialFile::open(&folder, &name).await?;
        // After the lock: whoever held it may have completed the file.
        if let Some(size) = size_of(&folder.join(&name), file.size).await? {
            if let Some(partial) = opened {
                partial.remove().await?;
            }
            // Another follow may have named it a moment ago.
            sync_names(&folder).await.map_err(LargeFileError::at(&folder))?;
            return Ok(OpenedFile::Complete { size });
        }
        let Some(partial) = opened else { return Ok(OpenedFile::Busy) };
        let etag = folder.join(format!("{name}.etag"));
        Ok(OpenedFile::Part(Box::new(FolderPart { partial, etag, folder, name })))
    }
}

/// Returns the size of a complete file, unless it is missing or has another size than described.
async fn size_of(file: &Path, described: Option<u64>) -> Result<Option<u64>, LargeFileError> {
    match fs::metadata(file).await {
        Ok(found) if found.is_file() => {
            Ok(Some(found.len()).filter(|size| described.is_none_or(|described| described == *size)))
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LargeFileError::at(file)(error)),
    }
}

/// A file of a folder, while it is downloaded.
struct FolderPart {
    partial: PartialFile,
    /// File with the entity tag of the stored bytes, for a later run.
    etag: PathBuf,
    folder: PathBuf,
    name: String,
}

impl FolderPart {
    /// Removes the entity tag.
    async fn forget_etag(etag: &Path) {
        // A tag that is left behind is replaced, or belongs to no file.
        let _ = fs::remove_file(etag).await;
    }
}

#[async_trait]
impl FilePart<LargeFileError> for FolderPart {
    async fn stored(&mut self) -> Result<StoredBytes, LargeFileError> {
        let (length, sha256) = self.partial.digest().await?;
        let etag = if length > 0 { read_etag(&self.etag).await } else { None };
        Ok(StoredBytes { length, sha256, etag })
    }

    async fn restart(&mut self, etag: Option<&str>) -> Result<(), LargeFileError> {
        self.partial.clear().await?;
        fs::write(&self.etag, etag.unwrap_or_default()).await.map_err(LargeFileError::at(&self.etag))
    }

    async fn write(&mut self, bytes: Bytes) -> Result<(), LargeFileError> {
        self.partial.write(&bytes).await
    }

    async fn flush(&mut self) -> Result<(), LargeFileError> {
        self.partial.flush().await
    }

    async fn keep(self: Box<Self>) -> Result<(), LargeFileError> {
        let Self { partial, etag, folder, name } = *self;
        partial.keep(&folder, &name).await?;
        Self::forget_etag(&etag).await;
        Ok(())
    }

    async fn remove(self: Box<Self>) -> Result<(), LargeFileError> {
        self.partial.remove().await?;
        Self::forget_etag(&self.etag).await;
        Ok(())
    }
}

/// Reads the entity tag that an earlier run stored. Without it the digest alone tells a file that has changed.
async fn read_etag(path: &Path) -> Option<String> {
    fs::read_to_string(path).await.ok().filter(|etag| (1..=MAX_ETAG).contains(&etag.len()))
}
