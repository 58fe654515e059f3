//! Snapshots: the index and the pages, for both ends.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ReplicationError;
use super::entity;
use super::pages::PageLimits;
use super::publish::{Page, PageBuilder};
use crate::change::{Change, Op};

/// The index of a snapshot ("Snapshot Index Format").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotIndex {
    /// Names the snapshot.
    pub id: String,
    /// When it was begun: taken before the first item was read, and cut to the second when written, so that
    /// a feed entered at this time lacks nothing.
    pub created_at: Timestamp,
    /// The addresses of its pages, absolute.
    pub pages: Vec<String>,
    /// The address of the feed that goes on from the snapshot: a property of our own, which the text allows.
    pub feed: Option<String>,
    /// Where the feed goes on, as properties of our own.
    pub goes_on: Option<GoesOn>,
}

/// Where a feed goes on after a snapshot. The time alone cannot prove that nothing is missing where the oldest page
/// that is left begins at that time, or where there was nothing before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoesOn {
    /// `page`: the address of the page on which the last change stands that the snapshot has; of an empty feed,
    /// that of the first page.
    pub page: String,
    /// `after`: the Content-ID of that change; `null` where the feed was empty.
    pub after: Option<String>,
}

impl SnapshotIndex {
    /// The index as JSON, to be sent as `application/json`.
    pub fn to_json(&self) -> String {
        let mut index = Map::new();
        index.insert("id".into(), self.id.clone().into());
        index.insert("createdAt".into(), floor_to_second(self.created_at).to_string().into());
        index.insert("pages".into(), self.pages.clone().into());
        if let Some(feed) = &self.feed {
            index.insert("feed".into(), feed.clone().into());
        }
        if let Some(GoesOn { page, after }) = &self.goes_on {
            index.insert("page".into(), page.clone().into());
            index.insert("after".into(), after.clone().into());
        }
        Value::Object(index).to_string()
    }

    /// Reads an index. Fails, naming the property, where one is missing or of another type.
    pub fn parse(json: &[u8]) -> Result<Self, ReplicationError> {
        let error = |reason: String| ReplicationError::Index(reason);
        let value: Value = serde_json::from_slice(json).map_err(|e| error(e.to_string()))?;
        let property = |name: &str| {
            let missing = || error(format!("provided json is missing a property: '{name}'"));
            value.get(name).filter(|v| !v.is_null()).ok_or_else(missing)
        };
        let text = |name: &str| {
            let text = property(name)?.as_str();
            text.ok_or_else(|| error(format!("property '{name}' is not a text")))
        };
        let created_at = text("createdAt")?;
        let created_at = created_at
            .parse()
            .map_err(|_| error(format!("property 'createdAt' is not a date and time: {created_at:?}")))?;
        let pages = property("pages")?.as_array();
        let pages = pages.ok_or_else(|| error("property 'pages' is not a list".into()))?;
        let page = |(index, page): (usize, &Value)| {
            let page = page.as_str().map(str::to_owned);
            page.ok_or_else(|| error(format!("page {index} is not a text")))
        };
        let id = text("id")?.to_owned();
        let pages = pages.iter().enumerate().map(page).collect::<Result<_, _>>()?;
        let feed = value.get("feed").and_then(Value::as_str).map(str::to_owned);
        // Others may have properties of these names, with other types.
        let goes_on = value.get("after").and_then(|_| GoesOn::deserialize(&value).ok());
        Ok(Self { id, created_at, pages, feed, goes_on })
    }
}

/// A time without its fraction of a second, as Last-Modified headers have it.
pub fn floor_to_second(time: Timestamp) -> Timestamp {
    let seconds = time.as_nanosecond().div_euclid(1_000_000_000);
    i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok()).unwrap_or(time)
}

/// Writes the pages of a snapshot: items in, pages out, one page at a time in memory.
#[derive(Debug)]
pub struct SnapshotWriter {
    id: String,
    limits: PageLimits,
    number: u64,
    bytes: u64,
    page: PageBuilder,
}

impl SnapshotWriter {
    /// A writer for the snapshot of this id. Take the time for `createdAt` before reading the first item.
    pub fn new(id: &str, limits: PageLimits) -> Self {
        Self { id: id.to_owned(), limits, number: 0, bytes: 0, page: PageBuilder::new(&format!("{id}/0")) }
    }

    /// Adds the latest version of an item. Deleted items are left out: a snapshot shows live items only.
    /// Returns the page that became full before it.
    pub fn push(&mut self, change: &Change) -> Option<Page> {
        if change.op == Op::Delete {
            return None;
        }
        let entity = entity::snapshot_entity(change);
        let size = entity.body.len() as u64;
        let is_full = self.bytes + size > self.limits.bytes || self.page.len() as u64 >= self.limits.entities;
        let full = if is_full && !self.page.is_empty() { self.turn() } else { None };
        self.bytes += size;
        self.page.push(entity, change.modified);
        full
    }

    /// The last page. `None` for a snapshot without items, which has an index with `pages: []`.
    pub fn finish(mut self) -> Option<Page> {
        self.turn()
    }

    fn turn(&mut self) -> Option<Page> {
        self.number += 1;
        self.bytes = 0;
        let next = PageBuilder::new(&format!("{}/{}", self.id, self.number));
        std::mem::replace(&mut self.page, next).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Content, ContentHash, Item};

    #[test]
    fn case_j_the_index_is_written_without_fractions() {
        let index = SnapshotIndex {
            id: "12345678".into(),
            created_at: "2023-09-29T20:52:17.999Z".parse().unwrap(),
            pages: vec!["https://e.com/1".into()],
            feed: None,
            goes_on: None,
        };
        let json: Value = serde_json::from_str(&index.to_json()).unwrap();
        let expected = serde_json::json!(
            {"id": "12345678", "createdAt": "2023-09-29T20:52:17Z", "pages": ["https://e.com/1"]}
        );
        assert_eq!(json, expected);
        let read = SnapshotIndex::parse(index.to_json().as_bytes()).unwrap();
        assert_eq!(read.created_at, "2023-09-29T20:52:17Z".parse().unwrap());
    }

    #[test]
    fn case_i_and_j_the_index_is_read() {
        let text = include_bytes!("../../tests/data/replication/index.json");
        let index = SnapshotIndex::parse(text).unwrap();
        assert_eq!((index.id.as_str(), index.pages.len()), ("example", 3));
        assert_eq!(index.created_at, "2023-10-07T15:00:00Z".parse().unwrap());
        for (bad, message) in [
            ("{\"key\":4", "EOF"),
            (r#"{"createdAt":"2023-10-07T15:00:00Z","pages":[]}"#, "missing a property: 'id'"),
            (r#"{"id":"a","pages":[]}"#, "provided json is missing a property: 'createdAt'"),
            (r#"{"id":"a","createdAt":"2023-10-07T15:00:00Z"}"#, "missing a property: 'pages'"),
            (r#"{"id":"a","createdAt":"2023-10-07T15:00:00Z","pages":"no array"}"#, "'pages'"),
            (r#"{"id":"a","createdAt":"2023-99-07T15:00:00Z","pages":[]}"#, "'createdAt'"),
            (r#"{"id":"a","createdAt":"2023-10-07T15:00:00Z","pages":[1]}"#, "page 0"),
            (r#"{"id":7,"createdAt":"2023-10-07T15:00:00Z","pages":[]}"#, "'id'"),
        ] {
            let error = SnapshotIndex::parse(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(message), "{bad}: {error}");
        }
    }

    #[test]
    fn additional_properties_say_where_the_feed_goes_on() {
        let index = |more: &str| {
            let json = format!(r#"{{"id":"a","createdAt":"2023-10-07T15:00:00Z","pages":[]{more}}}"#);
            SnapshotIndex::parse(json.as_bytes()).unwrap()
        };
        for after in [None, Some("<7@news>".to_owned())] {
            let goes_on = Some(GoesOn { page: "https://e.com/1".into(), after });
            let written = SnapshotIndex { goes_on, ..index("") };
            assert_eq!(SnapshotIndex::parse(written.to_json().as_bytes()), Ok(written));
        }
        for other in
            ["", r#","page":"x""#, r#","after":null"#, r#","page":1,"after":"x""#, r#","page":"x","after":2"#]
        {
            assert_eq!(index(other).goes_on, None, "{other}");
        }
    }

    fn pages(words: &[&str], bytes: u64, entities: u64) -> Vec<usize> {
        let mut writer = SnapshotWriter::new("s", PageLimits { bytes, entities });
        let time = Timestamp::UNIX_EPOCH;
        let change = |(seq, word): (usize, &&str)| Change {
            seq: seq as u64 + 1,
            op: if *word == "-" { Op::Delete } else { Op::Put },
            modified: time,
            created: time,
            first_seq: 1,
            previous: None,
            item: Item { content: Some(Content::new("text/plain", (*word).to_owned())), ..Item::new(*word) },
            patch: None,
            entry_id: None,
            hash: ContentHash::default(),
        };
        let mut pages: Vec<Page> = words.iter().enumerate().filter_map(|w| writer.push(&change(w))).collect();
        pages.extend(writer.finish());
        let count = |page: &Page| String::from_utf8_lossy(&page.body).matches("Content-Type").count();
        pages.iter().map(count).collect()
    }

    #[test]
    fn case_k_pages_of_a_snapshot() {
        let hello = ["Hello", "World", "I", "am", "a", "Snapshot"];
        assert_eq!(pages(&[], 5, 5), [0; 0]);
        assert_eq!(pages(&["Hello"], 1, 5), [1]);
        assert_eq!(pages(&hello, 5, 100), [1, 1, 3, 1]);
        assert_eq!(pages(&hello, 1000, 2), [2, 2, 2]);
        assert_eq!(pages(&["Hello World!", "Test", "of", "a", "Snapshot"], 10, 3), [1, 3, 1]);
        assert_eq!(pages(&["Hello", "-", "World"], 1000, 2), [2], "live items only");
    }
}
