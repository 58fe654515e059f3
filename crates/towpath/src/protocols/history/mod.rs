//! Feed History (RFC 5005): every feed as Atom, RSS and JSON Feed, with the documents of its past.

pub(crate) mod documents;
pub(crate) mod feed_info;
mod last_change;
pub(crate) mod serve;

pub(crate) use documents::forget as forget_page;
