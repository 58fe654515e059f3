//! A page as the client reads it: an ActivityStreams collection or an Atom document.

use serde_json::{Map, Value};

use crate::format::FormatError;
use crate::format::activity_streams::{ObjectError, ReadObject, read_object};
use crate::format::budget::Budget;
use crate::format::json::Base;
use crate::format::json_list::{ListDocument, ListMember, ListReader, read_list};
use crate::format::limits::DocumentLimits;
use crate::format::problems::Problems;

/// A page as the client reads it, from either format.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Collection {
    /// The items in the order of the page.
    pub items: Vec<ReadObject>,
    /// Extension field `last_cursor`, `fo:last_cursor`.
    pub last_cursor: Option<String>,
    /// Extension field `prev_cursor`, `fo:prev_cursor`: only in pushed pages.
    pub prev_cursor: Option<String>,
    /// `totalItems`, `fo:total`.
    pub total: Option<u64>,
    /// `count`; only in JSON.
    pub count: Option<u64>,
    /// `url`, rel=self.
    pub url: Option<String>,
    /// `next`, rel=next.
    pub next: Option<String>,
    /// Parts that could not be read and were skipped; each names its location. Items come first.
    pub problems: Vec<String>,
    /// Number of items that were left out.
    pub left_out: usize,
}

/// Error of parsing a body as a collection. The publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectionError {
    /// The body is not JSON, or is truncated.
    #[error("not JSON: {0}")]
    Json(String),
    /// The body is JSON, but not a collection.
    #[error("not an ActivityStreams collection: {0}")]
    Form(&'static str),
    /// An item is malformed.
    #[error("item {index} {reason}")]
    Item {
        /// Index of the item, from 0.
        index: usize,
        /// Description of the problem.
        reason: String,
    },
    /// The body is not an Atom document, or is truncated.
    #[error("not Atom: {0}")]
    Atom(String),
}

impl Collection {
    /// Returns `true` if the page has no items, not even some that were left out.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.left_out == 0
    }

    /// Parses an ActivityStreams collection.
    ///
    /// Absent `items` mean an empty collection (JSON Activity Streams 1.0, section 2).
    pub fn from_json(body: &[u8]) -> Result<Self, CollectionError> {
        Self::from_json_within(body, DocumentLimits::default())
    }

    /// Parses an ActivityStreams collection as [`Self::from_json`] does, within limits.
    pub fn from_json_within(body: &[u8], limits: DocumentLimits) -> Result<Self, CollectionError> {
        let json = std::str::from_utf8(body).map_err(|e| CollectionError::Json(e.to_string()))?;
        let budget = Budget::new(body.len(), limits);
        let mut reader = ObjectReader::new(Base::new(None, budget));
        let read = read_list(json, &mut reader);
        if let Some(error) = reader.failed {
            return Err(error);
        }
        let ListDocument::Object { members, list } =
            read.map_err(|e| CollectionError::Json(e.to_string()))?
        else {
            return Err(CollectionError::Form("not an object"));
        };
        match list {
            ListMember::Array => {}
            // A stream without items may name only its `url`; without either it is some other JSON.
            ListMember::Absent | ListMember::Other(Value::Null) if members.contains_key("url") => {}
            ListMember::Absent | ListMember::Other(Value::Null) => {
                return Err(CollectionError::Form("neither items nor url"));
            }
            ListMember::Other(_) => return Err(CollectionError::Form("items is not an array")),
        }
        let (problems, counts) = reader.problems.into_parts();
        let number = |name: &str| members.get(name).and_then(Value::as_u64);
        Ok(Self {
            last_cursor: text(&members, "last_cursor"),
            prev_cursor: text(&members, "prev_cursor"),
            total: number("totalItems"),
            count: number("count"),
            url: text(&members, "url"),
            next: text(&members, "next"),
            items: reader.items,
            problems,
            left_out: counts.left_out,
        })
    }
}

/// Reader of a collection's items.
struct ObjectReader {
    base: Base,
    items: Vec<ReadObject>,
    problems: Problems,
    failed: Option<CollectionError>,
}

impl ObjectReader {
    fn new(base: Base) -> Self {
        Self { base, items: Vec::new(), problems: Problems::default(), failed: None }
    }
}

impl ListReader for ObjectReader {
    fn base(&mut self) -> &mut Base {
        &mut self.base
    }

    fn read_item(&mut self, index: usize, item: Value) -> Result<(), FormatError> {
        let read = match read_object(item) {
            Ok(read) => read,
            // No feed can hold it. A page that failed would be asked for again for ever.
            Err(reason @ (ObjectError::NotObject | ObjectError::NoId)) => {
                self.problems.leave_out(|| format!("item {} is left out: it {reason}", index + 1));
                return Ok(());
            }
            // A newer version may be able to read it, so the cursor must not move past it.
            Err(ObjectError::Member(reason)) => {
                self.failed.get_or_insert(CollectionError::Item { index, reason: reason.clone() });
                return Err(FormatError::Unknown(reason));
            }
        };
        self.base.budget.item(&read.item)?;
        self.items.push(read);
        Ok(())
    }

    fn restart(&mut self) {
        self.items.clear();
        self.problems = Problems::default();
    }
}

/// Returns a member that is a string, or a number as a string.
fn text(members: &Map<String, Value>, name: &str) -> Option<String> {
    // The text does not fix the type of a cursor, and some publishers send numbers.
    match members.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HTTP Pull: the example response.
    #[test]
    fn the_example_collection() {
        let body = br#"{"count": 50, "totalItems": 427, "last_cursor": "8f4a1546", "extra": [1],
            "url": "http://example.com/articles/1/comments/?order=created",
            "next": "http://example.com/articles/1/comments/?order=created&since=cursor%3A8f4a1546&max=50",
            "items": [{"id": "b204edf6-7a03-11e0-8617-837f7e2798e8"}]}"#;
        let page = Collection::from_json(body).unwrap();
        assert_eq!(
            (page.count, page.total, page.last_cursor.as_deref()),
            (Some(50), Some(427), Some("8f4a1546"))
        );
        assert_eq!(page.items[0].item.id, "b204edf6-7a03-11e0-8617-837f7e2798e8");
        assert!(page.next.unwrap().ends_with("max=50"));
    }

    #[test]
    fn malformed_collections_name_the_location() {
        let error = |body: &str| Collection::from_json(body.as_bytes()).unwrap_err().to_string();
        assert!(error("{\"items\": [").starts_with("not JSON"));
        assert!(error("[]").contains("not an object"));
        assert!(error("{}").contains("neither items nor url"));
        assert!(error(r#"{"items": {}}"#).contains("not an array"));
        let own = error(r#"{"items": [{"id": "a"}, {"id": "b", "towpath": 5}]}"#);
        assert!(own.starts_with("item 1 towpath: "), "{own}");
        assert!(error(&"[".repeat(100_000)).contains("recursion"));
        let empty = Collection::from_json(br#"{"items": null, "url": "u"}"#).unwrap();
        assert_eq!((empty.items.len(), empty.url.as_deref()), (0, Some("u")));
    }

    /// "All items have a unique id within a feed". The others are read.
    #[test]
    fn items_without_an_id_are_left_out() {
        let body =
            br#"{"items": [{"id": "a"}, 5, {"title": "t"}, {"id": null}, {"id": "b"}], "last_cursor": "c"}"#;
        let page = Collection::from_json(body).unwrap();
        assert_eq!(page.items.iter().map(|read| &read.item.id[..]).collect::<Vec<_>>(), ["a", "b"]);
        let problems = [
            "2 is left out: it is not an object",
            "3 is left out: it has no id",
            "4 is left out: it has no id",
        ];
        assert_eq!((page.problems, page.left_out), (problems.map(|text| format!("item {text}")).to_vec(), 3));
        let page = Collection::from_json(br#"{"items": [{}], "last_cursor": "c"}"#).unwrap();
        assert!(page.items.is_empty() && !page.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_body_is_parsed_or_rejected(body in "[ -~]{0,40}|\\{\"items\": \\[[\\[\\]{}\":,a-z0-9]{0,40}\\]\\}") {
            let _ = Collection::from_json(body.as_bytes());
        }
    }
}
