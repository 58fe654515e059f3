//! What is delivered: the items after a position, made once for all who stand there.

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
use towpath_proto::push::websub::delivery::Carried;
use towpath_proto::smart::accept::PageFormat;
use towpath_proto::smart::cursor::{Cursor, CursorKind, read as read_cursor};
use towpath_proto::smart::publish;
use towpath_proto::smart::pull::{FeedSettings, Page};
use towpath_proto::smart::query::PullQuery;
use towpath_proto::smart::spec::{By, Order, Spec};

use super::{Subscribed, Topic};
use crate::engine::Engine;
use crate::engine::history::{self, Found};
use crate::engine::smart::{Access, AskError, Asked};

/// The most items of one delivery.
const ITEMS: usize = 200;
/// How many made pages are kept: most subscribers stand at the same few places.
const KEPT: usize = 64;

/// A delivery's content.
#[derive(Debug)]
pub(super) struct PushPage {
    /// `Content-Type` and `Link`.
    pub(super) headers: HeaderMap,
    /// Empty where there is nothing to send.
    pub(super) body: Bytes,
    /// From where to where it reaches.
    pub(super) carried: Carried,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    access: Access,
    format: PageFormat,
    after: Seq,
    head: Seq,
}

type Made = Arc<OnceCell<Arc<PushPage>>>;

/// The pages that were made last.
#[derive(Default)]
pub(super) struct Pages(Mutex<VecDeque<(Place, Box<str>, Made)>>);

impl Pages {
    fn place(&self, topic: &str, place: Place) -> Made {
        let mut pages = self.0.lock();
        let is_it = |(known, of, _): &&(Place, Box<str>, Made)| *known == place && **of == *topic;
        if let Some((.., made)) = pages.iter().rev().find(is_it) {
            return made.clone();
        }
        if pages.len() >= KEPT {
            pages.pop_front();
        }
        let made = Made::default();
        pages.push_back((place, topic.into(), made.clone()));
        made
    }
}

/// What a subscriber is to be sent after a position.
pub(super) async fn page(
    engine: &Arc<Engine>,
    to: &Subscribed,
    after: Seq,
) -> Result<Arc<PushPage>, AskError> {
    let (topic, access) = (&to.topic, to.access);
    let (format, head) = (topic.format(to.subscription.dialect), topic.head());
    let place = Place { access, format, after, head };
    let made = engine.push.pages.place(&topic.key, place);
    let make = || async { Ok(Arc::new(make(engine, topic, access, format, (after, head)).await?)) };
    made.get_or_try_init(make).await.cloned()
}

async fn make(
    engine: &Arc<Engine>,
    topic: &Topic,
    access: Access,
    format: PageFormat,
    (after, head): (Seq, Seq),
) -> Result<PushPage, AskError> {
    let (settings, by, limit) = (topic.feed.settings(engine), topic.by(), engine.config.hub.push_bytes);
    let since = (after > 0).then(|| Spec::Cursor(settings.tag.cursor(by, after)));
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
            tracing::warn!(%feed, "an item of {} bytes is too large to be pushed", body.len());
            return Ok(nothing());
        }
        query.max = page.changes.len() / 2;
    }
}

/// What is pushed of `/items`.
fn items(
    settings: &FeedSettings,
    query: &PullQuery,
    page: &Page,
    previous: Option<&str>,
    format: PageFormat,
) -> (Bytes, HeaderMap) {
    let (body, content_type) = publish::push(settings, query, page, previous, format);
    (body.into(), headers(content_type, publish::topic_links(settings, query, format)))
}

/// What is pushed of a feed's newest document: what has changed, or all of it where it is JSON, of which WebSub has no
/// parts delivered (section 7). One that is too large for that is delivered in parts all the same.
async fn document(
    engine: &Arc<Engine>,
    topic: &Topic,
    syntax: Syntax,
    page: &Page,
    limit: usize,
) -> Result<(Bytes, HeaderMap), AskError> {
    let links = history::topic_links(engine, &topic.feed, syntax);
    let headers = headers(syntax.content_type(), HeaderValue::from_str(&links).ok());
    if syntax == Syntax::JsonFeed
        && let Found::Document(whole) =
            history::document(engine, &topic.feed, syntax, history::Which::Newest).await?
        && whole.body.len() <= limit
    {
        return Ok((whole.body.clone(), headers));
    }
    Ok((history::part(engine, &topic.feed, syntax, &page.changes).into(), headers))
}

fn headers(content_type: &'static str, links: Option<HeaderValue>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.extend(links.map(|links| (LINK, links)));
    headers
}

fn carried(settings: &FeedSettings, page: &Page, by: By, after: Seq, head: Seq) -> Carried {
    let scanned = || match read_cursor(page.last_cursor.as_deref()?, &settings.tag, by)? {
        Cursor::Sequence(seq) => Some(seq),
        Cursor::Toc(_) => None,
    };
    let last = page.changes.last().map(|change| by.position(change));
    // Where a filter hides many, a page may be empty and still lead on.
    let through = last.or_else(|| scanned().filter(|_| page.more)).unwrap_or(after);
    Carried { through, looked: if page.more { through } else { head.max(through) } }
}

/// "the cursor value of the last item in the feed prior to the feed update"; none before the first.
async fn previous(
    engine: &Arc<Engine>,
    topic: &Topic,
    access: Access,
    after: Seq,
) -> Result<Option<String>, AskError> {
    let settings = topic.feed.settings(engine);
    if after == 0 {
        return Ok(None);
    }
    let named = |seq| settings.tag.cursor(topic.by(), seq);
    match settings.kind {
        CursorKind::Sequence => Ok(Some(named(after))),
        CursorKind::Toc => {
            let order = Order { descending: true, ..topic.query.order };
            let since = Some(Spec::Cursor(named(after + 1)));
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
) -> Result<Page, AskError> {
    let query = PullQuery { timeout: Duration::ZERO, ..query };
    Asked { engine: engine.clone(), feed: topic.feed.clone(), access, query }.at_once().await
}
