//! Smart Feeds: ordered collections with cursors.
//!
//! | module | contents |
//! |---|---|
//! | [`wire`] | position specs, page formats, URLs and collections: data of both ends |
//! | [`publish`] | from a [`query::PullQuery`] over reads of the log to a page, and from a page to a response |
//! | [`follow`] | a follower of any publisher's feed, by pull and by push |
//! | [`check`] | conformance findings about any publisher's feed |

pub mod check;
pub mod follow;
pub mod publish;
pub mod wire;

pub use self::follow::push;
pub use self::publish::{atom, cursor, events, filter, log_read, pull, query};
#[cfg(test)]
pub(crate) use self::publish::{testing as memory, testing as tests};
pub use self::wire::{accept, spec};
