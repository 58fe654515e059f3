//! Access checks: who may publish to a feed, and what a reader may see of it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, Request, Version};

use crate::config::{TokenDigest, TokenRight, is_local};
use crate::document::route_error::RouteError;
use crate::engine::read_link::{self, ReadLink};
use crate::engine::removed_feed::RemovedFeed;
pub use crate::engine::tokens::Access;
use crate::engine::tokens::{TokenSet, reads};
use crate::engine::{Engine, Feed, SortedFeeds};

/// Checks that the sender of a request has a right to change a feed: with a token, or, where none may publish, from a
/// loopback address. Returns the sender, for the log.
///
/// A server whose base URL is public has a proxy in front, mostly on the same machine. The proxy may send nothing that
/// tells its requests from a local program's, so nobody publishes there without a token.
///
/// A loopback address alone proves little: a browser or a proxy on this machine relays requests of strangers. So these
/// requests do not count as local: those with `Origin` (made by a web page), those with a foreign `Host` (DNS
/// rebinding), those with a forwarding header, and HTTP/1.0 (some proxies).
pub(crate) fn may_change<B>(
    tokens: &TokenSet,
    right: TokenRight,
    feed: &str,
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Sender, RouteError> {
    if tokens.is_open() {
        return without_token(tokens, peer, request).map(|()| Sender(None));
    }
    // Once tokens are set, being local is not enough: a proxy on this machine is local as well.
    with_token(tokens, right, feed, request.headers())
}

/// Sender of a request that changes a feed: the name of its token.
#[derive(Debug, Clone)]
pub(crate) struct Sender(Option<Arc<str>>);

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("none (a local program)"))
    }
}

/// Returns the name of the token that a request carries; `None` without a valid token.
pub(crate) fn token_name(tokens: &TokenSet, headers: &HeaderMap) -> Option<Arc<str>> {
    tokens.name_of(bearer(headers)?)
}

/// Checks that a request may do without a token.
fn without_token<B>(tokens: &TokenSet, peer: SocketAddr, request: &Request<B>) -> Result<(), RouteError> {
    // Before the address is looked at: a proxy on this machine would make everybody local.
    if tokens.is_public_server() {
        return Err(RouteError::forbidden(
            "publishing to a server with a public base_url needs a token: set [server] tokens and send one as \
             Authorization: Bearer",
        ));
    }
    is_local_program(peer, request)
}

/// Checks that a request comes from a program on this machine, and not through a browser or a proxy.
fn is_local_program<B>(peer: SocketAddr, request: &Request<B>) -> Result<(), RouteError> {
    let headers = request.headers();
    // Canonical, because a dual-stack socket shows 127.0.0.1 as ::ffff:127.0.0.1.
    if !peer.ip().to_canonical().is_loopback() {
        return Err(RouteError::forbidden(
            "publishing from another machine needs a token: set [server] tokens and send one as Authorization: Bearer",
        ));
    }
    // Browsers send `Origin` with every cross-site POST, and a page cannot suppress it.
    if headers.contains_key(ORIGIN) || is_passed_on(request) {
        return Err(RouteError::forbidden("publishing through a browser or a proxy needs [server] tokens"));
    }
    // DNS rebinding: a page's own host name resolves to 127.0.0.1, but `Host` still has that name.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if is_local(host) {
        Ok(())
    } else {
        Err(RouteError::forbidden(format!(
            "publishing without a token needs a local address, and {host:?} is none"
        )))
    }
}

/// Returns true if the sender of a request may read what operators read, such as why a source failed.
///
/// To strangers the reason would show which ports of which hosts this machine can reach.
pub(crate) fn may_see_details<B>(
    tokens: &TokenSet,
    feed: &str,
    peer: SocketAddr,
    request: &Request<B>,
) -> bool {
    sees_details(tokens, peer, request)(feed)
}

/// Returns a function that tells for each feed what [`may_see_details`] tells. The token is hashed once for all feeds.
/// It outlives the request, for threads beside those that serve.
pub(crate) fn sees_details<B>(
    tokens: &TokenSet,
    peer: SocketAddr,
    request: &Request<B>,
) -> impl Fn(&str) -> bool + Send + Sync + 'static + use<B> {
    let sees_all = tokens.is_open() && without_token(tokens, peer, request).is_ok();
    // Where no token may publish, none proves an operator.
    let given = bearer(request.headers()).filter(|_| !tokens.is_open());
    let token = given.and_then(|given| tokens.find(given)).cloned();
    move |feed: &str| sees_all || token.as_ref().is_some_and(|token| token.may(TokenRight::Publish, feed))
}

/// Returns true for requests that a proxy probably relays.
fn is_passed_on<B>(request: &Request<B>) -> bool {
    let tells =
        |name: &HeaderName| PASSED_ON.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-");
    // nginx has long spoken HTTP/1.0 to its upstreams by default.
    request.version() < Version::HTTP_11 || request.headers().keys().any(tells)
}

/// Headers that proxies add (RFC 7239; RFC 9110, section 7.6.3), beside `X-Forwarded-…`.
const PASSED_ON: [&str; 3] = ["forwarded", "via", "x-real-ip"];

fn with_token(
    tokens: &TokenSet,
    right: TokenRight,
    feed: &str,
    headers: &HeaderMap,
) -> Result<Sender, RouteError> {
    let given = bearer(headers)
        .ok_or_else(|| RouteError::unauthorized("publishing needs a token: Authorization: Bearer …"))?;
    // A reader's token is unknown here, too: it has no rights but to read its feed.
    let Some(token) = tokens.find(given) else {
        return Err(RouteError::unauthorized("this token may not publish"));
    };
    if token.may(right, feed) {
        return Ok(Sender(Some(token.name.clone())));
    }
    let (name, needed) = (&token.name, if right == TokenRight::Admin { "admin" } else { "publish" });
    tracing::info!(token = %name, feed, right = %needed, "refused a change: the token lacks the right");
    Err(RouteError::forbidden(format!(
        "token {name} may not change this feed: it needs the right {needed} for it"
    )))
}

/// Returns the part of a feed that the sender of a request may read.
///
/// A public feed is open to everybody. Else the token decides.
///
/// # Errors
///
/// A missing or unknown token.
pub(crate) fn may_read(feed: &Feed, tokens: &TokenSet, headers: &HeaderMap) -> Result<Access, RouteError> {
    if feed.config.is_public() {
        return Ok(Access::Whole);
    }
    let needed = || RouteError::unauthorized("reading this feed needs a token: Authorization: Bearer …");
    let given = bearer(headers).ok_or_else(needed)?;
    // Readers first: a token that is in both lists keeps the reader's filter.
    if let Some(access) = tokens.reader(feed.id(), given) {
        return Ok(access);
    }
    match tokens.find(given) {
        Some(token) if reads(token, feed.id(), feed.log()) => Ok(Access::Whole),
        _ => Err(RouteError::unauthorized("this token may not read this feed")),
    }
}

/// Returns true if the sender of a request may know of a feed that was removed. Its own readers went with it.
pub(crate) fn may_know_removed<B>(
    removed: &RemovedFeed,
    feed: &str,
    tokens: &TokenSet,
    peer: SocketAddr,
    request: &Request<B>,
) -> bool {
    let token = || bearer(request.headers()).and_then(|given| tokens.find(given));
    removed.is_public
        || token().is_some_and(|token| token.may(TokenRight::Read, feed))
        || (tokens.is_open() && without_token(tokens, peer, request).is_ok())
}

/// Returns the feeds that the sender of a request may read, with the part of each.
///
/// # Errors
///
/// A token that is not valid.
pub(crate) fn readable<B>(
    feeds: SortedFeeds,
    tokens: &TokenSet,
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Vec<(Arc<Feed>, Access)>, RouteError> {
    let is_local = tokens.is_open() && without_token(tokens, peer, request).is_ok();
    // A client that sends a token expects to see more than the public feeds: a typing error must not look like success.
    if bearer(request.headers()).is_some()
        && !tokens.is_open()
        && token_name(tokens, request.headers()).is_none()
    {
        return Err(RouteError::unauthorized("nothing here is read with this token"));
    }
    let access = |feed: &Feed| match may_read(feed, tokens, request.headers()) {
        // A local program without a token may publish to this feed, so its name is no secret to it.
        Err(_) if is_local => Ok(Access::Whole),
        access => access,
    };
    Ok(feeds.into_iter().filter_map(|feed| access(&feed).ok().map(|access| (feed, access))).collect())
}

/// Returns the digest of the request's token if the feed needs one. With it the access is checked again later.
pub(crate) fn reader_digest<B>(feed: &Feed, request: &Request<B>) -> Option<TokenDigest> {
    if feed.config.is_public() {
        return None;
    }
    let link = request.extensions().get::<ReadLink>();
    link.map(|link| link.reader).or_else(|| bearer(request.headers()).map(TokenDigest::of))
}

/// Returns the part of a feed that the sender of a request may read, by a token or a read link.
///
/// # Errors
///
/// A missing or unknown token; a read link that is not valid here, or not any more.
pub(crate) fn may_read_request<B>(
    engine: &Engine,
    feed: &Feed,
    request: &mut Request<B>,
) -> Result<Access, RouteError> {
    let tokens = engine.tokens.load();
    if feed.config.is_public() || bearer(request.headers()).is_some() {
        return may_read(feed, &tokens, request.headers());
    }
    let Some(text) = read_link::of_query(request.uri().query()) else {
        return may_read(feed, &tokens, request.headers());
    };
    let refused = || RouteError::unauthorized("this read link is not valid for this feed, or not any more");
    let link = ReadLink::verify(&engine.identity, feed.id(), &text, engine.now()).ok_or_else(refused)?;
    // The link is no more than its reader's token: once that is withdrawn, it opens nothing.
    let access =
        tokens.access_by_prefix(feed.id(), feed.log(), link.reader.as_bytes()).ok_or_else(refused)?;
    request.extensions_mut().insert(link);
    Ok(access)
}

/// Returns the digest of the bearer token of a request.
pub(crate) fn read_token(headers: &HeaderMap) -> Option<TokenDigest> {
    bearer(headers).map(TokenDigest::of)
}

/// Returns a short digest of the request's token if the feed needs one. It is stored with a subscription.
pub(crate) fn token_digest<B>(feed: &Feed, request: &Request<B>) -> Option<String> {
    // 96 bits tell tokens apart; the token itself must not be in the store or in its backups.
    reader_digest(feed, request).map(|digest| hex::encode(&digest.as_bytes()[..STORED_DIGEST]))
}

/// Bytes of a token's digest that are stored with a subscription.
const STORED_DIGEST: usize = 12;

/// Returns the access that the owner of a token has now, by the token's digest; `None` if it has none any more.
pub(crate) fn access_of(feed: &Feed, tokens: &TokenSet, digest: Option<&str>) -> Option<Access> {
    if feed.config.is_public() {
        return Some(Access::Whole);
    }
    let prefix = hex::decode(digest?).ok().filter(|prefix| prefix.len() == STORED_DIGEST)?;
    tokens.access_by_prefix(feed.id(), feed.log(), &prefix)
}

/// Returns the bearer token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::HeaderValue;

    use super::*;
    use crate::config::{Config, Secret, ServerConfig};
    use crate::document::route_error::RouteErrorKind;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| ((*name).parse().unwrap(), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    /// The server's own mapping is above this module.
    fn status_of(error: &RouteError) -> u16 {
        match error.kind {
            RouteErrorKind::Unauthorized => 401,
            RouteErrorKind::Forbidden => 403,
            _ => 500,
        }
    }

    fn status(tokens: &[&str], peer: &str, pairs: &[(&'static str, &str)]) -> u16 {
        let tokens: Vec<_> = tokens.iter().map(|token| Secret::from(*token)).collect();
        status_at(ServerConfig { tokens, ..ServerConfig::default() }, peer, pairs)
    }

    fn status_at(server: ServerConfig, peer: &str, pairs: &[(&'static str, &str)]) -> u16 {
        let mut config = Config::parse("", Path::new("towpath.toml")).unwrap();
        config.server = server;
        let peer = SocketAddr::new(peer.parse().unwrap(), 1);
        let mut request = Request::new(());
        *request.headers_mut() = headers(pairs);
        let sender = may_change(&TokenSet::new(&config), TokenRight::Publish, "news", peer, &request);
        sender.map_or_else(|error| status_of(&error), |_| 200)
    }

    #[test]
    fn without_tokens_only_local_programs_may() {
        for host in ["127.0.0.1:8080", "localhost", "[::1]:8080", "[::1]"] {
            assert_eq!(status(&[], "127.0.0.1", &[("host", host)]), 200, "{host}");
        }
        // An IPv4 client of a dual-stack socket.
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

    /// nginx with `proxy_http_version 1.1` and nothing else sends what a local program sends.
    #[test]
    fn a_public_server_without_tokens_is_published_to_by_nobody() {
        let at = |base: &str, pairs: &[(&'static str, &str)]| {
            let base_url = Some(base.to_owned());
            status_at(ServerConfig { base_url, ..ServerConfig::default() }, "127.0.0.1", pairs)
        };
        let plain = [("host", "127.0.0.1:8080")];
        for public in ["https://feeds.example", "http://192.0.2.1:8080", "http://[2001:db8::1]"] {
            assert_eq!(at(public, &plain), 403, "{public}");
            assert_eq!(at(public, &[plain[0], ("authorization", "Bearer a")]), 403, "{public}");
        }
        for local in ["http://localhost:1", "http://127.0.0.1", "http://[::1]:8080"] {
            assert_eq!(at(local, &plain), 200, "{local}");
        }
    }

    #[test]
    fn an_old_version_is_a_proxys() {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let local = |version| {
            let request = Request::builder().version(version).header("host", "localhost").body(()).unwrap();
            let tokens = TokenSet::new(&Config::parse("", Path::new("towpath.toml")).unwrap());
            may_change(&tokens, TokenRight::Publish, "news", peer, &request).is_ok()
        };
        assert!(local(Version::HTTP_11) && local(Version::HTTP_2));
        assert!(!local(Version::HTTP_10) && !local(Version::HTTP_09));
    }

    #[test]
    fn with_tokens_everybody_needs_one() {
        assert_eq!(status(&["a", "b"], "10.0.0.1", &[("authorization", "Bearer b")]), 200);
        // Local, but tokens are set: a proxy's requests look the same.
        assert_eq!(status(&["a"], "127.0.0.1", &[("host", "localhost")]), 401);
        assert_eq!(status(&["a"], "10.0.0.1", &[("authorization", "Bearer aa")]), 401);
        assert_eq!(status(&["a"], "10.0.0.1", &[("authorization", "Basic a")]), 401);
    }
}
