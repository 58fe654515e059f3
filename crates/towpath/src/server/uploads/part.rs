//! Bytes of an upload that a request brings.

use http::{HeaderMap, Request};
use hyper::body::{Body as _, Incoming};
use towpath_proto::format::http_date;

use super::checksum::{self, Checksum};
use super::wire::{EXPIRES, OFFSET};
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::attachments::{Stage, Upload, UploadRow, UploadWriter, finish, max_size};
use crate::engine::request_body::BodyReader;
use crate::server::item_response::insert;
use crate::server::publish::check_room;
use crate::server::read_your_writes::set_position;
use crate::store_error::StoreError;

/// Media type of a part.
pub(super) const PART: &str = "application/offset+octet-stream";

/// Bytes of an upload that a request brings.
pub(super) struct Part {
    body: BodyReader,
    checksum: Option<Checksum>,
}

impl Part {
    /// Reads the head of a request for an upload.
    pub(super) fn of(
        engine: &Engine,
        request: Request<Incoming>,
        row: &UploadRow,
    ) -> Result<Self, RouteError> {
        let left = row.length.unwrap_or_else(|| max_size(engine)).saturating_sub(row.offset);
        let coming = request.body().size_hint();
        if coming.exact().is_some_and(|length| length > left) {
            return Err(RouteError::too_large(format!("only {left} bytes of the upload are left")));
        }
        let checksum = Checksum::of(request.headers())?;
        // Without a length, most of what may come never does.
        check_room(engine, if row.length.is_some() { left } else { coming.lower() })?;
        Ok(Self { body: BodyReader::new(engine, request, left)?, checksum })
    }
}

/// Has a part received, and says how far the upload is. The last byte publishes the item.
pub(super) async fn take(
    engine: &Engine,
    receiving: impl Future<Output = Result<Upload, RouteError>> + Send + 'static,
    headers: &mut HeaderMap,
) -> Result<(), RouteError> {
    // A task of its own: if the client goes, hyper drops this request, and what came would be lost.
    let mut upload = tokio::spawn(receiving).await.map_err(|e| RouteError::internal(e.to_string()))??;
    insert(headers, OFFSET, &upload.row.offset.to_string());
    if upload.row.length == Some(upload.row.offset) {
        if upload.row.stage != Stage::Done {
            publish(engine, &mut upload, headers).await?;
        }
    } else {
        insert(headers, EXPIRES, &http_date::write(upload.row.expires));
    }
    Ok(())
}

/// Stores a part. Of a broken one it keeps what came, so that the client can go on from there.
pub(super) async fn receive(engine: &Engine, mut upload: Upload, part: Part) -> Result<Upload, RouteError> {
    let Part { mut body, mut checksum } = part;
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
pub(super) async fn publish(
    engine: &Engine,
    upload: &mut Upload,
    headers: &mut HeaderMap,
) -> Result<(), RouteError> {
    let published = finish(engine, upload).await.map_err(in_use)?;
    set_position(headers, published.appended.head.seq);
    tracing::debug!(feed = %upload.feed, item = upload.row.item, size = upload.row.offset, "published an upload");
    Ok(())
}

/// Converts the error of a write: of two requests at a time, one loses.
pub(super) fn in_use(error: StoreError) -> RouteError {
    if error.is_conflict() {
        return RouteError::conflict(
            "another request writes to this upload; ask for its offset, and go on from there",
        );
    }
    error.into()
}
