//! `GET /feeds/{feed}/items`: a page of the feed for the request's query, or a long poll while there is none.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, ETAG};
use http::{HeaderMap, HeaderValue, Method, Request};
use tokio::time::Instant;
use towpath_proto::change::Seq;
use towpath_proto::smart::accept::{PageFormat, negotiate, negotiate_script};
use towpath_proto::smart::publish;
use towpath_proto::smart::pull::{FeedSettings, PullPage};
use towpath_proto::smart::query::PullQuery;

use crate::document::prebuilt::{Document, Negotiated, Valid};
use crate::document::route_error::RouteError;
use crate::engine::access::{Access, reader_digest};
use crate::engine::read_link::link_expiry;
use crate::engine::{Engine, Feed};
use crate::protocols::smart::pull::{BuildResponse, PullRequest, PullResult};
use crate::protocols::smart::shared_poll::{PullWaiter, SharedFormat, SharedResponse};
use crate::protocols::smart::state::settings;

/// Answer to a pull request: a page, or a place in the wait registry.
pub(crate) enum ItemsResponse {
    Document(Arc<Document>),
    Waiting(WaitingPull),
}

/// A pull request that waits for its feed's log to grow.
pub(crate) struct WaitingPull {
    /// Its place in the wait registry.
    pub(crate) waiter: PullWaiter,
    /// Head of the log when the request was run.
    pub(crate) after: Seq,
    /// Time at which the request is answered in any case.
    pub(crate) deadline: Instant,
    /// Format of the response.
    pub(crate) format: PageFormat,
    /// The request.
    pub(crate) request: Arc<PullRequest>,
}

/// Answers a pull request, or has it wait.
pub(crate) async fn items<B>(
    engine: &Arc<Engine>,
    feed: Arc<Feed>,
    access: Access,
    request: &Request<B>,
) -> Result<ItemsResponse, RouteError> {
    let mut query =
        PullQuery::parse(request.uri().query().unwrap_or_default(), &settings(engine, &feed).limits)?;
    let format = match query.format() {
        Some(format) => format,
        None => negotiated_format(request.headers(), &query)?,
    };
    let is_first = query.can_grow() && !query.asks_to_wait();
    if request.method() == Method::HEAD || is_first {
        // A HEAD asks what is there now; to hold it would say nothing more.
        query.timeout = std::time::Duration::ZERO;
    }
    let key = document_key(request, format);
    // Pages of protected feeds are never cached: the cache does not know who asks.
    if feed.config.is_public()
        && let Some(document) = engine.documents.get(&key)
    {
        return Ok(ItemsResponse::Document(document));
    }
    // Read before the log: a page that an append overtakes meanwhile is then outdated from the start.
    let (head, seq) = (feed.head.clone(), feed.head.load(Ordering::Acquire));
    let (reader, expires) = (reader_digest(&feed, request), link_expiry(request));
    let mut request = PullRequest { engine: engine.clone(), feed, access, reader, expires, query };
    request.begin_with_last().await?;
    match request.run().await? {
        PullResult::Page(mut page) => {
            if is_first && page.changes.is_empty() {
                // The next request can wait with this. A client that asks again without one would ask without pause.
                let start = || request.settings().tag.cursor(request.query.order.by, 0);
                page.last_cursor.get_or_insert_with(start);
            }
            let (headers, body) = render(&request, request.settings(), &page, format);
            // Valid for this head only: an append may add to any page, also to totals.
            let document = Document::new(body, headers, Valid::At { head, seq });
            // A format in the query is the same for all clients, whatever they accept.
            let document = match request.query.format() {
                Some(_) => document,
                None => document.negotiated_by(accepts(format, &request.query)),
            };
            Ok(ItemsResponse::Document(engine.documents.put_answer(&key, document)))
        }
        PullResult::AtHead { after, query } => {
            let (shared_format, build) = shared(format);
            let waiter = request.join(*query, after, shared_format, build)?;
            let (deadline, request) = (request.deadline(), Arc::new(request));
            Ok(ItemsResponse::Waiting(WaitingPull { waiter, after, deadline, format, request }))
        }
    }
}

fn negotiated_format(headers: &HeaderMap, query: &PullQuery) -> Result<PageFormat, RouteError> {
    // Several header lines are one list (RFC 9110, section 5.3).
    let lines: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok()).collect();
    let accept = (!lines.is_empty()).then(|| lines.join(","));
    let negotiate = if query.callback.is_some() { negotiate_script } else { negotiate };
    negotiate(accept.as_deref()).ok_or_else(|| {
        RouteError::not_acceptable("this feed is there as application/json and as application/atom+xml")
    })
}

/// Key of a page in the document cache. JSON has the key that the fast path looks up, Atom another one. A HEAD request
/// has a key of its own: it never waits, but the same GET might have to.
fn document_key<B>(request: &Request<B>, format: PageFormat) -> String {
    let mut key = request.uri().path_and_query().map_or("", |address| address.as_str()).to_owned();
    match format {
        PageFormat::Json => {}
        PageFormat::Atom => key.push_str("#atom"),
        // The address has `as=line` already; a key of its own keeps these pages off the path of JSON.
        PageFormat::Lines => key.push_str("#line"),
    }
    if request.method() == Method::HEAD {
        key.push_str("#now");
    }
    key
}

fn accepts(format: PageFormat, query: &PullQuery) -> Negotiated {
    // A page with a callback is a script (JSON-P), which a browser asks for with another Accept.
    match (format, query.callback.is_some()) {
        // Function pointers without captures, so that a cached document needs no allocation for them.
        // Lines are not negotiated: the address says so.
        (PageFormat::Lines, _) => |_| true,
        (PageFormat::Json, false) => |accept| negotiate(accept) == Some(PageFormat::Json),
        (PageFormat::Json, true) => |accept| negotiate_script(accept) == Some(PageFormat::Json),
        (PageFormat::Atom, false) => |accept| negotiate(accept) == Some(PageFormat::Atom),
        (PageFormat::Atom, true) => |accept| negotiate_script(accept) == Some(PageFormat::Atom),
    }
}

/// Format of shared responses, and the function that builds them.
fn shared(format: PageFormat) -> (SharedFormat, BuildResponse) {
    match format {
        PageFormat::Json => {
            (SharedFormat::Json, |request, feed, page| build(request, feed, page, PageFormat::Json))
        }
        PageFormat::Atom => {
            (SharedFormat::Atom, |request, feed, page| build(request, feed, page, PageFormat::Atom))
        }
        PageFormat::Lines => {
            (SharedFormat::Lines, |request, feed, page| build(request, feed, page, PageFormat::Lines))
        }
    }
}

fn build(request: &PullRequest, feed: &FeedSettings, page: &PullPage, format: PageFormat) -> SharedResponse {
    let (mut headers, body) = render(request, feed, page, format);
    // Written to sockets as it is, past `route`, which adds these to other responses.
    request.engine.sup_links.add_to(request.feed.id(), &mut headers);
    request.engine.cors.load().add_to(&mut headers);
    let body = request.engine.response_memory.hold(body);
    SharedResponse { headers, body, error: None, cursor: page.last_cursor.clone(), http1: OnceLock::new() }
}

/// Renders a page: headers and body.
pub(crate) fn render(
    request: &PullRequest,
    feed: &FeedSettings,
    page: &PullPage,
    format: PageFormat,
) -> (HeaderMap, Bytes) {
    let (mut parts, body) = publish::respond(feed, &request.query, page, format).into_parts();
    // An ETag is compared with the same feed's only, so a checksum is enough: no attacker gains from a collision.
    let tag = format!("\"{:x}-{:08x}\"", body.len(), crc32fast::hash(&body));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        parts.headers.insert(ETAG, tag);
    }
    if !request.feed.config.is_public() {
        // Long polls do not pass `route::unshared` either.
        parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    }
    (parts.headers, body)
}
