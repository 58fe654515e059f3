//! Bytes of an upload that a request brings.

use http::{HeaderMap, Request};
use hyper::body::{Body as _, Incoming};
use towpath_proto::change::Seq;
use towpath_proto::format::http_date;

use super::checksum::{self, Checksum};
use super::wire::{EXPIRES, OFFSET};
use crate::document::route_error::{RouteError, RouteErrorKind};
use crate::engine::Engine;
use crate::engine::attachments::{ByteCounting, Stage, Upload, UploadRow, UploadWriter, finish, max_size};
use crate::engine::request_body::BodyReader;
use crate::server::item_response::insert;
use crate::server::publish::check_room;
use crate::server::read_your_writes::set_position;
use crate::store_error::StoreError;

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
    receiving: impl Future<Output = Result<Upload, RouteError>>,
    headers: &mut HeaderMap,
) -> Result<(), RouteError> {
    let mut upload = receiving.await?;
    let is_whole = upload.row.length == Some(upload.row.offset);
    let published = match is_whole && upload.row.stage != Stage::Done {
        true => Some(publish(engine, &mut upload).await?),
        false => None,
    };
    insert(headers, OFFSET, &upload.row.offset.to_string());
    match published {
        Some(seq) => set_position(headers, seq),
        None if upload.row.stage == Stage::Receiving => {
            insert(headers, EXPIRES, &http_date::write(upload.row.expires));
        }
        None => {}
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
    let has_length = upload.row.length.is_some();
    let counting = if checksum.is_some() { ByteCounting::AtEnd } else { ByteCounting::AtOnce };
    let mut writer = UploadWriter::open(store, &mut upload, counting).await.map_err(in_use)?;
    let ended = loop {
        match body.next().await {
            Ok(Some(piece)) => {
                // Nobody said how much comes. It must not take what all others need to be written.
                if !has_length && let Err(full) = check_room(engine, engine.reserved_disk()) {
                    break Err(full);
                }
                if let Some(checksum) = &mut checksum {
                    checksum.update(&piece);
                }
                writer.push(piece, engine.now()).await.map_err(in_use)?;
            }
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    // Of more bytes than the upload has, none is sure to be right.
    let is_too_long = ended.as_ref().is_err_and(|e| e.kind == RouteErrorKind::TooLarge);
    let is_wrong = match checksum {
        // Bytes that cannot be checked do not count.
        Some(_) if ended.is_err() => return ended.map(|()| upload),
        _ if is_too_long => {
            return Err(RouteError::too_large("the body has more bytes than are left of the upload"));
        }
        Some(checksum) => !checksum.matches(),
        None => false,
    };
    if is_wrong {
        return Err(checksum::mismatch());
    }
    writer.end(engine.now()).await.map_err(in_use)?;
    ended.map(|()| upload)
}

/// Appends the item of an upload that has all its bytes. Returns its position.
pub(super) async fn publish(engine: &Engine, upload: &mut Upload) -> Result<Seq, RouteError> {
    let published = finish(engine, upload).await.map_err(in_use)?;
    tracing::debug!(feed = %upload.feed, item = upload.row.item, size = upload.row.offset, "published an upload");
    Ok(published.appended.head.seq)
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
