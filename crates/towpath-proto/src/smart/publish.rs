//! From a page to an HTTP response ("HTTP Pull").

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LINK, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

use super::accept::PageFormat;
use super::pull::{FeedSettings, Page, PullError};
use super::query::{FORMAT, PullQuery, QueryError};
use super::spec::Spec;
use super::wire::{ATOM_TYPE, JSON_TYPE, SCRIPT_TYPE, base_url, with_parameter, with_since};
use crate::change::Change;
use crate::format::activity_streams::Object;

/// The addresses that a page names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageLinks {
    /// The feed's base URL: without the parameters of the range.
    pub base: String,
    /// The next page, where there is more right now.
    pub next: Option<String>,
}

impl PageLinks {
    /// The addresses of a page that answers `query`.
    pub fn new(feed: &FeedSettings, query: &PullQuery, page: &Page) -> Self {
        let base = base_url(&feed.base, &query.base_query);
        let last = page.last_cursor.as_ref().filter(|_| page.more);
        let next = last.map(|cursor| {
            let mut next = with_since(&base, &Spec::Cursor(cursor.clone()));
            if let Some(until) = &query.until {
                next = with_parameter(&next, "until", &until.to_string());
            }
            match query.asked_max {
                Some(max) => with_parameter(&next, "max", &max.to_string()),
                None => next,
            }
        });
        Self { base, next }
    }
}

/// An ActivityStreams collection. `items` is there even if it is empty (JSON Activity Streams 1.0, section 4:
/// a stream MUST include it).
#[derive(Serialize)]
struct CollectionForm<'a> {
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
    items: Items<'a>,
}

struct Items<'a> {
    feed: &'a FeedSettings,
    query: &'a PullQuery,
    changes: &'a [Change],
}

impl Serialize for Items<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let by = self.query.order.by;
        let mut list = serializer.serialize_seq(Some(self.changes.len()))?;
        for change in self.changes {
            let cursor = self.feed.tag.cursor(by, by.position(change));
            list.serialize_element(&Object { change, cursor: Some(&cursor) })?;
        }
        list.end()
    }
}

/// A page as an ActivityStreams collection.
pub fn json(feed: &FeedSettings, query: &PullQuery, page: &Page) -> Vec<u8> {
    json_with(feed, query, page, &PageLinks::new(feed, query, page), None)
}

fn json_with(
    feed: &FeedSettings,
    query: &PullQuery,
    page: &Page,
    links: &PageLinks,
    prev_cursor: Option<&str>,
) -> Vec<u8> {
    let form = CollectionForm {
        count: page.changes.len(),
        total_items: page.total,
        url: &links.base,
        prev_cursor,
        last_cursor: page.last_cursor.as_deref(),
        next: links.next.as_deref(),
        items: Items { feed, query, changes: &page.changes },
    };
    to_json(&form)
}

/// A page as it is pushed ("HTTP Push"): the same document without a next page, with the cursor of the last item
/// before the feed's update. Returns the body and its type.
pub fn push(
    feed: &FeedSettings,
    query: &PullQuery,
    page: &Page,
    prev_cursor: Option<&str>,
    format: PageFormat,
) -> (Vec<u8>, &'static str) {
    let links = PageLinks { base: base_url(&feed.base, &query.base_query), next: None };
    match format {
        PageFormat::Json => (json_with(feed, query, page, &links, prev_cursor), JSON_TYPE),
        PageFormat::Atom => (super::atom::write_with(feed, query, page, &links, prev_cursor), ATOM_TYPE),
    }
}

/// The `Link` header of a feed that can be subscribed to (WebSub 4): where, and what for. A topic has one
/// representation (WebSub 4.1): what was negotiated has an address of its own.
pub fn topic_links(feed: &FeedSettings, query: &PullQuery, format: PageFormat) -> Option<HeaderValue> {
    let hub = feed.hub.as_ref()?;
    let mut topic = base_url(&feed.base, &query.base_query);
    if query.format().unwrap_or(PageFormat::Json) != format {
        topic = with_parameter(&topic, FORMAT, format.name());
    }
    HeaderValue::from_str(&format!("<{hub}>; rel=\"hub\", <{topic}>; rel=\"self\"")).ok()
}

/// Serialises what cannot fail: no map with keys other than text, and a writer that takes everything.
fn to_json(form: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 << 10);
    let written = serde_json::to_writer(&mut out, form);
    debug_assert!(written.is_ok());
    out
}

/// The response that carries a page, in the format that was chosen by [`super::accept::negotiate`].
pub fn respond(feed: &FeedSettings, query: &PullQuery, page: &Page, format: PageFormat) -> Response<Bytes> {
    let (body, content_type) = match format {
        PageFormat::Json => (json(feed, query, page), JSON_TYPE),
        PageFormat::Atom => (super::atom::write(feed, query, page), ATOM_TYPE),
    };
    let mut answer = match (&query.callback, format) {
        (None, _) => response(StatusCode::OK, content_type, body),
        (Some(callback), PageFormat::Json) => response(StatusCode::OK, SCRIPT_TYPE, callback.wrap(&body)),
        (Some(callback), PageFormat::Atom) => {
            let text = to_json(&String::from_utf8_lossy(&body));
            response(StatusCode::OK, SCRIPT_TYPE, callback.wrap(&text))
        }
    };
    answer.headers_mut().extend(topic_links(feed, query, format).map(|links| (LINK, links)));
    answer
}

fn response(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers: [(HeaderName, &'static str); 4] = [
        (CONTENT_TYPE, content_type),
        (VARY, "Accept"),
        (CACHE_CONTROL, "no-cache"),
        // A script that was asked for with a hostile name must not be taken for anything else.
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A problem document (RFC 9457).
#[derive(Serialize)]
struct Problem<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'a str>,
}

fn problem(status: StatusCode, detail: &str, parameter: Option<&str>) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = to_json(&Problem { title, status: status.as_u16(), detail, parameter });
    response(status, "application/problem+json", body)
}

/// The answer to a query that cannot be answered: 400 with the parameter's name.
pub fn refuse(error: &QueryError) -> Response<Bytes> {
    problem(StatusCode::BAD_REQUEST, &error.to_string(), Some(error.parameter()))
}

/// The answer to a pull that failed.
pub fn fail(error: &PullError) -> Response<Bytes> {
    match error {
        PullError::Query(error) => refuse(error),
        PullError::UnknownId(_) => problem(StatusCode::NOT_FOUND, &error.to_string(), None),
        PullError::Answer => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), None),
    }
}

/// The answer where the client accepts neither format: 406.
pub fn not_acceptable() -> Response<Bytes> {
    let detail = "this feed is there as application/json and as application/atom+xml";
    problem(StatusCode::NOT_ACCEPTABLE, detail, None)
}
