//! Places of backups: a folder, or object storage.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt as _};

use crate::export::PlaceAddress;
use crate::export::objects::{open_storage, storage_reason};
use crate::export::target::TargetError;

/// A place of backups that is open.
#[derive(Clone)]
pub(super) struct BackupPlace {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    shown: String,
    /// The folder, if it is one.
    folder: Option<PathBuf>,
}

/// Failure of a place.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlaceError {
    /// The address is wrong, or the credentials.
    #[error(transparent)]
    Open(#[from] TargetError),
    /// A file or object cannot be read or written: a full disk, the network.
    #[error("{at}: {reason}")]
    Access { at: String, reason: String },
}

impl BackupPlace {
    /// Opens a place by its address: a path or `file:`, or `s3:`, `gs:` or `az:` with credentials from the environment.
    ///
    /// A folder is made if `makes` is true, and must exist otherwise.
    pub(super) fn open(place: &str, makes: bool) -> Result<Self, PlaceError> {
        let folder = match PlaceAddress::parse(place)? {
            PlaceAddress::Folder(folder) => folder,
            PlaceAddress::Storage(url) => {
                let (store, prefix) = open_storage(&url)?;
                let shown = place.trim_end_matches('/').to_owned();
                return Ok(Self { store: store.into(), prefix, shown, folder: None });
            }
        };
        if makes {
            std::fs::create_dir_all(&folder).map_err(|e| access(place, e.to_string()))?;
        }
        let store =
            LocalFileSystem::new_with_prefix(&folder).map_err(|e| access(place, storage_reason(&e)))?;
        let shown = folder.display().to_string();
        Ok(Self { store: Arc::new(store), prefix: Path::default(), shown, folder: Some(folder) })
    }

    /// Returns the address, for messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns true if a folder of this machine is the place, or above or below it.
    pub(super) fn overlaps(&self, other: &FilePath) -> bool {
        let (Some(folder), Ok(other)) = (&self.folder, other.canonicalize()) else { return false };
        folder.canonicalize().is_ok_and(|own| own.starts_with(&other) || other.starts_with(&own))
    }

    fn key(&self, path: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(path).parts()))
    }

    fn failed(&self, path: &str, error: &Error) -> PlaceError {
        access(&format!("{}/{path}", self.shown), storage_reason(error))
    }

    /// Puts a file, whole or not at all.
    pub(super) async fn put(&self, path: &str, bytes: Bytes) -> Result<(), PlaceError> {
        let put = self.store.put(&self.key(path), bytes.into()).await;
        put.map(drop).map_err(|e| self.failed(path, &e))
    }

    /// Reads a file; `None` if there is none.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Bytes>, PlaceError> {
        let got = match self.store.get(&self.key(path)).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(self.failed(path, &e)),
        };
        got.bytes().await.map(Some).map_err(|e| self.failed(path, &e))
    }

    /// Returns the names of the files below a folder, without their folders, in ascending order of their paths.
    pub(super) async fn names(&self, folder: &str) -> Result<Vec<String>, PlaceError> {
        let found: Result<Vec<_>, _> = self.store.list(Some(&self.key(folder))).try_collect().await;
        let mut found = match found {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => Vec::new(),
            Err(e) => return Err(self.failed(folder, &e)),
        };
        found.sort_by(|one, other| one.location.cmp(&other.location));
        Ok(found.iter().filter_map(|file| file.location.filename().map(str::to_owned)).collect())
    }

    /// Removes a file, if it is there.
    pub(super) async fn remove(&self, path: &str) -> Result<(), PlaceError> {
        match self.store.delete(&self.key(path)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.failed(path, &e)),
        }
    }

    /// Makes all files durable. Objects are once they are acknowledged.
    pub(super) fn sync(&self) -> Result<(), PlaceError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        // One sync for all pieces, instead of one for each.
        let synced = std::fs::File::open(folder).and_then(|file| Ok(rustix::fs::syncfs(file)?));
        synced.map_err(|e| access(&self.shown, e.to_string()))
    }
}

fn access(at: &str, reason: String) -> PlaceError {
    PlaceError::Access { at: at.to_owned(), reason }
}
