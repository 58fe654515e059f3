//! Responses with a large file, read from the store as the client takes it.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, ETAG};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use towpath_proto::FeedId;

use crate::document::prebuilt::{Document, Valid};
use crate::document::response_memory::MIN_BODY;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::attachments::ChunkedFile;
use crate::server::if_match::IfMatch;
use crate::server::range::{AskedPart, name_part};
use crate::server::response::ResponseBody;
use crate::server::routed::Routed;

/// Answers with a file, or with the part of it that was asked for. It is never compressed.
pub(super) fn respond<B>(
    engine: &Engine,
    feed: &FeedId,
    file: ChunkedFile,
    headers: HeaderMap,
    request: &Request<B>,
) -> Result<Routed, RouteError> {
    let head = Document::uncoded(Bytes::new(), headers, Valid::UntilReplaced).dated_by_its_changes();
    let mut answer = head.respond_compressing(request.headers());
    if answer.status != StatusCode::OK {
        return Ok(answer.into());
    }
    if let Some(condition) = IfMatch::of(request) {
        condition.check(&answer.headers)?;
    }
    let asked = AskedPart::of(request).zip(answer.headers.get(ETAG));
    let part = asked.map(|(asked, tag)| asked.within(file.size, tag)).transpose()?.flatten();
    answer.headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let (first, end) = part.map_or((0, file.size), |(first, last)| (first, last + 1));
    if let Some((first, last)) = part {
        answer.status = StatusCode::PARTIAL_CONTENT;
        name_part(&mut answer.headers, first, last, file.size);
    }
    answer.headers.insert(CONTENT_LENGTH, (end - first).into());
    if request.method() == Method::HEAD {
        return Ok(answer.into());
    }
    let memory = engine.response_memory.clone();
    if memory.is_exceeded() {
        return Err(RouteError::busy(
            "too many responses wait for slow clients ([server] response_mib); retry",
        ));
    }
    let pieces = file.stream(engine.store.clone(), feed.clone(), first, end);
    // A client that does not read holds one piece, which counts like any other body.
    let pieces = pieces.map_ok(move |piece| memory.hold_from(MIN_BODY, piece)).map_err(Into::into);
    let mut response = Response::new(ResponseBody::stream(pieces));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    Ok(Routed::Streamed(response))
}
