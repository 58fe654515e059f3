//! State of the scheduled changes of this process.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::Notify;
use towpath_store::Table;

use super::row::ITEMS;
use crate::engine::Engine;
use crate::store_error::StoreError;

/// Attempts of a write that races with others.
pub(super) const TRIES: usize = 20;

/// Wakes the task after a change was scheduled, and knows whether any change can be.
#[derive(Default)]
pub(super) struct Scheduled {
    pub(super) changed: Notify,
    presence: AtomicU8,
}

/// Values of [`Scheduled::presence`]: it was not looked yet, nothing is scheduled, and something was.
const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

impl Scheduled {
    pub(super) fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Records that a change is about to be scheduled.
    pub(super) fn set_present(&self) {
        self.presence.store(SOME, Ordering::Release);
    }

    /// Returns true if no feed has a scheduled change.
    ///
    /// Most servers never schedule one. Each change of theirs would pay for a scan of the store.
    pub(super) async fn is_empty(&self, engine: &Engine) -> Result<bool, StoreError> {
        match self.presence.load(Ordering::Acquire) {
            NONE => return Ok(true),
            // Other nodes schedule changes, too.
            UNKNOWN if !engine.is_shared() => {}
            _ => return Ok(false),
        }
        let is_empty = engine.store.scan(Table::Sources, ITEMS.as_bytes(), None, 1).await?.is_empty();
        let presence = if is_empty { NONE } else { SOME };
        // Fails where a change was scheduled since the load: the scan may have come before it.
        let _ = self.presence.compare_exchange(UNKNOWN, presence, Ordering::AcqRel, Ordering::Acquire);
        Ok(is_empty)
    }
}
