//! Identity of a file or folder, to see that another one stands at its place.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Device and inode of a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Returns the identity of what stands at `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }

    /// Returns true if the same file or folder stands at `path`.
    pub(crate) fn is_at(self, path: &Path) -> bool {
        Self::of(path).is_ok_and(|found| found == self)
    }
}
