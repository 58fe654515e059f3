//! Every feed as Atom, RSS and JSON Feed: its newest document, and those of its past (Feed History, RFC 5005).
//!
//! Which changes stand in which document is said in [`towpath_proto::history::publish`]. Documents are made from the
//! log when somebody asks, and stay in memory as long as they are asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK};
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::format::{FeedLink, http_date, link};
use towpath_proto::history::publish::{FeedInfo, Place, Window};
use towpath_proto::history::wire::{SUP, Syntax};
use towpath_proto::replication::pages::{Cleanup, PageState};
use towpath_store::{Order, StoreError, Stretch};

use super::pages::paging::{Division, divided, number_at};
use super::pages::{READ, cleanup, stretch, table};
use super::{Engine, Feed, blocking};
use crate::server::document::{Document, Valid};

/// The largest complete feed, in bytes of its items' contents: it is in memory as a whole.
const MAX_COMPLETE: usize = 64 << 20;
/// The same in items.
const MAX_COMPLETE_ITEMS: u64 = 100_000;

/// Which document of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The newest.
    Newest,
    /// The archive document of a page, by the page's number.
    Page(u64),
    /// The newest as it once was, by its first and last change.
    Window(Seq, Seq),
}

/// What there is at a document's address.
pub enum Found {
    /// The document.
    Document(Arc<Document>),
    /// Nothing any more.
    Gone,
    /// Nothing.
    Nothing,
    /// A complete feed with more than one document can hold.
    TooLarge,
}

/// Finds a document of a feed that has a log of its own.
pub async fn document(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    syntax: Syntax,
    which: Which,
) -> Result<Found, StoreError> {
    let path = path(feed, syntax, which);
    if let Some(known) = engine.documents.get(&path) {
        return Ok(Found::Document(known));
    }
    // When a feed moves, everybody comes for it at once.
    let _alone = feed.pages.making.lock().await;
    if let Some(known) = engine.documents.get(&path) {
        return Ok(Found::Document(known));
    }
    let tidied = feed.pages.tidied.load(Ordering::Acquire);
    let made = match (feed.config.complete, which) {
        (true, Which::Newest) => complete(engine, feed, syntax).await?,
        (true, _) => Err(Found::Nothing),
        (false, _) => partial(engine, feed, syntax, which).await?,
    };
    Ok(match made {
        Ok(document) => {
            let document = engine.documents.put(&path, document);
            // Retention takes links away and then has documents forgotten: this one may have come in between.
            if feed.pages.tidied.load(Ordering::Acquire) != tidied {
                engine.documents.forget(&path);
            }
            Found::Document(document)
        }
        Err(found) => found,
    })
}

/// Forgets a page, and the newest document with it.
pub(super) fn forget(engine: &Engine, feed: &Feed, number: u64) {
    for syntax in Syntax::ALL {
        engine.documents.forget(&path(feed, syntax, Which::Page(number)));
        engine.documents.forget(&path(feed, syntax, Which::Newest));
    }
}

/// What was looked for, or why it is not there.
type Made<T> = Result<Result<T, Found>, StoreError>;

/// A document that shows a stretch of the log.
async fn partial(engine: &Arc<Engine>, feed: &Arc<Feed>, syntax: Syntax, which: Which) -> Made<Document> {
    let tidied = feed.pages.tidied.load(Ordering::Acquire);
    let cleanup = cleanup(engine, feed).await?;
    let division = divided(engine, feed).await?;
    let (place, first, last) = match which {
        Which::Newest => {
            let window = newest(&division, cleanup);
            (Place::Newest(window), window.first, window.last)
        }
        Which::Page(number) => match page(engine, feed, number, &division, cleanup).await? {
            Ok(found) => found,
            Err(none) => return Ok(Err(none)),
        },
        Which::Window(first, last) => match window(engine, feed, (first, last), &division, cleanup).await? {
            Ok(window) => (Place::Window(window), first, last),
            Err(none) => return Ok(Err(none)),
        },
    };
    let changes = if first <= last { stretch(engine, feed, first, last).await? } else { Vec::new() };
    let plan = match which {
        Which::Newest => Plan::until_it_moves(engine, feed, place, last),
        // Until the page after it is sealed, too.
        Which::Page(number) if division.last.is_none_or(|page| number >= page.number) => {
            let seq = division.open.map_or(0, |page| page.last);
            Plan { place, valid: Valid::At { head: feed.head.clone(), seq }, modified: None, cache: CHECK }
        }
        Which::Page(_) | Which::Window(..) => {
            let valid = Valid::At { head: feed.pages.tidied.clone(), seq: tidied };
            Plan { place, valid, modified: changes.last().map(|change| change.modified), cache: FOR_EVER }
        }
    };
    make(engine, feed, syntax, plan, changes).await
}

/// The stretch of the newest document: the last sealed page, unless it was let go, and the newest one. Its `prev` goes
/// with the page that it leads to.
fn newest(division: &Division, cleanup: Cleanup) -> Window {
    let listed = division.last.filter(|page| cleanup.state(page.number) == PageState::Listed);
    let begin = listed.or(division.open);
    Window {
        first: begin.map_or(1, |page| page.first),
        last: division.open.map_or(0, |page| page.last),
        prev: begin.filter(|page| cleanup.has_prev(page.number)).map(|page| page.number - 1),
    }
}

/// What the document of a page shows.
async fn page(
    engine: &Engine,
    feed: &Feed,
    number: u64,
    division: &Division,
    cleanup: Cleanup,
) -> Made<(Place, Seq, Seq)> {
    if cleanup.state(number) == PageState::Gone {
        return Ok(Err(Found::Gone));
    }
    let sealed = table::sealed(engine.store.as_ref(), feed.id(), number).await?;
    let Some(span) = sealed.map(|page| page.span) else { return Ok(Err(Found::Nothing)) };
    // No archive document before the one after it is there, which it names.
    let is_last = division.last.is_none_or(|last| number >= last.number);
    let place = if is_last {
        Place::Window(Window { first: span.first, last: span.last, prev: before(number) })
    } else {
        Place::Archive(number)
    };
    Ok(Ok((place, span.first, span.last)))
}

/// A stretch such as the newest document has: from the beginning of a page to a place on it or on the page after it.
async fn window(
    engine: &Engine,
    feed: &Feed,
    (first, last): (Seq, Seq),
    division: &Division,
    cleanup: Cleanup,
) -> Made<Window> {
    let Some(open) = division.open.filter(|open| (first..=open.last).contains(&last)) else {
        return Ok(Err(Found::Nothing));
    };
    if first >= open.first {
        let window = Window { first, last, prev: before(open.number) };
        return Ok(if first == open.first { Ok(window) } else { Err(Found::Nothing) });
    }
    let lowest = cleanup.gone_below.max(1);
    if lowest >= open.number {
        return Ok(Err(Found::Gone));
    }
    let number = number_at(engine, feed, first, lowest..=open.number - 1).await?;
    let store = engine.store.as_ref();
    let Some(page) = table::sealed(store, feed.id(), number).await? else {
        return Ok(Err(Found::Nothing));
    };
    if first < page.span.first {
        return Ok(Err(Found::Gone));
    }
    let after = table::sealed(store, feed.id(), number + 1).await?.map_or(open.last, |page| page.span.last);
    let is_one = first == page.span.first && last <= after;
    Ok(if is_one { Ok(Window { first, last, prev: before(number) }) } else { Err(Found::Nothing) })
}

/// The page before a page. For documents that are kept for ever: whether it was let go changes nothing.
fn before(number: u64) -> Option<u64> {
    (number > 1).then(|| number - 1)
}

/// Every item there is.
async fn complete(engine: &Arc<Engine>, feed: &Arc<Feed>, syntax: Syntax) -> Made<Document> {
    // Taken before anything is read: a document that was overtaken meanwhile is not served again.
    let seq = feed.head.load(Ordering::Acquire);
    if engine.store.head(feed.id()).await?.live > MAX_COMPLETE_ITEMS {
        return Ok(Err(Found::TooLarge));
    }
    let mut changes: Vec<Change> = Vec::new();
    let (mut along, mut bytes) = (Stretch::default(), 0);
    loop {
        let page = engine.store.items(feed.id(), Order::Modified, along, READ).await?;
        let Some(reached) = page.last() else { break };
        along.after = Some(reached.seq);
        // The last change dates the document, be it a deletion.
        changes.pop_if(|last| last.op == Op::Delete);
        let end = reached.seq;
        changes.extend(
            page.into_iter().filter(|change| change.op != Op::Delete || change.seq == end).inspect(
                |change| bytes += change.item.content.as_ref().map_or(0, |content| content.bytes.len()),
            ),
        );
        if bytes > MAX_COMPLETE {
            return Ok(Err(Found::TooLarge));
        }
    }
    let plan = Plan::until_it_moves(engine, feed, Place::Complete, seq);
    make(engine, feed, syntax, plan, changes).await
}

/// How a document is to be made.
struct Plan {
    place: Place,
    valid: Valid,
    modified: Option<Timestamp>,
    cache: &'static str,
}

const FOR_EVER: &str = "public, max-age=31536000, immutable";
const CHECK: &str = "no-cache";

impl Plan {
    /// Of a document that shows the log up to its end. Its Last-Modified is when it moved here last, by our clock.
    /// Within that second it may move again, and nobody could tell the two by it: until then there is none.
    fn until_it_moves(engine: &Engine, feed: &Feed, place: Place, seq: Seq) -> Self {
        let head = feed.head.clone();
        // Where the log moves just now, the time is not this document's.
        let is_there = head.load(Ordering::Acquire) == seq;
        let (moved, now) = (feed.moves.last(), engine.now());
        let is_over = moved.is_none_or(|moved| moved.as_second() < now.as_second());
        let rest = u64::try_from(1_000_000_000 - now.subsec_nanosecond()).unwrap_or(0);
        let valid = if is_over {
            Valid::At { head, seq }
        } else {
            Valid::AtUntil { head, seq, end: Instant::now() + Duration::from_nanos(rest) }
        };
        Self { place, valid, modified: moved.filter(|_| is_there && is_over), cache: CHECK }
    }
}

async fn make(
    engine: &Engine,
    feed: &Feed,
    syntax: Syntax,
    plan: Plan,
    changes: Vec<Change>,
) -> Made<Document> {
    let info = info(engine, feed);
    let Plan { place, valid, modified, cache } = plan;
    let made = blocking(move || {
        let body = Bytes::from(info.document(syntax, &place, &changes));
        let mut headers = headers(syntax, &body, &info.document_links(syntax, &place));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
        if let Some(Ok(modified)) = modified.map(|time| HeaderValue::from_str(&http_date::write(time))) {
            headers.insert(LAST_MODIFIED, modified);
        }
        Document::new(body, headers, valid)
    });
    Ok(Ok(made.await?))
}

/// The headers of every document: what it is, and its place in the feed's past, so that HEAD is enough to walk there.
fn headers(syntax: Syntax, body: &[u8], links: &[FeedLink]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let tag = format!("\"{}\"", hex::encode(&Sha256::digest(body)[..16]));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(syntax.content_type()));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    // SUP's is added to every response, whatever the protocol.
    for one in links.iter().filter(|link| link.rel != SUP) {
        if let Ok(value) = HeaderValue::from_str(&link::write(&one.href, &one.rel)) {
            headers.append(LINK, value);
        }
    }
    headers
}

/// The part of the newest document that a hub delivers to those who subscribed to it (WebSub, section 7).
pub(super) fn part(engine: &Engine, feed: &Feed, syntax: Syntax, changes: &[Change]) -> String {
    info(engine, feed).document(syntax, &Place::Push, changes)
}

/// The `Link` header of what a hub delivers of a document: the hub, and the topic.
pub(super) fn topic_links(engine: &Engine, feed: &Feed, syntax: Syntax) -> String {
    let is_topic = |link: &&FeedLink| matches!(link.rel.as_str(), "hub" | "self");
    let links = info(engine, feed).document_links(syntax, &Place::Push);
    let links: Vec<String> = links.iter().filter(is_topic).map(|l| link::write(&l.href, &l.rel)).collect();
    links.join(", ")
}

/// What documents say of their feed.
fn info(engine: &Engine, feed: &Feed) -> FeedInfo {
    let url = format!("{}/feeds/{}", engine.base_url, feed.id());
    FeedInfo {
        home: Some(url.clone()),
        url,
        name: feed.id().to_string(),
        title: feed.config.title().to_owned(),
        lang: feed.config.lang.clone(),
        links: feed.links(engine),
        hub: (!engine.is_tree).then(|| engine.hub_url(feed.id())),
    }
}

/// Where a document is, without the server's address.
pub(crate) fn path(feed: &Feed, syntax: Syntax, which: Which) -> String {
    let newest = format!("/feeds/{}/{}", feed.id(), syntax.name());
    match which {
        Which::Newest => newest,
        Which::Page(number) => format!("{newest}/{number}"),
        Which::Window(first, last) => format!("{newest}/{first}-{last}"),
    }
}
