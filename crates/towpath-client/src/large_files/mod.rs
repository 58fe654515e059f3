//! Files of contents that are too large for memory: written while a document has them ([`Event::Large`]), or downloaded
//! where their publisher keeps them as files ([`Event::File`]).
//!
//! [`Event::Large`]: towpath_proto::follow::Event::Large
//! [`Event::File`]: towpath_proto::follow::Event::File

mod download;
mod file_store;
mod folder;
mod partial_file;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use towpath_proto::follow::{LargePart, LargeStep};
use url::Url;

pub(crate) use self::download::{DownloadNews, download};
pub use self::file_store::{FilePart, FileStore, OpenedFile, StoredBytes};
pub(crate) use self::folder::FolderFiles;
use self::partial_file::PartialFile;

/// A file that cannot be written. The user's disk is at fault.
#[derive(Debug, thiserror::Error)]
#[error("cannot write a large content to {}: {source}", file.display())]
pub(crate) struct LargeFileError {
    file: PathBuf,
    source: io::Error,
}

impl LargeFileError {
    /// Returns the constructor for a file.
    fn at(file: &Path) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self { file, source }
    }
}

/// Writes the large contents of one follow, each to a file named by its SHA-256.
#[derive(Debug, Default)]
pub(crate) struct LargeFiles {
    /// Files that are being written, by the number of their content.
    open: HashMap<u64, PartialFile>,
}

impl LargeFiles {
    /// Takes the next part of a content.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. Then its change must not be delivered.
    pub(crate) async fn take(&mut self, part: LargePart) -> Result<(), LargeFileError> {
        let folder = folder_of(&part.base);
        let number = part.number;
        if let LargeStep::Write { offset: 0, .. } = part.step {
            match self.open.get_mut(&number) {
                // Cut off before: the content begins again.
                Some(partial) => partial.clear().await?,
                None => drop(self.open.insert(number, PartialFile::open_free(&folder).await?)),
            }
        }
        let missing = || LargeFileError::at(&folder)(io::ErrorKind::NotFound.into());
        match part.step {
            LargeStep::Write { bytes, .. } => {
                self.open.get_mut(&number).ok_or_else(missing)?.write(&bytes).await
            }
            LargeStep::Keep(name) => {
                self.open.remove(&number).ok_or_else(missing)?.keep(&folder, &name).await
            }
            LargeStep::Remove => self.open.remove(&number).ok_or_else(missing)?.remove().await,
        }
    }
}

/// Returns the path of a folder, given its URL.
fn folder_of(base: &str) -> PathBuf {
    let path = Url::parse(base).ok().and_then(|base| base.to_file_path().ok());
    path.unwrap_or_else(|| PathBuf::from(base))
}

/// Returns the URL of a folder for contents that are too large for memory, for
/// [`FollowerOptions`](crate::FollowerOptions). The first such content makes the folder.
///
/// # Errors
///
/// If the path is empty, or the working directory is unknown.
pub fn large_folder(folder: &Path) -> io::Result<String> {
    Url::from_directory_path(std::path::absolute(folder)?)
        .map(String::from)
        .map_err(|()| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(base: &str, number: u64, step: LargeStep) -> LargePart {
        LargePart { base: base.into(), number, step }
    }

    fn bytes(offset: u64, text: &'static str) -> LargeStep {
        LargeStep::Write { offset, bytes: text.into() }
    }

    #[tokio::test]
    async fn contents_that_arrive_side_by_side_become_files() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("a b");
        let base = large_folder(&folder).unwrap();
        let mut files = LargeFiles::default();
        for (number, step) in [
            (1, bytes(0, "cut off")),
            (2, bytes(0, "two")),
            (1, bytes(0, "on")),
            (2, LargeStep::Remove),
            (1, bytes(2, "e")),
            (1, LargeStep::Keep("abc".into())),
        ] {
            files.take(part(&base, number, step)).await.unwrap();
        }
        assert_eq!(std::fs::read(folder.join("abc")).unwrap(), b"one");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_named() {
        let temporary = tempfile::tempdir().unwrap();
        let base = large_folder(temporary.path()).unwrap();
        std::fs::create_dir(temporary.path().join("1.part")).unwrap();
        let error = LargeFiles::default().take(part(&base, 1, bytes(0, "x"))).await.unwrap_err();
        assert!(error.to_string().contains("1.part"), "{error}");
    }
}
