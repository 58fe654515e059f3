//! Data that both ends of the protocol read and write: SUP documents, ids and links.

pub mod discovery;
pub(in crate::sup) mod document;
pub mod id;
pub(in crate::sup) mod tolerant;

pub use self::document::{ParsedSupDocument, SupDocument, SupError, SupUpdate};
