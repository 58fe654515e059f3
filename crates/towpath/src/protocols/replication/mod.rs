//! Data Replication: pages of a feed's changes, and snapshots of its items, both stored as positions in the log.

pub(crate) mod documents;
pub(crate) mod serve;
pub mod snapshot;
pub(crate) mod stored;
pub(crate) mod verify;

pub(crate) use documents::{forget as forget_page, on_sealed};
