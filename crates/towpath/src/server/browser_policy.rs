//! Rules for requests that a browser sends to a server of this machine, on behalf of other sites' pages.
//!
//! A server whose base URL is local is reached by programs here, and by every page that a browser here shows. A page
//! may not read through a name of its own that resolves to this machine (DNS rebinding), nor have the browser fetch
//! scripts (JSON-P) or send forms (the hub).

use arc_swap::ArcSwap;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use url::Url;

use crate::config::{Config, is_local};
use crate::document::cors::CorsPolicy;
use crate::document::route_error::RouteError;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Checks of requests to a local server. They pass every request to a public one.
pub(super) struct BrowserPolicy {
    /// Host and port of the base URL, if it is local.
    local: Option<Box<[u8]>>,
}

impl BrowserPolicy {
    pub(super) fn new(config: &Config) -> Self {
        let base = config.base_url();
        let host = base.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
        Self { local: config.server.is_local().then(|| host.as_bytes().into()) }
    }

    /// Checks a request, before anything is read for it. `may_publish` says whether another site's page may send it.
    pub(super) fn check<B>(
        &self,
        request: &Request<B>,
        cors: &ArcSwap<CorsPolicy>,
        may_publish: impl FnOnce() -> bool,
    ) -> Result<(), RouteError> {
        let Some(own) = &self.local else { return Ok(()) };
        let headers = request.headers();
        // HTTP/2 has the host in the address instead.
        let authority = || request.uri().authority().map(|authority| authority.as_str().as_bytes());
        if let Some(host) = headers.get(HOST).map(HeaderValue::as_bytes).or_else(authority)
            // The usual case, by bytes.
            && host != &**own
            && !std::str::from_utf8(host).is_ok_and(is_unspoofable)
        {
            let host = String::from_utf8_lossy(host);
            return Err(RouteError::forbidden(format!(
                "this server is local, and {host:?} is not its address; if it is, set [server] base_url to it"
            )));
        }
        if is_of_other_site(request.method(), headers, cors) && !may_publish() {
            return Err(RouteError::forbidden(
                "this server is local, and another site's page sent this request; to allow that site, set [server] \
                 cors_origins, or publish_origins to let its pages publish",
            ));
        }
        Ok(())
    }
}

/// Returns true for a host that no stranger can have resolve to this machine.
///
/// DNS rebinding needs a registered name. An address is none, and neither is a name without a dot: containers and home
/// networks have those.
fn is_unspoofable(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        // A colon within the brackets of an IPv6 address begins no port.
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (host, ""),
    };
    if !port.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    // Browsers resolve names below localhost to this machine themselves (RFC 6761, section 6.3).
    !name.contains('.') || name.ends_with(".localhost") || bare.parse::<std::net::IpAddr>().is_ok()
}

/// Returns true if a page of another site sent the request.
fn is_of_other_site(method: &Method, headers: &HeaderMap, cors: &ArcSwap<CorsPolicy>) -> bool {
    // Every current browser sends one of the two with each request that a page can make across sites.
    match headers.get(ORIGIN) {
        Some(origin) => !cors.load().allows(origin) && !is_own(origin, headers),
        None => match headers.get(SEC_FETCH_SITE) {
            Some(site) if site == "cross-site" => {
                **cors.load() != CorsPolicy::AnyOrigin && !is_visit(method, headers)
            }
            _ => false,
        },
    }
}

/// Returns true for the origin of a page from this machine or from the requested host itself.
fn is_own(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    // "null", the origin of sandboxed frames, is no URL.
    let Some(host) = origin.to_str().ok().and_then(|text| text.split_once("://")).map(|(_, host)| host)
    else {
        return false;
    };
    let url = origin.to_str().ok().and_then(|text| Url::parse(text).ok());
    let is_web = url.is_some_and(|url| matches!(url.scheme(), "http" | "https"));
    is_web && (is_local(host) || headers.get(HOST).is_some_and(|own| own.as_bytes() == host.as_bytes()))
}

/// Returns true if the user follows a link: the other site's page cannot read what is shown then.
fn is_visit(method: &Method, headers: &HeaderMap) -> bool {
    let is = |name: HeaderName, value: &str| headers.get(name).is_some_and(|given| given == value);
    *method == Method::GET && is(SEC_FETCH_MODE, "navigate") && is(SEC_FETCH_DEST, "document")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn passes_at(base: &str, cors: &CorsPolicy, method: Method, lines: &[(&'static str, &str)]) -> bool {
        let text = format!("[server]\n{base}\n");
        let config = Config::parse(&text, Path::new("towpath.toml")).unwrap();
        let mut request = Request::new(());
        *request.method_mut() = method;
        for (name, value) in lines {
            request.headers_mut().append(*name, value.parse().unwrap());
        }
        BrowserPolicy::new(&config).check(&request, &ArcSwap::from_pointee(cors.clone()), || false).is_ok()
    }

    fn passes(method: Method, lines: &[(&'static str, &str)]) -> bool {
        passes_at("", &CorsPolicy::SameOrigin, method, lines)
    }

    #[test]
    fn names_that_a_stranger_could_have_registered_are_refused() {
        for host in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "localhost:8080",
            "LOCALHOST",
            "[::1]:8080",
            "[::1]",
            "10.0.0.7:1",
            "towpath:80",
            "feeds.localhost",
            "x",
            "",
        ] {
            assert!(passes(Method::GET, &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "127.0.0.1:80.evil.example",
            "localhost.",
            "[evil.example]",
            "localhost.evil.example:8080",
        ] {
            assert!(!passes(Method::GET, &[("host", host)]), "{host}");
            assert!(passes_at(
                "base_url = 'https://a.example'",
                &CorsPolicy::AnyOrigin,
                Method::GET,
                &[("host", host)]
            ));
        }
        assert!(passes(Method::GET, &[]), "HTTP/1.0");
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let host = ("host", "127.0.0.1:8080");
        for origin in ["http://127.0.0.1:8080", "http://localhost:3000", "https://[::1]"] {
            assert!(passes(Method::GET, &[host, ("origin", origin)]), "{origin}");
        }
        // A page of this server, which was opened by the machine's address in its network.
        let own = [("host", "10.0.0.7:8080"), ("origin", "http://10.0.0.7:8080")];
        assert!(passes(Method::POST, &own));
        for origin in
            ["http://evil.example", "null", "http://localhost.evil.example", "file://", "x://localhost"]
        {
            for method in [Method::GET, Method::POST, Method::OPTIONS] {
                assert!(!passes(method, &[host, ("origin", origin)]), "{origin}");
            }
        }
        // A script element: no Origin header.
        let script = [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
        assert!(!passes(Method::GET, &script));
        for site in ["none", "same-origin", "same-site"] {
            assert!(passes(Method::GET, &[host, ("sec-fetch-site", site)]), "{site}");
        }
    }

    #[test]
    fn a_link_can_be_followed_but_not_framed() {
        let visit = |method, dest| {
            passes(
                method,
                &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", dest)],
            )
        };
        assert!(visit(Method::GET, "document"));
        assert!(!visit(Method::GET, "iframe") && !visit(Method::POST, "document"));
    }

    #[test]
    fn configured_origins_may_read() {
        let listed = CorsPolicy::new(&["https://a.example".to_owned()]);
        let passes = |origin| {
            passes_at("", &listed, Method::GET, &[("origin", origin), ("sec-fetch-site", "cross-site")])
        };
        assert!(passes("https://a.example") && !passes("https://b.example"));
    }
}
