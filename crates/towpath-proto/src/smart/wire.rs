//! What both ends of the protocol write and read: addresses of pages, and collections.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value};

use super::spec::Spec;
use crate::format::activity_streams::{ReadObject, read_object};

/// Content types ("HTTP Pull").
pub const JSON_TYPE: &str = "application/json; charset=utf-8";
/// See [`JSON_TYPE`].
pub const ATOM_TYPE: &str = "application/atom+xml; charset=utf-8";
/// See [`JSON_TYPE`].
pub const SCRIPT_TYPE: &str = "application/javascript; charset=utf-8";

/// All but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A feed's base URL: `base` with the parameters that are its own.
pub fn base_url(base: &str, base_query: &str) -> String {
    if base_query.is_empty() { base.to_owned() } else { format!("{base}?{base_query}") }
}

/// A base URL with one parameter more.
pub fn with_parameter(url: &str, name: &str, value: &str) -> String {
    let joint = match url.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    format!("{url}{joint}{name}={}", utf8_percent_encode(value, ENCODED))
}

/// A base URL with `since`.
pub fn with_since(url: &str, since: &Spec) -> String {
    with_parameter(url, "since", &since.to_string())
}

/// The same feed in the opposite order.
pub(super) fn backwards(url: &str) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let turn = |pair: &str| match pair.strip_prefix("order=") {
        Some(order) => {
            format!("order={}", order.strip_prefix('-').map_or(format!("-{order}"), str::to_owned))
        }
        None => pair.to_owned(),
    };
    let pairs: Vec<String> = query.split('&').map(turn).collect();
    format!("{base}?{}", pairs.join("&"))
}

/// A page as it was read, whichever format it came in.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Collection {
    /// The items in the order of the page.
    pub items: Vec<ReadObject>,
    /// Extension field `last_cursor`, `fo:last_cursor`.
    pub last_cursor: Option<String>,
    /// Of what was pushed: `prev_cursor`, `fo:prev_cursor`.
    pub prev_cursor: Option<String>,
    /// `totalItems`, `fo:total`.
    pub total: Option<u64>,
    /// `count`; only in JSON.
    pub count: Option<u64>,
    /// `url`, rel=self.
    pub url: Option<String>,
    /// `next`, rel=next.
    pub next: Option<String>,
    /// What could not be read and was left out; each says where.
    pub problems: Vec<String>,
}

/// Why a body is not a collection. The publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CollectionError {
    /// Not JSON at all, or cut off.
    #[error("not JSON: {0}")]
    Json(String),
    /// JSON, and no collection.
    #[error("not an ActivityStreams collection: {0}")]
    Form(&'static str),
    /// One of its items.
    #[error("item {index} {reason}")]
    Item {
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Not an Atom document, or cut off.
    #[error("not Atom: {0}")]
    Atom(String),
}

impl Collection {
    /// Reads an ActivityStreams collection. Absent `items` are none (JSON Activity Streams 1.0, section 2).
    pub fn from_json(body: &[u8]) -> Result<Self, CollectionError> {
        let value: Value = serde_json::from_slice(body).map_err(|e| CollectionError::Json(e.to_string()))?;
        let Value::Object(mut members) = value else { return Err(CollectionError::Form("not an object")) };
        let items = match members.remove("items") {
            None | Some(Value::Null) if members.contains_key("url") => Vec::new(),
            None | Some(Value::Null) => return Err(CollectionError::Form("neither items nor url")),
            Some(Value::Array(items)) => items,
            Some(_) => return Err(CollectionError::Form("items is not an array")),
        };
        let number = |name: &str| members.get(name).and_then(Value::as_u64);
        Ok(Self {
            last_cursor: text(&members, "last_cursor"),
            prev_cursor: text(&members, "prev_cursor"),
            total: number("totalItems"),
            count: number("count"),
            url: text(&members, "url"),
            next: text(&members, "next"),
            items: read_items(items)?,
            problems: Vec::new(),
        })
    }
}

fn read_items(items: Vec<Value>) -> Result<Vec<ReadObject>, CollectionError> {
    let read = |(index, value)| read_object(value).map_err(|reason| CollectionError::Item { index, reason });
    items.into_iter().enumerate().map(read).collect()
}

/// Text, or a number as text.
fn text(members: &Map<String, Value>, name: &str) -> Option<String> {
    match members.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HTTP Pull: the example request and the example `next`.
    #[test]
    fn addresses_as_in_the_text() {
        let base = "http://example.com/articles/1/comments/?order=created";
        let next = with_since(base, &Spec::Cursor("8f4a1546".into()));
        let next = with_parameter(&next, "max", "50");
        assert_eq!(
            next,
            "http://example.com/articles/1/comments/?order=created&since=cursor%3A8f4a1546&max=50"
        );
        assert_eq!(with_parameter("http://a/b", "max", "1"), "http://a/b?max=1");
        assert_eq!(with_parameter("http://a/b?", "c", "é&=~"), "http://a/b?c=%C3%A9%26%3D~");
    }

    /// HTTP Pull: the example answer.
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
    fn what_is_no_collection_says_where() {
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
        fn any_body_is_read_or_refused(body in "[ -~]{0,40}|\\{\"items\": \\[[\\[\\]{}\":,a-z0-9]{0,40}\\]\\}") {
            let _ = Collection::from_json(body.as_bytes());
        }
    }
}
