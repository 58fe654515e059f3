//! `POST /feeds/{feed}/items`: a batch of changes.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use towpath_proto::NewChange;
use towpath_proto::change::Seq;
use towpath_store::{AppendError, Expected};

use super::body::BodyForm;
use super::line::{BodyPlace, PublishedLine};
use super::urls::UrlRule;
use crate::config::TokenRight;
use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::engine::access::may_change;
use crate::engine::attachments::NewFile;
use crate::engine::publish::{Published, publish_with};
use crate::engine::request::{check_parameters, feed_to_change, parameters};
use crate::engine::work::run_detached;
use crate::engine::{Engine, Feed, attachments, request_body, scheduled};
use crate::server::item_response::json_answer;
use crate::server::read_your_writes::set_position;
use crate::store_error::StoreError;

/// Largest batch, in bytes.
const MAX_BATCH: usize = 64 << 20;

/// Receipt for a batch.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::server) struct BatchReceipt {
    /// Number of changes that were appended.
    appended: usize,
    /// Number of those that changed an item that was there.
    changed: usize,
    /// Id of the feed.
    feed: String,
    /// Position of the first change.
    first: Seq,
    /// Position at which the log ends now.
    last: Seq,
    /// Time of the last change.
    modified: Timestamp,
    /// Number of changes that are published later.
    scheduled: usize,
    /// Number of items that stay as they were.
    unchanged: usize,
}

/// Appends a batch whole or not at all, except for what is to be published later.
pub(in crate::server) async fn post(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    let sender = may_change(&engine.tokens.load(), TokenRight::Publish, feed, peer, &request)?;
    // Only after the token: a stranger must not create feeds by name.
    let feed = feed_to_change(engine, feed)?;
    check_parameters(request.uri().query(), &["as", "expect", "urls"], &[])?;
    let expected = expected(request.uri().query())?;
    let urls = UrlRule::of(request.uri().query())?;
    let form = BodyForm::of(&request, &feed)?;
    let bytes = request_body::read(engine, request, MAX_BATCH).await?;
    let (lines, files) = form.read(engine, &feed, bytes, urls).await?;
    let at = engine.clone();
    let publishing = async move { publish(&at, &feed, expected, lines, files).await };
    let receipt = run_detached(engine, publishing).await??;
    let BatchReceipt { appended, scheduled, last, .. } = receipt;
    tracing::debug!(feed = receipt.feed, token = %sender, appended, scheduled, last, "published a batch");
    let mut answer = json_answer(StatusCode::OK, &json!(receipt));
    set_position(&mut answer.headers, receipt.last);
    Ok(answer)
}

/// Publishes lines with their files.
async fn publish(
    engine: &Engine,
    feed: &Feed,
    expected: Expected,
    lines: Vec<PublishedLine>,
    files: Vec<NewFile>,
) -> Result<BatchReceipt, RouteError> {
    let files = attachments::save(engine, feed.id(), files).await?;
    let Divided { changes, places, later } = divide(engine, lines);
    let count = changes.len();
    let published = publish_with(engine, feed.id(), expected, changes, files).await;
    let Published { appended, unchanged, changed } = published.map_err(|e| refused(e, &places))?;
    let scheduled = later.len();
    scheduled::schedule(engine, feed.id(), later).await?;
    Ok(BatchReceipt {
        appended: count - unchanged,
        changed,
        feed: feed.id().to_string(),
        first: appended.first,
        last: appended.head.seq,
        modified: appended.head.modified,
        scheduled,
        unchanged,
    })
}

/// Parses `?expect=SEQ`: append only if the feed ends there.
fn expected(query: Option<&str>) -> Result<Expected, RouteError> {
    let Some(value) = parameters(query).find(|(name, _)| name == "expect").map(|(_, value)| value) else {
        return Ok(Expected::Any);
    };
    let seq =
        value.parse().map_err(|_| RouteError::bad_request(format!("expect={value:?} is not a number")))?;
    Ok(Expected::Last(seq))
}

/// Makes the error of a refused batch, which names the change at fault as it is in the body.
fn refused(error: StoreError, places: &[BodyPlace]) -> RouteError {
    let (index, reason) = match &error {
        StoreError::Append(AppendError::Patch { index, id, source, .. }) => {
            (*index, format!("id {id:?}: {source}"))
        }
        StoreError::Append(AppendError::Invalid { index, reason, .. }) => (*index, reason.clone()),
        _ => return error.into(),
    };
    let Some(place) = places.get(index) else { return error.into() };
    let error = RouteError { detail: format!("{place}: {reason}"), ..error.into() };
    match place.pointer() {
        Some(pointer) => error.at(pointer),
        None => error,
    }
}

/// Lines of a batch, by when they are published.
#[derive(Default)]
struct Divided {
    changes: Vec<NewChange>,
    /// Places of the changes in the body.
    places: Vec<BodyPlace>,
    /// Changes for a time to come.
    later: Vec<(NewChange, Timestamp)>,
}

/// Divides lines into changes for now, and those for a time to come.
fn divide(engine: &Engine, lines: Vec<PublishedLine>) -> Divided {
    let now = engine.now();
    let Divided { mut changes, mut places, mut later } = Divided::default();
    for PublishedLine { place, change, publish_at } in lines {
        match publish_at.filter(|at| *at > now) {
            // Its time counts once it is published.
            Some(at) => later.push((change, at)),
            None => {
                changes.push(change.not_after(now));
                places.push(place);
            }
        }
    }
    Divided { changes, places, later }
}
