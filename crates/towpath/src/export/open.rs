//! Opening targets by their addresses.

use std::path::Path;
use std::sync::Arc;

use crate::export::folder::Folder;
use crate::export::objects::Objects;
use crate::export::target::{Target, TargetError};

/// Opens a target by its address.
///
/// A path or a `file:` address is a folder; `s3:`, `gs:` and `az:` addresses are buckets and containers, with credentials
/// from the environment.
///
/// # Errors
///
/// An unknown kind of address, or invalid credentials.
pub fn open_target(place: &str) -> Result<Arc<dyn Target>, TargetError> {
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
