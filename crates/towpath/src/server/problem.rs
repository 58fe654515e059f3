//! Errors as answers: the one place where a failure becomes an HTTP status (RFC 9457 problem documents).

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::json;
use towpath_proto::push::websub::request::RequestError;
use towpath_proto::smart::pull::PullError;
use towpath_proto::smart::query::QueryError;
use towpath_store::{AppendError, StoreError};

use super::document::Answer;
use crate::engine::push::{SubscribeError, TopicError};
use crate::engine::smart::{AskError, Full};

/// A failure as it is told to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    /// A short word for programs: the last part of the problem's type.
    kind: &'static str,
    detail: String,
    /// Which parameter of the query is at fault.
    parameter: Option<&'static str>,
    header: Option<(HeaderName, String)>,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, detail: impl Into<String>) -> Self {
        Self { status, kind, detail: detail.into(), parameter: None, header: None }
    }

    fn with(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.header = Some((name, value.into()));
        self
    }

    /// There is nothing at this address.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", detail)
    }

    /// The feed is there and holds nothing yet.
    pub fn empty(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "empty", detail)
    }

    /// There was something at this address, and it is gone for good.
    pub fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "gone", detail)
    }

    /// The request does not make sense: the client's fault.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    /// The request has more bytes or lines than are accepted.
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", detail)
    }

    /// The client took too long to send its request.
    pub fn timeout(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", detail)
    }

    /// None of the types that the client accepts can be made.
    pub fn not_acceptable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, "not-acceptable", detail)
    }

    /// The method cannot be used here; `allowed` can.
    pub fn method(allowed: &'static str) -> Self {
        let detail = format!("this address answers {allowed}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail).with(ALLOW, allowed)
    }

    /// A token is needed, and there was none or a wrong one.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", detail).with(WWW_AUTHENTICATE, "Bearer")
    }

    /// Not allowed to this client, whatever it sends.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", detail)
    }

    /// A condition of the request does not hold.
    pub fn precondition(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "precondition-failed", detail)
    }

    /// As many clients are waiting already as may.
    pub fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).with(RETRY_AFTER, "5")
    }

    /// What is asked for has not come here yet.
    pub fn behind(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "behind", detail).with(RETRY_AFTER, "1")
    }

    /// The body is of a type that is not read here.
    pub fn unsupported_type(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-type", detail)
    }

    /// The body comes in a coding that is not read here (RFC 9110, section 15.5.16).
    pub fn unsupported_coding(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-coding", detail)
            .with(ACCEPT_ENCODING, "identity")
    }

    /// What was asked for does not fit to how things are.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", detail)
    }

    /// Something of ours failed.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// The same, naming the parameter of the query that is at fault.
    pub fn about(self, parameter: &'static str) -> Self {
        Self { parameter: Some(parameter), ..self }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// What is wrong, in words.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The answer to send.
    pub fn answer(&self) -> Answer {
        let title = self.status.canonical_reason().unwrap_or("Error");
        let mut body = json!({
            "type": format!("urn:towpath:problem:{}", self.kind),
            "title": title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if self.kind == "empty" {
            // What a follower of Data Replication looks for.
            body["empty"] = true.into();
        }
        if let Some(parameter) = self.parameter {
            body["parameter"] = parameter.into();
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some((name, value)) = &self.header
            && let Ok(value) = HeaderValue::from_str(value)
        {
            headers.insert(name, value);
        }
        Answer { status: self.status, headers, body: Bytes::from(body.to_string()) }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Closed | StoreError::Write(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store", error.to_string()).with(RETRY_AFTER, "5")
            }
            StoreError::Unavailable { retry_after, .. } => {
                let seconds = retry_after.as_secs().max(1).to_string();
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string())
                    .with(RETRY_AFTER, seconds)
            }
            StoreError::Condition => Self::new(StatusCode::CONFLICT, "conflict", error.to_string()),
            StoreError::Read(_)
            | StoreError::Damaged(_)
            | StoreError::Open { .. }
            | StoreError::Cluster { .. } => Self::internal(error.to_string()),
        }
    }
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::ContentType(_) => Self::unsupported_type(error.to_string()),
            RequestError::TooLarge => Self::too_large(error.to_string()),
            _ => Self::bad_request(error.to_string()),
        }
    }
}

impl From<TopicError> for Problem {
    fn from(error: TopicError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<SubscribeError> for Problem {
    fn from(error: SubscribeError) -> Self {
        match error {
            SubscribeError::Callback(_) | SubscribeError::TooLarge(_) => Self::bad_request(error.to_string()),
            SubscribeError::Full(_) | SubscribeError::Busy => Self::busy(error.to_string()),
            SubscribeError::NotVerified(_) => Self::conflict(error.to_string()),
            SubscribeError::Store(error) => error.into(),
            SubscribeError::Setup(_) => Self::internal(error.to_string()),
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        let parameter = Some(error.parameter());
        Self { parameter, ..Self::bad_request(error.to_string()) }
    }
}

impl From<PullError> for Problem {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Query(error) => error.into(),
            PullError::UnknownId(_) => Self::not_found(error.to_string()),
            PullError::Answer => Self::internal(error.to_string()),
        }
    }
}

impl From<AskError> for Problem {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Pull(error) => error.into(),
            AskError::Store(error) => error.into(),
        }
    }
}

impl From<Full> for Problem {
    fn from(_: Full) -> Self {
        Self::busy("as many clients wait already as may; ask again, or with timeout=0")
    }
}

impl From<AppendError> for Problem {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Conflict { .. } => Self::new(StatusCode::CONFLICT, "conflict", error.to_string()),
            AppendError::Invalid { .. } => Self::bad_request(error.to_string()),
            AppendError::Patch { .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "patch", error.to_string())
            }
            AppendError::Store(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_an_rfc_9457_document() {
        let answer = Problem::method("GET, HEAD").answer();
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
        let error = StoreError::Unavailable { reason: "no connection".into(), retry_after };
        let answer = Problem::from(error).answer();
        assert_eq!(
            (answer.status, &answer.headers[RETRY_AFTER]),
            (StatusCode::SERVICE_UNAVAILABLE, &"7".parse().unwrap())
        );
    }

    #[test]
    fn a_full_disk_is_told_to_come_back() {
        let answer = Problem::from(StoreError::Write("no space left".into())).answer();
        assert_eq!(answer.status, 503);
        assert!(answer.headers.contains_key(RETRY_AFTER));
    }
}
