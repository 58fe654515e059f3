//! Creation of an upload (tus 1.0.0, extensions creation, creation-with-upload and creation-defer-length).

use std::time::Duration;

use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use hyper::body::{Body as _, Incoming};
use tokio::sync::Mutex;
use towpath_proto::format::http_date;
use towpath_proto::{Content, Item};

use super::metadata::Metadata;
use super::part::{Part, publish, receive, take};
use super::wire::{DEFERRED_LENGTH, EXPIRES, LENGTH, METADATA, PART, bare, checked_length, is_part};
use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::attachments::{Resumable, Upload, file_name, unfinished};
use crate::engine::{Engine, Feed};
use crate::server::item_response::insert;
use crate::server::publish::check_room;
use crate::server::read_your_writes::set_position;

const CONCAT: HeaderName = HeaderName::from_static("upload-concat");
/// Limit of unfinished uploads of a feed.
const MAX_UPLOADS: usize = 100;

/// Creates an upload, and takes the bytes that come with the request.
pub(super) async fn create(
    engine: &Engine,
    feed: &Feed,
    request: Request<Incoming>,
) -> Result<Answer, RouteError> {
    let has_part = has_part(&request)?;
    let mut upload = describe(engine, feed, request.headers())?;
    let length = upload.row.length;
    let part = has_part.then(|| Part::of(engine, request, &upload.row)).transpose()?;
    {
        // One at a time: otherwise many at once would all be below the limit.
        static CREATING: Mutex<()> = Mutex::const_new(());
        let _creating = CREATING.lock().await;
        check_limits(engine, feed, length.unwrap_or_default()).await?;
        upload.save(engine.store.as_ref()).await?;
    }
    let mut answer = bare(StatusCode::CREATED);
    let url = format!("{}/feeds/{}/uploads/{}", engine.base_url, feed.id(), upload.id);
    insert(&mut answer.headers, LOCATION, &url);
    if let Some(part) = part {
        take(engine, receive_first(engine, upload, part), &mut answer.headers).await?;
    } else if length == Some(0) {
        set_position(&mut answer.headers, publish(engine, &mut upload).await?);
    } else {
        insert(&mut answer.headers, EXPIRES, &http_date::write(upload.row.expires));
    }
    Ok(answer)
}

/// Returns true if the request's body is the begin of the upload.
fn has_part(request: &Request<Incoming>) -> Result<bool, RouteError> {
    let is_part = is_part(request.headers());
    if !is_part && request.body().size_hint().lower() > 0 {
        return Err(RouteError::unsupported_type(format!(
            "the body of a creation is empty, or has the first bytes of the upload with Content-Type: {PART}"
        )));
    }
    Ok(is_part)
}

/// Stores the part that came with the creation.
async fn receive_first(engine: &Engine, upload: Upload, part: Part) -> Result<Upload, RouteError> {
    let (feed, id) = (upload.feed.clone(), upload.id.clone());
    let received = receive(engine, upload, part).await;
    if received.is_err() {
        // Its creator was not told the address, and begins anew.
        let store = engine.store.as_ref();
        if let Some(mut upload) = Upload::load(store, &feed, &id).await? {
            upload.remove(store).await?;
        }
    }
    received
}

/// Reads the description of a new upload.
fn describe(engine: &Engine, feed: &Feed, headers: &HeaderMap) -> Result<Upload, RouteError> {
    if headers.contains_key(CONCAT) {
        return Err(RouteError::bad_request(
            "Upload-Concat is not supported; send the file as one upload (parallelUploads = 1)",
        ));
    }
    let length = match headers.get(DEFERRED_LENGTH) {
        // "Its value MUST be 1", and a length beside it would say the opposite.
        Some(value) if value == "1" && !headers.contains_key(LENGTH) => None,
        Some(_) => {
            return Err(RouteError::bad_request("Upload-Defer-Length is 1, without Upload-Length beside it"));
        }
        None => Some(checked_length(engine, headers)?),
    };
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
    upload.row.length = length;
    upload.row.resumable = Some(Resumable { title, metadata: text.to_owned() });
    Ok(upload)
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
