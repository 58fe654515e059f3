//! Places of backups: a folder, or object storage.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use towpath_store::backup::{BackupStorage, StorageAccessError, StoredFile};

use crate::export::PlaceAddress;
use crate::export::objects::{open_storage, storage_reason};
use crate::export::target::TargetError;

/// A place of backups that is open.
#[derive(Clone)]
pub(crate) struct BackupPlace {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    shown: String,
    /// The folder, if it is one.
    folder: Option<PathBuf>,
}

impl BackupPlace {
    /// Opens a place by its address: a path or `file:`, or `s3:`, `gs:` or `az:` with credentials from the environment.
    ///
    /// A folder must exist.
    pub(crate) fn open(place: &str) -> Result<Self, TargetError> {
        Self::open_with(place, |_| Ok(()))
    }

    /// As [`Self::open`], but makes a folder that does not exist.
    pub(crate) fn open_or_create(place: &str) -> Result<Self, TargetError> {
        Self::open_with(place, |folder| std::fs::create_dir_all(folder))
    }

    fn open_with(
        place: &str,
        prepare: impl FnOnce(&FilePath) -> std::io::Result<()>,
    ) -> Result<Self, TargetError> {
        let folder = match PlaceAddress::parse(place)? {
            PlaceAddress::Folder(folder) => folder,
            PlaceAddress::Storage(url) => {
                let (store, prefix) = open_storage(&url)?;
                let shown = place.trim_end_matches('/').to_owned();
                return Ok(Self { store: store.into(), prefix, shown, folder: None });
            }
        };
        prepare(&folder).map_err(|e| unusable(place, e.to_string()))?;
        let store =
            LocalFileSystem::new_with_prefix(&folder).map_err(|e| unusable(place, storage_reason(&e)))?;
        let shown = folder.display().to_string();
        Ok(Self { store: Arc::new(store), prefix: Path::default(), shown, folder: Some(folder) })
    }

    /// Returns true if a folder of this machine is the place, or above or below it.
    pub(crate) fn overlaps(&self, other: &FilePath) -> bool {
        let (Some(folder), Ok(other)) = (&self.folder, other.canonicalize()) else { return false };
        folder.canonicalize().is_ok_and(|own| own.starts_with(&other) || other.starts_with(&own))
    }

    fn key(&self, path: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(path).parts()))
    }

    fn failed(&self, path: &str, error: &Error) -> StorageAccessError {
        access(&format!("{}/{path}", self.shown), storage_reason(error))
    }
}

#[async_trait]
impl BackupStorage for BackupPlace {
    fn address(&self) -> &str {
        &self.shown
    }

    async fn put(&self, path: &str, bytes: Bytes) -> Result<(), StorageAccessError> {
        let put = self.store.put(&self.key(path), bytes.into()).await;
        put.map(drop).map_err(|e| self.failed(path, &e))
    }

    async fn get(&self, path: &str) -> Result<Option<Bytes>, StorageAccessError> {
        let got = match self.store.get(&self.key(path)).await {
            Ok(got) => got,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(self.failed(path, &e)),
        };
        got.bytes().await.map(Some).map_err(|e| self.failed(path, &e))
    }

    async fn files(&self, folder: &str) -> Result<Vec<StoredFile>, StorageAccessError> {
        let found: Result<Vec<_>, _> = self.store.list(Some(&self.key(folder))).try_collect().await;
        let mut found = match found {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => Vec::new(),
            Err(e) => return Err(self.failed(folder, &e)),
        };
        found.sort_by(|one, other| one.location.cmp(&other.location));
        let file = |file: &ObjectMeta| {
            Some(StoredFile { name: file.location.filename()?.to_owned(), size: file.size })
        };
        Ok(found.iter().filter_map(file).collect())
    }

    async fn remove(&self, path: &str) -> Result<(), StorageAccessError> {
        match self.store.delete(&self.key(path)).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.failed(path, &e)),
        }
    }

    /// Objects are durable once they are acknowledged.
    fn sync(&self) -> Result<(), StorageAccessError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        // One sync for all pieces, instead of one for each.
        let synced = std::fs::File::open(folder).and_then(|file| Ok(rustix::fs::syncfs(file)?));
        synced.map_err(|e| access(&self.shown, e.to_string()))
    }
}

fn access(at: &str, reason: String) -> StorageAccessError {
    StorageAccessError { at: at.to_owned(), reason }
}

fn unusable(place: &str, reason: String) -> TargetError {
    TargetError::Place { place: place.to_owned(), reason }
}
