//! Content of an item for a frame or an image of its page, or for download.
//!
//! A stranger wrote it. The answer's own policy is a sandbox without scripts, forms, or requests to anywhere, which holds
//! wherever the address is opened.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use towpath_proto::change::Change;

use super::content::{ContentKind, kind_of};
use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;

/// Policy of HTML in a frame: it may have styles and embedded images, and nothing else.
const HTML_POLICY: &str =
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'";
/// Policy of everything else.
const POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'";

/// Answers with the content, or the summary, of a version.
pub(super) fn answer(change: &Change, view: &str) -> Result<Answer, RouteError> {
    let none = || RouteError::not_found("This version has no such content");
    let content = change.item.content.as_ref();
    match view {
        "frame" => {
            let content = content.filter(|content| kind_of(content) == ContentKind::Html).ok_or_else(none)?;
            Ok(of_bytes("text/html; charset=utf-8", HTML_POLICY, content.bytes.clone()))
        }
        "summary" => {
            let summary = change.item.summary.clone().ok_or_else(none)?;
            Ok(of_bytes("text/html; charset=utf-8", HTML_POLICY, summary.into()))
        }
        "image" => {
            let content =
                content.filter(|content| kind_of(content) == ContentKind::Image).ok_or_else(none)?;
            let mut answer = of_bytes("image/png", POLICY, content.bytes.clone());
            if let Ok(value) = HeaderValue::from_str(&content.essence()) {
                answer.headers.insert(CONTENT_TYPE, value);
            }
            Ok(answer)
        }
        "raw" => {
            let content = content.ok_or_else(none)?;
            // Never shown under this origin, whatever its type is.
            let mut answer = of_bytes("application/octet-stream", POLICY, content.bytes.clone());
            answer.headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
            Ok(answer)
        }
        _ => Err(RouteError::not_found("view is one of frame, summary, image and raw")),
    }
}

fn of_bytes(media_type: &'static str, policy: &'static str, body: Bytes) -> Answer {
    let headers = [
        (CONTENT_TYPE, media_type),
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "private, no-cache"),
    ];
    let headers: HeaderMap =
        headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
    Answer { status: StatusCode::OK, headers, body }
}
