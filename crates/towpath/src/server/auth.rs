//! Who may publish, and who may read.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, Request, Version};
use sha2::{Digest, Sha256};

use super::problem::Problem;
use crate::engine::Feed;
use crate::engine::smart::Access;

/// Whether the sender of a request may publish: with one of `tokens`, or, where there are none, from a
/// loopback address.
///
/// Loopback alone says little when a browser or a proxy on this machine passes on what somebody else sent:
/// requests that a web page made (`Origin`), that name another host than this one (DNS rebinding), that say they were
/// forwarded or that are of HTTP/1.0, as proxies send them, do not count as local. A proxy that hides all of that is
/// not told from a program of this machine: behind one there must be tokens.
pub(super) fn may_publish<B>(
    tokens: &[String],
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<(), Problem> {
    let headers = request.headers();
    if !tokens.is_empty() {
        return with_token(tokens, headers);
    }
    if !peer.ip().to_canonical().is_loopback() {
        return Err(Problem::forbidden(
            "publishing from another machine needs a token: set [server] tokens and send one as Authorization: Bearer",
        ));
    }
    if headers.contains_key(ORIGIN) || is_passed_on(request) {
        return Err(Problem::forbidden("publishing through a browser or a proxy needs [server] tokens"));
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_local(host) {
        Ok(())
    } else {
        Err(Problem::forbidden(format!(
            "publishing without a token needs a local address, and {host:?} is none"
        )))
    }
}

/// Whether a request looks like one that a proxy passes on.
fn is_passed_on<B>(request: &Request<B>) -> bool {
    let tells =
        |name: &HeaderName| PASSED_ON.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-");
    request.version() < Version::HTTP_11 || request.headers().keys().any(tells)
}

/// Headers that proxies add (RFC 7239; RFC 9110, section 7.6.3), beside those of `X-Forwarded-…`.
const PASSED_ON: [&str; 3] = ["forwarded", "via", "x-real-ip"];

fn with_token(tokens: &[String], headers: &HeaderMap) -> Result<(), Problem> {
    let given = bearer(headers)
        .ok_or_else(|| Problem::unauthorized("publishing needs a token: Authorization: Bearer …"))?;
    match find(tokens.iter().map(String::as_str), given) {
        Some(_) => Ok(()),
        None => Err(Problem::unauthorized("this token may not publish")),
    }
}

/// What the sender of a request may read of a feed: everything of a public one; else what its token says, and
/// with a token to publish everything.
pub(super) fn may_read(feed: &Feed, publishers: &[String], headers: &HeaderMap) -> Result<Access, Problem> {
    if feed.config.is_public() {
        return Ok(Access::Whole);
    }
    let needed = || Problem::unauthorized("reading this feed needs a token: Authorization: Bearer …");
    let given = bearer(headers).ok_or_else(needed)?;
    let readers = &feed.config.readers;
    if let Some(index) = find(readers.iter().map(|reader| reader.token.as_str()), given) {
        let whole = readers[index].filter.is_none();
        return Ok(if whole { Access::Whole } else { Access::Reader(index) });
    }
    match find(publishers.iter().map(String::as_str), given) {
        Some(_) => Ok(Access::Whole),
        None => Err(Problem::unauthorized("this token may not read this feed")),
    }
}

/// Which of these feeds the sender of a request may read, and what of each: who may publish reads them all.
pub(super) fn readable<B>(
    feeds: Vec<Arc<Feed>>,
    publishers: &[String],
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Vec<(Arc<Feed>, Access)>, Problem> {
    let is_publisher = may_publish(publishers, peer, request).is_ok();
    let access = |feed: &Feed| match may_read(feed, publishers, request.headers()) {
        Err(_) if is_publisher => Ok(Access::Whole),
        access => access,
    };
    let readable: Vec<_> =
        feeds.into_iter().filter_map(|feed| access(&feed).ok().map(|access| (feed, access))).collect();
    // Who has sent a token expects to see more than everybody does.
    let is_known = is_publisher || readable.iter().any(|(feed, _)| !feed.config.is_public());
    if bearer(request.headers()).is_some() && !publishers.is_empty() && !is_known {
        return Err(Problem::unauthorized("nothing here is read with this token"));
    }
    Ok(readable)
}

/// What is kept of the token of a request to a feed that not everybody may read: enough to know it again.
pub(super) fn mark(feed: &Feed, headers: &HeaderMap) -> Option<String> {
    if feed.config.is_public() { None } else { bearer(headers).map(mark_of) }
}

fn mark_of(token: &str) -> String {
    hex::encode(&Sha256::digest(token.as_bytes())[..12])
}

/// What the owner of a token with this mark may read of a feed now; `None` where that is nothing any more.
pub(crate) fn access_of(feed: &Feed, publishers: &[String], mark: Option<&str>) -> Option<Access> {
    if feed.config.is_public() {
        return Some(Access::Whole);
    }
    let mark = mark?;
    let readers = &feed.config.readers;
    match readers.iter().position(|reader| mark_of(&reader.token) == mark) {
        Some(index) if readers[index].filter.is_some() => Some(Access::Reader(index)),
        Some(_) => Some(Access::Whole),
        None => publishers.iter().any(|token| mark_of(token) == mark).then_some(Access::Whole),
    }
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Which of the tokens it is. Digests of all are compared, so that the time taken tells nothing of them.
fn find<'a>(tokens: impl Iterator<Item = &'a str>, given: &str) -> Option<usize> {
    let digest = |text: &str| Sha256::digest(text.as_bytes());
    let given = digest(given);
    let same = tokens.enumerate().filter_map(|(index, token)| (digest(token) == given).then_some(index));
    same.fold(None, |first, index| first.or(Some(index)))
}

/// Whether a host, with or without a port, is this machine.
pub(crate) fn is_local(host: &str) -> bool {
    // An IPv6 address stands in brackets (RFC 3986, section 3.2.2); what follows the last colon is a port.
    let name = match (host.strip_prefix('['), host.split_once(':')) {
        (Some(rest), _) => rest.split(']').next().unwrap_or_default(),
        (None, Some((name, _))) => name,
        (None, None) => host,
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    fn status(tokens: &[&str], peer: &str, pairs: &[(&'static str, &str)]) -> u16 {
        let tokens: Vec<String> = tokens.iter().map(|t| (*t).to_owned()).collect();
        let peer = SocketAddr::new(peer.parse().unwrap(), 1);
        let mut request = Request::new(());
        *request.headers_mut() = headers(pairs);
        may_publish(&tokens, peer, &request).map_or_else(|p| p.status().as_u16(), |()| 200)
    }

    #[test]
    fn without_tokens_only_local_programs_may() {
        for host in ["127.0.0.1:8080", "localhost", "[::1]:8080", "[::1]"] {
            assert_eq!(status(&[], "127.0.0.1", &[("host", host)]), 200, "{host}");
        }
        assert_eq!(status(&[], "::ffff:127.0.0.1", &[("host", "localhost")]), 200);
        assert_eq!(status(&[], "10.0.0.1", &[("host", "localhost")]), 403);
        assert_eq!(status(&[], "127.0.0.1", &[("host", "evil.example")]), 403);
        for name in [
            "origin",
            "forwarded",
            "via",
            "x-real-ip",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
        ] {
            assert_eq!(status(&[], "127.0.0.1", &[("host", "localhost"), (name, "x")]), 403, "{name}");
        }
    }

    #[test]
    fn an_old_version_is_a_proxys() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let local = |version| {
            let request = Request::builder().version(version).header("host", "localhost").body(()).unwrap();
            may_publish(&[], peer, &request).is_ok()
        };
        assert!(local(Version::HTTP_11) && local(Version::HTTP_2));
        assert!(!local(Version::HTTP_10) && !local(Version::HTTP_09));
    }

    #[test]
    fn with_tokens_everybody_needs_one() {
        assert_eq!(status(&["a", "b"], "10.0.0.1", &[("authorization", "Bearer b")]), 200);
        assert_eq!(status(&["a"], "127.0.0.1", &[("host", "localhost")]), 401);
        assert_eq!(status(&["a"], "10.0.0.1", &[("authorization", "Bearer aa")]), 401);
        assert_eq!(status(&["a"], "10.0.0.1", &[("authorization", "Basic a")]), 401);
    }
}
