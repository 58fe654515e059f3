//! Destinations of downloaded files: a folder, or the store of a program that follows.

use async_trait::async_trait;
use bytes::Bytes;
use sha2::Sha256;
use towpath_proto::follow::{FileChange, FileLimit};

/// Destination of the files that changes name. `E` is its failure, which ends the follow.
#[async_trait]
pub trait FileStore<E>: Send + Sync {
    /// Returns the limit of a file's size.
    fn limit(&self, change: &FileChange) -> FileLimit;

    /// Returns the address of a change's file, once it is complete.
    fn url(&self, change: &FileChange) -> String;

    /// Finds the file of a change, or opens what is to become it.
    async fn open(&self, change: &FileChange) -> Result<OpenedFile<E>, E>;
}

/// A file of a [`FileStore`].
pub enum OpenedFile<E> {
    /// It is there already, and durable.
    Complete {
        /// Its number of bytes.
        size: u64,
    },
    /// Another download of it is running: open it again later.
    Busy,
    /// It is to be downloaded.
    Part(Box<dyn FilePart<E>>),
}

/// Bytes of a file that an earlier run has stored.
#[derive(Debug, Clone, Default)]
pub struct StoredBytes {
    /// Their number.
    pub length: u64,
    /// Their digest.
    pub sha256: Sha256,
    /// Strong entity tag of the file that they are from.
    pub etag: Option<String>,
}

/// A file that is being downloaded. Dropped before its end, it keeps what is stored for a later run.
#[async_trait]
pub trait FilePart<E>: Send {
    /// Returns what is stored. Called once, first.
    async fn stored(&mut self) -> Result<StoredBytes, E>;

    /// Drops what is stored, for bytes of a file with this entity tag.
    async fn restart(&mut self, etag: Option<&str>) -> Result<(), E>;

    /// Appends bytes. They may be in memory until [`Self::flush`].
    async fn write(&mut self, bytes: Bytes) -> Result<(), E>;

    /// Stores what was appended, at the end of a response.
    async fn flush(&mut self) -> Result<(), E>;

    /// Keeps the complete file, which is durable afterwards.
    async fn keep(self: Box<Self>) -> Result<(), E>;

    /// Removes what is stored: the file cannot be had.
    async fn remove(self: Box<Self>) -> Result<(), E>;
}
