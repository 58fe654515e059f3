//! HTTP responses of pull requests ("HTTP Pull").

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LINK, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use serde::Serialize;

use super::atom;
use super::error::PullError;
use super::json::{json, json_with, to_json};
use super::lines::{self, LINES_TYPE};
use super::links::{PullPageLinks, topic_links};
use super::page::PullPage;
use super::query::{PullQuery, QueryError};
use super::settings::FeedSettings;
use crate::follow::TOWPATH_RESET;
use crate::format::link;
use crate::smart::wire::accept::PageFormat;
use crate::smart::wire::{ATOM_TYPE, JSON_TYPE, SCRIPT_TYPE, base_url};

/// Writes a page to push ("HTTP Push"), and returns the body and its content type.
///
/// The document is that of a pull, without a next page, and with the cursor of the last item before the update.
pub fn push(
    feed: &FeedSettings,
    query: &PullQuery,
    page: &PullPage,
    prev_cursor: Option<&str>,
    format: PageFormat,
) -> (Vec<u8>, &'static str) {
    let links = PullPageLinks { base: base_url(&feed.base, &query.base_query), next: None };
    match format {
        PageFormat::Json => (json_with(feed, query, page, &links, prev_cursor), JSON_TYPE),
        PageFormat::Atom => (atom::write_with(feed, query, page, &links, prev_cursor), ATOM_TYPE),
        PageFormat::Lines => (lines::lines(feed, query, page), LINES_TYPE),
    }
}

/// Returns the response with a page, in the format selected by [`crate::smart::wire::accept::negotiate`].
pub fn respond(
    feed: &FeedSettings,
    query: &PullQuery,
    page: &PullPage,
    format: PageFormat,
) -> Response<Bytes> {
    let (body, content_type) = match format {
        PageFormat::Json => (json(feed, query, page), JSON_TYPE),
        PageFormat::Atom => (atom::write(feed, query, page), ATOM_TYPE),
        PageFormat::Lines => (lines::lines(feed, query, page), LINES_TYPE),
    };
    let mut page_response = match (&query.callback, format) {
        (None, _) => response(StatusCode::OK, content_type, body),
        (Some(callback), PageFormat::Json) => response(StatusCode::OK, SCRIPT_TYPE, callback.wrap(&body)),
        // Neither Atom nor several lines are JavaScript: the function gets the document as one string.
        (Some(callback), PageFormat::Atom | PageFormat::Lines) => {
            let text = to_json(&String::from_utf8_lossy(&body));
            response(StatusCode::OK, SCRIPT_TYPE, callback.wrap(&text))
        }
    };
    if page.reset {
        let position = HeaderValue::from_static("position-unknown");
        page_response.headers_mut().insert(HeaderName::from_static(TOWPATH_RESET), position);
    }
    if let Some(next) = PullPageLinks::new(feed, query, page).next
        && let Ok(next) = HeaderValue::from_str(&link::write(&next, "next"))
    {
        // Lines have no other place for it. A reader of the others may request the next page while it reads this one.
        page_response.headers_mut().append(LINK, next);
    }
    page_response.headers_mut().extend(topic_links(feed, query, format).map(|links| (LINK, links)));
    page_response
}

fn response(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let headers: [(HeaderName, &'static str); 4] = [
        (CONTENT_TYPE, content_type),
        // One URL has two formats, so a cache must keep them apart.
        (VARY, "Accept"),
        // May be stored, but not used without asking: the next append changes the page.
        (CACHE_CONTROL, "no-cache"),
        // A browser must not interpret a script with a hostile callback name as another type.
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A problem document (RFC 9457).
#[derive(Serialize)]
struct PullProblem<'a> {
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'a str>,
}

fn problem(status: StatusCode, detail: &str, parameter: Option<&str>) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = to_json(&PullProblem { title, status: status.as_u16(), detail, parameter });
    response(status, "application/problem+json", body)
}

/// Returns the response to an invalid query: 400 with the parameter's name.
pub fn refuse(error: &QueryError) -> Response<Bytes> {
    problem(StatusCode::BAD_REQUEST, &error.to_string(), Some(error.parameter()))
}

/// Returns the response to a pull request that failed.
pub fn fail(error: &PullError) -> Response<Bytes> {
    match error {
        PullError::Query(error) => refuse(error),
        PullError::UnknownId(_) => problem(StatusCode::NOT_FOUND, &error.to_string(), None),
        PullError::Behind(_) => problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string(), None),
        PullError::UnexpectedResult => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), None),
    }
}

/// Returns the response if the client accepts neither format: 406.
pub fn not_acceptable() -> Response<Bytes> {
    let detail = "this feed is available as application/json and as application/atom+xml";
    problem(StatusCode::NOT_ACCEPTABLE, detail, None)
}
