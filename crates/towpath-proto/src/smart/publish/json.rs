//! Pages as ActivityStreams collections ("HTTP Pull").

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use super::links::PullPageLinks;
use super::page::PullPage;
use super::query::PullQuery;
use super::settings::FeedSettings;
use crate::format::activity_streams::ActivityObject;

/// An ActivityStreams collection. `items` is present even if it is empty (JSON Activity Streams 1.0, section 4:
/// a stream MUST include it).
#[derive(Serialize)]
struct CollectionBody<'a> {
    count: usize,
    #[serde(rename = "totalItems")]
    total_items: u64,
    url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_cursor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_cursor: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<&'a str>,
    items: CollectionItems<'a>,
}

struct CollectionItems<'a> {
    feed: &'a FeedSettings,
    query: &'a PullQuery,
    page: &'a PullPage,
}

// Items are serialised from the log's records as they are written, so a page is never held twice in memory.
impl Serialize for CollectionItems<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let by = self.query.order.by;
        let mut list = serializer.serialize_seq(Some(self.page.changes.len()))?;
        for change in &self.page.changes {
            let cursor = self.page.cursor(&self.feed.tag, by, change);
            list.serialize_element(&ActivityObject { change, cursor: Some(&cursor) })?;
        }
        list.end()
    }
}

/// Writes a page as an ActivityStreams collection.
pub fn json(feed: &FeedSettings, query: &PullQuery, page: &PullPage) -> Vec<u8> {
    json_with(feed, query, page, &PullPageLinks::new(feed, query, page), None)
}

pub(super) fn json_with(
    feed: &FeedSettings,
    query: &PullQuery,
    page: &PullPage,
    links: &PullPageLinks,
    prev_cursor: Option<&str>,
) -> Vec<u8> {
    let body = CollectionBody {
        count: page.changes.len(),
        total_items: page.total,
        url: &links.base,
        prev_cursor,
        last_cursor: page.last_cursor.as_deref(),
        next: links.next.as_deref(),
        items: CollectionItems { feed, query, page },
    };
    // Most pages fit, so the vector seldom grows and copies.
    let content = page.changes.iter().filter_map(|change| change.item.content.as_ref());
    let content: usize = content.map(|content| content.bytes.len()).sum();
    write_json(&body, HEAD_BYTES + page.changes.len() * ITEM_BYTES + content + content / 16)
}

/// Usual bytes of a page without its items.
const HEAD_BYTES: usize = 512;
/// Usual bytes of an item without its content.
const ITEM_BYTES: usize = 400;

/// Serialises a value that cannot fail: all its keys are strings, and the writer is a vector.
pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    write_json(value, 1024)
}

fn write_json(value: &impl Serialize, capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    let written = serde_json::to_writer(&mut out, value);
    debug_assert!(written.is_ok());
    out
}
