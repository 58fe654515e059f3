//! Opening targets by their addresses.

use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use crate::export::folder::Folder;
use crate::export::objects::{Objects, storage_kind};
use crate::export::target::{Target, TargetError};

/// Place of files, by its address.
pub(crate) enum PlaceAddress {
    /// Folder of this machine.
    Folder(PathBuf),
    /// Bucket or container of object storage.
    Storage(Url),
}

impl PlaceAddress {
    /// Parses an address: a path or a `file:` address is a folder, another one object storage.
    ///
    /// # Errors
    ///
    /// An address that is none, or of another machine.
    pub(crate) fn parse(place: &str) -> Result<Self, TargetError> {
        let is_address = place.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('/'));
        if !is_address {
            return Ok(Self::Folder(place.into()));
        }
        let wrong = |reason: String| TargetError::Place { place: place.to_owned(), reason };
        let url = Url::parse(place).map_err(|e| wrong(e.to_string()))?;
        if url.scheme() != "file" {
            return Ok(Self::Storage(url));
        }
        let path = url.to_file_path();
        path.map(Self::Folder).map_err(|()| wrong("not the address of a folder of this machine".into()))
    }
}

/// Checks the address of a target, without a look at the folder or at credentials.
///
/// # Errors
///
/// [`TargetError::Place`] for an address that no target has.
pub(crate) fn check_target(place: &str) -> Result<(), TargetError> {
    match PlaceAddress::parse(place)? {
        PlaceAddress::Folder(_) => Ok(()),
        PlaceAddress::Storage(url) => storage_kind(&url).map(drop),
    }
}

/// Opens a target by its address.
///
/// A path or a `file:` address is a folder; `s3:`, `gs:` and `az:` addresses are buckets and containers, with credentials
/// from the environment.
///
/// # Errors
///
/// An unknown kind of address, or invalid credentials.
pub fn open_target(place: &str) -> Result<Arc<dyn Target>, TargetError> {
    Ok(match PlaceAddress::parse(place)? {
        PlaceAddress::Folder(path) => Arc::new(Folder::new(&path)?),
        PlaceAddress::Storage(url) => Arc::new(Objects::open(&url)?),
    })
}
