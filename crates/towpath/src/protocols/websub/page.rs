//! Content of deliveries: the items after a position, built once for all subscribers there.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LINK};
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use towpath_proto::change::Seq;
use towpath_proto::history::wire::Syntax;
use towpath_proto::push::websub::delivery::DeliveredRange;
use towpath_proto::smart::accept::PageFormat;
use towpath_proto::smart::cursor::{CursorKind, ParsedCursor, read as read_cursor};
use towpath_proto::smart::publish;
use towpath_proto::smart::pull::{FeedSettings, PullPage};
use towpath_proto::smart::query::PullQuery;
use towpath_proto::smart::spec::{FeedOrder, OrderBy, PositionSpec};

use crate::engine::Engine;
use crate::protocols::history::documents::{self, HistoryAddress, HistoryLookup};
use crate::protocols::history::feed_info;
use crate::protocols::smart::{Access, PullRequest, PullRequestError, settings};
use crate::protocols::websub::subscriber::VerifiedSubscriber;
use crate::protocols::websub::topic::Topic;
use crate::store_error::StoreError;

/// Limit of items in one delivery.
// A subscriber far behind gets several deliveries, each acknowledged, instead of one that may fail.
const ITEMS: usize = 200;
/// Number of cached pages: most subscribers are at the same few positions.
// Each holds up to `push_bytes`, so the number is small.
const CACHED: usize = 64;

/// Content of a delivery.
#[derive(Debug)]
pub(crate) struct PushPage {
    /// `Content-Type` and `Link`.
    pub(crate) headers: HeaderMap,
    /// Body; empty if there is nothing to send.
    pub(crate) body: Bytes,
    /// Range of positions that it covers.
    pub(crate) carried: DeliveredRange,
}

/// Key of a page within its topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageKey {
    access: Access,
    format: PageFormat,
    after: Seq,
    head: Seq,
}

type PageCell = Arc<OnceCell<Arc<PushPage>>>;

/// Cache of the pages that were built last, with their topics.
#[derive(Default)]
struct BuiltPages(Mutex<VecDeque<(PageKey, Box<str>, PageCell)>>);

impl BuiltPages {
    fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }

    /// Returns the cell of a page. Whoever comes first builds it; the others wait for that.
    fn cell(&self, topic: &str, place: PageKey) -> PageCell {
        let mut pages = self.0.lock();
        let is_it = |(known, of, _): &&(PageKey, Box<str>, PageCell)| *known == place && **of == *topic;
        // From the newest: most subscribers are at the same last position.
        if let Some((.., made)) = pages.iter().rev().find(is_it) {
            return made.clone();
        }
        if pages.len() >= CACHED {
            pages.pop_front();
        }
        // A failed build leaves the cell empty, and the next subscriber tries again.
        let made = PageCell::default();
        pages.push_back((place, topic.into(), made.clone()));
        made
    }
}

/// Returns the content for a subscriber after a position.
pub(crate) async fn page(
    engine: &Arc<Engine>,
    to: &VerifiedSubscriber,
    after: Seq,
) -> Result<Arc<PushPage>, PullRequestError> {
    let (topic, access) = (&to.topic, to.access);
    let (format, head) = (topic.format(to.subscription.dialect), topic.head());
    // With the head: a subscriber that comes a moment later gets the changes that have come since.
    let place = PageKey { access, format, after, head };
    let made = BuiltPages::of(engine).cell(&topic.key, place);
    let make = || async { Ok(Arc::new(make(engine, topic, access, format, (after, head)).await?)) };
    made.get_or_try_init(make).await.cloned()
}

async fn make(
    engine: &Arc<Engine>,
    topic: &Topic,
    access: Access,
    format: PageFormat,
    (after, head): (Seq, Seq),
) -> Result<PushPage, PullRequestError> {
    let (settings, by, limit) = (settings(engine, &topic.feed), topic.by(), engine.config.hub.push_bytes);
    // A subscriber cannot be told to begin anew. One that failed for so long gets what is left.
    let horizon = engine.store.head(topic.feed.log()).await.map_err(StoreError::from)?.horizon;
    let since = (after > 0).then(|| PositionSpec::Cursor(settings.tag.cursor_within(by, after, horizon)));
    let mut query = PullQuery { since, max: ITEMS.min(settings.limits.max_items), ..topic.ascending() };
    loop {
        let page = ask(engine, topic, access, query.clone()).await?;
        let carried = carried(settings, &page, by, after, head);
        let nothing = || PushPage { headers: HeaderMap::new(), body: Bytes::new(), carried };
        if page.changes.is_empty() {
            return Ok(nothing());
        }
        let (body, headers) = match topic.document {
            Some(syntax) => document(engine, topic, syntax, &page, limit).await?,
            None => {
                let previous = previous(engine, topic, access, after).await?;
                items(settings, &query, &page, previous.as_deref(), format)
            }
        };
        if body.len() <= limit {
            return Ok(PushPage { headers, body, carried });
        }
        if page.changes.len() == 1 {
            let feed = topic.feed.id();
            tracing::warn!(%feed, bytes = body.len(), "an item is too large to be pushed");
            // An empty body still carries the position past the large item; `prev_cursor` then shows the gap.
            return Ok(nothing());
        }
        // Halving ends at one item after at most eight rounds.
        query.max = page.changes.len() / 2;
    }
}

/// Builds a delivery of `/items`.
fn items(
    settings: &FeedSettings,
    query: &PullQuery,
    page: &PullPage,
    previous: Option<&str>,
    format: PageFormat,
) -> (Bytes, HeaderMap) {
    let (body, content_type) = publish::push(settings, query, page, previous, format);
    (body.into(), headers(content_type, publish::topic_links(settings, query, format)))
}

/// Builds a delivery of a feed's newest document: the changed entries. WebSub delivers JSON whole (section 7), so a JSON
/// Feed is delivered whole unless it is too large.
async fn document(
    engine: &Arc<Engine>,
    topic: &Topic,
    syntax: Syntax,
    page: &PullPage,
    limit: usize,
) -> Result<(Bytes, HeaderMap), PullRequestError> {
    let links = feed_info::topic_links(engine, &topic.feed, syntax);
    let headers = headers(syntax.content_type(), HeaderValue::from_str(&links).ok());
    if syntax == Syntax::JsonFeed
        && let HistoryLookup::Document(whole) =
            documents::document(engine, &topic.feed, syntax, HistoryAddress::Newest).await?
        && whole.body.len() <= limit
    {
        return Ok((whole.body.clone(), headers));
    }
    let body = feed_info::part(engine, &topic.feed, syntax, &page.changes).await?;
    Ok((body.into(), headers))
}

fn headers(content_type: &'static str, links: Option<HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.extend(links.map(|links| (LINK, links)));
    headers
}

fn carried(settings: &FeedSettings, page: &PullPage, by: OrderBy, after: Seq, head: Seq) -> DeliveredRange {
    // Recorded, so that the next delivery does not scan the hidden items once more.
    let scanned = || read_cursor(page.last_cursor.as_deref()?, &settings.tag, by).and_then(ParsedCursor::seq);
    let last = page.changes.last().map(|change| by.position(change));
    // Where a filter hides many, a page may be empty and still lead on.
    let through = last.or_else(|| scanned().filter(|_| page.more)).unwrap_or(after);
    DeliveredRange { through, scanned: if page.more { through } else { head.max(through) } }
}

/// "the cursor value of the last item in the feed prior to the feed update"; none before the first.
async fn previous(
    engine: &Arc<Engine>,
    topic: &Topic,
    access: Access,
    after: Seq,
) -> Result<Option<String>, PullRequestError> {
    let settings = settings(engine, &topic.feed);
    if after == 0 {
        return Ok(None);
    }
    let named = |seq| settings.tag.cursor(topic.by(), seq);
    match settings.kind {
        CursorKind::Sequence => Ok(Some(named(after))),
        CursorKind::Toc => {
            let order = FeedOrder { descending: true, ..topic.query.order };
            // T+O+C counts the items of a second, so the cursor has to come from a page that holds the item.
            let since = Some(PositionSpec::Cursor(named(after + 1)));
            let query = PullQuery { order, since, max: 1, ..topic.query.clone() };
            Ok(ask(engine, topic, access, query).await?.last_cursor)
        }
    }
}

async fn ask(
    engine: &Arc<Engine>,
    topic: &Topic,
    access: Access,
    query: PullQuery,
) -> Result<PullPage, PullRequestError> {
    // A topic's query may name a timeout. A delivery never waits: it was an append that caused it.
    let query = PullQuery { timeout: Duration::ZERO, ..query };
    PullRequest {
        engine: engine.clone(),
        feed: topic.feed.clone(),
        access,
        reader: None,
        expires: None,
        query,
    }
    .run_without_waiting()
    .await
}
