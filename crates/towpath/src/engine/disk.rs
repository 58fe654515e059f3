//! Free space on the disk of the data folder.

use std::path::Path;

use crate::engine::Engine;

impl Engine {
    /// Returns the free space in bytes that this process may use; `None` if the system does not say.
    pub(crate) fn free_disk(&self) -> Option<u64> {
        free_space(&self.config.server.data)
    }
}

fn free_space(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // `f_bavail`, not `f_bfree`: blocks that are reserved for root are of no use to us.
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
