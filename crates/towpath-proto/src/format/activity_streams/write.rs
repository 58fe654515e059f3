//! Writing ActivityStreams objects.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::change::{Change, Op};
use crate::format::{html, media_type};
use crate::item::{Author, Content};

/// Change's item as a serializable object.
#[derive(Debug, Clone, Copy)]
pub struct ActivityObject<'a> {
    /// Latest version of the item.
    pub change: &'a Change,
    /// Cursor of the item, if it has its own.
    pub cursor: Option<&'a str>,
}

/// Members of an object. Empty arrays are omitted, as AS1 requires (section 2).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ActivityMembers<'a> {
    object_type: &'static str,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    display_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<Person<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "write_tags")]
    tags: &'a [String],
    published: &'a str,
    updated: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    deleted: bool,
    towpath: TowpathMember<'a, &'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Person<'a> {
    object_type: &'static str,
    display_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    email: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ActivityTag<'a> {
    object_type: &'static str,
    display_name: &'a str,
}

/// Extension member `towpath`: everything that AS1 cannot express. `T` is a time.
#[derive(Serialize, Deserialize)]
#[serde(default)]
pub(super) struct TowpathMember<'a, T = Timestamp> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<Cow<'a, str>>,
    /// Time at which the publisher's log stored this version.
    pub(super) modified: Option<T>,
    /// `published` is the time of the item's first version, because the item has no such date.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) published_unknown: bool,
    /// `updated` is `modified`, because the item has no such date.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) updated_unknown: bool,
    /// Media type of the content, unless it is exactly `text/html`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_type: Option<Cow<'a, str>>,
    /// Content in Base 64 (RFC 4648, section 4), if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content_base64: Option<String>,
    /// All authors, if there are several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) authors: Cow<'a, [Author]>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(super) extra: Cow<'a, Map<String, Value>>,
}

impl<T> Default for TowpathMember<'_, T> {
    fn default() -> Self {
        Self {
            cursor: None,
            modified: None,
            published_unknown: false,
            updated_unknown: false,
            content_type: None,
            content_base64: None,
            authors: Cow::Borrowed(&[]),
            extra: Cow::Owned(Map::new()),
        }
    }
}

/// Returns `true` for content that is written as it is: HTML, and XHTML, which is HTML to those who show it.
pub(super) fn is_html(content: &Content) -> bool {
    let essence = media_type::essence(&content.media_type);
    ["text/html", "application/xhtml+xml"].iter().any(|html| essence.eq_ignore_ascii_case(html))
}

/// Time as text, as the last one was, if it is the same: an item mostly has one time several times.
fn printed<'a>(time: Timestamp, last: (Timestamp, &'a str), text: &'a mut String) -> &'a str {
    if time == last.0 {
        return last.1;
    }
    print(time, text);
    text
}

// Not by `Display`: its formatter comes between, piece by piece, for up to three times of each item of a page.
fn print(time: Timestamp, text: &mut String) {
    let is_printed = DateTimePrinter::new().print_timestamp(&time, text);
    debug_assert!(is_printed.is_ok(), "a string takes everything");
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn write_tags<S: Serializer>(tags: &&[String], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(tags.len()))?;
    for tag in *tags {
        list.serialize_element(&ActivityTag { object_type: "tag", display_name: tag })?;
    }
    list.end()
}

impl Serialize for ActivityObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (change, item) = (self.change, &self.change.item);
        let content = item.content.as_ref();
        let text = content.and_then(|content| content.text());
        // Other text must be escaped, since AS1 defines the content as HTML.
        let is_html = content.is_some_and(is_html);
        let media_type = content.map(|content| content.media_type.as_str());
        let (mut modified, mut published, mut updated) = (String::new(), String::new(), String::new());
        print(change.modified, &mut modified);
        let last = (change.modified, modified.as_str());
        let form = ActivityMembers {
            object_type: object_type(change),
            id: &item.id,
            display_name: item.title.as_deref(),
            summary: item.summary.as_deref(),
            content: text.map(|text| if is_html { Cow::Borrowed(text) } else { html::escape(text) }),
            url: item.url.as_deref(),
            // AS1 allows a single author; the extension holds all of them.
            author: item.authors.first().map(|author| Person {
                object_type: "person",
                display_name: &author.name,
                url: author.url.as_deref(),
                email: author.email.as_deref(),
            }),
            tags: &item.tags,
            published: printed(item.published.unwrap_or(change.created), last, &mut published),
            updated: printed(item.updated.unwrap_or(change.modified), last, &mut updated),
            deleted: change.op == Op::Delete,
            towpath: TowpathMember {
                cursor: self.cursor.map(Cow::Borrowed),
                modified: Some(&modified),
                published_unknown: item.published.is_none(),
                updated_unknown: item.updated.is_none(),
                content_type: media_type.filter(|media_type| *media_type != "text/html").map(Cow::Borrowed),
                content_base64: content.filter(|_| text.is_none()).map(|c| STANDARD.encode(&c.bytes)),
                authors: Cow::Borrowed(if item.authors.len() > 1 { &item.authors } else { &[] }),
                extra: Cow::Borrowed(&item.extra),
            },
        };
        form.serialize(serializer)
    }
}

/// Returns the object type of the Activity Base Schema. The next version of ActivityStreams calls a deleted
/// item a tombstone.
fn object_type(change: &Change) -> &'static str {
    match (change.op, &change.item.title) {
        (Op::Delete, _) => "tombstone",
        (_, Some(_)) => "article",
        (_, None) => "note",
    }
}
