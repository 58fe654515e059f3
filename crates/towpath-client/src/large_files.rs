//! Files of contents that are too large for memory: see [`Event::Large`](towpath_proto::follow::Event::Large).

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt as _;
use towpath_proto::follow::{LargePart, LargeStep};
use url::Url;

/// A file that cannot be written. The user's disk is at fault.
#[derive(Debug, thiserror::Error)]
#[error("cannot write a large content to {}: {source}", file.display())]
pub(crate) struct LargeFileError {
    file: PathBuf,
    source: io::Error,
}

/// Writes the large contents of one follow, each to a file named by its SHA-256.
#[derive(Debug, Default)]
pub(crate) struct LargeFiles {
    /// Files that are being written, by the number of their content.
    open: HashMap<u64, (PathBuf, File)>,
}

impl LargeFiles {
    /// Takes the next part of a content.
    ///
    /// # Errors
    ///
    /// If the file cannot be written. Then its change must not be delivered.
    pub(crate) async fn take(&mut self, part: LargePart) -> Result<(), LargeFileError> {
        let folder = Url::parse(&part.base).ok().and_then(|base| base.to_file_path().ok());
        let folder = folder.unwrap_or_else(|| PathBuf::from(&*part.base));
        // One name for each content that arrives at the moment: what was cut off is overwritten.
        let partial = folder.join(format!("{}.part", part.number));
        let (file, done) = match part.step {
            LargeStep::Write { offset, bytes } => {
                let written = self.write(part.number, &partial, offset, &bytes).await;
                (partial, written)
            }
            LargeStep::Keep(name) => {
                let file = folder.join(name);
                let kept = self.keep(part.number, &file, &folder).await;
                (file, kept)
            }
            LargeStep::Remove => {
                self.open.remove(&part.number);
                let removed = fs::remove_file(&partial).await;
                (partial, removed)
            }
        };
        done.map_err(|source| LargeFileError { file, source })
    }

    async fn write(&mut self, number: u64, partial: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset == 0 {
            if let Some(folder) = partial.parent() {
                fs::create_dir_all(folder).await?;
            }
            self.open.insert(number, (partial.to_owned(), File::create(partial).await?));
        }
        let (_, file) = self.open.get_mut(&number).ok_or(io::ErrorKind::NotFound)?;
        file.write_all(bytes).await
    }

    async fn keep(&mut self, number: u64, file: &Path, folder: &Path) -> io::Result<()> {
        let (partial, mut written) = self.open.remove(&number).ok_or(io::ErrorKind::NotFound)?;
        written.flush().await?;
        // Durable before its change is delivered, and its name as well.
        written.sync_all().await?;
        fs::rename(partial, file).await?;
        File::open(folder).await?.sync_all().await
    }
}

/// Returns the URL of a folder for contents that are too large for memory, for
/// [`FollowerConfig`](crate::FollowerConfig). The first such content makes the folder.
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
