//! Parts of the responses of items and their files.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use towpath_proto::Content;

use crate::document::prebuilt::Answer;
use crate::document::respond::whole;

/// Answers with content as it was published. It is a stranger's: a browser must neither guess its type nor run it.
pub(super) fn raw(content: &Content) -> Answer {
    let headers = raw_headers(&content.media_type);
    Answer { status: StatusCode::OK, headers, body: content.bytes.clone() }
}

/// Returns the headers of content as it was published.
pub(super) fn raw_headers(media_type: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    insert(&mut headers, CONTENT_TYPE, media_type);
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("content-security-policy", HeaderValue::from_static("sandbox; default-src 'none'"));
    headers
}

/// Answers with JSON.
pub(super) fn json_answer(status: StatusCode, value: &serde_json::Value) -> Answer {
    whole(status, "application/json; charset=utf-8", value.to_string())
}

/// Sets a header.
pub(super) fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // A value that cannot be in a header, such as a media type with a line break, is left out.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
