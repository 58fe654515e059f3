//! ActivityStreams 1.0 objects and collections (JSON Activity Streams 1.0, sections 3 and 4).
//!
//! An item is written as an object: its title is the `displayName`, its content is the `content` where it is
//! text (AS1 wants HTML there, so other text is escaped), its times are `published` and `updated`. What AS1 has
//! no place for stands in the extension member `towpath`, so that an item that is written and read again is
//! the same. A deleted item has `"deleted": true`.

mod read;

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::ser::{SerializeSeq, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::change::{Change, Op};
use crate::item::Author;
pub use read::{ReadObject, read_object};

/// A change's item as an object, ready to be serialised; `cursor` is its own, where it has one.
#[derive(Debug, Clone, Copy)]
pub struct Object<'a> {
    /// The item's latest version.
    pub change: &'a Change,
    /// Where it stands.
    pub cursor: Option<&'a str>,
}

/// The members of an object. An empty array is left out, as AS1 demands (section 2).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectForm<'a> {
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
    published: Timestamp,
    updated: Timestamp,
    #[serde(skip_serializing_if = "is_false")]
    deleted: bool,
    towpath: Beside<'a>,
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
struct Tag<'a> {
    object_type: &'static str,
    display_name: &'a str,
}

/// The extension member `towpath`: what AS1 has no place for.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct Beside<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<Cow<'a, str>>,
    /// When the publisher's log took in this version.
    modified: Option<Timestamp>,
    /// `published` is when the log took in the item's first version, because the item does not say.
    #[serde(skip_serializing_if = "is_false")]
    published_unknown: bool,
    /// `updated` is `modified`, because the item does not say.
    #[serde(skip_serializing_if = "is_false")]
    updated_unknown: bool,
    /// The content's media type, where it is not just `text/html`.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<Cow<'a, str>>,
    /// The content in Base 64 (RFC 4648, section 4), where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_base64: Option<String>,
    /// All authors, where there are several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    authors: Cow<'a, [Author]>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    extra: Cow<'a, Map<String, Value>>,
}

impl Default for Beside<'_> {
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

fn is_false(flag: &bool) -> bool {
    !flag
}

fn write_tags<S: Serializer>(tags: &&[String], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(tags.len()))?;
    for tag in *tags {
        list.serialize_element(&Tag { object_type: "tag", display_name: tag })?;
    }
    list.end()
}

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (change, item) = (self.change, &self.change.item);
        let content = item.content.as_ref();
        let text = content.and_then(|content| content.text());
        let is_html = content.is_some_and(|content| content.essence() == "text/html");
        let media_type = content.map(|content| content.media_type.as_str());
        let form = ObjectForm {
            object_type: object_type(change),
            id: &item.id,
            display_name: item.title.as_deref(),
            summary: item.summary.as_deref(),
            content: text.map(|text| if is_html { Cow::Borrowed(text) } else { escape(text) }),
            url: item.url.as_deref(),
            author: item.authors.first().map(|author| Person {
                object_type: "person",
                display_name: &author.name,
                url: author.url.as_deref(),
                email: author.email.as_deref(),
            }),
            tags: &item.tags,
            published: item.published.unwrap_or(change.created),
            updated: item.updated.unwrap_or(change.modified),
            deleted: change.op == Op::Delete,
            towpath: Beside {
                cursor: self.cursor.map(Cow::Borrowed),
                modified: Some(change.modified),
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

/// The names are those of the Activity Base Schema; a deleted item is what the next version of
/// ActivityStreams calls a tombstone.
fn object_type(change: &Change) -> &'static str {
    match (change.op, &change.item.title) {
        (Op::Delete, _) => "tombstone",
        (_, Some(_)) => "article",
        (_, None) => "note",
    }
}

/// Text as HTML that shows it.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
}

#[cfg(test)]
mod tests {
    use super::read::unescape;
    use super::*;
    use crate::item::ContentHash;
    use crate::item::{Content, Item};

    fn change(op: Op, item: Item) -> Change {
        let (seq, first_seq) = (7, 3);
        let created = Timestamp::from_second(100).unwrap();
        let modified = Timestamp::from_second(200).unwrap();
        let hash = ContentHash::default();
        Change {
            seq,
            op,
            modified,
            created,
            first_seq,
            previous: None,
            item,
            patch: None,
            entry_id: None,
            hash,
        }
    }

    fn write(op: Op, item: Item) -> Value {
        serde_json::to_value(Object { change: &change(op, item), cursor: Some("m7") }).unwrap()
    }

    /// JSON Activity Streams 1.0, section 3.4: the members of an object.
    #[test]
    fn an_item_is_an_object() {
        let item = Item {
            url: Some("http://example.com/a".into()),
            title: Some("A & B".into()),
            content: Some(Content::new("text/plain", "1 < 2 &lt;")),
            authors: vec![Author::named("Ann")],
            tags: vec!["t".into()],
            ..Item::new("a")
        };
        let value = write(Op::Put, item.clone());
        assert_eq!(value["objectType"], "article");
        assert_eq!(value["displayName"], "A & B");
        assert_eq!(value["content"], "1 &lt; 2 &amp;lt;");
        assert_eq!(value["author"], serde_json::json!({"objectType": "person", "displayName": "Ann"}));
        assert_eq!(value["tags"][0]["displayName"], "t");
        assert_eq!(
            (&value["published"], &value["updated"]),
            (&"1970-01-01T00:01:40Z".into(), &"1970-01-01T00:03:20Z".into())
        );
        let read = read_object(value).unwrap();
        assert_eq!((read.item, read.deleted, read.cursor.as_deref()), (item, false, Some("m7")));
        assert_eq!(read.modified, Timestamp::from_second(200).ok());
    }

    /// Section 2: an array without items MUST be left out.
    #[test]
    fn what_is_absent_is_left_out() {
        let value = write(Op::Put, Item::new("a"));
        let names: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["id", "objectType", "published", "towpath", "updated"]);
    }

    /// As Abstract: items are never truly deleted, but stripped of content and marked as deleted.
    #[test]
    fn a_deleted_item_is_marked() {
        let item = Item { published: Timestamp::from_second(5).ok(), ..Item::new("a") };
        let value = write(Op::Delete, item.clone());
        assert_eq!((&value["deleted"], &value["objectType"]), (&Value::Bool(true), &"tombstone".into()));
        let read = read_object(value).unwrap();
        assert!(read.deleted);
        assert_eq!(read.item, item);
    }

    #[test]
    fn bytes_that_are_no_text_come_back() {
        let content = Some(Content::new("image/png", vec![0x89, 0xff, 0]));
        let item = Item { content, ..Item::new("a") };
        assert_eq!(read_object(write(Op::Put, item.clone())).unwrap().item, item);
    }

    /// Section 3.2: the more extensive example, as any publisher may write it.
    #[test]
    fn an_activity_is_read_as_its_object() {
        let activity = serde_json::json!({
            "id": "act-1", "published": "2011-02-10T15:04:55Z", "foo": "some extension property",
            "title": "Martin posted a new video to his album.", "verb": "post", "generator": null,
            "actor": {"url": "http://example.org/martin", "objectType": "person", "displayName": "Martin Smith"},
            "object": {"url": "http://example.org/album/my_fluffy_cat.jpg", "objectType": "photo", "id": "tag:x"}
        });
        let read = read_object(activity).unwrap();
        assert_eq!(read.item.id, "act-1");
        assert_eq!(read.item.title.as_deref(), Some("Martin posted a new video to his album."));
        assert_eq!(read.item.url.as_deref(), Some("http://example.org/album/my_fluffy_cat.jpg"));
        assert_eq!(read.item.authors[0].name, "Martin Smith");
        assert_eq!(read.modified, read.item.published);
        let left = &read.item.extra["activity_streams"];
        assert_eq!(
            left,
            &serde_json::json!({"foo": "some extension property", "objectType": "photo", "verb": "post"})
        );
    }

    #[test]
    fn what_is_no_object_says_why() {
        let error = |text: &str| read_object(serde_json::from_str(text).unwrap()).unwrap_err();
        assert_eq!(error("[]"), "is not an object");
        assert_eq!(error("{}"), "has no id");
        assert_eq!(error(r#"{"id": null}"#), "has no id");
        assert!(error(r#"{"id": "a", "towpath": 1}"#).starts_with("towpath: "));
        assert!(error(r#"{"id": "a", "towpath": {"content_base64": "*"}}"#).starts_with("content_base64: "));
        // Members of another kind than expected are kept, not trusted.
        let odd = r#"{"id": 5, "url": 1, "published": "soon", "tags": [1, "t"], "author": "Ann"}"#;
        let item = read_object(serde_json::from_str(odd).unwrap()).unwrap().item;
        assert_eq!((item.id.as_str(), item.tags.len(), item.published), ("5", 1, None));
        assert_eq!(item.extra["activity_streams"], serde_json::json!({"url": 1}));
    }

    proptest::proptest! {
        #[test]
        fn escaping_comes_back(text in "[&<>a-z;]{0,20}|(&|&amp;|&lt;|lt;|gt;|amp;){0,6}") {
            proptest::prop_assert_eq!(unescape(&escape(&text)), text);
        }
    }
}
