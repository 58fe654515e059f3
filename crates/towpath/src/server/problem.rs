//! Problem documents (RFC 9457): the one place where a failure becomes an HTTP status.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use towpath_proto::follow::TOWPATH_RESET;

use crate::document::prebuilt::Answer;
use crate::document::route_error::{RouteError, RouteErrorKind};

/// Status of tus 1.0.0 for a wrong checksum, and its reason: the only one here that is not registered.
pub(super) const CHECKSUM: u16 = 460;
pub(super) const CHECKSUM_MISMATCH: &str = "Checksum Mismatch";

/// A failure as the client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    /// Last part of the problem's type, for programs.
    code: &'static str,
    detail: String,
    /// The query parameter at fault.
    parameter: Option<Cow<'static, str>>,
    /// Pointer to the part of the body at fault.
    pointer: Option<String>,
    header: Option<(HeaderName, String)>,
}

impl Problem {
    /// Makes the response.
    pub fn response(&self) -> Answer {
        let title = self.status.canonical_reason().unwrap_or(CHECKSUM_MISMATCH);
        let mut body = json!({
            "type": format!("urn:towpath:problem:{}", self.code),
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if self.code == "empty" {
            // A follower of Data Replication tells an empty feed from a missing one by this member.
            body["empty"] = true.into();
        }
        if let Some(parameter) = &self.parameter {
            body["parameter"] = parameter.as_ref().into();
        }
        if let Some(pointer) = &self.pointer {
            body["pointer"] = pointer.as_str().into();
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        // 404 and 410 may be cached by default (RFC 9111, section 4.2.2); a feed can appear at any time.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = &self.header
            && let Ok(value) = HeaderValue::from_str(value)
        {
            headers.insert(name, value);
        }
        Answer { status: self.status, headers, body: Bytes::from(body.to_string()) }
    }

    /// Makes the response as plain text, which WebSub asks of hubs (section 5.1.2).
    pub(super) fn text_response(&self) -> Answer {
        let mut answer = self.response();
        answer.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        answer.body = Bytes::from(format!("{}\n", self.detail));
        answer
    }
}

impl<E: Into<RouteError>> From<E> for Problem {
    fn from(error: E) -> Self {
        let RouteError { kind, detail, parameter, pointer } = error.into();
        let (status, code) = status_and_code(kind);
        Self { status, code, detail, parameter, pointer, header: header(kind) }
    }
}

/// Returns the status of a kind of failure, and the last part of its problem type.
fn status_and_code(kind: RouteErrorKind) -> (StatusCode, &'static str) {
    match kind {
        RouteErrorKind::NotFound | RouteErrorKind::NeverExisted => (StatusCode::NOT_FOUND, "not-found"),
        RouteErrorKind::Empty => (StatusCode::NOT_FOUND, "empty"),
        RouteErrorKind::Gone => (StatusCode::GONE, "gone"),
        RouteErrorKind::BadRequest => (StatusCode::BAD_REQUEST, "bad-request"),
        RouteErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
        RouteErrorKind::HeadTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head-too-large"),
        RouteErrorKind::Timeout => (StatusCode::REQUEST_TIMEOUT, "timeout"),
        RouteErrorKind::NotAcceptable => (StatusCode::NOT_ACCEPTABLE, "not-acceptable"),
        RouteErrorKind::Range { .. } => (StatusCode::RANGE_NOT_SATISFIABLE, "range-not-satisfiable"),
        RouteErrorKind::Method(_) => (StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed"),
        RouteErrorKind::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
        RouteErrorKind::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
        RouteErrorKind::Precondition => (StatusCode::PRECONDITION_FAILED, "precondition-failed"),
        RouteErrorKind::Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
        RouteErrorKind::TooManyRequests { .. } => (StatusCode::TOO_MANY_REQUESTS, "too-many-requests"),
        RouteErrorKind::Behind => (StatusCode::SERVICE_UNAVAILABLE, "behind"),
        RouteErrorKind::UnsupportedType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-type"),
        RouteErrorKind::UnsupportedCoding => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-coding"),
        RouteErrorKind::UnsupportedTransferCoding => {
            (StatusCode::NOT_IMPLEMENTED, "unsupported-transfer-coding")
        }
        RouteErrorKind::Conflict => (StatusCode::CONFLICT, "conflict"),
        RouteErrorKind::Checksum => {
            (StatusCode::from_u16(CHECKSUM).unwrap_or(StatusCode::BAD_REQUEST), "checksum-mismatch")
        }
        RouteErrorKind::Patch => (StatusCode::UNPROCESSABLE_ENTITY, "patch"),
        RouteErrorKind::Store => (StatusCode::SERVICE_UNAVAILABLE, "store"),
        RouteErrorKind::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        RouteErrorKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    }
}

/// Returns the header that a status requires, or that tells the client when to retry.
fn header(kind: RouteErrorKind) -> Option<(HeaderName, String)> {
    let (name, value) = match kind {
        RouteErrorKind::NeverExisted => {
            (HeaderName::from_static(TOWPATH_RESET), "position-unknown".to_owned())
        }
        RouteErrorKind::Range { length } => (CONTENT_RANGE, format!("bytes */{length}")),
        RouteErrorKind::Method(allowed) => (ALLOW, allowed.to_owned()),
        // A 401 must have a challenge (RFC 9110, section 15.5.2).
        RouteErrorKind::Unauthorized => (WWW_AUTHENTICATE, "Bearer".to_owned()),
        // A 415 names the codings that would be accepted (RFC 9110, section 15.5.16).
        RouteErrorKind::UnsupportedCoding => (ACCEPT_ENCODING, "identity".to_owned()),
        RouteErrorKind::Busy | RouteErrorKind::Store => (RETRY_AFTER, "5".to_owned()),
        // A replica is behind for a round trip to the cluster, mostly.
        RouteErrorKind::Behind => (RETRY_AFTER, "1".to_owned()),
        RouteErrorKind::Unavailable { retry_after } | RouteErrorKind::TooManyRequests { retry_after } => {
            // Zero would have clients retry in a loop.
            (RETRY_AFTER, retry_after.as_secs().max(1).to_string())
        }
        _ => return None,
    };
    Some((name, value))
}

#[cfg(test)]
mod tests {

    use towpath_store::WriteError;

    use super::*;
    use crate::store_error::StoreError;

    #[test]
    fn a_problem_is_an_rfc_9457_document() {
        let answer = Problem::from(RouteError::method("GET, HEAD")).response();
        assert_eq!(answer.status, 405);
        assert_eq!(answer.headers[ALLOW], "GET, HEAD");
        assert_eq!(answer.headers[CONTENT_TYPE], "application/problem+json");
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["status"], 405);
        assert_eq!(body["type"], "urn:towpath:problem:method-not-allowed");
    }

    #[test]
    fn a_cluster_that_cannot_be_reached_is_asked_again_later() {
        let retry_after = std::time::Duration::from_secs(7);
        let error = WriteError::Refused { reason: "no connection".into(), retry_after };
        let error = StoreError::from(error);
        let answer = Problem::from(error).response();
        assert_eq!(
            (answer.status, &answer.headers[RETRY_AFTER]),
            (StatusCode::SERVICE_UNAVAILABLE, &"7".parse().unwrap())
        );
    }

    #[test]
    fn writes_that_others_keep_overtaking_are_to_be_sent_again() {
        let answer = Problem::from(StoreError::Contended("others keep scheduling this item")).response();
        assert_eq!(
            (answer.status, &answer.headers[RETRY_AFTER]),
            (StatusCode::SERVICE_UNAVAILABLE, &"5".parse().unwrap())
        );
    }

    #[test]
    fn a_full_disk_is_told_to_come_back() {
        let answer = Problem::from(StoreError::from(WriteError::Storage { reason: "no space left".into() }))
            .response();
        assert_eq!(answer.status, 503);
        assert!(answer.headers.contains_key(RETRY_AFTER));
    }
}
