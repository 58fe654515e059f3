//! `/feeds/{feed}/replication` and `/feeds/{feed}/snapshots`: Data Replication.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CACHE_CONTROL, CONTENT_LOCATION, LOCATION};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use jiff::Timestamp;
use serde_json::json;

use crate::config::TokenRight;
use crate::document::prebuilt::{Answer, Document, answer_head};
use crate::document::respond::{respond, whole};
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::access::may_change;
use crate::engine::request::{known_feed, parameters, path_number};
use crate::engine::{Engine, Feed};
use crate::protocols::pages::page_since;
use crate::protocols::replication::documents::{self, PageAddress, PageLookup, PagePart};
use crate::protocols::replication::snapshot;

/// Answers with the newest page; with `?since=TIME`, redirects to the page where the changes of that time begin.
pub(crate) async fn newest<B>(
    engine: &Arc<Engine>,
    feed: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, feed)?;
    let since = parameters(request.uri().query()).find(|(name, _)| name == "since");
    if let Some((_, time)) = since {
        let time: Timestamp = time
            .parse()
            .map_err(|_| RouteError::bad_request(format!("since={time:?} is not a time (RFC 3339)")))?;
        let number = page_since(engine, &feed, time).await?;
        let number = number.ok_or_else(|| empty(&feed))?;
        return Ok(found_at(&format!("{}/pages/{number}", documents::address(engine, &feed))));
    }
    page_of(engine, &feed, PageAddress::Newest, request).await
}

/// Answers with the page of a number.
pub(crate) async fn page<B>(
    engine: &Arc<Engine>,
    feed: &str,
    number: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, feed)?;
    page_of(engine, &feed, PageAddress::Number(path_number(number)?), request).await
}

async fn page_of<B>(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    which: PageAddress,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let found = documents::page(engine, feed, which, PagePart::of(request.method())).await?;
    respond_with_page(found, feed, request).await
}

async fn respond_with_page<B>(
    found: PageLookup,
    feed: &Feed,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    match found {
        PageLookup::Page(document) => respond(document, request.headers()).await,
        PageLookup::Head(headers, length) => Ok(answer_head(headers, length, request.headers())),
        PageLookup::Empty => Err(empty(feed)),
        PageLookup::Gone => {
            // Retention has said so for the grace period by the missing `prev`; now it is for good.
            Err(RouteError::gone("this page was let go; the oldest page that is kept has no prev"))
        }
        // Pages that were let go are 410. A link to this one is of a log before this one began.
        PageLookup::NotFound => Err(RouteError::new(RouteErrorKind::NeverExisted, "there is no such page")),
    }
}

fn empty(feed: &Feed) -> RouteError {
    RouteError::empty(format!(
        "nothing has been published to {} yet, and a page cannot be empty; ask again later",
        feed.id()
    ))
}

/// Answers with the list of snapshots.
pub(crate) async fn snapshots(engine: &Arc<Engine>, feed: &str) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, feed)?;
    Ok(snapshot_list(engine, &feed, &snapshot::list(engine, &feed).await?))
}

/// Makes the JSON list of snapshots.
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

/// Makes a snapshot, and answers with its index when it is complete.
pub(crate) async fn make<B>(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    // A snapshot is as large as the feed: more than a publisher's own items.
    let sender = may_change(&engine.tokens.load(), TokenRight::Admin, feed, peer, request)?;
    tracing::info!(feed, token = %sender, "a snapshot was requested");
    let feed = known_feed(engine, feed)?;
    feed.without_log().map_or(Ok(()), |why| Err(RouteError::conflict(why)))?;
    let making = {
        let (engine, feed) = (engine.clone(), feed.clone());
        // A task of its own: the snapshot is completed even if the client disconnects.
        tokio::spawn(async move { snapshot::make(&engine, &feed, Vec::new()).await }.boxed())
    };
    let made = making.await.map_err(|e| RouteError::internal(e.to_string()))??;
    let made = made.ok_or_else(|| RouteError::busy("a snapshot of this feed is being made already"))?;
    let body = snapshot::index_of(engine, &feed, &made).to_json();
    let mut answer = whole(StatusCode::CREATED, JSON, body);
    let url = format!("{}{}", engine.base_url, snapshot::index_path(&feed, made.id));
    if let Ok(url) = HeaderValue::from_str(&url) {
        answer.headers.insert(LOCATION, url);
    }
    Ok(answer)
}

/// Answers with the index of a snapshot, by its id or as `latest`.
pub(crate) async fn index<B>(
    engine: &Arc<Engine>,
    feed: &str,
    id: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, feed)?;
    let id = if id == "latest" { None } else { Some(path_number(id)?) };
    let document: Option<Arc<Document>> = snapshot::index(engine, &feed, id).await?;
    let document = document.ok_or_else(|| match id {
        Some(id) => RouteError::not_found(format!("there is no snapshot {id}, or not any more")),
        None => RouteError::not_found("no snapshot was made yet: POST to …/snapshots makes one"),
    })?;
    respond(document, request.headers()).await
}

/// Answers with a page of a snapshot.
pub(crate) async fn snapshot_page<B>(
    engine: &Arc<Engine>,
    feed: &str,
    id: &str,
    number: &str,
    request: &Request<B>,
) -> Result<Answer, RouteError> {
    let feed = known_feed(engine, feed)?;
    let part = PagePart::of(request.method());
    let found = snapshot::page(engine, &feed, path_number(id)?, path_number(number)?, part).await?;
    respond_with_page(found, &feed, request).await
}

fn found_at(url: &str) -> Answer {
    let mut headers = HeaderMap::from_iter([(CACHE_CONTROL, HeaderValue::from_static("no-cache"))]);
    if let Ok(url) = HeaderValue::from_str(url) {
        headers.insert(LOCATION, url.clone());
        headers.insert(CONTENT_LOCATION, url);
    }
    // Temporary: the same time may lead to another page once retention removed this one.
    Answer { status: StatusCode::TEMPORARY_REDIRECT, headers, body: Bytes::new() }
}
