//! Documents of Feed History (RFC 5005): a feed as Atom, RSS and JSON Feed, the newest document and the older ones.
//!
//! [`towpath_proto::history::publish`] decides which changes are in which document. Documents are built from the log on
//! request, and cached.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, LAST_MODIFIED, LINK};
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::format::{FeedLink, http_date, link};
use towpath_proto::history::publish::{HistoryDocument, LogPage, LogWindow, MIN_PART};
use towpath_proto::history::wire::{SUP, Syntax};
use towpath_proto::replication::pages::{Cleanup, PageSpan, PageState};
use towpath_store::{ItemOrder, SeqRange};

use crate::document::prebuilt::{Document, Valid};
use crate::engine::feed_about::feed_about;
use crate::engine::work::blocking;
use crate::engine::{Engine, Feed};
use crate::protocols::history::feed_info::feed_info;
use crate::protocols::history::last_change::LastChanges;
use crate::protocols::pages::table::sealed_page;
use crate::protocols::pages::{Division, READ, cleanup, cleanup_version, divided, number_at, read_range};
use crate::store_error::StoreError;

/// Largest complete feed, in bytes of its items' contents: its document is built in memory.
const MAX_COMPLETE: usize = 64 << 20;
/// Largest complete feed, in items.
// Checked before anything is read. The bytes are known only while reading.
const MAX_COMPLETE_ITEMS: u64 = 100_000;

/// Address of a document within its feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HistoryAddress {
    /// Newest document.
    Newest,
    /// Archive document of the page with this number.
    Page(u64),
    /// An earlier version of the newest document or a part of a page, by its first and last change.
    Window(Seq, Seq),
}

/// Result of looking up a document.
pub(crate) enum HistoryLookup {
    /// The document.
    Document(Arc<Document>),
    /// The document was removed by retention.
    Gone,
    /// No such document.
    NotFound,
    /// The feed is complete and has more items than one document can hold.
    TooLarge,
}

/// Looks up a document of a feed that has a log of its own.
///
/// # Errors
///
/// [`StoreError`] if the log or the records of pages cannot be read.
pub(crate) async fn document(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    syntax: Syntax,
    which: HistoryAddress,
) -> Result<HistoryLookup, StoreError> {
    let path = path(feed, syntax, which);
    if let Some(known) = engine.documents.get(&path) {
        return Ok(HistoryLookup::Document(known));
    }
    // After an append all followers ask at once: one of them builds the document.
    let _building = feed.extensions.get_or_insert_with(HistoryLock::default).0.lock().await;
    // Looked up again: whoever held the lock before may just have built it.
    if let Some(known) = engine.documents.get(&path) {
        return Ok(HistoryLookup::Document(known));
    }
    // Read before the document is built, so that a removal meanwhile shows in the comparison below.
    let version = cleanup_version(feed).load(Ordering::Acquire);
    let made = match (feed.config.complete, which) {
        (true, HistoryAddress::Newest) => complete(engine, feed, syntax).await?,
        // A complete feed has no past: what is not in its document does not exist (RFC 5005, section 2).
        (true, _) => Err(HistoryLookup::NotFound),
        (false, _) => partial(engine, feed, syntax, which).await?,
    };
    Ok(match made {
        Ok(document) => {
            let document = engine.documents.put(&path, document);
            // Retention first removes links, then drops documents. This one may have been cached between the two.
            if cleanup_version(feed).load(Ordering::Acquire) != version {
                engine.documents.forget(&path);
            }
            HistoryLookup::Document(document)
        }
        Err(found) => found,
    })
}

/// Held while a document of the feed is built.
#[derive(Default)]
struct HistoryLock(tokio::sync::Mutex<()>);

/// Drops the documents of a page from the cache, and the newest documents with them.
pub(crate) fn forget(engine: &Engine, feed: &Feed, number: u64) {
    for syntax in Syntax::ALL {
        engine.documents.forget(&path(feed, syntax, HistoryAddress::Page(number)));
    }
    forget_newest(engine, feed);
}

/// Drops the newest documents from the cache.
pub(crate) fn forget_newest(engine: &Engine, feed: &Feed) {
    for syntax in Syntax::ALL {
        engine.documents.forget(&path(feed, syntax, HistoryAddress::Newest));
    }
}

/// Value that was looked up, or the result to return instead.
type HistoryResult<T> = Result<Result<T, HistoryLookup>, StoreError>;

/// Builds a document of a range of the log.
async fn partial(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    syntax: Syntax,
    which: HistoryAddress,
) -> HistoryResult<Document> {
    let version = cleanup_version(feed).load(Ordering::Acquire);
    let cleanup = cleanup(engine, feed).await?;
    let division = divided(engine, feed).await?;
    let (place, first, last) = match which {
        HistoryAddress::Newest => {
            let window = newest(feed, &division, cleanup);
            (HistoryDocument::Newest(window), window.first, window.last)
        }
        HistoryAddress::Page(number) => match page(engine, feed, number, &division, cleanup).await? {
            Ok(found) => found,
            Err(none) => return Ok(Err(none)),
        },
        HistoryAddress::Window(first, last) => {
            match window(engine, feed, (first, last), &division, cleanup).await? {
                Ok(document) => (document, first, last),
                Err(none) => return Ok(Err(none)),
            }
        }
    };
    let changes = if first <= last { read_range(engine, feed, first, last).await? } else { Vec::new() };
    let plan = match which {
        HistoryAddress::Newest => {
            DocumentPlan { place, validity: Validity::UntilAppend(last), cache: REVALIDATE }
        }
        // It changes when the page after it is sealed, too.
        HistoryAddress::Page(number) if division.last.is_none_or(|page| number >= page.number) => {
            let seq = division.open.map_or(0, |page| page.last);
            let valid = Valid::At { head: feed.head.clone(), seq };
            DocumentPlan { place, validity: Validity::Known(valid, None), cache: REVALIDATE }
        }
        HistoryAddress::Page(_) | HistoryAddress::Window(..) => {
            // Immutable to readers, but retention can remove it, and then the cache must not serve it.
            let valid = Valid::At { head: cleanup_version(feed).clone(), seq: version };
            let modified = changes.last().map(|change| change.modified);
            DocumentPlan { place, validity: Validity::Known(valid, modified), cache: IMMUTABLE }
        }
    };
    make(engine, feed, syntax, plan, changes).await
}

/// Returns the range of the newest document: the last changes of the last sealed page, unless it was removed, and of the
/// newest page.
///
/// `prev` also leads to a page that retention removed, whose 410 tells a reader that changes are missing: publishers
/// "may refuse to serve (e.g., with HTTP status code 403 or 410)" an archive (RFC 5005, section 4.1).
fn newest(feed: &Feed, division: &Division, cleanup: Cleanup) -> LogWindow {
    // Two pages at most: right after sealing, the open page holds a single change.
    let listed = division.last.filter(|page| cleanup.state(page.number) == PageState::Listed);
    let Some((open, begin)) = division.open.map(|open| (open, listed.unwrap_or(open))) else {
        return LogWindow { first: 1, last: 0, prev: None };
    };
    let recent = (open.last + 1).saturating_sub(feed.config.recent_items);
    let first = recent.max(begin.first);
    let page = if first >= open.first { open } else { begin };
    LogWindow { first, last: open.last, prev: log_page(&page).before(first, open.last) }
}

/// Returns the parts of pages between a newest document and the page before, which are documents of their own.
pub(crate) fn parts_before(division: &Division, first: Seq, last: Seq) -> Vec<(Seq, Seq)> {
    let mut pages = [division.open, division.last].into_iter().flatten().map(|page| log_page(&page));
    pages.find(|page| first >= page.first).map(|page| page.parts_before(first, last)).unwrap_or_default()
}

/// Returns true if a range is a part of the two newest pages, to which readers of a newest document come.
pub(crate) fn is_recent_part(division: &Division, first: Seq, last: Seq) -> bool {
    [division.open, division.last].iter().flatten().any(|page| log_page(page).has_part(first, last))
}

fn log_page(page: &PageSpan) -> LogPage {
    LogPage { number: page.number, first: page.first, last: page.last }
}

/// Returns the range of a page's document.
async fn page(
    engine: &Engine,
    feed: &Feed,
    number: u64,
    division: &Division,
    cleanup: Cleanup,
) -> HistoryResult<(HistoryDocument, Seq, Seq)> {
    if cleanup.state(number) == PageState::Gone {
        return Ok(Err(HistoryLookup::Gone));
    }
    let sealed = sealed_page(engine.store.as_ref(), feed.id(), number).await?;
    let Some(span) = sealed.map(|page| page.span) else { return Ok(Err(HistoryLookup::NotFound)) };
    // Only a sealed page can be named as the next one.
    let is_last = division.last.is_none_or(|last| number >= last.number);
    let place = if is_last { HistoryDocument::LastArchive(number) } else { HistoryDocument::Archive(number) };
    Ok(Ok((place, span.first, span.last)))
}

/// Returns the range of an earlier newest document or of a part: from a position on a page to one on it or on the next.
async fn window(
    engine: &Engine,
    feed: &Feed,
    (first, last): (Seq, Seq),
    division: &Division,
    cleanup: Cleanup,
) -> HistoryResult<HistoryDocument> {
    let Some(open) = division.open.filter(|open| (first..=open.last).contains(&last)) else {
        return Ok(Err(HistoryLookup::NotFound));
    };
    let (page, end) = if first >= open.first {
        (open, open.last)
    } else {
        let lowest = cleanup.gone_below.max(1);
        if lowest >= open.number {
            return Ok(Err(HistoryLookup::Gone));
        }
        let number = number_at(engine, feed, first, lowest..=open.number - 1).await?;
        let store = engine.store.as_ref();
        let Some(page) = sealed_page(store, feed.id(), number).await? else {
            return Ok(Err(HistoryLookup::NotFound));
        };
        // The search ends at the oldest page that is left, so an earlier position was removed.
        if first < page.span.first {
            return Ok(Err(HistoryLookup::Gone));
        }
        let after = sealed_page(store, feed.id(), number + 1).await?;
        (page.span, after.map_or(open.last, |page| page.span.last))
    };
    // Only what a newest document or a part can have been. Other ranges would be documents that nobody named.
    let is_one = last <= end && (first == page.first || last - first + 1 >= MIN_PART);
    if !is_one {
        return Ok(Err(HistoryLookup::NotFound));
    }
    let page = log_page(&page);
    let window = LogWindow { first, last, prev: page.before(first, last) };
    let is_part = page.has_part(first, last);
    Ok(Ok(if is_part { HistoryDocument::Part(window) } else { HistoryDocument::Window(window) }))
}

/// Builds the document of a complete feed: every item.
async fn complete(engine: &Arc<Engine>, feed: &Arc<Feed>, syntax: Syntax) -> HistoryResult<Document> {
    // Read before the log: a document that an append overtakes is not served from the cache.
    let seq = feed.head.load(Ordering::Acquire);
    if engine.store.head(feed.id()).await?.live > MAX_COMPLETE_ITEMS {
        return Ok(Err(HistoryLookup::TooLarge));
    }
    let mut changes: Vec<Change> = Vec::new();
    let (mut along, mut bytes) = (SeqRange::default(), 0);
    loop {
        let page = engine.store.items(feed.id(), ItemOrder::Modified, along, READ).await?;
        let Some(reached) = page.last() else { break };
        along.after = Some(reached.seq);
        // The last change gives the document its date, even if it is a deletion.
        changes.pop_if(|last| last.op == Op::Delete);
        let end = reached.seq;
        changes.extend(
            page.into_iter().filter(|change| change.op != Op::Delete || change.seq == end).inspect(
                |change| bytes += change.item.content.as_ref().map_or(0, |content| content.bytes.len()),
            ),
        );
        if bytes > MAX_COMPLETE {
            return Ok(Err(HistoryLookup::TooLarge));
        }
    }
    let (place, validity) = (HistoryDocument::Complete, Validity::UntilAppend(seq));
    let plan = DocumentPlan { place, validity, cache: REVALIDATE };
    make(engine, feed, syntax, plan, changes).await
}

/// Properties of a document to build.
struct DocumentPlan {
    place: HistoryDocument,
    validity: Validity,
    cache: &'static str,
}

/// Validity of a document to build, and its date.
enum Validity {
    /// Known before it is built.
    Known(Valid, Option<Timestamp>),
    /// It shows the log up to its end, which is here.
    UntilAppend(Seq),
}

// A year is the usual "for ever" of caches; `immutable` also stops revalidation on reload (RFC 8246).
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
const REVALIDATE: &str = "no-cache";

/// Returns the validity and the date of a document that shows the log up to its end.
///
/// Its Last-Modified is the time of the last append here, or of a later change of its head. A further change within that
/// second would give another document the same date, so the document has no date until the second is over.
fn until_append(
    engine: &Engine,
    feed: &Feed,
    syntax: Syntax,
    seq: Seq,
    tag: Option<&HeaderValue>,
) -> (Valid, Option<Timestamp>) {
    let (head, now) = (feed.head.clone(), engine.now());
    // If the log grew since, the time belongs to a later document.
    let is_there = head.load(Ordering::Acquire) == seq;
    // A static tree has documents of its own, with other addresses.
    let changed = tag.filter(|_| is_there && !engine.is_tree).map(|tag| {
        let known = feed.extensions.get_or_insert_with(LastChanges::default);
        known.update(syntax, (seq, tag), engine.started, now)
    });
    // By a clock that was ahead and was set back, a change may seem to be still to come.
    let moved = feed.last_append().max(changed.filter(|changed| *changed <= now));
    let is_over = moved.is_none_or(|moved| moved.as_second() < now.as_second());
    // The rest of this second: then the document is built once more, with its date.
    let rest = u64::try_from(1_000_000_000 - now.subsec_nanosecond()).unwrap_or(0);
    // A clock that was ahead gives no date until it has passed, and no reason to build each second.
    let is_ahead = moved.is_some_and(|moved| moved.as_second() > now.as_second());
    let valid = if is_over || is_ahead {
        Valid::At { head, seq }
    } else {
        Valid::AtUntil { head, seq, end: Instant::now() + Duration::from_nanos(rest) }
    };
    (valid, moved.filter(|_| is_there && is_over))
}

async fn make(
    engine: &Engine,
    feed: &Feed,
    syntax: Syntax,
    plan: DocumentPlan,
    changes: Vec<Change>,
) -> HistoryResult<Document> {
    let info = feed_info(engine, feed, feed_about(engine, feed).await?);
    let DocumentPlan { place, validity, cache } = plan;
    let made = blocking(move || {
        let body = Bytes::from(info.document(syntax, &place, &changes));
        let mut headers = headers(syntax, &body, &info.document_links(syntax, &place));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
        (body, headers)
    });
    let (body, mut headers) = made.await?;
    let (valid, modified) = match validity {
        Validity::Known(valid, modified) => (valid, modified),
        Validity::UntilAppend(seq) => until_append(engine, feed, syntax, seq, headers.get(ETAG)),
    };
    if let Some(Ok(modified)) = modified.map(|time| HeaderValue::from_str(&http_date::write(time))) {
        headers.insert(LAST_MODIFIED, modified);
    }
    Ok(Ok(Document::new(body, headers, valid)))
}

/// Makes the headers of a document. They contain its links, so that followers can walk back with HEAD requests.
fn headers(syntax: Syntax, body: &[u8], links: &[FeedLink]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // A digest of the body: all nodes of a cluster, and restarts, give the same tag.
    let tag = format!("\"{}\"", hex::encode(&Sha256::digest(body)[..16]));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(syntax.content_type()));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    // The SUP link is added to every response of a feed, whatever the protocol.
    for one in links.iter().filter(|link| link.rel != SUP) {
        if let Ok(value) = HeaderValue::from_str(&link::write(&one.href, &one.rel)) {
            headers.append(LINK, value);
        }
    }
    headers
}

/// Path of a document.
pub(crate) fn path(feed: &Feed, syntax: Syntax, which: HistoryAddress) -> String {
    let newest = format!("/feeds/{}/{}", feed.id(), syntax.name());
    match which {
        HistoryAddress::Newest => newest,
        HistoryAddress::Page(number) => format!("{newest}/{number}"),
        HistoryAddress::Window(first, last) => format!("{newest}/{first}-{last}"),
    }
}
