//! The error of a route: which kind of failure it is, and the words for the client.
//!
//! Routes know no status codes. The server turns the kind into a status and a problem document.

use std::borrow::Cow;
use std::time::Duration;

use towpath_store::{AppendError, ReadError};

use crate::store_error::StoreError;

/// Kind of a route's failure. Each kind becomes one problem type of the HTTP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteErrorKind {
    /// Nothing exists at this address.
    NotFound,
    /// The feed exists and has no items yet.
    Empty,
    /// The document never existed, although only this feed could have linked to it.
    NeverExisted,
    /// The document existed and was removed for good.
    Gone,
    /// The request is malformed.
    BadRequest,
    /// The request has more bytes or lines than the limit.
    TooLarge,
    /// The address and the header fields of the request are longer than the limit.
    HeadTooLarge,
    /// The client sent its request too slowly.
    Timeout,
    /// No representation matches the `Accept` header.
    NotAcceptable,
    /// The range of bytes begins behind the end.
    Range {
        /// Number of bytes that there are.
        length: u64,
    },
    /// The method is not supported here; the named ones are.
    Method(&'static str),
    /// A token is missing or wrong.
    Unauthorized,
    /// The client may not do this, whatever token it sends.
    Forbidden,
    /// A precondition of the request does not hold.
    Precondition,
    /// A limit of concurrent work is reached; the client may retry.
    Busy,
    /// This client has sent too many expensive requests.
    TooManyRequests {
        /// Time after which a request is accepted.
        retry_after: Duration,
    },
    /// This node has not replicated the requested position yet.
    Behind,
    /// The media type of the body is not supported.
    UnsupportedType,
    /// The content coding of the body is not supported.
    UnsupportedCoding,
    /// The transfer coding of the body is not supported.
    UnsupportedTransferCoding,
    /// The request conflicts with the current state.
    Conflict,
    /// The body has another checksum than its header says.
    Checksum,
    /// The patch does not apply to the item.
    Patch,
    /// The store takes no writes.
    Store,
    /// The store cannot be reached for now.
    Unavailable {
        /// Time after which a retry may succeed.
        retry_after: Duration,
    },
    /// A fault of the server.
    Internal,
}

impl RouteErrorKind {
    /// Returns true if what was asked for may have been done all the same, or may be done once the store is opened again.
    pub fn is_uncertain(self) -> bool {
        matches!(self, Self::Store | Self::Unavailable { .. } | Self::Internal)
    }
}

/// Failure of a route, before it has a status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct RouteError {
    /// Kind of the failure.
    pub kind: RouteErrorKind,
    /// Explanation for the client.
    pub detail: String,
    /// The query parameter at fault.
    pub parameter: Option<Cow<'static, str>>,
    /// Pointer (RFC 6901) to the part of the body that is at fault.
    pub pointer: Option<String>,
}

impl RouteError {
    /// Makes an error of a kind.
    pub fn new(kind: RouteErrorKind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), parameter: None, pointer: None }
    }

    /// Names the query parameter that is at fault.
    #[must_use]
    pub fn about(self, parameter: impl Into<Cow<'static, str>>) -> Self {
        Self { parameter: Some(parameter.into()), ..self }
    }

    /// Names the part of the body that is at fault, by a pointer (RFC 6901).
    #[must_use]
    pub fn at(self, pointer: impl Into<String>) -> Self {
        Self { pointer: Some(pointer.into()), ..self }
    }

    /// Nothing exists at this address.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::NotFound, detail)
    }

    /// The feed exists and has no items yet.
    pub fn empty(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Empty, detail)
    }

    /// The document existed and was removed for good.
    pub fn gone(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Gone, detail)
    }

    /// The request is malformed.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::BadRequest, detail)
    }

    /// The request has more bytes or lines than the limit.
    pub fn too_large(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::TooLarge, detail)
    }

    /// The client sent its request too slowly.
    pub fn timeout(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Timeout, detail)
    }

    /// No representation matches the `Accept` header.
    pub fn not_acceptable(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::NotAcceptable, detail)
    }

    /// The method is not supported here; `allowed` are.
    pub fn method(allowed: &'static str) -> Self {
        Self::new(RouteErrorKind::Method(allowed), format!("this address answers {allowed}"))
    }

    /// A token is missing or wrong.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Unauthorized, detail)
    }

    /// The client may not do this, whatever token it sends.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Forbidden, detail)
    }

    /// A precondition of the request does not hold.
    pub fn precondition(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Precondition, detail)
    }

    /// A limit of concurrent work is reached.
    pub fn busy(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Busy, detail)
    }

    /// This node has not replicated the requested position yet.
    pub fn behind(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Behind, detail)
    }

    /// The media type of the body is not supported.
    pub fn unsupported_type(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::UnsupportedType, detail)
    }

    /// The content coding of the body is not supported (RFC 9110, section 15.5.16).
    pub fn unsupported_coding(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::UnsupportedCoding, detail)
    }

    /// The request conflicts with the current state.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Conflict, detail)
    }

    /// A fault of the server.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(RouteErrorKind::Internal, detail)
    }
}

impl From<StoreError> for RouteError {
    fn from(error: StoreError) -> Self {
        let error = match error {
            StoreError::Append(error) => return error.into(),
            error => error,
        };
        let kind = if error.is_closed() || error.is_storage() {
            RouteErrorKind::Store
        } else if let Some(retry_after) = error.retry_after() {
            RouteErrorKind::Unavailable { retry_after }
        } else if error.is_conflict() {
            RouteErrorKind::Conflict
        } else if matches!(error, StoreError::Contended(_)) {
            RouteErrorKind::Busy
        } else {
            RouteErrorKind::Internal
        };
        Self::new(kind, error.to_string())
    }
}

impl From<ReadError> for RouteError {
    fn from(error: ReadError) -> Self {
        StoreError::from(error).into()
    }
}

impl From<AppendError> for RouteError {
    fn from(error: AppendError) -> Self {
        let kind = match &error {
            AppendError::Conflict { .. } | AppendError::ItemConflict { .. } => RouteErrorKind::Conflict,
            AppendError::Invalid { .. } => RouteErrorKind::BadRequest,
            AppendError::Patch { .. } => RouteErrorKind::Patch,
            AppendError::Storage { .. } | AppendError::Closed => RouteErrorKind::Store,
            // Also for an unknown outcome: a client must look for its append before it retries.
            AppendError::Refused { retry_after, .. } | AppendError::UnknownOutcome { retry_after, .. } => {
                RouteErrorKind::Unavailable { retry_after: *retry_after }
            }
            AppendError::Read(_) => RouteErrorKind::Internal,
        };
        match error {
            AppendError::Read(error) => error.into(),
            error => Self::new(kind, error.to_string()),
        }
    }
}
