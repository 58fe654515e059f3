//! `If-Match` and `If-Unmodified-Since` of requests that read (RFC 9110, sections 13.1.1 and 13.1.4): a client that resumes
//! must not join two versions.

use http::header::{ETAG, IF_MATCH, IF_UNMODIFIED_SINCE, LAST_MODIFIED};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use jiff::Timestamp;
use towpath_proto::format::http_date;

use super::problem::Problem;
use crate::document::etag::etag_matches_strongly;
use crate::document::prebuilt::Answer;
use crate::document::route_error::RouteError;

/// Versions of which a request wants one.
pub(super) enum IfMatch {
    /// Lists of tags.
    Tags(Vec<HeaderValue>),
    /// No version after a time. Tags replace it, and text that is no date is ignored (section 13.1.4).
    Until(Timestamp),
}

impl IfMatch {
    /// Returns the condition of a GET or HEAD request. Conditions of changes are checked where they are made.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return None;
        }
        let lists: Vec<_> = headers.get_all(IF_MATCH).iter().cloned().collect();
        if !lists.is_empty() {
            return Some(Self::Tags(lists));
        }
        date(headers, &IF_UNMODIFIED_SINCE).map(Self::Until)
    }

    /// Checks the condition on the headers of a 200.
    ///
    /// # Errors
    ///
    /// Another version than those that the client wants.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), RouteError> {
        match self {
            Self::Tags(lists) => {
                let tag = headers.get(ETAG);
                let holds =
                    |list: &HeaderValue| tag.map_or(list == "*", |tag| etag_matches_strongly(list, tag));
                if lists.iter().any(holds) {
                    return Ok(());
                }
                let tag = tag.and_then(|tag| tag.to_str().ok()).unwrap_or("none");
                let text = format!("If-Match does not name the version that is here now: {tag}");
                Err(RouteError::precondition(text))
            }
            Self::Until(time) => match date(headers, &LAST_MODIFIED) {
                Some(modified) if modified > *time => {
                    let modified = http_date::write(modified);
                    Err(RouteError::precondition(format!(
                        "If-Unmodified-Since: it was modified at {modified}"
                    )))
                }
                _ => Ok(()),
            },
        }
    }
}

/// Reads a header with a date.
fn date(headers: &HeaderMap, name: &HeaderName) -> Option<Timestamp> {
    http_date::parse(headers.get(name)?.to_str().ok()?).ok()
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
