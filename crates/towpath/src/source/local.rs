//! Source documents in files, with the same limits as over the network.

use std::io;
use std::path::Path;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::io::AsyncReadExt as _;
use towpath_proto::follow::TransferError;

/// A file, read into memory.
#[derive(Debug)]
pub struct LocalFile {
    /// Content.
    pub bytes: Bytes,
    /// Modification time, if the file system has one.
    pub modified: Option<Timestamp>,
}

/// Reads a file of at most `max` bytes. Devices and pipes are rejected, because they may never end.
pub async fn read_local(path: &Path, max: u64) -> Result<LocalFile, TransferError> {
    let file = tokio::fs::metadata(path).await.map_err(|e| read_error(&e))?;
    // Checked before opening: opening a pipe blocks until a writer comes.
    if !file.is_file() {
        return Err(TransferError::Url("it is not a regular file".into()));
    }
    let modified = file.modified().ok().and_then(|at| Timestamp::try_from(at).ok());
    let file = tokio::fs::File::open(path).await.map_err(|e| read_error(&e))?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes).await.map_err(|e| read_error(&e))?;
    // The size in the metadata may change before the read, so the bytes that were read decide.
    if bytes.len() as u64 > max {
        return Err(TransferError::TooLarge { limit: max });
    }
    Ok(LocalFile { bytes: bytes.into(), modified })
}

fn read_error(error: &io::Error) -> TransferError {
    TransferError::Connect(match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "no permission to read the file".into(),
        _ => towpath_client::explain::root_cause(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_limit_is_enforced_and_errors_name_the_cause() {
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
