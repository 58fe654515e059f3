//! `If-Match` of requests that read (RFC 9110, section 13.1.1): a client that resumes must not join two versions.

use http::header::{ETAG, IF_MATCH};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};

use super::problem::Problem;
use crate::document::prebuilt::{Answer, etag_matches_strongly};
use crate::document::route_error::RouteError;

/// Versions of which a request wants one.
pub(super) struct IfMatch(Vec<HeaderValue>);

impl IfMatch {
    /// Returns the condition of a GET or HEAD request. Conditions of changes are checked where they are made.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let lists: Vec<_> = request.headers().get_all(IF_MATCH).iter().cloned().collect();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        (is_read && !lists.is_empty()).then_some(Self(lists))
    }

    /// Checks the condition on the headers of a 200.
    ///
    /// # Errors
    ///
    /// Another version than those that the client wants.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), RouteError> {
        let tag = headers.get(ETAG);
        let holds = |list: &HeaderValue| tag.map_or(list == "*", |tag| etag_matches_strongly(list, tag));
        if self.0.iter().any(holds) {
            return Ok(());
        }
        let tag = tag.and_then(|tag| tag.to_str().ok()).unwrap_or("none");
        Err(RouteError::precondition(format!("If-Match does not name the version that is here now: {tag}")))
    }
}

/// Refuses an answer whose version is none that the request names. Only a 200 has content to join: a 304 costs nothing.
pub(super) fn check(answer: Answer, asked: impl FnOnce() -> Option<IfMatch>) -> Answer {
    if answer.status != StatusCode::OK {
        return answer;
    }
    match asked().map_or(Ok(()), |condition| condition.check(&answer.headers)) {
        Ok(()) => answer,
        Err(e) => Problem::from(e).response(),
    }
}
