//! Bytes of a file as rows of one size, so that a file of any size is written and read in constant memory.
//!
//! The rows stand under the id of the upload that wrote them. A file's record names that id.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use towpath_proto::FeedId;
use towpath_store::{Store, Table, TableWrite};

use crate::store_error::StoreError;

/// Bytes of a chunk.
// It fits a message of a cluster's log, whose limit is 1 MiB by default. Several that are written at once are cut into
// parts there.
pub(crate) const CHUNK: usize = 512 << 10;
/// Chunks that are removed at once.
const REMOVED_TOGETHER: u64 = 1000;

/// A file whose bytes are chunks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChunkedFile {
    pub(crate) media_type: String,
    pub(crate) size: u64,
    /// Id of the upload that wrote the chunks.
    pub(crate) upload: String,
    /// Bytes of each chunk but the last.
    chunk: u64,
}

impl ChunkedFile {
    pub(crate) fn new(media_type: String, size: u64, upload: String) -> Self {
        Self { media_type, size, upload, chunk: CHUNK as u64 }
    }

    /// Returns the same file with another media type.
    pub(super) fn with_type(self, media_type: &str) -> Self {
        Self { media_type: media_type.to_owned(), ..self }
    }

    /// Reads the bytes from `at` to the end of their chunk.
    async fn read(&self, store: &dyn Store, feed: &FeedId, at: u64) -> Result<Bytes, StoreError> {
        let (index, skipped) = (at / self.chunk.max(1), at % self.chunk.max(1));
        let bytes = store.get(Table::Documents, &key(feed, &self.upload, index)).await?;
        match bytes {
            Some(bytes) if bytes.len() as u64 == self.size_of(index) => Ok(bytes.slice(skipped as usize..)),
            Some(_) => {
                Err(StoreError::Damaged(format!("chunk {index} of a file of feed {feed} has another size")))
            }
            None => Err(StoreError::Damaged(format!(
                "chunk {index} of a file of feed {feed} is missing, or its item was just deleted"
            ))),
        }
    }

    fn size_of(&self, index: u64) -> u64 {
        self.chunk.min(self.size.saturating_sub(index * self.chunk))
    }

    /// Computes the SHA-256 of the file, or tells which chunk is damaged.
    pub(super) async fn digest(&self, store: &dyn Store, feed: &FeedId) -> Result<Sha256, String> {
        let mut digest = Sha256::new();
        for index in 0..self.size.div_ceil(self.chunk.max(1)) {
            let size = self.size_of(index);
            let bytes = checked(store, feed, &self.upload, index, |found| found == size).await?;
            digest.update(bytes);
        }
        Ok(digest)
    }

    /// Reads the bytes from `first` to before `end`, a chunk at a time.
    pub(crate) fn stream(
        self,
        store: Arc<dyn Store>,
        feed: FeedId,
        first: u64,
        end: u64,
    ) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + 'static {
        futures_util::stream::try_unfold(
            (self, store, feed, first),
            move |(file, store, feed, at)| async move {
                if at >= end {
                    return Ok(None);
                }
                let mut bytes = file.read(store.as_ref(), &feed, at).await?;
                bytes.truncate(usize::try_from(end - at).unwrap_or(usize::MAX));
                let next = at + bytes.len() as u64;
                Ok(Some((bytes, (file, store, feed, next))))
            },
        )
    }

    /// Reads the whole file. For small ones.
    pub(crate) async fn whole(&self, store: &dyn Store, feed: &FeedId) -> Result<Bytes, StoreError> {
        let mut whole = Vec::new();
        while (whole.len() as u64) < self.size {
            whole.extend_from_slice(&self.read(store, feed, whole.len() as u64).await?);
        }
        Ok(whole.into())
    }
}

/// Returns the key of a chunk.
pub(super) fn key(feed: &FeedId, upload: &str, index: u64) -> Vec<u8> {
    format!("attachment-chunks/{feed}/{upload}/{index:08x}").into_bytes()
}

/// Returns the beginning of the keys of a feed's chunks.
pub(super) fn prefix(feed: &FeedId) -> Vec<u8> {
    format!("attachment-chunks/{feed}/").into_bytes()
}

/// Reads a chunk whose size is right, or tells what is wrong with it.
pub(super) async fn checked(
    store: &dyn Store,
    feed: &FeedId,
    upload: &str,
    index: u64,
    is_size: impl Fn(u64) -> bool,
) -> Result<Bytes, String> {
    match store.get(Table::Documents, &key(feed, upload, index)).await {
        Ok(Some(bytes)) if is_size(bytes.len() as u64) => Ok(bytes),
        Ok(Some(_)) => Err(format!("its chunk {index} has another size")),
        Ok(None) => Err(format!("its chunk {index} is missing")),
        Err(e) => Err(format!("its chunk {index} cannot be read: {e}")),
    }
}

/// Returns the number of chunks of so many bytes.
pub(super) fn count(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK as u64)
}

/// Removes the chunks of an upload.
// By their keys: a scan would read their values, too.
pub(super) async fn remove(
    store: &dyn Store,
    feed: &FeedId,
    upload: &str,
    count: u64,
) -> Result<(), StoreError> {
    let mut first = 0;
    while first < count {
        let end = count.min(first + REMOVED_TOGETHER);
        let gone = |index| TableWrite { table: Table::Documents, key: key(feed, upload, index), value: None };
        store.write((first..end).map(gone).collect(), Vec::new()).await?;
        first = end;
    }
    Ok(())
}
