//! Pages as they are served.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::CACHE_CONTROL;
use http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use towpath_proto::change::Change;
use towpath_proto::replication::pages::{Cleanup, PageSpan, PageState};
use towpath_proto::replication::publish::{self, Page, PageLinks};
use towpath_store::StoreError;

use crate::engine::pages::paging::divided;
use crate::engine::pages::table::{self, Sealed};
use crate::engine::pages::{cleanup, stretch};
use crate::engine::{Engine, Feed, blocking};
use crate::server::document::{Document, Valid};

/// How long a cache may keep a page that does not change, at the most, in seconds.
const DAY: u64 = 86_400;

/// Which page of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The newest.
    Newest,
    /// One by its number.
    Number(u64),
}

/// What there is at a page's address.
pub enum Found {
    /// The page.
    Page(Arc<Document>),
    /// Its headers and the length of its body, where only they were asked for.
    Head(HeaderMap, u64),
    /// Nothing yet: the feed is empty.
    Empty,
    /// Nothing any more.
    Gone,
    /// Nothing.
    Nothing,
}

/// Finds a page of a feed, or with `only_head` what its headers say.
pub async fn page(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    which: Which,
    only_head: bool,
) -> Result<Found, StoreError> {
    let Which::Number(number) = which else { return newest(engine, feed, None, only_head).await };
    if cleanup(engine, feed).await?.state(number) == PageState::Gone {
        return Ok(Found::Gone);
    }
    match sealed(engine, feed, number).await? {
        Some(page) => serve_sealed(engine, feed, &page, only_head).await,
        None => newest(engine, feed, Some(number), only_head).await,
    }
}

async fn sealed(engine: &Engine, feed: &Feed, number: u64) -> Result<Option<Sealed>, StoreError> {
    table::sealed(engine.store.as_ref(), feed.id(), number).await
}

async fn serve_sealed(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    page: &Sealed,
    only_head: bool,
) -> Result<Found, StoreError> {
    if !only_head {
        let body = build(engine, feed, &page.span, Vec::new()).await?;
        return Ok(Found::Page(keep_sealed(engine, feed, page, body).await?));
    }
    let links = links(engine, feed, &page.span, true, cleanup(engine, feed).await?);
    let headers = for_caches(feed, page.made.feed_headers(&links), true);
    Ok(Found::Head(headers, page.made.length))
}

/// Builds a page; `changes` are its changes, where all of them are at hand.
pub(in crate::engine) async fn build(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    span: &PageSpan,
    changes: Vec<Change>,
) -> Result<Page, StoreError> {
    let PageSpan { number, first, last, .. } = *span;
    let is_whole = changes.first().is_some_and(|change| change.seq == first);
    let changes = if is_whole { changes } else { stretch(engine, feed, first, last).await? };
    let id = feed.id().clone();
    let page = blocking(move || publish::page(&id, number, &changes)).await?;
    page.ok_or_else(|| StoreError::Damaged(format!("page {number} of {} has no changes", feed.id())))
}

/// Keeps a sealed page in memory.
pub(in crate::engine) async fn keep_sealed(
    engine: &Engine,
    feed: &Feed,
    sealed: &Sealed,
    page: Page,
) -> Result<Arc<Document>, StoreError> {
    keep(engine, feed, &sealed.span, page, true).await
}

/// The newest page, if it is the one that is wanted; by now that may be a sealed one.
async fn newest(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    wanted: Option<u64>,
    only_head: bool,
) -> Result<Found, StoreError> {
    let open = divided(engine, feed).await?.open;
    let Some(open) = open else {
        return Ok(if wanted.is_none() { Found::Empty } else { Found::Nothing });
    };
    match wanted {
        Some(number) if number != open.number => match sealed(engine, feed, number).await? {
            Some(page) => serve_sealed(engine, feed, &page, only_head).await,
            None => Ok(Found::Nothing),
        },
        _ => {
            let page = build(engine, feed, &open, Vec::new()).await?;
            Ok(Found::Page(keep(engine, feed, &open, page, false).await?))
        }
    }
}

/// Keeps a page in memory with the links that it has now.
async fn keep(
    engine: &Engine,
    feed: &Feed,
    span: &PageSpan,
    page: Page,
    is_sealed: bool,
) -> Result<Arc<Document>, StoreError> {
    let tidied = feed.pages.tidied.load(Ordering::Acquire);
    let links = links(engine, feed, span, is_sealed, cleanup(engine, feed).await?);
    let headers = for_caches(feed, page.feed_headers(&links), is_sealed);
    let valid =
        if is_sealed { Valid::UntilReplaced } else { Valid::At { head: feed.head.clone(), seq: span.last } };
    let path = page_path(feed, span.number);
    let document = Document::new(page.body, headers, valid).dated_by_its_changes();
    let document = if is_sealed {
        engine.documents.put(&path, document)
    } else {
        engine.documents.put_all(&[&path, &newest_path(feed)], document)
    };
    // Retention takes links away and then has pages forgotten: this one may have come in between.
    if feed.pages.tidied.load(Ordering::Acquire) != tidied {
        forget(engine, feed, span.number);
    }
    Ok(document)
}

/// Forgets a page, and the newest page's address with it.
pub(in crate::engine) fn forget(engine: &Engine, feed: &Feed, number: u64) {
    engine.documents.forget(&page_path(feed, number));
    engine.documents.forget(&newest_path(feed));
}

/// When the first change of the oldest listed page was made. None while the feed is empty.
pub(super) async fn oldest(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<Option<Timestamp>, StoreError> {
    let open = divided(engine, feed).await?.open;
    let first = sealed(engine, feed, cleanup(engine, feed).await?.first_page.max(1)).await?;
    Ok(first.map(|page| page.span).or(open).map(|span| span.oldest))
}

fn links(engine: &Engine, feed: &Feed, span: &PageSpan, is_sealed: bool, cleanup: Cleanup) -> PageLinks {
    PageLinks::new(&address(engine, feed), span, is_sealed, cleanup)
}

/// Where a feed's newest page is, absolute.
pub(crate) fn address(engine: &Engine, feed: &Feed) -> String {
    format!("{}{}", engine.base_url, newest_path(feed))
}

fn newest_path(feed: &Feed) -> String {
    format!("/feeds/{}/replication", feed.id())
}

fn page_path(feed: &Feed, number: u64) -> String {
    publish::page_url(&newest_path(feed), number)
}

/// A sealed page may be kept by caches, but not for ever where its `prev` may go: whoever reads an old copy must
/// find the page that it names, and that is there until the grace period is over.
fn for_caches(feed: &Feed, mut headers: HeaderMap, is_sealed: bool) -> HeaderMap {
    let age = feed.config.retention.map_or(DAY, |retention| (retention.grace.as_secs() / 2).min(DAY));
    let value = if is_sealed { format!("public, max-age={age}") } else { "no-cache".to_owned() };
    if let Ok(value) = HeaderValue::from_str(&value) {
        headers.insert(CACHE_CONTROL, value);
    }
    headers
}
