//! Answers of routes: a prebuilt document in the form that a request accepts, and plain bodies.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::blocking::blocking;
use crate::document::prebuilt::{Answer, Document};
use crate::document::route_error::RouteError;

/// Answers a request with a document.
///
/// A form that no client asked for before is compressed apart from the threads that serve: brotli takes
/// milliseconds for a large body.
///
/// # Errors
///
/// A panic while compressing.
pub(crate) async fn respond(document: Arc<Document>, request: &HeaderMap) -> Result<Answer, RouteError> {
    if let Some(answer) = document.respond(request) {
        return Ok(answer);
    }
    // The closure runs on another thread and must own what it reads.
    let headers = request.clone();
    let compressed = blocking(move || document.respond_compressing(&headers)).await;
    compressed.map_err(|e| RouteError::internal(e.to_string()))
}

/// Answers with a body of a media type.
pub(crate) fn whole(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(media_type))]);
    Answer { status, headers, body: body.into() }
}
