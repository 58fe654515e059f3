//! Opening targets by their addresses.

use std::path::{Path, PathBuf};
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

/// Checks the address of a target beside a data folder. Nothing is made, and credentials are not looked at.
///
/// # Errors
///
/// [`TargetError::Place`] for an address that no target has, and for a folder that cannot be one.
pub(crate) fn check_target(place: &str, data: &Path) -> Result<(), TargetError> {
    let folder = match PlaceAddress::parse(place)? {
        PlaceAddress::Folder(folder) => folder,
        PlaceAddress::Storage(url) => return storage_kind(&url).map(drop),
    };
    let wrong = |reason: String| TargetError::Place { place: place.to_owned(), reason };
    if let Some(above) = folder.ancestors().find(|above| above.exists())
        && !above.is_dir()
    {
        return Err(wrong(format!("{} is not a folder", above.display())));
    }
    // A new data folder must be empty, and nobody else may read one.
    if real_path(&folder).starts_with(real_path(data)) {
        return Err(wrong(format!(
            "it is within the data folder {}, which only the server may read; use a folder beside it",
            data.display()
        )));
    }
    Ok(())
}

/// Returns the path without links, as far as it is there.
fn real_path(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match there {
        Some((above, real)) => real.join(path.strip_prefix(above).unwrap_or(Path::new(""))),
        None => path,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_a_folder_beside_the_data() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(at("file"), "").unwrap();
        std::fs::create_dir(at("there")).unwrap();
        std::os::unix::fs::symlink(at("there"), at("link")).unwrap();
        let check = |place: &str, data: &str| check_target(place, Path::new(&at(data)));
        for (place, data) in
            [("tree", "data"), ("there/tree", "data"), ("there", "there/data"), ("data2", "data")]
        {
            check(&at(place), data).unwrap();
            check(&format!("file://{}", at(place)), data).unwrap();
        }
        for (place, data) in [
            ("file", "data"),
            ("file/tree", "data"),
            ("data", "data"),
            ("data/a/b", "data"),
            ("link/x", "there"),
        ] {
            check(&at(place), data).unwrap_err();
            check(&format!("file://{}", at(place)), data).unwrap_err();
        }
    }
}
