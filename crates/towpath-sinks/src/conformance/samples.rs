//! Changes to send.

use towpath_client::SinkEvent;
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Author, Content, Item, Op};

/// Ids that break file names, statements, headers or terminals.
pub(super) const HOSTILE_IDS: [&str; 22] = [
    "../../etc/passwd",
    "..",
    ".",
    "/",
    "a/b",
    "A/b",
    "a",
    "A",
    "é",
    "É",
    "e\u{301}",
    "nul",
    "CON.txt",
    "a\0b",
    "\u{1b}[2J",
    "'; DROP TABLE items; --",
    "\"quoted\"",
    "100%",
    "%2e",
    "a~b",
    " ",
    "\u{202e}😀",
];

/// A whole item with a value in every field.
pub(super) fn item(id: &str, text: &str) -> Item {
    let time = |text: &str| text.parse().ok();
    let mut extra = serde_json::Map::new();
    extra.insert("json_feed".into(), serde_json::json!({ "image": "https://example.com/i.png", "n": 1.5 }));
    Item {
        id: id.into(),
        url: Some("https://example.com/?a=1&b='2'".into()),
        title: Some(format!("Title of {id:?}")),
        summary: Some("<b>summary</b>".into()),
        content: Some(Content::new("application/json", format!(r#"{{"text":{text:?}}}"#))),
        authors: vec![
            Author::named("Ann O'Neill"),
            Author { url: Some("https://b/".into()), ..Author::named("Bo") },
        ],
        tags: vec!["a".into(), "b \"c\"".into()],
        published: time("2024-02-29T12:00:00.5Z"),
        updated: time("2024-03-01T00:00:00Z"),
        extra,
    }
}

pub(super) fn followed(feed: &str, op: Op, item: Item, position: u64) -> Followed {
    let (feed, position) = (feed.into(), format!("p{position}"));
    let modified = "2024-03-02T03:04:05.000006Z".parse().ok();
    Followed { feed, op, item, patch: None, modified, position, entry_id: None }
}

pub(super) fn put(feed: &str, id: &str, text: &str, position: u64) -> SinkEvent {
    SinkEvent::Change(Box::new(followed(feed, Op::Put, item(id, text), position)))
}

pub(super) fn delete(feed: &str, id: &str, position: u64) -> SinkEvent {
    SinkEvent::Change(Box::new(followed(feed, Op::Delete, Item::new(id), position)))
}

/// A patch without its result, as a foreign publisher sends it.
pub(super) fn patch(feed: &str, id: &str, patch: &str, position: u64) -> SinkEvent {
    let patch = Some(Content::new("application/merge-patch+json", patch.to_owned()));
    SinkEvent::Change(Box::new(Followed { patch, ..followed(feed, Op::Patch, Item::new(id), position) }))
}

pub(super) fn reset(feed: &str) -> SinkEvent {
    SinkEvent::Reset(FeedReset { feed: feed.into(), reason: "its log is another one".into() })
}
