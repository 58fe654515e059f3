//! Storage of backups: files by path, in a folder or in object storage.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

/// Failure of a file operation: a full disk, the network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {reason}")]
pub struct StorageAccessError {
    /// Address of the file.
    pub at: String,
    /// Cause.
    pub reason: String,
}

/// A file of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredFile {
    /// Name, without its folders.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// Files by path. Paths have slashes on every system.
#[async_trait]
pub trait BackupStorage: Send + Sync {
    /// Returns the address, for messages. It has no credentials.
    fn address(&self) -> &str;

    /// Puts a file, whole or not at all.
    async fn put(&self, path: &str, bytes: Bytes) -> Result<(), StorageAccessError>;

    /// Reads a file; `None` if there is none.
    async fn get(&self, path: &str) -> Result<Option<Bytes>, StorageAccessError>;

    /// Returns the files below a folder, without their folders, in ascending order of their paths.
    async fn files(&self, folder: &str) -> Result<Vec<StoredFile>, StorageAccessError>;

    /// Returns the names of these files.
    async fn names(&self, folder: &str) -> Result<Vec<String>, StorageAccessError> {
        Ok(self.files(folder).await?.into_iter().map(|file| file.name).collect())
    }

    /// Removes a file, if it is there.
    async fn remove(&self, path: &str) -> Result<(), StorageAccessError>;

    /// Makes all files durable.
    fn sync(&self) -> Result<(), StorageAccessError>;
}

/// Folder of a storage, as a storage of its own.
pub struct SubfolderStorage {
    storage: Arc<dyn BackupStorage>,
    folder: String,
    address: String,
}

impl SubfolderStorage {
    /// Creates the storage of a folder.
    pub fn new(storage: Arc<dyn BackupStorage>, folder: &str) -> Self {
        let address = format!("{}/{folder}", storage.address());
        Self { storage, folder: folder.to_owned(), address }
    }

    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.folder)
    }
}

#[async_trait]
impl BackupStorage for SubfolderStorage {
    fn address(&self) -> &str {
        &self.address
    }

    async fn put(&self, path: &str, bytes: Bytes) -> Result<(), StorageAccessError> {
        self.storage.put(&self.path(path), bytes).await
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, StorageAccessError> {
        self.storage.get(&self.path(path)).await
    }

    async fn files(&self, folder: &str) -> Result<Vec<StoredFile>, StorageAccessError> {
        self.storage.files(&self.path(folder)).await
    }

    async fn remove(&self, path: &str) -> Result<(), StorageAccessError> {
        self.storage.remove(&self.path(path)).await
    }

    fn sync(&self) -> Result<(), StorageAccessError> {
        self.storage.sync()
    }
}
