//! Results of a page's route, and the headers that every page has.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::layout::Page;
use crate::document::prebuilt::Answer;

/// Policy of every page: its own style, script and images, and nothing inline. Content of items is framed from an address
/// whose own policy is a sandbox.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Result of a page's route.
pub(super) enum Shown {
    /// A page.
    Page(Page),
    /// A page with another status than 200.
    With(StatusCode, Page),
    /// Another answer: content, an asset, a redirection.
    Answer(Answer),
}

impl From<Page> for Shown {
    fn from(page: Page) -> Self {
        Self::Page(page)
    }
}

impl From<Answer> for Shown {
    fn from(answer: Answer) -> Self {
        Self::Answer(answer)
    }
}

/// Makes an answer of a page's text, with the headers that every page has.
pub(super) fn html_answer(status: StatusCode, text: String) -> Answer {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        // The page depends on who looks.
        (CACHE_CONTROL, "private, no-cache"),
        (VARY, "accept"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    let headers: HeaderMap =
        headers.into_iter().map(|(name, value)| (name, HeaderValue::from_static(value))).collect();
    Answer { status, headers, body: Bytes::from(text) }
}

/// Makes an answer that leads to another page.
pub(super) fn see_other(path: &str) -> Answer {
    let mut headers = HeaderMap::from_iter([(CACHE_CONTROL, HeaderValue::from_static("no-store"))]);
    if let Ok(value) = HeaderValue::from_str(path) {
        headers.insert(LOCATION, value);
    }
    Answer { status: StatusCode::SEE_OTHER, headers, body: Bytes::new() }
}
