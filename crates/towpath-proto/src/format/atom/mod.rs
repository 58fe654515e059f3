//! Atom 1.0 (RFC 4287): reading and writing. Atom 0.3 is read too.
//!
//! What Atom has no place for is written in the namespace [`TOWPATH`](super::xml::TOWPATH), which other
//! readers pass over (section 6), so that what our reader gets is the item as it was:
//!
//! | written | means |
//! |---|---|
//! | `<tp:id>` | the item's id, percent-encoded, where `fo:id` cannot hold it |
//! | `tp:assigned` on `updated`, `author` | Atom demands one, the item has none; `updated` is as `<tp:modified>` |
//! | `<tp:modified>` | when the item was last changed in the feed, where its own dates do not tell versions apart |
//! | `tp:type` on `content` | the media type, where Atom would not have it so; the text is Base 64 |
//! | `<tp:name>`, `<tp:email>`, `<tp:uri>` in a person | one that is not of Atom's form |
//! | `<tp:extra>` | what is left of the item's `extra`, a JSON object |

mod content;
mod read;
mod write;

pub(crate) use content::write as write_content;
pub(crate) use read::{element, is_own_id, own_id, read};
pub(crate) use write::{deleted_entry, extras, history, is_kept, own_id_element, person};
pub use write::{write, write_entry};
