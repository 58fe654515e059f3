//! Atom 1.0 (RFC 4287): reading and writing. Atom 0.3 is read too.

mod content;
mod read;

pub(crate) use read::{element, is_own_id, own_id, read};
