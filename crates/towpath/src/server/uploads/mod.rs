//! `/feeds/{feed}/uploads`: resumable uploads by tus 1.0.0 (core, creation with and without bytes or a length,
//! termination, expiration, checksum).
//!
//! An upload becomes the content of the item that its metadata names, once its last byte is stored.

mod checksum;
mod create;
mod metadata;
mod part;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use towpath_proto::format::http_date;

use self::create::create;
use self::part::{Part, in_use, receive, take};
use self::wire::{
    DEFERRED_LENGTH, EXPIRES, LENGTH, MAX_SIZE, METADATA, OFFSET, PART, RESUMABLE, TUS_VERSION, bare,
    checked_length, is_part, number,
};
use crate::config::TokenRight;
use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::access::may_change;
use crate::engine::attachments::{Stage, Upload, finish, finish_late, max_size};
use crate::engine::request::feed_to_change;
use crate::engine::work::run_detached;
use crate::engine::{Engine, Feed};
use crate::server::item_response::insert;
use crate::server::problem::Problem;
use crate::server::read_your_writes::set_position;

const VERSION: &str = "1.0.0";
const EXTENSIONS: &str =
    "creation,creation-with-upload,creation-defer-length,termination,expiration,checksum";
/// Response headers that pages of listed origins may read.
const EXPOSED: &str = "Tus-Resumable, Tus-Version, Tus-Max-Size, Tus-Extension, Upload-Offset, Upload-Length, Upload-Defer-Length, \
     Upload-Metadata, Upload-Expires";

/// Attempts to remove an upload that is written to meanwhile.
const TRIES: usize = 5;

/// Answers a request for uploads. Failures are answered here, too: they have headers of the protocol.
pub(super) async fn respond(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    id: Option<&str>,
    request: Request<Incoming>,
) -> Answer {
    match dispatch(engine, peer, feed, id, request).await {
        Ok(mut answer) => {
            answer.headers.insert(RESUMABLE, HeaderValue::from_static(VERSION));
            answer
        }
        Err(error) => refused(engine, error),
    }
}

/// Makes the answer to a request for uploads that fails.
pub(super) fn refused(engine: &Engine, error: RouteError) -> Answer {
    let kind = error.kind;
    let mut answer = Problem::from(error).response();
    match kind {
        RouteErrorKind::Precondition => insert(&mut answer.headers, TUS_VERSION, VERSION),
        RouteErrorKind::TooLarge => insert(&mut answer.headers, MAX_SIZE, &max_size(engine).to_string()),
        _ => {}
    }
    answer.headers.insert(RESUMABLE, HeaderValue::from_static(VERSION));
    answer
}

/// Adds what a server says of itself to an answer to OPTIONS.
pub(super) fn describe(engine: &Engine, headers: &mut HeaderMap) {
    headers.insert(RESUMABLE, HeaderValue::from_static(VERSION));
    headers.insert(TUS_VERSION, HeaderValue::from_static(VERSION));
    headers.insert("tus-extension", HeaderValue::from_static(EXTENSIONS));
    headers.insert("tus-checksum-algorithm", HeaderValue::from_static(checksum::ALGORITHMS));
    headers.insert(MAX_SIZE, max_size(engine).into());
}

/// Lets pages that may read an answer read the headers of the protocol.
pub(super) fn expose(headers: &mut HeaderMap) {
    if headers.contains_key(RESUMABLE) && headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}

async fn dispatch(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    id: Option<&str>,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    // Before anything is looked up: strangers must not learn which uploads there are.
    may_change(&engine.tokens.load(), TokenRight::Publish, feed, peer, &request)?;
    let feed = feed_to_change(engine, feed)?;
    if request.headers().get(RESUMABLE).is_none_or(|version| version != VERSION) {
        return Err(RouteError::precondition(format!("Tus-Resumable must be {VERSION}")));
    }
    let (at, id) = (engine.clone(), id.map(str::to_owned));
    let working = async move {
        match id {
            Some(id) => carry_on(&at, &feed, &id, request).await,
            None => create(&at, &feed, request).await,
        }
    };
    // If the client goes, the bytes that came are kept, and the last one publishes the item.
    run_detached(engine, working).await?
}

/// Does what a request asks of an upload that there is.
async fn carry_on(
    engine: &Engine,
    feed: &Feed,
    id: &str,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    // "The actual method of the request MUST be ignored", for clients that can send only POST.
    let tunnelled = request.headers().get("x-http-method-override").map(HeaderValue::as_bytes);
    let method = match (request.method(), tunnelled) {
        (&Method::POST, Some(method)) => Method::from_bytes(method).unwrap_or(Method::POST),
        (method, _) => method.clone(),
    };
    let upload = find(engine, feed, id).await?;
    match method {
        Method::HEAD => status(engine, upload).await,
        Method::PATCH => append(engine, feed, upload, request).await,
        Method::DELETE => terminate(engine, feed, upload).await,
        _ => Err(RouteError::bad_request("X-HTTP-Method-Override must be PATCH, HEAD or DELETE")),
    }
}

async fn find(engine: &Engine, feed: &Feed, id: &str) -> Result<Upload, RouteError> {
    let upload = Upload::load(engine.store.as_ref(), feed.id(), id).await?;
    // Downloads of mirrors and single requests have rows as well, which are nobody's to continue.
    let upload = upload.filter(|upload| upload.row.resumable.is_some());
    let upload = upload.ok_or_else(|| RouteError::not_found("there is no such upload, or it was ended"))?;
    if upload.row.stage == Stage::Removing || upload.row.expires <= engine.now() {
        return Err(RouteError::gone("the upload was not continued in time"));
    }
    Ok(upload)
}

async fn status(engine: &Engine, mut upload: Upload) -> Result<Answer, RouteError> {
    let mut answer = bare(StatusCode::OK);
    if upload.row.length == Some(upload.row.offset) && upload.row.stage != Stage::Done {
        // A crash came between the last byte and the item. Another request may be at it.
        match finish_late(engine, &mut upload).await.map_err(in_use) {
            Ok(Some(published)) => set_position(&mut answer.headers, published.appended.head.seq),
            Ok(None) => {
                return Err(RouteError::gone("the item was changed since the upload's last byte came"));
            }
            Err(e) if e.kind == RouteErrorKind::Conflict => {}
            Err(e) => return Err(e),
        }
    }
    insert(&mut answer.headers, OFFSET, &upload.row.offset.to_string());
    match upload.row.length {
        Some(length) => insert(&mut answer.headers, LENGTH, &length.to_string()),
        // "The response MUST contain Upload-Defer-Length as long as the length is not known."
        None => insert(&mut answer.headers, DEFERRED_LENGTH, "1"),
    }
    if let Some(resumable) = upload.row.resumable.as_ref().filter(|of| !of.metadata.is_empty()) {
        insert(&mut answer.headers, METADATA, &resumable.metadata);
    }
    if upload.row.stage == Stage::Receiving {
        insert(&mut answer.headers, EXPIRES, &http_date::write(upload.row.expires));
    }
    Ok(answer)
}

async fn append(
    engine: &Engine,
    feed: &Feed,
    mut upload: Upload,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    let headers = request.headers();
    if !is_part(headers) {
        return Err(RouteError::unsupported_type(format!("Content-Type must be {PART}")));
    }
    let offset = number(headers, &OFFSET)?;
    if offset != upload.row.offset {
        return Err(RouteError::conflict(format!(
            "the upload has {} bytes, and Upload-Offset is {offset}",
            upload.row.offset
        )));
    }
    set_length(engine, &mut upload, headers).await?;
    let part = Part::of(engine, request, &upload.row)?;
    let mut answer = bare(StatusCode::NO_CONTENT);
    let id = upload.id.clone();
    let taken = take(engine, receive(engine, upload, part), &mut answer.headers).await;
    match taken {
        // The other request may have removed it: then there is nothing to go on with.
        Err(e) if e.kind == RouteErrorKind::Conflict => Err(find(engine, feed, &id).await.err().unwrap_or(e)),
        taken => taken.map(|()| answer),
    }
}

/// Stores the length that a request tells of an upload that was created without one.
async fn set_length(engine: &Engine, upload: &mut Upload, headers: &HeaderMap) -> Result<(), RouteError> {
    if !headers.contains_key(LENGTH) {
        return Ok(());
    }
    let (length, offset) = (checked_length(engine, headers)?, upload.row.offset);
    match upload.row.length {
        Some(known) if known == length => return Ok(()),
        // "Once set, the length MUST NOT be changed."
        Some(known) => {
            return Err(RouteError::bad_request(format!(
                "Upload-Length is {length}, and was {known} before"
            )));
        }
        None if length < offset => {
            return Err(RouteError::bad_request(format!(
                "Upload-Length is {length}, and the upload has {offset} bytes already"
            )));
        }
        None => upload.row.length = Some(length),
    }
    upload.save(engine.store.as_ref()).await.map_err(in_use)
}

async fn terminate(engine: &Engine, feed: &Feed, mut upload: Upload) -> Result<Answer, RouteError> {
    let store = engine.store.as_ref();
    for _ in 0..TRIES {
        if matches!(upload.row.stage, Stage::Stored { .. }) {
            // Its bytes are the item's already.
            finish(engine, &mut upload).await.map_err(in_use)?;
        }
        match upload.remove(store).await {
            // A request that writes to it fails from then on.
            Err(e) if e.is_conflict() => upload = find(engine, feed, &upload.id).await?,
            removed => {
                removed?;
                return Ok(bare(StatusCode::NO_CONTENT));
            }
        }
    }
    Err(RouteError::busy("another request keeps writing to this upload; try again"))
}
