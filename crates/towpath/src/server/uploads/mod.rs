//! `/feeds/{feed}/uploads`: resumable uploads by tus 1.0.0 (core, creation, termination, expiration, checksum).
//!
//! An upload becomes the content of the item that its metadata names, once its last byte is stored.

mod checksum;
mod metadata;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, LOCATION,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use hyper::body::{Body as _, Incoming};
use tokio::sync::Mutex;
use towpath_proto::format::http_date;
use towpath_proto::{Content, Item};

use self::checksum::Checksum;
use self::metadata::Metadata;
use crate::config::TokenRight;
use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::access::may_change;
use crate::engine::attachments::{Resumable, Stage, Upload, UploadWriter, finish, unfinished};
use crate::engine::request::feed_to_change;
use crate::engine::request_body::BodyReader;
use crate::engine::{Engine, Feed};
use crate::server::item_response::insert;
use crate::server::problem::Problem;
use crate::server::publish::{check_room, file_name};
use crate::server::read_your_writes::set_position;
use crate::store_error::StoreError;

const VERSION: &str = "1.0.0";
const EXTENSIONS: &str = "creation,termination,expiration,checksum";
pub(super) const RESUMABLE: HeaderName = HeaderName::from_static("tus-resumable");
const TUS_VERSION: HeaderName = HeaderName::from_static("tus-version");
const MAX_SIZE: HeaderName = HeaderName::from_static("tus-max-size");
const OFFSET: HeaderName = HeaderName::from_static("upload-offset");
const LENGTH: HeaderName = HeaderName::from_static("upload-length");
const DEFERRED_LENGTH: HeaderName = HeaderName::from_static("upload-defer-length");
const METADATA: HeaderName = HeaderName::from_static("upload-metadata");
const EXPIRES: HeaderName = HeaderName::from_static("upload-expires");
/// Response headers that pages of listed origins may read.
const EXPOSED: &str = "Tus-Resumable, Tus-Version, Tus-Max-Size, Tus-Extension, Upload-Offset, Upload-Length, Upload-Metadata, \
     Upload-Expires";

/// Limit of unfinished uploads of a feed.
const MAX_UPLOADS: usize = 100;
/// Attempts to remove an upload that is written to meanwhile.
const TRIES: usize = 5;

/// Answers a request for uploads. Failures are answered here, too: they have headers of the protocol.
pub(super) async fn answer(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    id: Option<&str>,
    request: Request<Incoming>,
) -> Answer {
    let mut answer = match respond(engine, peer, feed, id, request).await {
        Ok(answer) => answer,
        Err(error) => {
            let kind = error.kind;
            let mut answer = Problem::from(error).answer();
            match kind {
                RouteErrorKind::Precondition => insert(&mut answer.headers, TUS_VERSION, VERSION),
                RouteErrorKind::TooLarge => {
                    insert(&mut answer.headers, MAX_SIZE, &max_size(engine).to_string());
                }
                _ => {}
            }
            answer
        }
    };
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
    if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.append(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
    }
}

fn max_size(engine: &Engine) -> u64 {
    engine.server.load().large_content_mib.saturating_mul(1 << 20)
}

async fn respond(
    engine: &Arc<Engine>,
    peer: SocketAddr,
    feed: &str,
    id: Option<&str>,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    may_change(&engine.tokens.load(), TokenRight::Publish, feed, peer, &request)?;
    let feed = feed_to_change(engine, feed)?;
    if request.headers().get(RESUMABLE).is_none_or(|version| version != VERSION) {
        return Err(RouteError::precondition(format!("Tus-Resumable must be {VERSION}")));
    }
    let Some(id) = id else { return create(engine, &feed, request.headers()).await };
    // "The actual method of the request MUST be ignored", for clients that can send only POST.
    let tunnelled = request.headers().get("x-http-method-override").map(HeaderValue::as_bytes);
    let method = match (request.method(), tunnelled) {
        (&Method::POST, Some(method)) => Method::from_bytes(method).unwrap_or(Method::POST),
        (method, _) => method.clone(),
    };
    let upload = find(engine, &feed, id).await?;
    match method {
        Method::HEAD => status(engine, upload).await,
        Method::PATCH => append(engine, upload, request).await,
        Method::DELETE => terminate(engine, &feed, upload).await,
        _ => Err(RouteError::bad_request("X-HTTP-Method-Override must be PATCH, HEAD or DELETE")),
    }
}

async fn find(engine: &Engine, feed: &Feed, id: &str) -> Result<Upload, RouteError> {
    let upload = Upload::load(engine.store.as_ref(), feed.id(), id).await?;
    let upload = upload.filter(|upload| upload.row.resumable.is_some());
    let upload = upload.ok_or_else(|| RouteError::not_found("there is no such upload, or it was ended"))?;
    if upload.row.stage == Stage::Removing || upload.row.expires <= engine.now() {
        return Err(RouteError::gone("the upload was not continued in time"));
    }
    Ok(upload)
}

async fn create(engine: &Arc<Engine>, feed: &Feed, headers: &HeaderMap) -> Result<Answer, RouteError> {
    if headers.contains_key(DEFERRED_LENGTH) {
        return Err(RouteError::bad_request("Upload-Defer-Length is not supported; send Upload-Length"));
    }
    let (length, max) = (number(headers, &LENGTH)?, max_size(engine));
    if length > max {
        return Err(RouteError::too_large(format!(
            "the upload has more than {max} bytes ([server] large_content_mib)"
        )));
    }
    let text = headers.get(METADATA).map(HeaderValue::to_str).transpose();
    let text = text.map_err(|_| RouteError::bad_request("Upload-Metadata is not text"))?.unwrap_or_default();
    let Metadata { id, filename, filetype, title } = Metadata::parse(text)?;
    Item::new(id.as_str()).check().map_err(|e| RouteError::bad_request(e.to_string()))?;
    let media_type = filetype.unwrap_or_else(|| "application/octet-stream".to_owned());
    Content::new(media_type.as_str(), Bytes::new())
        .check_type()
        .map_err(|e| RouteError::bad_request(format!("filetype in Upload-Metadata: {e}")))?;
    let name = file_name(filename.as_deref().unwrap_or(&id));
    let mut upload = Upload::new(feed.id(), &id, name, media_type, engine.now());
    upload.row.length = Some(length);
    upload.row.resumable = Some(Resumable { title, metadata: text.to_owned() });
    {
        // One at a time: otherwise many at once would all be below the limit.
        static CREATING: Mutex<()> = Mutex::const_new(());
        let _creating = CREATING.lock().await;
        check_limits(engine, feed, length).await?;
        upload.save(engine.store.as_ref()).await?;
    }
    let mut answer = bare(StatusCode::CREATED);
    let url = format!("{}/feeds/{}/uploads/{}", engine.base_url, feed.id(), upload.id);
    insert(&mut answer.headers, LOCATION, &url);
    if length == 0 {
        publish(engine, &mut upload, &mut answer.headers).await?;
    } else {
        insert(&mut answer.headers, EXPIRES, &http_date::write(upload.row.expires));
    }
    Ok(answer)
}

/// Checks that there may be one more upload, and that the disk has room for what all of them may still send.
async fn check_limits(engine: &Engine, feed: &Feed, length: u64) -> Result<(), RouteError> {
    let uploads = unfinished(engine.store.as_ref(), None).await?;
    let of_feed = uploads.iter().filter(|upload| upload.feed == *feed.id() && upload.row.resumable.is_some());
    if of_feed.count() >= MAX_UPLOADS {
        let kind = RouteErrorKind::TooManyRequests { retry_after: Duration::from_secs(600) };
        let detail = format!(
            "feed {} has {MAX_UPLOADS} unfinished uploads; end or delete some, or wait until they expire",
            feed.id()
        );
        return Err(RouteError::new(kind, detail));
    }
    let now = engine.now();
    let live = uploads.iter().filter(|upload| upload.row.expires > now);
    let due = live.map(|upload| upload.row.length.unwrap_or_default().saturating_sub(upload.row.offset));
    check_room(engine, due.fold(length, u64::saturating_add))
}

async fn status(engine: &Engine, mut upload: Upload) -> Result<Answer, RouteError> {
    let mut answer = bare(StatusCode::OK);
    if upload.row.length == Some(upload.row.offset) && upload.row.stage != Stage::Done {
        // A crash came between the last byte and the item. Another request may be at it.
        match publish(engine, &mut upload, &mut answer.headers).await {
            Err(e) if e.kind != RouteErrorKind::Conflict => return Err(e),
            _ => {}
        }
    }
    insert(&mut answer.headers, OFFSET, &upload.row.offset.to_string());
    insert(&mut answer.headers, LENGTH, &upload.row.length.unwrap_or_default().to_string());
    if let Some(resumable) = upload.row.resumable.as_ref().filter(|of| !of.metadata.is_empty()) {
        insert(&mut answer.headers, METADATA, &resumable.metadata);
    }
    if upload.row.stage == Stage::Receiving {
        insert(&mut answer.headers, EXPIRES, &http_date::write(upload.row.expires));
    }
    Ok(answer)
}

async fn append(
    engine: &Arc<Engine>,
    upload: Upload,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    let headers = request.headers();
    if headers.get(CONTENT_TYPE).is_none_or(|value| value != "application/offset+octet-stream") {
        return Err(RouteError::unsupported_type("Content-Type must be application/offset+octet-stream"));
    }
    let (offset, row) = (number(headers, &OFFSET)?, &upload.row);
    if offset != row.offset {
        return Err(RouteError::conflict(format!(
            "the upload has {} bytes, and Upload-Offset is {offset}",
            row.offset
        )));
    }
    let left = row.length.unwrap_or_default().saturating_sub(offset);
    if request.body().size_hint().exact().is_some_and(|length| length > left) {
        return Err(RouteError::too_large(format!("only {left} bytes of the upload are left")));
    }
    let checksum = Checksum::of(headers)?;
    check_room(engine, left)?;
    let body = BodyReader::new(engine, request, left)?;
    let at = engine.clone();
    // A task of its own: if the client goes, hyper drops this request, and what came would be lost.
    let receiving = tokio::spawn(async move { receive(&at, upload, body, checksum).await });
    let mut upload = receiving.await.map_err(|e| RouteError::internal(e.to_string()))??;
    let mut answer = bare(StatusCode::NO_CONTENT);
    insert(&mut answer.headers, OFFSET, &upload.row.offset.to_string());
    if upload.row.length == Some(upload.row.offset) {
        if upload.row.stage != Stage::Done {
            publish(engine, &mut upload, &mut answer.headers).await?;
        }
    } else {
        insert(&mut answer.headers, EXPIRES, &http_date::write(upload.row.expires));
    }
    Ok(answer)
}

/// Stores a body. Of a broken one it keeps what came, so that the client can go on from there.
async fn receive(
    engine: &Engine,
    mut upload: Upload,
    mut body: BodyReader,
    mut checksum: Option<Checksum>,
) -> Result<Upload, RouteError> {
    if upload.row.stage != Stage::Receiving {
        return Ok(upload);
    }
    let store = engine.store.as_ref();
    let mut writer = UploadWriter::open(store, &mut upload, checksum.is_some()).await.map_err(in_use)?;
    let ended = loop {
        match body.next_of_large().await {
            Ok(Some(piece)) => {
                if let Some(checksum) = &mut checksum {
                    checksum.update(&piece);
                }
                writer.push(piece, engine.now()).await.map_err(in_use)?;
            }
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    let is_wrong = match checksum {
        // Bytes that cannot be checked do not count.
        Some(_) if ended.is_err() => return ended.map(|()| upload),
        Some(checksum) => !checksum.matches(),
        None => false,
    };
    if is_wrong {
        return Err(checksum::mismatch());
    }
    writer.end(engine.now()).await.map_err(in_use)?;
    ended.map(|()| upload)
}

/// Appends the item of an upload that has all its bytes.
async fn publish(engine: &Engine, upload: &mut Upload, headers: &mut HeaderMap) -> Result<(), RouteError> {
    let published = finish(engine, upload).await.map_err(in_use)?;
    set_position(headers, published.appended.head.seq);
    tracing::debug!(feed = %upload.feed, item = upload.row.item, size = upload.row.offset, "published an upload");
    Ok(())
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

fn in_use(error: StoreError) -> RouteError {
    if error.is_conflict() {
        return RouteError::conflict(
            "another request writes to this upload; ask for its offset, and go on from there",
        );
    }
    error.into()
}

fn bare(status: StatusCode) -> Answer {
    let headers = HeaderMap::from_iter([(CACHE_CONTROL, HeaderValue::from_static("no-store"))]);
    Answer { status, headers, body: Bytes::new() }
}

/// Returns the number in a header that must be there.
fn number(headers: &HeaderMap, name: &HeaderName) -> Result<u64, RouteError> {
    let text = headers.get(name).and_then(|value| value.to_str().ok());
    let number =
        text.filter(|text| text.bytes().all(|b| b.is_ascii_digit())).and_then(|text| text.parse().ok());
    number.ok_or_else(|| RouteError::bad_request(format!("{name} must be a number of bytes")))
}
