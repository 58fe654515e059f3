//! Atom 1.0 (RFC 4287): reading and writing. Atom 0.3 can be read too.
//!
//! The namespace [`TOWPATH`](super::xml::TOWPATH) holds everything that Atom cannot express. Other readers
//! ignore it (section 6), and our reader restores the item:
//!
//! | written | means |
//! |---|---|
//! | `<tp:id>` | the item's id, percent-encoded, if `fo:id` cannot hold it |
//! | `<tp:url>` | the item's URL, percent-encoded, if no link can have it as it is |
//! | `<tp:assigned>updated</tp:assigned>` | `updated` is required by Atom, absent in the item; it is as
//! `<tp:changed>` |
//! | `tp:assigned` on `link`, `media:thumbnail` | attachments and images that `extra` holds in another form |
//! | `tp:assigned` on `author` | required by Atom, absent in the item; `feed`: the author of the feed alone |
//! | `<tp:changed>` | time of the last change in the feed, if the item's own dates do not distinguish
//! versions |
//! | `tp:addresses` on the root | addresses are as the items have them: nothing in the document is relative to it |
//! | `tp:before`, `tp:after`, `tp:plain`, `tp:base64` on `content` | the bytes of an XML document beside its element |
//! | `tp:type` on `content` | the media type, if Atom does not allow it; the text is Base 64 |
//! | `<tp:name>`, `<tp:email>`, `<tp:uri>` in a person | values that Atom's elements do not allow |
//! | `<tp:empty>` in an entry | a field of this name is an empty text: `title`, `summary`, or the next `tag` |
//! | `<tp:extra>` | the rest of the item's `extra`, a JSON object |

mod content;
mod read;
mod write;

pub(crate) use content::write as write_content;
pub(crate) use read::{element, read};
pub(crate) use write::{
    ElementForm, NOWHERE, category, derived_image, empty_field, extras, history, is_kept, own_id_element,
    own_url_element, page, person, start_deleted_entry,
};
pub use write::{content_base, write, write_entry};
