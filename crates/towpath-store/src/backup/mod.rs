//! Backups of a store, and snapshots of replicas: pieces of a copy, named by their content, and a list of them.
//!
//! A list is written last, so a backup is whole or not there. The next backup writes only pieces that are new.
//!
//! - `entries`: pages of a copy. `pieces`: runs of entries. `manifest`: the list of one backup.
//! - `write`: making a backup, and removing old ones. `read`: checking one, and building a data folder from it.
//! - `background`: threads that take the time which publishing leaves.
//! - `storage`: the interface to the folder or the object storage. `memory`: one for tests.

mod background;
mod entries;
mod manifest;
mod memory;
mod pieces;
mod read;
mod storage;
mod write;

pub use self::background::in_background;
pub use self::entries::{
    CopyError, CopyPage, CopySource, LocalCopy, encode_length, push_entry, split_entries,
};
pub use self::manifest::{BACKUPS, LogPoint, Manifest, PieceRow};
pub use self::memory::MemoryStorage;
pub use self::read::{PieceFault, RestoreError, build, check, check_and_clear, read};
pub use self::storage::{BackupStorage, StorageAccessError, StoredFile, SubfolderStorage};
pub use self::write::{BackupError, BackupSummary, PieceCheck, back_up, keep_newest};

/// Function that is told of bytes of entries as they are done.
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);
