//! Cost of requests under the rate limit. Documents in memory never come here, so they are free.

use std::net::SocketAddr;

use http::{HeaderMap, Method, Request};

use crate::document::feed_path::segments;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::access::{read_token, token_name};
use crate::engine::rate_limit::{Account, Requester, StreamAccount};
use crate::engine::request::parameters;
use crate::server::console::PageAddress;

/// Points of a snapshot, which copies the whole feed.
const SNAPSHOT: u64 = 100;
/// Points of a page that is searched, of a past moment, or of a comparison: it may take a core for a quarter of a second.
const WALK: u64 = 10;
/// Points of a request with a token that is not known, so that tokens cannot be guessed quickly.
const GUESS: u64 = 20;
/// Bytes of a body that cost a point.
const BYTES_PER_POINT: u64 = 64 << 10;

/// Request of a client whose account is charged when the answer is made, or when the client goes before that.
pub(super) struct ChargedRequest<'a> {
    account: Account<'a>,
    base_cost: u64,
    is_settled: bool,
}

/// Admits a request. Returns `None` if it costs nothing.
///
/// # Errors
///
/// A client that has spent too much.
pub(super) fn admit<'a, B>(
    engine: &'a Engine,
    peer: SocketAddr,
    request: &Request<B>,
) -> Result<Option<ChargedRequest<'a>>, RouteError> {
    let (Some(limit), Some(base_cost)) = (&engine.rate_limit, base_cost(request)) else { return Ok(None) };
    let (server, headers) = (engine.server.load(), request.headers());
    let network = Requester::network(peer, headers, &server.trusted_proxies);
    // Only a valid token has an account: strangers could invent a token for each request.
    let name = || Some(Requester::Token(token_name(&engine.tokens.load(), headers)?.to_string()));
    let requester = network.map(|network| name().unwrap_or(network));
    let account = requester.map(|requester| limit.admit(requester, base_cost)).transpose()?;
    Ok(account.map(|account| ChargedRequest { account, base_cost, is_settled: false }))
}

/// Charges a request with a token that is not known.
///
/// # Errors
///
/// A client that has spent too much.
pub(super) fn charge_guess(engine: &Engine, peer: SocketAddr, headers: &HeaderMap) -> Result<(), RouteError> {
    let (Some(limit), Some(_)) = (&engine.rate_limit, read_token(headers)) else { return Ok(()) };
    let tokens = engine.tokens.load();
    // Without tokens there is nothing to guess, and some clients always send a header.
    if tokens.is_empty() || token_name(&tokens, headers).is_some() {
        return Ok(());
    }
    if let Some(network) = Requester::network(peer, headers, &engine.server.load().trusted_proxies) {
        limit.admit(network, GUESS)?.charge(GUESS);
    }
    Ok(())
}

/// Charges the receiver of a stream for a page that was made for it alone.
pub(super) fn charge_page(engine: &Engine, account: Option<&StreamAccount>, size: usize) {
    if let (Some(limit), Some(account)) = (&engine.rate_limit, account) {
        limit.charge_stream(account, size as u64 / BYTES_PER_POINT);
    }
}

impl ChargedRequest<'_> {
    /// Returns the account for what a stream will send.
    pub(super) fn stream_account(&self) -> StreamAccount {
        self.account.of_stream()
    }

    /// Charges the request for an answer of so many bytes.
    pub(super) fn charge(mut self, size: u64) {
        self.is_settled = true;
        // By the size before compression: that is what it took to make.
        self.account.charge(self.base_cost + size / BYTES_PER_POINT);
    }

    /// Charges nothing, because nothing was made.
    pub(super) fn waive(mut self) {
        self.is_settled = true;
    }
}

impl Drop for ChargedRequest<'_> {
    fn drop(&mut self) {
        // The client cancelled: over HTTP/2 it could ask again and again on one connection.
        if !self.is_settled {
            self.account.charge(self.base_cost);
        }
    }
}

/// Returns what a request costs beside the size of its answer; `None` for cheap ones.
fn base_cost<B>(request: &Request<B>) -> Option<u64> {
    if let Some(page) = PageAddress::of(request) {
        let mut parameters = parameters(request.uri().query());
        let walks = parameters.any(|(name, _)| matches!(&*name, "q" | "tag" | "risk" | "at" | "with"));
        return page.cost().map(|cost| if walks { cost.max(WALK) } else { cost });
    }
    let segments = segments(request.uri().path()).ok()?;
    let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
    match (request.method(), segments.as_slice()) {
        (&Method::POST, ["feeds", _, "snapshots"]) => Some(SNAPSHOT),
        // Pages made from the log, and lists over all feeds. JSON-P is among the items.
        (
            &Method::GET | &Method::HEAD,
            ["feeds", _, "items" | "events"]
            | ["feeds", _, "replication" | "snapshots" | "atom" | "rss" | "feed.json", ..]
            | ["feeds" | "sup.json"]
            | ["feeds", "events"],
        ) => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_cost() {
        let cost = |method: &str, path: &str| {
            base_cost(&Request::builder().method(method).uri(path).body(()).unwrap())
        };
        for path in
            ["/feeds/a/items?callback=f", "/feeds/a/events", "/feeds/a/replication/pages/1", "/feeds?status"]
        {
            assert_eq!(cost("GET", path), Some(1), "{path}");
        }
        assert_eq!(cost("POST", "/feeds/a/snapshots"), Some(SNAPSHOT));
        for path in ["/feeds/a/changes?at=2026-01-01", "/feeds/a/history?q=a", "/sign-in?with=1"] {
            assert_eq!(cost("GET", path), Some(WALK), "{path}");
        }
        assert_eq!(cost("GET", "/feeds/a/changes"), Some(1));
        for (method, path) in
            [("GET", "/healthz.json"), ("PUT", "/feeds/a/items/b"), ("POST", "/feeds/a/items")]
        {
            assert_eq!(cost(method, path), None, "{method} {path}");
        }
    }
}
