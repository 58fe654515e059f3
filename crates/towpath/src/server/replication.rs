//! `/feeds/{feed}/replication` and `/feeds/{feed}/snapshots`: Data Replication.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LOCATION, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::json;

use super::auth;
use super::document::{Answer, Document, answer_head};
use super::items::{no_feed, parameters, whole, with_log};
use super::problem::Problem;
use super::route::serve;
use crate::engine::pages::paging;
use crate::engine::replication::served::{self, Found, Which};
use crate::engine::replication::snapshot;
use crate::engine::{Engine, Feed};

/// The newest page; with `?since=TIME` the way to the page where the changes of that time begin.
pub(super) async fn newest(
    engine: &Arc<Engine>,
    feed: &str,
    request: &Request<Incoming>,
) -> Result<Answer, Problem> {
    let feed = known(engine, feed)?;
    let since = parameters(request.uri().query()).find(|(name, _)| name == "since");
    if let Some((_, time)) = since {
        let time: Timestamp = time
            .parse()
            .map_err(|_| Problem::bad_request(format!("since={time:?} is not a time (RFC 3339)")))?;
        let number = paging::page_since(engine, &feed, time).await?;
        let number = number.ok_or_else(|| empty(&feed))?;
        return Ok(found_at(&format!("{}/pages/{number}", served::address(engine, &feed))));
    }
    page_of(engine, &feed, Which::Newest, request).await
}

/// A page by its number.
pub(super) async fn page(
    engine: &Arc<Engine>,
    feed: &str,
    number: &str,
    request: &Request<Incoming>,
) -> Result<Answer, Problem> {
    let feed = known(engine, feed)?;
    page_of(engine, &feed, Which::Number(numbered(number)?), request).await
}

async fn page_of(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    which: Which,
    request: &Request<Incoming>,
) -> Result<Answer, Problem> {
    let found = served::page(engine, feed, which, request.method() == Method::HEAD).await?;
    answer(found, feed, request).await
}

async fn answer(found: Found, feed: &Feed, request: &Request<Incoming>) -> Result<Answer, Problem> {
    match found {
        Found::Page(document) => Ok(serve(document, request).await),
        Found::Head(headers, length) => Ok(answer_head(headers, length, request.headers())),
        Found::Empty => Err(empty(feed)),
        Found::Gone => Err(Problem::gone("this page was let go; the oldest page that is kept has no prev")),
        Found::Nothing => Err(Problem::not_found("there is no such page")),
    }
}

fn empty(feed: &Feed) -> Problem {
    Problem::empty(format!(
        "nothing has been published to {} yet, and a page cannot be empty; ask again later",
        feed.id()
    ))
}

/// Every snapshot that is kept.
pub(super) async fn snapshots(engine: &Arc<Engine>, feed: &str) -> Result<Answer, Problem> {
    let feed = known(engine, feed)?;
    Ok(snapshot_list(engine, &feed, &snapshot::list(engine, &feed).await?))
}

/// A list of snapshots, as JSON.
pub(crate) fn snapshot_list(engine: &Engine, feed: &Feed, snapshots: &[snapshot::Snapshot]) -> Answer {
    let mut list = Vec::new();
    for one in snapshots {
        list.push(json!({
            "id": one.id.to_string(),
            "url": format!("{}{}", engine.base_url, snapshot::index_path(feed, one.id)),
            "createdAt": one.created_at,
            "items": one.items,
            "pages": one.pages,
        }));
    }
    whole(StatusCode::OK, JSON, json!({ "snapshots": list }).to_string())
}

const JSON: &str = "application/json";

/// Makes a snapshot; answers with its index once it is complete.
pub(super) async fn make(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    request: &Request<Incoming>,
) -> Result<Answer, Problem> {
    auth::may_publish(&engine.config.server.tokens, peer, request)?;
    let feed = with_log(engine, feed)?;
    let making = {
        let (engine, feed) = (engine.clone(), feed.clone());
        // It is finished even when whoever asked for it goes away.
        tokio::spawn(async move { snapshot::make(&engine, &feed, Vec::new()).await })
    };
    let made = making.await.map_err(|e| Problem::internal(e.to_string()))??;
    let made = made.ok_or_else(|| Problem::busy("a snapshot of this feed is being made already"))?;
    let body = snapshot::index_of(engine, &feed, &made).to_json();
    let mut answer = whole(StatusCode::CREATED, JSON, body);
    let url = format!("{}{}", engine.base_url, snapshot::index_path(&feed, made.id));
    if let Ok(url) = HeaderValue::from_str(&url) {
        answer.headers.insert(LOCATION, url);
    }
    Ok(answer)
}

/// The index of a snapshot by its id, or of the newest.
pub(super) async fn index(
    engine: &Arc<Engine>,
    feed: &str,
    id: &str,
    request: &Request<Incoming>,
) -> Result<Answer, Problem> {
    let feed = known(engine, feed)?;
    let id = if id == "latest" { None } else { Some(numbered(id)?) };
    let document: Option<Arc<Document>> = snapshot::index(engine, &feed, id).await?;
    let document = document.ok_or_else(|| match id {
        Some(id) => Problem::not_found(format!("there is no snapshot {id}, or not any more")),
        None => Problem::not_found("no snapshot was made yet: POST to …/snapshots makes one"),
    })?;
    Ok(serve(document, request).await)
}

/// A page of a snapshot.
pub(super) async fn snapshot_page(
    engine: &Arc<Engine>,
    feed: &str,
    id: &str,
    number: &str,
    request: &Request<Incoming>,
) -> Result<Answer, Problem> {
    let feed = known(engine, feed)?;
    let only_head = request.method() == Method::HEAD;
    let found = snapshot::page(engine, &feed, numbered(id)?, numbered(number)?, only_head).await?;
    answer(found, &feed, request).await
}

fn known(engine: &Engine, feed: &str) -> Result<Arc<Feed>, Problem> {
    engine.feed(feed).ok_or_else(|| no_feed(feed))
}

/// A number as addresses have it: digits, without zeros before them.
pub(super) fn numbered(text: &str) -> Result<u64, Problem> {
    let number = text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    number.ok_or_else(|| Problem::not_found("there is nothing at this address"))
}

fn found_at(url: &str) -> Answer {
    let mut headers = HeaderMap::from_iter([(CACHE_CONTROL, HeaderValue::from_static("no-cache"))]);
    if let Ok(url) = HeaderValue::from_str(url) {
        headers.insert(LOCATION, url.clone());
        headers.insert(CONTENT_LOCATION, url);
    }
    Answer { status: StatusCode::TEMPORARY_REDIRECT, headers, body: Bytes::new() }
}
