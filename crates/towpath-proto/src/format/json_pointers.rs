//! Any JSON as a feed, through pointers (RFC 6901).

use serde::{Deserialize, Serialize};

/// Where a JSON document has what: pointers (RFC 6901). `items` is into the document, all others into one item.
///
/// A value with `{` in it is a template: `https://example.com/{/id}` has each `{pointer}` replaced by what it
/// points at, percent-encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mapping {
    /// The array (or object, whose values are the items) of items; the empty pointer is the document itself.
    pub items: String,
    /// The item's id: text or a number.
    pub id: String,
    /// See [`crate::item::Item::url`].
    pub url: Option<String>,
    /// See [`crate::item::Item::title`].
    pub title: Option<String>,
    /// See [`crate::item::Item::summary`].
    pub summary: Option<String>,
    /// A text to use as content, of type `content_type`; the whole item as JSON where absent.
    pub content: Option<String>,
    /// The media type of `content`: itself a type, not a pointer. `text/html` where absent.
    pub content_type: Option<String>,
    /// A name, or an array of names.
    pub authors: Option<String>,
    /// A tag, or an array of tags.
    pub tags: Option<String>,
    /// A date, date and time, or Unix seconds.
    pub published: Option<String>,
    /// A date, date and time, or Unix seconds.
    pub updated: Option<String>,
}
