//! CORS of publishing: which other sites' pages may send items and uploads (Fetch, section 3.2).
//!
//! Credentials are never allowed, and no cookie lets a request publish: a page needs a token that it was given.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, Request};

use crate::document::cors;
use crate::engine::Engine;

/// Methods of requests that publish.
const METHODS: &str = "POST, PUT, PATCH, DELETE, HEAD";
/// Request headers that pages may set, beside those of requests that read. Those of tus that the server refuses are among
/// them, so that the page sees why.
const REQUEST_HEADERS: &str = "Content-Type, If-Match, Tus-Resumable, Upload-Length, Upload-Offset, Upload-Metadata, \
     Upload-Checksum, Upload-Concat, Upload-Defer-Length, X-HTTP-Method-Override, X-Requested-With, X-Request-ID";

/// Origin of a request that publishes, or of the preflight of one, whose pages may do so.
pub(super) struct PublishOrigin {
    origin: HeaderValue,
    is_preflight: bool,
}

impl PublishOrigin {
    /// Returns `None` for requests of other origins and to other addresses.
    pub(super) fn of<B>(engine: &Engine, request: &Request<B>) -> Option<Self> {
        let origin = request.headers().get(ORIGIN)?;
        let server = engine.server.load();
        let is_listed = server.publish_origins.iter().any(|listed| listed.as_bytes() == origin.as_bytes());
        let is_preflight = request.method() == Method::OPTIONS;
        (is_listed && publishes(request)).then(|| Self { origin: origin.clone(), is_preflight })
    }

    /// Adds the headers by which the page may send the request, or read its answer.
    pub(super) fn add_to(self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(cors::EXPOSED));
        if !headers.get_all(VARY).iter().any(|value| value == "origin") {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if self.is_preflight {
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(cors::REQUEST_HEADERS));
            headers.append(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(REQUEST_HEADERS));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(cors::MAX_AGE));
        }
    }
}

/// Returns true for a request to change items or uploads, and for one that asks how far an upload is.
fn publishes<B>(request: &Request<B>) -> bool {
    let asked = request.headers().get(ACCESS_CONTROL_REQUEST_METHOD).map(HeaderValue::as_bytes);
    let method = match (request.method(), asked) {
        (&Method::OPTIONS, Some(asked)) => asked,
        (method, _) => method.as_str().as_bytes(),
    };
    let mut segments = request.uri().path().split('/').skip(1);
    match (segments.next(), segments.nth(1)) {
        (Some("feeds"), Some("uploads")) => matches!(method, b"POST" | b"PATCH" | b"HEAD" | b"DELETE"),
        (Some("feeds"), Some("items")) => matches!(method, b"POST" | b"PUT" | b"PATCH" | b"DELETE"),
        _ => false,
    }
}
