use jiff::Timestamp;
use serde_json::Value;

use super::*;
use crate::change::{Change, Op};
use crate::item::Author;
use crate::item::ContentHash;
use crate::item::{Content, Item};

fn change(op: Op, item: Item) -> Change {
    let (seq, first_seq) = (7, 3);
    let created = Timestamp::from_second(100).unwrap();
    let modified = Timestamp::from_second(200).unwrap();
    let hash = ContentHash::default();
    Change { seq, op, modified, created, first_seq, previous: None, item, patch: None, entry_id: None, hash }
}

fn write(op: Op, item: Item) -> Value {
    serde_json::to_value(ActivityObject { change: &change(op, item), cursor: Some("m7") }).unwrap()
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

/// Section 3.4: the content is "HTML markup", which XHTML is.
#[test]
fn xhtml_is_shown_as_html() {
    let xhtml = "<div xmlns=\"http://www.w3.org/1999/xhtml\">1 &lt; <b>2</b></div>";
    let content = Some(Content::new("application/xhtml+xml", xhtml));
    let item = Item { content, ..Item::new("a") };
    let value = write(Op::Put, item.clone());
    assert_eq!(value["content"], xhtml);
    assert_eq!(value["towpath"]["content_type"], "application/xhtml+xml");
    assert_eq!(read_object(value).unwrap().item, item);
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

/// Section 3.2: the verb "Identifies the action that the activity describes", here the deletion of its object.
#[test]
fn an_activity_about_a_deletion_is_not_deleted() {
    let object = serde_json::json!({"objectType": "photo", "displayName": "My cat"});
    let is_deleted = |members: Value| {
        let mut value = serde_json::json!({"id": "act-1"});
        value.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        read_object(value).unwrap().deleted
    };
    assert!(!is_deleted(serde_json::json!({"verb": "delete", "object": object})));
    assert!(is_deleted(serde_json::json!({"verb": "delete", "object": object, "deleted": true})));
    for deleted in [
        serde_json::json!({"verb": "delete"}),
        serde_json::json!({"verb": "delete", "object": null}),
        serde_json::json!({"deleted": "true"}),
        serde_json::json!({"deleted": "2020-01-01T00:00:00Z"}),
        serde_json::json!({"objectType": "tombstone"}),
    ] {
        assert!(is_deleted(deleted.clone()), "{deleted}");
    }
    for kept in [serde_json::json!("false"), serde_json::json!(""), serde_json::json!(false), Value::Null] {
        assert!(!is_deleted(serde_json::json!({"deleted": kept})), "{kept}");
    }
}

#[test]
fn what_is_no_object_says_why() {
    let error = |text: &str| read_object(serde_json::from_str(text).unwrap()).unwrap_err().to_string();
    assert_eq!(error("[]"), "is not an object");
    assert_eq!(error("{}"), "has no id");
    assert_eq!(error(r#"{"id": null}"#), "has no id");
    assert!(error(r#"{"id": "a", "towpath": 1}"#).starts_with("towpath: "));
    assert!(error(r#"{"id": "a", "towpath": {"content_base64": "*"}}"#).starts_with("content_base64: "));
    // Members of an unexpected type are stored, not interpreted.
    let odd = r#"{"id": 5, "url": 1, "published": "soon", "tags": [1, "t"], "author": "Ann"}"#;
    let item = read_object(serde_json::from_str(odd).unwrap()).unwrap().item;
    assert_eq!((item.id.as_str(), item.tags.len(), item.published), ("5", 1, None));
    assert_eq!(item.extra["activity_streams"], serde_json::json!({"url": 1}));
}
