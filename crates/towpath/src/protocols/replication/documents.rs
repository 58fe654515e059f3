//! Documents of a feed's pages.

use std::sync::Arc;

use http::header::{CACHE_CONTROL, LINK};
use http::{HeaderMap, HeaderValue, Method};
use jiff::Timestamp;
use towpath_proto::replication::pages::{Cleanup, PageSpan, PageState};
use towpath_proto::replication::publish::{self, FeedPageLinks, MultipartPage, PageKind};

use crate::document::prebuilt::{Document, Valid};
use crate::engine::{Engine, Feed};
use crate::protocols::pages::table::sealed_page;
use crate::protocols::pages::{
    SealedPage, VersionedCleanup, build_page, cleanup, divided, versioned_cleanup,
};
use crate::store_error::StoreError;

/// Longest time that caches may keep a sealed page, in seconds.
// Not for ever: the `prev` link of a sealed page can go.
const DAY: u64 = 86_400;

/// Address of a page within its feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageAddress {
    /// Newest page.
    Newest,
    /// Page with this number.
    Number(u64),
}

/// Part of a page that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PagePart {
    /// Headers and body.
    Whole,
    /// Headers, for a HEAD request: a sealed page is not built for it.
    Head,
}

impl PagePart {
    /// Returns the part that a request of this method needs.
    pub(super) fn of(method: &Method) -> Self {
        if method == Method::HEAD { Self::Head } else { Self::Whole }
    }
}

/// Result of looking up a page.
pub(crate) enum PageLookup {
    /// The page.
    Page(Arc<Document>),
    /// Headers and the length of the body, for a HEAD request.
    Head(HeaderMap, u64),
    /// No page yet: the feed is empty.
    Empty,
    /// The page was removed by retention.
    Gone,
    /// No such page.
    NotFound,
}

/// Looks up a page of a feed; of it [`PagePart::Head`] only for a HEAD request.
///
/// # Errors
///
/// [`StoreError`] if the log or the records of pages cannot be read or written, or the page cannot be built.
pub(crate) async fn page(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    which: PageAddress,
    part: PagePart,
) -> Result<PageLookup, StoreError> {
    let PageAddress::Number(number) = which else { return newest(engine, feed, None, part).await };
    // First: the page's record may still be there while its removal is under way.
    if cleanup(engine, feed).await?.state(number) == PageState::Gone {
        return Ok(PageLookup::Gone);
    }
    match sealed(engine, feed, number).await? {
        Some(page) => serve_sealed(engine, feed, &page, part).await,
        // Not sealed: it is the newest page, or does not exist.
        None => newest(engine, feed, Some(number), part).await,
    }
}

async fn sealed(engine: &Engine, feed: &Feed, number: u64) -> Result<Option<SealedPage>, StoreError> {
    sealed_page(engine.store.as_ref(), feed.id(), number).await
}

async fn serve_sealed(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    page: &SealedPage,
    part: PagePart,
) -> Result<PageLookup, StoreError> {
    if part == PagePart::Whole {
        let body = build_page(engine, feed, &page.span, Vec::new()).await?;
        let cleanup = versioned_cleanup(engine, feed).await?;
        return Ok(PageLookup::Page(cache_page(engine, feed, &page.span, body, PageKind::Sealed, cleanup)));
    }
    let links = links(engine, feed, &page.span, PageKind::Sealed, cleanup(engine, feed).await?);
    let headers = for_caches(feed, page.made.feed_headers(&links), PageKind::Sealed);
    Ok(PageLookup::Head(headers, page.made.length))
}

/// Caches a page that was just sealed.
pub(crate) fn on_sealed(
    engine: &Engine,
    feed: &Arc<Feed>,
    sealed: &SealedPage,
    page: &MultipartPage,
    cleanup: VersionedCleanup,
) {
    cache_page(engine, feed, &sealed.span, page.clone(), PageKind::Sealed, cleanup);
}

/// Returns the newest page if it is the wanted one. The wanted page may have been sealed since it was looked up.
async fn newest(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    wanted: Option<u64>,
    part: PagePart,
) -> Result<PageLookup, StoreError> {
    let open = divided(engine, feed).await?.open;
    let Some(open) = open else {
        return Ok(if wanted.is_none() { PageLookup::Empty } else { PageLookup::NotFound });
    };
    match wanted {
        Some(number) if number != open.number => match sealed(engine, feed, number).await? {
            Some(page) => serve_sealed(engine, feed, &page, part).await,
            None => Ok(PageLookup::NotFound),
        },
        _ => {
            let page = build_page(engine, feed, &open, Vec::new()).await?;
            let cleanup = versioned_cleanup(engine, feed).await?;
            Ok(PageLookup::Page(cache_page(engine, feed, &open, page, PageKind::Newest, cleanup)))
        }
    }
}

/// Caches a page with the links that it has after a cleanup.
fn cache_page(
    engine: &Engine,
    feed: &Feed,
    span: &PageSpan,
    page: MultipartPage,
    kind: PageKind,
    versioned: VersionedCleanup,
) -> Arc<Document> {
    let links = links(engine, feed, span, kind, versioned.cleanup);
    let mut headers = for_caches(feed, page.feed_headers(&links), kind);
    if kind == PageKind::Newest {
        // A base URL that is no header value was refused at the start.
        if let Some(link) = events_link(engine, feed) {
            headers.append(LINK, link);
        }
    }
    let valid = match kind {
        PageKind::Sealed => Valid::UntilReplaced,
        PageKind::Newest => Valid::At { head: feed.head.clone(), seq: span.last },
    };
    let path = page_path(feed, span.number);
    let document = Document::new(page.body, headers, valid).dated_by_its_changes();
    let document = match kind {
        PageKind::Sealed => engine.documents.put(&path, document),
        // Both addresses show the same bytes. `self` is the page's own address in either.
        PageKind::Newest => engine.documents.put_all(&[&path, &newest_path(feed)], document),
    };
    // Retention first removes links, then drops documents. This one may have been cached between the two.
    if !versioned.is_current(feed) {
        forget(engine, feed, span.number);
    }
    document
}

/// Drops a page from the cache, and the newest page with it.
pub(crate) fn forget(engine: &Engine, feed: &Feed, number: u64) {
    engine.documents.forget(&page_path(feed, number));
    engine.documents.forget(&newest_path(feed));
}

/// Returns the time of the first change of the oldest listed page; `None` while the feed is empty.
pub(crate) async fn oldest(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<Option<Timestamp>, StoreError> {
    let open = divided(engine, feed).await?.open;
    let first = sealed(engine, feed, cleanup(engine, feed).await?.first_page.max(1)).await?;
    Ok(first.map(|page| page.span).or(open).map(|span| span.oldest))
}

fn links(engine: &Engine, feed: &Feed, span: &PageSpan, kind: PageKind, cleanup: Cleanup) -> FeedPageLinks {
    let latest = || format!("{}/feeds/{}/snapshots/latest", engine.base_url, feed.id());
    FeedPageLinks::new(&address(engine, feed), span, kind, cleanup).with_snapshot(cleanup, latest)
}

/// Returns the address of a feed's newest page.
pub(crate) fn address(engine: &Engine, feed: &Feed) -> String {
    format!("{}{}", engine.base_url, newest_path(feed))
}

fn newest_path(feed: &Feed) -> String {
    format!("/feeds/{}/replication", feed.id())
}

fn page_path(feed: &Feed, number: u64) -> String {
    publish::page_url(&newest_path(feed), number)
}

/// Returns the link to the feed's event stream, by which a follower at the end learns when to poll.
fn events_link(engine: &Engine, feed: &Feed) -> Option<HeaderValue> {
    let url = format!("{}/feeds/{}/events", engine.base_url, feed.id());
    HeaderValue::from_str(&format!("<{url}>; rel=\"alternate\"; type=\"text/event-stream\"")).ok()
}

/// Adds the lifetime in caches.
///
/// Retention may remove the `prev` link of a sealed page. A reader of an old copy must still find the page that the link
/// names: it exists until the grace period ends, so caches keep a copy for half of that.
fn for_caches(feed: &Feed, mut headers: HeaderMap, kind: PageKind) -> HeaderMap {
    let age = feed.config.retention.map_or(DAY, |retention| (retention.grace.as_secs() / 2).min(DAY));
    let value = match kind {
        PageKind::Sealed => format!("public, max-age={age}"),
        PageKind::Newest => "no-cache".to_owned(),
    };
    if let Ok(value) = HeaderValue::from_str(&value) {
        headers.insert(CACHE_CONTROL, value);
    }
    headers
}
