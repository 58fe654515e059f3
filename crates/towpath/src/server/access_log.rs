//! The access log: a line for a share of the requests, and for every one that is slow or fails here.
//!
//! Without `[server.access_log]` no request has a record, and costs nothing beyond the load of a flag.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{Method, Request, Version};

use super::metrics::requests::Route;
use crate::config::AccessLogConfig;
use crate::engine::Engine;
use crate::engine::client_address::client_address;

/// Target of the lines, by which a filter tells them from others.
pub(crate) const ACCESS_TARGET: &str = "towpath::access";

/// Parameters whose values are shown. Others may be secrets, such as the signature of a read link.
const SHOWN_PARAMETERS: [&str; 8] = ["since", "until", "order", "max", "timeout", "seconds", "feed", "page"];

/// Time of a response, by which its request counts as slow or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseTiming {
    AtOnce,
    /// A long poll waits by design, so it is never slow.
    AfterWait,
}

/// A request, from its head to the end of its response.
#[derive(Debug)]
pub(super) struct AccessRecord {
    began: Instant,
    config: AccessLogConfig,
    is_sampled: bool,
    client: IpAddr,
    method: Method,
    target: Option<PathAndQuery>,
    version: Version,
    route: Route,
    /// Time to the head of the response; `None` for a long poll, which waits by design.
    answered: Option<Duration>,
    /// Status of the response; `None` if the client left before it.
    status: Option<u16>,
    bytes: u64,
    is_finished: bool,
}

impl AccessRecord {
    /// Begins the record of a request, if requests are logged.
    pub(super) fn begin<B>(
        engine: &Engine,
        peer: SocketAddr,
        request: &Request<B>,
        route: Route,
    ) -> Option<Box<Self>> {
        if !engine.logs_requests() {
            return None;
        }
        let server = engine.server.load();
        let config = server.access_log.clone()?;
        let client = client_address(peer, request.headers(), &server.trusted_proxies);
        Some(Box::new(Self::new(config, client, request, route)))
    }

    fn new<B>(config: AccessLogConfig, client: IpAddr, request: &Request<B>, route: Route) -> Self {
        Self {
            began: Instant::now(),
            // Drawn for each request: of every n-th one, clients that take turns would always show the same.
            is_sampled: config.takes(fastrand::f64()),
            config,
            client,
            method: request.method().clone(),
            // Shares the bytes of the head.
            target: request.uri().path_and_query().cloned(),
            version: request.version(),
            route,
            answered: None,
            status: None,
            bytes: 0,
            is_finished: false,
        }
    }

    /// Records the head of the response.
    pub(super) fn record_response(&mut self, status: u16, timing: ResponseTiming) {
        self.status = Some(status);
        self.answered = (timing == ResponseTiming::AtOnce).then(|| self.began.elapsed());
    }

    /// Counts bytes of the body that were handed to the connection.
    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Makes the record of the next long poll on the connection, whose head begins with these bytes, if requests are
    /// logged.
    pub(super) fn next_long_poll(&self, engine: &Engine, head: &[u8]) -> Option<Box<Self>> {
        let config = engine.server.load().access_log.clone()?;
        Some(Box::new(self.next(config, head)))
    }

    fn next(&self, config: AccessLogConfig, head: &[u8]) -> Self {
        // hyper has not parsed this head. Only requests that equal an earlier one come here, so the line is
        // well-formed.
        let target = head.split(|byte| *byte == b' ').nth(1);
        Self {
            began: Instant::now(),
            is_sampled: config.takes(fastrand::f64()),
            config,
            client: self.client,
            method: self.method.clone(),
            target: target.and_then(|target| PathAndQuery::try_from(target).ok()),
            version: self.version,
            route: self.route,
            answered: None,
            status: None,
            bytes: 0,
            is_finished: false,
        }
    }

    /// Writes the line, once. A record that was not finished by then is written when it is dropped.
    pub(super) fn finish(&mut self) {
        if !std::mem::replace(&mut self.is_finished, true) && self.is_logged() {
            self.write();
        }
    }

    fn is_logged(&self) -> bool {
        let is_slow = self.answered.is_some_and(|answered| answered >= self.config.slow);
        self.is_sampled || is_slow || self.status.is_some_and(|status| status >= 500)
    }

    fn write(&self) {
        let target = self.target.as_ref();
        tracing::info!(
            target: ACCESS_TARGET,
            client = %self.client,
            method = %self.method,
            path = target.map(redacted),
            http = ?self.version,
            route = self.route.name(),
            status = self.status,
            bytes = self.bytes,
            ms = millis(self.began.elapsed()),
            head_ms = self.answered.map(millis),
            "request"
        );
    }
}

impl Drop for AccessRecord {
    fn drop(&mut self) {
        // A client that leaves drops the response, and its request belongs into the log as well.
        self.finish();
    }
}

/// Returns a path with its query, without values of unknown parameters.
fn redacted(target: &PathAndQuery) -> String {
    let Some(query) = target.query() else { return target.path().to_owned() };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, value)) if SHOWN_PARAMETERS.contains(&name) => format!("{name}={value}"),
        // The name stays: it tells what was asked, and names are no secrets.
        Some((name, _)) => format!("{name}=…"),
        // A bare word may be a secret as well.
        None => "…".to_owned(),
    });
    format!("{}?{}", target.path(), parameters.collect::<Vec<_>>().join("&"))
}

/// Milliseconds with three digits after the point.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_unknown_parameters_are_hidden() {
        for (target, text) in [
            ("/feeds/a/items", "/feeds/a/items"),
            ("/feeds/a/items?since=12&timeout=30", "/feeds/a/items?since=12&timeout=30"),
            ("/feeds/a/items?link=hush&since=1", "/feeds/a/items?link=…&since=1"),
            ("/x?hush", "/x?…"),
        ] {
            assert_eq!(redacted(&target.parse().unwrap()), text);
        }
    }

    fn record(sample: f64, slow: Duration) -> AccessRecord {
        let request = Request::get("/feeds/a/items?since=1").body(()).unwrap();
        AccessRecord::new(AccessLogConfig { sample, slow }, [192, 0, 2, 1].into(), &request, Route::ITEMS)
    }

    #[test]
    fn slow_and_failed_requests_are_logged_whatever_the_sample() {
        let mut quick = record(0.0, Duration::from_secs(60));
        quick.record_response(200, ResponseTiming::AtOnce);
        assert!(!quick.is_logged());
        quick.record_response(503, ResponseTiming::AtOnce);
        assert!(quick.is_logged());
        let mut slow = record(0.0, Duration::ZERO);
        slow.record_response(200, ResponseTiming::AtOnce);
        assert!(slow.is_logged());
        slow.record_response(200, ResponseTiming::AfterWait);
        assert!(!slow.is_logged(), "a long poll waits by design");
        assert!(record(1.0, Duration::from_secs(60)).is_logged());
    }

    #[test]
    fn the_next_long_poll_has_its_own_address() {
        let first = record(1.0, Duration::from_secs(60));
        let next = |head: &[u8]| first.next(first.config.clone(), head);
        let second = next(b"GET /feeds/a/items?since=2 HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(second.target.as_ref().unwrap().query(), Some("since=2"));
        assert_eq!(second.client, first.client);
        assert!(next(b"").target.is_none());
    }
}
