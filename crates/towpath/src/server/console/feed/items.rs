//! Items of a feed: newest first, searched, filtered, at any depth and any moment.

use std::sync::Arc;

use maud::Markup;

use super::super::clock;
use super::super::feed_head::FeedHead;
use super::super::moment::time_of;
use super::super::visit::Visit;
use super::items_view;
use super::scan::{Conditions, FoundItems, Scan};
use crate::document::route_error::RouteError;
use crate::engine::work::blocking;

/// Returns the address that the slider leads to: the moment of a change, which stays valid when the log grows.
pub(super) async fn redirect(visit: &Visit, head: &FeedHead) -> Result<Option<String>, RouteError> {
    let Some(seq) = visit.query.number("change")? else { return Ok(None) };
    let path = visit.feed_path(&head.feed);
    if seq >= head.head.seq || head.feed.is_filter() {
        return Ok(Some(path));
    }
    // Up to the horizon a change may be gone.
    let at = time_of(visit, &head.feed, seq.max(head.head.horizon + 1)).await?;
    let query = at.map(|at| visit.query.with(&[("change", ""), ("before", ""), ("at", &at.to_string())]));
    Ok(Some(format!("{path}{}", query.unwrap_or_default())))
}

pub(super) async fn body(visit: &Visit, head: &FeedHead) -> Result<Markup, RouteError> {
    let conditions = conditions(visit, head).await?;
    let before = before(visit, head).await?;
    let found = find(visit, head, conditions, before).await?;
    Ok(items_view::body(visit, head, &found))
}

async fn conditions(visit: &Visit, head: &FeedHead) -> Result<Conditions, RouteError> {
    let query = &visit.query;
    let after = match query.get("from") {
        Some(from) => {
            let from = clock::parse(from, "from")?;
            visit.engine.store.last_before(head.feed.log(), from).await?
        }
        None => 0,
    };
    Ok(Conditions {
        words: Conditions::words(query.search().0),
        tag: query.get("tag").map(str::to_owned),
        is_flagged: query.get("risk") == Some("flagged"),
        after,
    })
}

/// Returns the position before which the page begins.
async fn before(visit: &Visit, head: &FeedHead) -> Result<Option<u64>, RouteError> {
    let cursor = visit.query.number("before")?;
    let Some(to) = visit.query.get("to") else { return Ok(cursor) };
    // A date means the whole day.
    let to = match to.trim().parse::<jiff::civil::Date>() {
        Ok(date) => date.tomorrow().unwrap_or(date).to_string(),
        Err(_) => to.to_owned(),
    };
    let end = visit.engine.store.last_before(head.feed.log(), clock::parse(&to, "to")?).await? + 1;
    Ok(Some(cursor.map_or(end, |cursor| cursor.min(end))))
}

/// Walks along the items. A search, or a list of large items, takes a core for a moment. So it runs apart from the threads
/// that serve.
async fn find(
    visit: &Visit,
    head: &FeedHead,
    conditions: Conditions,
    before: Option<u64>,
) -> Result<FoundItems, RouteError> {
    let past = head.past.map(|past| past.seq);
    let (engine, feed) = (visit.engine.clone(), Arc::clone(&head.feed));
    let search = move || {
        let scan = Scan { engine: &engine, feed: &feed, conditions: &conditions, past };
        engine.runtime.block_on(scan.run(before))
    };
    Ok(blocking(search).await??)
}
