//! Headers of tus, and parts of answers that all requests have.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::attachments::max_size;

pub(super) const RESUMABLE: HeaderName = HeaderName::from_static("tus-resumable");
pub(super) const TUS_VERSION: HeaderName = HeaderName::from_static("tus-version");
pub(super) const MAX_SIZE: HeaderName = HeaderName::from_static("tus-max-size");
pub(super) const OFFSET: HeaderName = HeaderName::from_static("upload-offset");
pub(super) const LENGTH: HeaderName = HeaderName::from_static("upload-length");
pub(super) const DEFERRED_LENGTH: HeaderName = HeaderName::from_static("upload-defer-length");
pub(super) const METADATA: HeaderName = HeaderName::from_static("upload-metadata");
pub(super) const EXPIRES: HeaderName = HeaderName::from_static("upload-expires");

/// Media type of a part.
pub(super) const PART: &str = "application/offset+octet-stream";

/// Returns an answer without a body, which no cache keeps.
pub(super) fn bare(status: StatusCode) -> Answer {
    let headers = HeaderMap::from_iter([(CACHE_CONTROL, HeaderValue::from_static("no-store"))]);
    Answer { status, headers, body: Bytes::new() }
}

/// Returns true if a request's body is a part of an upload: a media type has no case, and may have parameters (RFC 9110,
/// section 8.3.1).
pub(super) fn is_part(headers: &HeaderMap) -> bool {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(PART)
}

/// Returns the number in a header that must be there.
pub(super) fn number(headers: &HeaderMap, name: &HeaderName) -> Result<u64, RouteError> {
    let text = headers.get(name).and_then(|value| value.to_str().ok());
    let number =
        text.filter(|text| text.bytes().all(|b| b.is_ascii_digit())).and_then(|text| text.parse().ok());
    number.ok_or_else(|| RouteError::bad_request(format!("{name} must be a number of bytes")))
}

/// Returns the length of an upload, which must be there, within the limit.
pub(super) fn checked_length(engine: &Engine, headers: &HeaderMap) -> Result<u64, RouteError> {
    let (length, max) = (number(headers, &LENGTH)?, max_size(engine));
    if length > max {
        return Err(RouteError::too_large(format!(
            "the upload has more than {max} bytes ([server] large_content_mib)"
        )));
    }
    Ok(length)
}
