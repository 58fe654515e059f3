//! Addresses of pages, told from those of documents for programs.

use http::header::ACCEPT;
use http::{HeaderMap, Method, Request};
use towpath_proto::smart::accept::prefers_html;

use crate::document::feed_path::segments;
use crate::engine::request::parameters;

/// Tabs of a feed's page that have an address of their own.
pub(super) const TABS: [&str; 7] =
    ["changes", "history", "source", "follow", "subscribers", "live", "publish"];

/// Address of a page, as decoded segments.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::server) enum PageAddress {
    /// A page to read.
    Get(Vec<String>),
    /// A form that was sent.
    Post(Vec<String>),
}

impl PageAddress {
    /// Returns the page that a request is for; `None` for all other requests.
    pub(in crate::server) fn of<B>(request: &Request<B>) -> Option<Self> {
        let segments = segments(request.uri().path()).ok()?;
        let path: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
        let owned = || path.iter().map(|segment| (*segment).to_owned()).collect();
        match *request.method() {
            Method::GET | Method::HEAD => is_page(&path, request).then(|| Self::Get(owned())),
            Method::POST => is_form(&path).then(|| Self::Post(owned())),
            _ => None,
        }
    }

    /// Returns the points that a request for the page costs; `None` if it is free.
    pub(in crate::server) fn cost(&self) -> Option<u64> {
        match self {
            Self::Get(path)
                if path.first().is_some_and(|first| first == "assets" || first == "favicon.ico") =>
            {
                None
            }
            Self::Get(_) => Some(1),
            // Guesses of a token, and checks of other servers.
            Self::Post(path) if path.len() == 1 => Some(20),
            Self::Post(_) => Some(5),
        }
    }
}

fn is_page<B>(path: &[&str], request: &Request<B>) -> bool {
    match path {
        // Programs get JSON or the content there.
        [""] | ["feeds", _] | ["sinks"] | ["sinks", _] => wants_html(request.headers()),
        ["feeds", _, "items", _] => {
            let is_part = || parameters(request.uri().query()).any(|(name, _)| name == "view");
            wants_html(request.headers()) || is_part()
        }
        ["feeds", _, tab] => TABS.contains(tab),
        ["assets", _] | ["favicon.ico" | "live" | "check" | "sign-in"] => true,
        _ => false,
    }
}

fn is_form(path: &[&str]) -> bool {
    matches!(
        path,
        ["sign-in" | "sign-out" | "check"]
            | ["sinks", _]
            | ["feeds", _, "publish" | "delete" | "snapshot" | "poll" | "pause" | "resume"]
    )
}

/// Returns true if a client prefers a page to JSON.
pub(in crate::server) fn wants_html(headers: &HeaderMap) -> bool {
    prefers_html(headers.get(ACCEPT).and_then(|value| value.to_str().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

    fn of(method: &str, path: &str, accept: &str) -> Option<PageAddress> {
        let request = Request::builder().method(method).uri(path).header("accept", accept);
        PageAddress::of(&request.body(()).unwrap())
    }

    #[test]
    fn programs_get_no_pages() {
        for path in ["/", "/feeds/aa", "/feeds/aa/items/x%2Fy"] {
            assert!(of("GET", path, BROWSER).is_some(), "{path}");
            assert!(
                of("GET", path, "*/*").is_none() && of("GET", path, "application/json").is_none(),
                "{path}"
            );
        }
        for path in ["/feeds", "/feeds/aa/items", "/feeds/aa/events", "/feeds/aa/atom", "/diff/latest.json"] {
            assert!(of("GET", path, BROWSER).is_none(), "{path}");
        }
        assert!(of("GET", "/feeds/aa/items/x?view=frame", "image/png").is_some());
        assert!(of("GET", "/feeds/aa/source", "*/*").is_some());
    }

    #[test]
    fn only_forms_are_posted() {
        assert!(of("POST", "/sign-in", "*/*").is_some() && of("POST", "/feeds/aa/poll", "*/*").is_some());
        for path in ["/feeds/aa/items", "/feeds/aa/snapshots", "/feeds/aa/hub", "/"] {
            assert!(of("POST", path, BROWSER).is_none(), "{path}");
        }
        assert!(of("PUT", "/feeds/aa/items/x", BROWSER).is_none());
    }
}
