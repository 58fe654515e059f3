//! Simple Update Protocol: one document that lists the feeds with recent updates.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | SUP documents, ids, and links to them in a feed's responses |
//! | [`publish`] | an index of recent updates, and documents from it |
//! | [`follow`] | a follower of many feeds, which decides when to poll each |
//! | [`check`] | conformance findings about any publisher |

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;

pub use self::wire::{discovery, id};
