//! Targets of a tree: folders and object storage.

use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use crate::document::cors::CorsPolicy;
use crate::export::tree_document::TreeDocument;
use crate::store_error::StoreError;

/// Pieces of a body.
pub type Pieces = BoxStream<'static, Result<Bytes, StoreError>>;

/// A target for trees. Putting a document replaces the one at its path atomically.
#[async_trait]
pub trait Target: Send + Sync {
    /// Reads the body at a path; `None` if there is none.
    async fn read(&self, path: &str) -> Result<Option<Bytes>, TargetError>;

    /// Puts a document if there is none at its path. Returns true if there was none.
    async fn create(&self, document: &TreeDocument) -> Result<bool, TargetError>;

    /// Removes incomplete writes of earlier writers. Their running writes fail, as far as this kind of target can ensure
    /// that.
    async fn take_over(&self) -> Result<(), TargetError>;

    /// Puts a document, with the headers that this kind of target can store. Returns the number of written bytes.
    async fn put(&self, document: &TreeDocument) -> Result<u64, TargetError>;

    /// Puts a document whose body is too large for memory. Returns the number of written bytes.
    async fn put_pieces(&self, document: &TreeDocument, mut pieces: Pieces) -> Result<u64, TargetError> {
        // A target that can do better overrides this; in memory, a large file counts as a whole.
        let mut body = Vec::new();
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|e| TargetError::body(document, &e))?);
        }
        self.put(&TreeDocument { body: body.into(), ..document.clone() }).await
    }

    /// Removes a document, if it exists.
    async fn remove(&self, path: &str) -> Result<(), TargetError>;

    /// Removes a document that will not come back. Web servers that read the configuration answer 410 from then on.
    async fn remove_for_good(&self, path: &str) -> Result<(), TargetError> {
        self.remove(path).await
    }

    /// Makes all writes before it durable.
    async fn sync(&self) -> Result<(), TargetError>;

    /// Makes configuration files for web servers that serve the tree: headers that the target does not store.
    fn configuration(&self, base_url: &str, cors: &CorsPolicy) -> Vec<TreeDocument>;
}

/// Failure of a target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// A file operation failed: a full disk, a read-only folder.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The body of a document cannot be read.
    #[error("{path}: {reason}")]
    Body {
        /// Path of the document.
        path: String,
        /// Error of the store.
        reason: String,
    },
    /// The address of the target is invalid.
    #[error("{place}: {reason}")]
    Place {
        /// The address.
        place: String,
        /// Cause.
        reason: String,
    },
    /// The storage, the network or the credentials failed.
    #[error("{address}: {reason}")]
    Storage {
        /// The requested address.
        address: String,
        /// Cause, and what to do.
        reason: String,
    },
}

impl TargetError {
    /// Makes the error of a document whose body cannot be read.
    pub(super) fn body(document: &TreeDocument, error: &StoreError) -> Self {
        Self::Body { path: document.path.clone(), reason: error.to_string() }
    }
}
