//! Data Replication: a feed as a doubly linked list of multipart pages, and snapshots of it.
//!
//! | part | |
//! |---|---|
//! | [`wire`] | headers of pages and entities, a change as an entity and back, a snapshot's index |
//! | [`publish`] | pages as they are served, their division and retention, a snapshot's pages |
//! | [`follow`] | the follower |
//! | [`check`] | the conformance check |

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;

pub use publish::{pages, snapshot};
pub use wire::{ReplicationError, entity};
