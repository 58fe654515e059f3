//! Record of the damaged data that reads meet.

use std::path::PathBuf;

use parking_lot::Mutex;

use crate::error::{ReadTarget, StorageError};
use crate::{ReadError, StoreDamage};

/// Damage of one data folder that reads met since it was opened.
pub(crate) struct DamageLog {
    folder: PathBuf,
    found: Mutex<Option<StoreDamage>>,
}

impl DamageLog {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, found: Mutex::default() }
    }

    /// Returns the error of a failed read, and counts it if it met damage.
    pub(crate) fn error(&self, error: StorageError, target: ReadTarget) -> ReadError {
        let error = error.of(target);
        if matches!(error, ReadError::Damaged { .. }) {
            let mut found = self.found.lock();
            let damage = found.get_or_insert_with(|| {
                let first = format!("{error}, in the data folder {}", self.folder.display());
                // Only the first: readers may ask for the same record all the time.
                tracing::error!(
                    error = first,
                    "a read met damaged data; stop the server and run `towpath verify`, then `towpath repair`, or restore a backup"
                );
                StoreDamage { reads: 0, first }
            });
            damage.reads += 1;
        }
        error
    }

    /// Returns what was found.
    pub(crate) fn found(&self) -> Option<StoreDamage> {
        self.found.lock().clone()
    }
}
