//! JSON Feed 1.0 and 1.1: reading and writing.

//!
//! The extension object `_towpath` holds everything that JSON Feed cannot express. Other readers ignore it,
//! and our reader restores the item. Members of an item: `content` (`null`, or `type` with `text` or
//! `base64`) if it is neither HTML nor plain text, `authors` if any has an e-mail address, `extra`, and
//! `modified` as in Atom, `derived` (names of members whose values `extra` holds in another form). Members of the feed: `id`, `updated`, `links`, `stateful`, `complete`, `archive`,
//! `author` (of the feed alone, not of its items), `deleted`.

mod extension;
mod read;
mod write;

pub(crate) use extension::EXTRA;
pub(crate) use read::read;
pub use write::write;
