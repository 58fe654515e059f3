//! The index of a snapshot.

use crate::follow::ResponseHead;
use crate::format::DocumentLimits;
use crate::format::budget::Budget;
use crate::format::json_value::read_value;
use crate::format::media_type::essence;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::ReplicationError;

/// The index of a snapshot ("Snapshot Index Format").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotIndex {
    /// Id of the snapshot.
    pub id: String,
    /// Start of the snapshot, taken before the first item was read.
    ///
    /// Written in whole seconds, so a feed followed from this time on misses nothing.
    pub created_at: Timestamp,
    /// Absolute URLs of the pages.
    pub pages: Vec<String>,
    /// URL of the feed that continues from the snapshot. Our own property, which the text allows.
    pub feed: Option<String>,
    /// Position at which the feed continues, as our own properties.
    pub continuation: Option<Continuation>,
}

/// Position in the feed at which it continues after a snapshot.
///
/// The time alone cannot prove completeness: the oldest listed page may begin at that very second, or the feed
/// may have been empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continuation {
    /// `page`: URL of the page with the last change that the snapshot covers; the first page of an empty feed.
    pub page: String,
    /// `after`: Content-ID of that change; `null` if the feed was empty.
    pub after: Option<String>,
}

impl SnapshotIndex {
    /// Returns the index as JSON. Send it as `application/json`.
    pub fn to_json(&self) -> String {
        let mut index = Map::new();
        index.insert("id".into(), self.id.clone().into());
        // Whole seconds, because Last-Modified has no fractions: a consumer compares both.
        index.insert("createdAt".into(), floor_to_second(self.created_at).to_string().into());
        index.insert("pages".into(), self.pages.clone().into());
        if let Some(feed) = &self.feed {
            index.insert("feed".into(), feed.clone().into());
        }
        if let Some(Continuation { page, after }) = &self.continuation {
            index.insert("page".into(), page.clone().into());
            index.insert("after".into(), after.clone().into());
        }
        Value::Object(index).to_string()
    }

    /// Parses an index. Fails with the name of a missing or mistyped property.
    pub fn parse(json: &[u8]) -> Result<Self, ReplicationError> {
        let error = |reason: String| ReplicationError::Index(reason);
        let text = std::str::from_utf8(json).map_err(|e| error(e.to_string()))?;
        // Other JSON in its place could take a hundred times its size.
        let mut budget = Budget::new(text.len(), DocumentLimits::default());
        let value = read_value(text, &mut budget).map_err(|e| error(e.to_string()))?;
        // The wording is that of the public test cases.
        let property = |name: &str| {
            let missing = || error(format!("provided json is missing a property: '{name}'"));
            value.get(name).filter(|v| !v.is_null()).ok_or_else(missing)
        };
        let text = |name: &str| {
            let text = property(name)?.as_str();
            text.ok_or_else(|| error(format!("property '{name}' is not a string")))
        };
        let created_at = text("createdAt")?;
        let created_at = created_at
            .parse()
            .map_err(|_| error(format!("property 'createdAt' is not a date and time: {created_at:?}")))?;
        let pages = property("pages")?.as_array();
        let pages = pages.ok_or_else(|| error("property 'pages' is not a list".into()))?;
        let page = |(index, page): (usize, &Value)| {
            let page = page.as_str().map(str::to_owned);
            page.ok_or_else(|| error(format!("page {index} is not a string")))
        };
        let id = text("id")?.to_owned();
        let pages = pages.iter().enumerate().map(page).collect::<Result<_, _>>()?;
        let feed = value.get("feed").and_then(Value::as_str).map(str::to_owned);
        // Other publishers may use these names for properties of other types: not an error.
        let continuation = value.get("after").and_then(|_| Continuation::deserialize(&value).ok());
        Ok(Self { id, created_at, pages, feed, continuation })
    }
}

/// Truncates a time to whole seconds, the resolution of Last-Modified headers.
pub fn floor_to_second(time: Timestamp) -> Timestamp {
    // Rounds down before 1970 too.
    let seconds = time.as_nanosecond().div_euclid(1_000_000_000);
    i64::try_from(seconds).ok().and_then(|s| Timestamp::from_second(s).ok()).unwrap_or(time)
}

/// Returns true if a response is of the media type of an index.
pub(in crate::replication) fn says_json(head: &ResponseHead) -> bool {
    head.header("content-type").is_some_and(|value| essence(value).eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_j_the_index_is_written_without_fractions() {
        let index = SnapshotIndex {
            id: "12345678".into(),
            created_at: "2023-09-29T20:52:17.999Z".parse().unwrap(),
            pages: vec!["https://e.com/1".into()],
            feed: None,
            continuation: None,
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
        let text = include_bytes!("../../../tests/data/replication/index.json");
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
    fn additional_properties_state_where_the_feed_continues() {
        let index = |more: &str| {
            let json = format!(r#"{{"id":"a","createdAt":"2023-10-07T15:00:00Z","pages":[]{more}}}"#);
            SnapshotIndex::parse(json.as_bytes()).unwrap()
        };
        for after in [None, Some("<7@news>".to_owned())] {
            let continuation = Some(Continuation { page: "https://e.com/1".into(), after });
            let written = SnapshotIndex { continuation, ..index("") };
            assert_eq!(SnapshotIndex::parse(written.to_json().as_bytes()), Ok(written));
        }
        for other in
            ["", r#","page":"x""#, r#","after":null"#, r#","page":1,"after":"x""#, r#","page":"x","after":2"#]
        {
            assert_eq!(index(other).continuation, None, "{other}");
        }
    }
}
