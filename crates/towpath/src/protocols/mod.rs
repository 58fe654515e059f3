//! The protocols that a server speaks.
//!
//! Each folder has the same parts: `state.rs` keeps what the protocol knows, `serve.rs` answers its routes, and `task.rs`
//! runs beside the server. [`start`] puts them together.

pub(crate) mod addresses;
pub(crate) mod catalog;
pub mod diffdelta;
#[cfg(test)]
pub(crate) mod failing_store;
pub mod history;
pub(crate) mod log_retention;
pub mod pages;
pub mod remote_writes;
pub(crate) mod repair;
pub mod replication;
pub mod smart;
mod start;
pub mod sup;
pub(crate) mod verify;
pub mod websub;
pub mod xmpp;

pub use start::{at_base_url, start};
