//! Contents above the limit of what is held in memory: stored in chunks while they arrive.

use bytes::Bytes;
use http::Request;
use hyper::body::{Body as _, Incoming};

use super::limits::MAX_CONTENT;
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::attachments::{
    Attachment, ByteCounting, ItemGuard, Upload, UploadWriter, end, file_name, lock, max_size,
};
use crate::engine::request_body::{self, BodyReader, WholeBody};
use crate::engine::{Engine, Feed};

/// Content of a request.
pub(in crate::server) enum ReceivedContent {
    /// In memory.
    Whole(Bytes),
    /// A file of the item, which is still to be appended.
    File(Box<ReceivedFile>),
}

/// File of an item that is still to be appended.
pub(in crate::server) struct ReceivedFile {
    pub(in crate::server) upload: Upload,
    pub(in crate::server) file: Attachment,
    _held: ItemGuard,
}

/// Returns the limit of an item's content, in bytes.
fn max_content(engine: &Engine) -> u64 {
    max_size(engine).max(MAX_CONTENT as u64)
}

/// Returns true if a request's head says that its content is too large for memory.
pub(in crate::server) fn is_large(request: &Request<Incoming>) -> bool {
    request.body().size_hint().lower() > MAX_CONTENT as u64
}

/// Receives the content of a PUT. Not to be dropped half way: the chunks would stay.
pub(in crate::server) async fn content(
    engine: &Engine,
    feed: &Feed,
    id: &str,
    media_type: &str,
    request: Request<Incoming>,
) -> Result<ReceivedContent, RouteError> {
    let limit = max_content(engine);
    let length = request.body().size_hint().exact();
    if length.is_some_and(|length| length > limit) {
        // Read a little first: a client that is still sending may see a reset instead of the answer.
        request_body::skip(engine, request, MAX_CONTENT).await;
        return Err(too_large(limit));
    }
    let is_large = is_large(&request);
    let mut body = BodyReader::new(engine, request, limit)?;
    let mut received = WholeBody::new(engine);
    // A body without a length is held until it turns out to be large. Most are small, and need no row.
    while !is_large && received.len() <= MAX_CONTENT {
        if !body.next_into(&mut received).await? {
            return Ok(ReceivedContent::Whole(received.freeze()));
        }
    }
    let mut upload = Upload::new(feed.id(), id, file_name(id), media_type.to_owned(), engine.now());
    upload.row.length = length;
    upload.row.run.clone_from(&engine.instance);
    check_room(engine, length.unwrap_or_default())?;
    let file = receive(engine, upload, received.freeze(), body).await?;
    Ok(ReceivedContent::File(Box::new(file)))
}

async fn receive(
    engine: &Engine,
    mut upload: Upload,
    first: Bytes,
    mut body: BodyReader,
) -> Result<ReceivedFile, RouteError> {
    let store = engine.store.as_ref();
    // Before the first chunk: after a crash, chunks are found by their row only.
    upload.save(store).await?;
    match store_body(engine, &mut upload, first, &mut body).await {
        Ok(()) => {
            // Until the item names the file, a deletion of the item would take it for one that nothing needs.
            let held = lock(engine, &upload.feed, std::iter::once(upload.row.item.as_str())).await;
            let file = upload.keep(store).await?;
            Ok(ReceivedFile { upload, file, _held: held })
        }
        Err(error) => {
            if let Err(e) = upload.remove(store).await {
                tracing::warn!(feed = %upload.feed, error = %e, "cannot remove a broken upload now; it goes within a day");
            }
            Err(error)
        }
    }
}

async fn store_body(
    engine: &Engine,
    upload: &mut Upload,
    first: Bytes,
    body: &mut BodyReader,
) -> Result<(), RouteError> {
    let has_length = upload.row.length.is_some();
    let mut writer = UploadWriter::open(engine.store.as_ref(), upload, ByteCounting::AtOnce).await?;
    writer.push(first, engine.now()).await?;
    while let Some(piece) = body.next().await? {
        // Nobody said how much comes. It must not take what all others need to be written.
        if !has_length {
            check_room(engine, engine.reserved_disk())?;
        }
        writer.push(piece, engine.now()).await?;
    }
    Ok(writer.end(engine.now()).await?)
}

impl ReceivedFile {
    /// Ends the upload, once it is known what became of its item.
    pub(in crate::server) async fn end_upload<T>(mut self, engine: &Engine, done: &Result<T, RouteError>) {
        let store = engine.store.as_ref();
        let ended = match done {
            Ok(_) => self.upload.finish(store).await,
            // The item may be there all the same: what became of it is seen when the upload's time is over.
            Err(e) if e.kind.is_uncertain() => return,
            Err(_) => end(engine, &mut self.upload).await,
        };
        if let Err(e) = ended {
            tracing::debug!(feed = %self.upload.feed, error = %e, "cannot end an upload now; it is done within a day");
        }
    }
}

fn too_large(limit: u64) -> RouteError {
    RouteError::too_large(format!(
        "the content has more than {limit} bytes ([server] large_content_mib); keep it elsewhere, and give its address as \
         attachment"
    ))
}

/// Checks that the disk has room for so many bytes more, beside what is reserved.
///
/// # Errors
///
/// A disk that is too full. Without the check gigabytes would be received in vain.
pub(in crate::server) fn check_room(engine: &Engine, bytes: u64) -> Result<(), RouteError> {
    engine.check_room(bytes).map_err(|e| RouteError::new(RouteErrorKind::Store, e.to_string()))
}
