//! A page as the client reads it: an ActivityStreams collection or an Atom document.

use serde_json::{Map, Value};

use crate::format::FormatError;
use crate::format::activity_streams::{ReadObject, read_object};
use crate::format::budget::Budget;
use crate::format::json::Base;
use crate::format::json_list::{ListDocument, ListMember, ListReader, read_list};
use crate::format::limits::DocumentLimits;

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
    /// Parts that could not be read and were skipped; each names its location.
    pub problems: Vec<String>,
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
        let mut reader = ObjectReader { base: Base::new(None, budget), items: Vec::new(), failed: None };
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
        let number = |name: &str| members.get(name).and_then(Value::as_u64);
        Ok(Self {
            last_cursor: text(&members, "last_cursor"),
            prev_cursor: text(&members, "prev_cursor"),
            total: number("totalItems"),
            count: number("count"),
            url: text(&members, "url"),
            next: text(&members, "next"),
            items: reader.items,
            problems: Vec::new(),
        })
    }
}

/// Reader of a collection's items.
struct ObjectReader {
    base: Base,
    items: Vec<ReadObject>,
    failed: Option<CollectionError>,
}

impl ListReader for ObjectReader {
    fn base(&mut self) -> &mut Base {
        &mut self.base
    }

    fn read_item(&mut self, index: usize, item: Value) -> Result<(), FormatError> {
        // One malformed item fails the page: the cursor would move past a skipped one.
        let read = read_object(item).map_err(|reason| {
            self.failed.get_or_insert(CollectionError::Item { index, reason: reason.clone() });
            FormatError::Unknown(reason)
        })?;
        self.base.budget.item(&read.item)?;
        self.items.push(read);
        Ok(())
    }

    fn restart(&mut self) {
        self.items.clear();
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
        assert_eq!(error(r#"{"items": [{"id": "a"}, 5]}"#), "item 1 is not an object");
        assert!(error(&"[".repeat(100_000)).contains("recursion"));
        let empty = Collection::from_json(br#"{"items": null, "url": "u"}"#).unwrap();
        assert_eq!((empty.items.len(), empty.url.as_deref()), (0, Some("u")));
    }

    proptest::proptest! {
        #[test]
        fn any_body_is_parsed_or_rejected(body in "[ -~]{0,40}|\\{\"items\": \\[[\\[\\]{}\":,a-z0-9]{0,40}\\]\\}") {
            let _ = Collection::from_json(body.as_bytes());
        }
    }
}
