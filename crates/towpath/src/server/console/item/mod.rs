//! The page of an item: its content shown safely, its fields, its risk, its versions, and what differs between them.

mod content;
pub(crate) mod difference;
pub(super) mod difference_view;
mod frame;
mod item_page;
mod json_tree;
mod versions;
mod view;

use std::sync::Arc;
use std::time::Instant;

use http::StatusCode;
use tokio::sync::Semaphore;
use towpath_proto::Op;
use towpath_proto::change::Change;

use super::feed::scan::{BUDGET, matches_filter, visible_at};
use super::feed_head::FeedHead;
use super::layout::{Page, Section};
use super::shown::Shown;
use super::text::name_of;
use super::visit::Visit;
use crate::document::route_error::RouteError;

use item_page::ItemPage;
use versions::Versions;

/// Comparisons at a time. Each holds up to three versions of an item, which may be a hundred megabytes each.
const COMPARISONS: usize = 2;

/// Places of comparisons.
struct Comparisons(Semaphore);

impl Default for Comparisons {
    fn default() -> Self {
        Self(Semaphore::new(COMPARISONS))
    }
}

/// Shows an item, or a part of it for a frame.
pub(super) async fn show(visit: &Visit, feed: &str, id: &str) -> Result<Shown, RouteError> {
    // Before anything is read: those that wait for their turn must hold no versions.
    let comparisons = visit.engine.extensions.get_or_insert_with(Comparisons::default);
    let _comparing = match visit.query.get("with") {
        Some(_) => comparisons.0.acquire().await.ok(),
        None => None,
    };
    let head = FeedHead::read(visit, feed).await?;
    let latest = visit.engine.store.latest(head.feed.log(), id).await?;
    let absent = || {
        let shown: String = id.chars().take(100).collect();
        RouteError::not_found(format!("Feed {} never had an item {shown:?}", head.feed.id()))
    };
    let latest = Arc::new(latest.ok_or_else(absent)?);
    if head.feed.is_filter() {
        // Only the latest version: earlier ones may be what the filter hides.
        let is_shown = latest.op != Op::Delete && matches_filter(&visit.engine, &head.feed, &latest.item);
        if !is_shown || visit.query.get("version").is_some_and(|seq| seq != latest.seq.to_string()) {
            return Err(absent());
        }
    }
    let shown = version(visit, &head, &latest).await?;
    if let Some(view) = visit.query.get("view") {
        return frame::document(&shown, view).map(Shown::Answer);
    }
    let with = match visit.query.number("with")? {
        Some(seq) if !head.feed.is_filter() => Some(Arc::new(version_of(visit, &head, id, seq).await?)),
        _ => None,
    };
    let last_seen = match (shown.op, shown.previous) {
        (Op::Delete, Some(previous)) => visit.engine.store.change(head.feed.log(), previous).await?,
        _ => None,
    };
    let versions = match head.feed.is_filter() {
        true => Versions::only(&latest),
        false => Versions::read(visit, &head, &latest).await?,
    };
    let page = ItemPage { head, shown, last_seen, latest, versions, with };
    let is_gone = page.latest.op == Op::Delete && page.shown.seq == page.latest.seq;
    let title = name_of(&page.last_seen().item).into_owned();
    let body = view::body(visit, &page).await?;
    let made = Page::new(title, Section::Feeds, body);
    // The address of a removed item says that it is gone, and its page still shows its past.
    Ok(if is_gone { Shown::With(StatusCode::GONE, made) } else { made.into() })
}

/// Returns the version that the address names: by position, by moment, else the latest.
async fn version(visit: &Visit, head: &FeedHead, latest: &Arc<Change>) -> Result<Arc<Change>, RouteError> {
    let id = &latest.item.id;
    if let Some(seq) = visit.query.number("version")? {
        return version_of(visit, head, id, seq).await.map(Arc::new);
    }
    let Some(past) = head.past else { return Ok(latest.clone()) };
    let visible =
        visible_at(visit.engine.store.as_ref(), &head.feed, id, past.seq, Instant::now() + BUDGET).await?;
    visible.map(Arc::new).ok_or_else(|| {
        RouteError::not_found(format!(
            "At {} feed {} had no such item yet, or it was changed too often since: its first version came {}",
            past.at,
            head.feed.id(),
            latest.created
        ))
    })
}

async fn version_of(visit: &Visit, head: &FeedHead, id: &str, seq: u64) -> Result<Change, RouteError> {
    let change = visit.engine.store.change(head.feed.log(), seq).await?;
    let (own, feed) = (change.filter(|change| change.item.id == id), head.feed.id());
    own.ok_or_else(|| {
        if seq <= head.head.horizon {
            return RouteError::gone(format!("Change {seq} of feed {feed} is no longer kept"));
        }
        RouteError::not_found(format!("Change {seq} of feed {feed} is no version of this item"))
    })
}
