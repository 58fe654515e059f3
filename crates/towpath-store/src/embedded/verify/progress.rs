//! Progress of a check, for a bar.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of changes that a check has read, and of all.
#[derive(Debug, Default)]
pub struct VerifyProgress {
    done: AtomicU64,
    total: AtomicU64,
}

impl VerifyProgress {
    /// Returns the number of changes that were read.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns about how many there are; 0 before that is known.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(in crate::embedded) fn expect(&self, changes: u64) {
        self.total.store(changes, Ordering::Relaxed);
    }

    pub(in crate::embedded) fn add(&self, changes: u64) {
        self.done.fetch_add(changes, Ordering::Relaxed);
    }
}
