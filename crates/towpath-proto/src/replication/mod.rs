//! Data Replication: a feed as a doubly linked list of multipart pages, and snapshots of it.
//!
//! | module | |
//! |---|---|
//! | [`wire`] | headers of pages and of their entities |
//! | [`entity`] | a change as an entity, and back |
//! | [`pages`] | which change stands on which page; retention |
//! | [`publish`] | a page as it is served |
//! | [`snapshot`] | the index and the pages of a snapshot |
//! | [`follow`] | the follower |
//! | [`check`] | the conformance check |

pub mod check;
pub mod entity;
mod error;
pub mod follow;
pub mod pages;
pub mod publish;
pub mod snapshot;
pub mod wire;

pub use error::ReplicationError;
