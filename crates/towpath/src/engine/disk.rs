//! Free space on the disk of the data folder.

use std::path::Path;

use crate::engine::Engine;

/// The disk is too full.
#[derive(Debug, thiserror::Error)]
#[error(
    "the disk is too full for {bytes} bytes more: {} MiB are free, and {} MiB are reserved; free some space",
    free >> 20,
    reserved >> 20
)]
pub(crate) struct NoRoom {
    bytes: u64,
    free: u64,
    reserved: u64,
}

impl Engine {
    /// Returns the free space in bytes that this process may use; `None` if the system does not say.
    pub(crate) fn free_disk(&self) -> Option<u64> {
        free_space(&self.config.server.data)
    }

    /// Returns the space in bytes that is to stay free.
    pub(crate) fn reserved_disk(&self) -> u64 {
        self.config.server.reserve_mib.saturating_mul(1 << 20)
    }

    /// Checks that the disk has room for so many bytes more, beside what is reserved.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), NoRoom> {
        let reserved = self.reserved_disk();
        match self.free_disk() {
            Some(free) if free < bytes.saturating_add(reserved) => Err(NoRoom { bytes, free, reserved }),
            _ => Ok(()),
        }
    }
}

fn free_space(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    // `f_bavail`, not `f_bfree`: blocks that are reserved for root are of no use to us.
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}
