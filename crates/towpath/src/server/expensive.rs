//! Cost of requests under the rate limit. Documents in memory never come here, so they are free.

use std::net::SocketAddr;

use http::{Method, Request};

use crate::document::feed_path::segments;
use crate::document::route_error::RouteError;
use crate::engine::Engine;
use crate::engine::access::token_name;
use crate::engine::rate_limit::{Account, Requester};
use crate::server::console::PageAddress;

/// Points of a snapshot, which copies the whole feed.
const SNAPSHOT: u64 = 100;
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
    let (server, headers) = (&engine.config.server, request.headers());
    let network = Requester::network(peer, headers, &server.trusted_proxies);
    // Only a valid token has an account: strangers could invent a token for each request.
    let name = || Some(Requester::Token(token_name(&engine.tokens.load(), headers)?.to_string()));
    let requester = network.map(|network| name().unwrap_or(network));
    let account = requester.map(|requester| limit.admit(requester, base_cost)).transpose()?;
    Ok(account.map(|account| ChargedRequest { account, base_cost, is_settled: false }))
}

impl ChargedRequest<'_> {
    /// Charges the request for an answer of so many bytes.
    pub(super) fn charge(mut self, size: u64) {
        self.is_settled = true;
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
        return page.cost();
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
        for (method, path) in
            [("GET", "/healthz.json"), ("PUT", "/feeds/a/items/b"), ("POST", "/feeds/a/items")]
        {
            assert_eq!(cost(method, path), None, "{method} {path}");
        }
    }
}
