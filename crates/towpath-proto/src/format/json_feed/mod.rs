//! JSON Feed 1.0 and 1.1: reading and writing.

//!
//! What JSON Feed has no place for is written into the extension object `_towpath`, which other readers pass
//! over, so that what our reader gets is the item as it was. Of an item: `content` (`null`, or `type` with
//! `text` or `base64`) where it is neither HTML nor plain text, `authors` where one has an e-mail address,
//! `extra`, and `modified` as Atom's own extension. Of the feed: `id`, `updated`, `links`, `stateful`, `complete`, `archive`, `deleted`.

mod read;
mod write;

pub(crate) use read::read;
pub use write::write;

/// The key of [`crate::item::Item::extra`] under which the keys are kept that an item's fields have no
/// place for.
const EXTRA: &str = "json_feed";
/// The extension object (JSON Feed 1.1, "Extensions") that carries what the format has no place for.
const OWN: &str = "_towpath";
