//! Documents of this machine: the same limits as over the network.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::AsyncReadExt as _;
use towpath_proto::follow::TransferError;

/// The path that a source's address means: `file://…`, or anything without a scheme. `None` for other
/// schemes.
pub fn local_path(address: &str) -> Option<PathBuf> {
    match url::Url::parse(address) {
        Ok(url) if url.scheme() == "file" => url.to_file_path().ok(),
        // A drive letter is not a scheme.
        Ok(url) if url.scheme().len() > 1 => None,
        _ => Some(PathBuf::from(address)),
    }
}

/// A file that was read whole.
#[derive(Debug)]
pub struct LocalFile {
    /// Its bytes.
    pub bytes: Bytes,
    /// When it was last written to, where the file system knows.
    pub modified: Option<Timestamp>,
}

/// Reads a file of at most `max` bytes. Devices and pipes, which may never end, are refused.
pub async fn read_local(path: &Path, max: u64) -> Result<LocalFile, TransferError> {
    let file = tokio::fs::metadata(path).await.map_err(|e| explain(&e))?;
    if !file.is_file() {
        return Err(TransferError::Url("it is not a regular file".into()));
    }
    let modified = file.modified().ok().and_then(|at| Timestamp::try_from(at).ok());
    let file = tokio::fs::File::open(path).await.map_err(|e| explain(&e))?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).await.map_err(|e| explain(&e))?;
    if bytes.len() as u64 > max {
        return Err(TransferError::TooLarge { limit: max });
    }
    Ok(LocalFile { bytes: bytes.into(), modified })
}

fn explain(error: &io::Error) -> TransferError {
    TransferError::Connect(match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "no permission to read the file".into(),
        _ => super::explain::root_cause(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_addresses_and_plain_paths_are_local() {
        assert_eq!(local_path("file:///a/b%20c.json"), Some(PathBuf::from("/a/b c.json")));
        assert_eq!(local_path("data/a.json"), Some(PathBuf::from("data/a.json")));
        assert_eq!(local_path("/data/a.json"), Some(PathBuf::from("/data/a.json")));
        assert_eq!(local_path("https://example.com/a"), None);
        assert_eq!(local_path("ftp://example.com/a"), None);
    }

    #[tokio::test]
    async fn the_limit_holds_and_errors_say_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_local(&path, 5).await.unwrap().bytes, "12345");
        assert!(read_local(&path, 5).await.unwrap().modified.is_some());
        assert_eq!(read_local(&path, 4).await.unwrap_err(), TransferError::TooLarge { limit: 4 });
        let text = |e: TransferError| e.to_string();
        assert!(text(read_local(&folder.path().join("b"), 5).await.unwrap_err()).contains("no such file"));
        assert!(text(read_local(folder.path(), 5).await.unwrap_err()).contains("not a regular file"));
    }
}
