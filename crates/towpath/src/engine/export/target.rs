//! Where a tree is put: what a folder and an object store have in common.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::document::TreeDocument;
use super::folder::Folder;
use super::objects::Objects;

/// A place for trees. A document that is put replaces the one at its path in one step.
#[async_trait]
pub trait Target: Send + Sync {
    /// The body of what was put at a path; `None` where nothing is there.
    async fn read(&self, path: &str) -> Result<Option<Bytes>, TargetError>;

    /// Puts a document where nothing is; whether nothing was.
    async fn create(&self, document: &TreeDocument) -> Result<bool, TargetError>;

    /// Removes what others left half written, who wrote to this place before. What they still have under way comes to
    /// nothing, as far as this kind of place can do that.
    async fn take_over(&self) -> Result<(), TargetError>;

    /// Puts a document, with its headers as far as this kind of place keeps them. Returns how many bytes that took.
    async fn put(&self, document: &TreeDocument) -> Result<u64, TargetError>;

    /// Removes a document; it is no error if it is not there.
    async fn remove(&self, path: &str) -> Result<(), TargetError>;

    /// Returns once everything that was put before stays there whatever happens.
    async fn settle(&self) -> Result<(), TargetError>;

    /// What is generated for those who serve the tree: configuration for what the place itself does not keep.
    fn configuration(&self, base_url: &str) -> Vec<TreeDocument>;
}

/// Why a place does not do what it is asked to.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The machine's fault: a full disk, a folder that is read-only.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The user's mistake: no such place can be.
    #[error("{place}: {reason}")]
    Place {
        /// What was asked for.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The storage's fault, the network's, or that of the credentials.
    #[error("{address}: {reason}")]
    Storage {
        /// What was asked for.
        address: String,
        /// What went wrong, and what helps.
        reason: String,
    },
}

/// Opens a place: a folder by its path or a `file:` address; `s3:`, `gs:` and `az:` addresses are buckets and
/// containers, with credentials from the environment.
///
/// # Errors
///
/// An address that is none of these, or credentials that make no sense.
pub fn open(place: &str) -> Result<Arc<dyn Target>, TargetError> {
    let is_address = place.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('/'));
    if !is_address {
        return Ok(Arc::new(Folder::new(Path::new(place))?));
    }
    let wrong = |reason: String| TargetError::Place { place: place.to_owned(), reason };
    let url = url::Url::parse(place).map_err(|e| wrong(e.to_string()))?;
    if url.scheme() == "file" {
        let path =
            url.to_file_path().map_err(|()| wrong("not the address of a folder of this machine".into()))?;
        return Ok(Arc::new(Folder::new(&path)?));
    }
    Ok(Arc::new(Objects::open(&url)?))
}
