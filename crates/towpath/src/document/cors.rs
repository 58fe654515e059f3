//! CORS: which other sites' pages may read responses (Fetch, section 3.2).
//!
//! Credentials are never allowed, so a page gets what anybody gets, or what it has a token for.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, VARY,
};
use http::{HeaderMap, HeaderValue};

/// Response headers that pages may read, beside those that every page may.
pub(crate) const EXPOSED: &str = "ETag, Link, Location, Content-Location, Retry-After, Date, X-SUP-ID, \
     Towpath-Feed, Towpath-Position, Towpath-Replica-Age, Towpath-Reset, Accept-Ranges, Content-Range";
/// Methods of requests that pages may send. Publishing has origins of its own.
pub(crate) const METHODS: &str = "GET, HEAD";
/// Request headers that pages may set.
pub(crate) const REQUEST_HEADERS: &str = "Authorization, Cache-Control, If-Modified-Since, If-None-Match, If-Range, Last-Event-ID, Range, \
     Towpath-Position";
/// Time that a browser may remember an answer to a preflight, in seconds.
// Browsers cap it at two hours or a day.
pub(crate) const MAX_AGE: &str = "86400";

/// Origins whose pages may read responses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CorsPolicy {
    /// No other origin.
    #[default]
    SameOrigin,
    /// Every origin.
    AnyOrigin,
    /// These origins.
    Listed(Vec<HeaderValue>),
}

impl CorsPolicy {
    /// Makes the policy of configured origins, which the configuration has checked. `*` is every origin.
    pub fn new(origins: &[String]) -> Self {
        if origins.iter().any(|origin| origin == "*") {
            return Self::AnyOrigin;
        }
        let origins: Vec<_> =
            origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
        if origins.is_empty() { Self::SameOrigin } else { Self::Listed(origins) }
    }

    /// Returns true if pages of the origin may read responses.
    pub fn allows(&self, origin: &HeaderValue) -> bool {
        match self {
            Self::SameOrigin => false,
            Self::AnyOrigin => true,
            Self::Listed(origins) => origins.contains(origin),
        }
    }

    /// Adds the headers that every response has, whoever asks.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        match self {
            Self::SameOrigin => {}
            Self::AnyOrigin => {
                if !headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
                    allow(headers, HeaderValue::from_static("*"));
                }
            }
            Self::Listed(_) => {
                let is_origin = |value: &HeaderValue| value == "origin";
                // A cache must not give one origin's response to another.
                if !headers.get_all(VARY).iter().any(is_origin) {
                    headers.append(VARY, HeaderValue::from_static("origin"));
                }
            }
        }
    }

    /// Adds the headers that depend on the origin of the request.
    pub(crate) fn add_for(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if let Some(origin) = self.listed(origin) {
            allow(headers, origin.clone());
        }
    }

    /// Returns the origin of a request, if the policy lists it.
    pub(crate) fn listed<'a>(&self, origin: Option<&'a HeaderValue>) -> Option<&'a HeaderValue> {
        let Self::Listed(origins) = self else { return None };
        origin.filter(|origin| origins.contains(origin))
    }

    /// Adds the headers of an answer to a preflight (Fetch, section 3.2.2).
    pub(crate) fn add_to_preflight(&self, headers: &mut HeaderMap) {
        if *self != Self::SameOrigin {
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(REQUEST_HEADERS));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        }
    }
}

fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(origins: &[&str]) -> CorsPolicy {
        CorsPolicy::new(&origins.iter().map(|&origin| origin.to_owned()).collect::<Vec<_>>())
    }

    fn headers(policy: &CorsPolicy, origin: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        // Twice: prebuilt documents have the headers already.
        policy.add_to(&mut headers);
        policy.add_to(&mut headers);
        policy.add_for(Some(&HeaderValue::from_static(origin)), &mut headers);
        headers
    }

    #[test]
    fn origins_that_may_read() {
        assert!(headers(&policy(&[]), "https://a.example").is_empty());
        let any = headers(&policy(&["*"]), "https://a.example");
        assert_eq!(any[ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert!(!any.contains_key(VARY));
        let listed = policy(&["https://a.example", "https://b.example:8443"]);
        for origin in ["https://a.example", "https://b.example:8443"] {
            assert_eq!(headers(&listed, origin)[ACCESS_CONTROL_ALLOW_ORIGIN], origin);
        }
        for origin in ["https://b.example", "http://a.example", "https://a.example.evil.example", "null"] {
            let headers = headers(&listed, origin);
            assert!(!headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN), "{origin}");
            assert_eq!(headers.get_all(VARY).iter().count(), 1);
        }
    }
}
