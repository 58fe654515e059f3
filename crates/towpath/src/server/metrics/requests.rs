//! Requests by route and status, and how long those took that no prebuilt document answered.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::engine::Engine;

/// Kinds of addresses: a label with a bounded number of values, whatever clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) struct Route(usize);

/// Names of the routes. The last one is of all other addresses.
const ROUTES: [&str; 24] = [
    "home",
    "feeds",
    "feed",
    "items",
    "item",
    "events",
    "replication",
    "snapshots",
    "atom",
    "rss",
    "feed.json",
    "hub",
    "callback",
    "attachments",
    "uploads",
    "read-links",
    "diff",
    "archive",
    "sup.json",
    "metrics",
    "health",
    "sinks",
    "assets",
    "other",
];

/// Statuses that towpath answers with; others are counted as the last one.
// The most frequent first: each request walks to its own. 460 stands for tus's checksum mismatch.
const STATUSES: [u16; 31] = [
    200, 304, 201, 202, 204, 206, 303, 308, 400, 401, 403, 404, 405, 406, 408, 409, 410, 412, 413, 415, 416,
    422, 428, 429, 431, 460, 500, 501, 502, 503, 0,
];

/// Upper bounds of the durations' buckets in seconds.
const BUCKETS: [f64; 8] = [0.000_5, 0.002, 0.01, 0.05, 0.2, 1.0, 5.0, 20.0];

impl Route {
    /// Route of long polls.
    pub(in crate::server) const ITEMS: Self = Self(3);

    /// Returns the route of a path.
    pub(in crate::server) fn of(path: &str) -> Self {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let mut segments = path.trim_start_matches('/').split('/');
        let (first, feed, part) = (segments.next().unwrap_or_default(), segments.next(), segments.next());
        let name = match (first, feed, part) {
            ("", ..) => "home",
            ("feeds", None | Some(""), _) => "feeds",
            ("feeds", Some("events"), None) => "events",
            ("feeds", Some(_), None) => "feed",
            ("feeds", Some(_), Some("items")) if segments.next().is_some() => "item",
            (
                "feeds",
                Some(_),
                Some(
                    part @ ("items" | "events" | "replication" | "snapshots" | "atom" | "rss" | "feed.json"
                    | "hub" | "callback" | "attachments" | "uploads" | "read-links"),
                ),
            ) => part,
            ("livez" | "readyz" | "healthz.json", ..) => "health",
            ("diff" | "archive" | "sup.json" | "metrics" | "sinks" | "assets", ..) => first,
            // Whatever a client makes up is one label: labels from its text would grow without bound.
            _ => "other",
        };
        Self(ROUTES.iter().position(|route| *route == name).unwrap_or(ROUTES.len() - 1))
    }

    pub(in crate::server) fn name(self) -> &'static str {
        ROUTES.get(self.0).copied().unwrap_or("other")
    }
}

type Labels = [(&'static str, String); 2];
type Durations = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

/// Counters of answered requests since the start.
#[derive(Debug)]
pub(in crate::server) struct RequestMetrics {
    registry: Registry,
    answered: Family<Labels, Counter>,
    durations: Durations,
    /// The counters of `answered` without its lock, for the fast path.
    // Filled on first use: most of these pairs never occur, and each would be a line of every scrape.
    counters: [[OnceLock<Counter>; STATUSES.len()]; ROUTES.len()],
}

impl Default for RequestMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("towpath");
        let answered = Family::default();
        let durations: Durations = Family::new_with_constructor(|| Histogram::new(BUCKETS));
        registry.register("http_requests", "Requests by route and status of the answer", answered.clone());
        registry.register(
            "http_request_duration_seconds",
            "Time from the head of a request to that of its answer, without prebuilt documents and long polls",
            durations.clone(),
        );
        let counters = std::array::from_fn(|_| std::array::from_fn(|_| OnceLock::new()));
        Self { registry, answered, durations, counters }
    }
}

impl RequestMetrics {
    /// Returns the counters of a server.
    pub(in crate::server) fn of(engine: &Engine) -> &Arc<Self> {
        engine.extensions.get_or_insert_with(Arc::default)
    }

    /// Returns the registry with all counters.
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts an answer.
    pub(in crate::server) fn count(&self, route: Route, status: StatusCode) {
        let index = STATUSES.iter().position(|known| *known == status.as_u16()).unwrap_or(STATUSES.len() - 1);
        let Some(counter) = self.counters.get(route.0).and_then(|of_route| of_route.get(index)) else {
            return;
        };
        let labels = || {
            let status = if STATUSES[index] == 0 { "other" } else { status.as_str() };
            [("route", route.name().to_owned()), ("status", status.to_owned())]
        };
        counter.get_or_init(|| self.answered.get_or_create_owned(&labels())).inc();
    }

    /// Counts an answer, and the time that it took.
    pub(in crate::server) fn observe(&self, route: Route, status: StatusCode, took: Duration) {
        self.count(route, status);
        self.durations.get_or_create(&[("route", route.name())]).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn addresses_have_few_routes() {
        for (path, route) in [
            ("/", "home"),
            ("/?x", "home"),
            ("/feeds", "feeds"),
            ("/feeds/a", "feed"),
            ("/feeds/a/items?since=1", "items"),
            ("/feeds/a/items/b%2Fc", "item"),
            ("/feeds/a/atom/pages/1", "atom"),
            ("/feeds/a/nonsense", "other"),
            ("/feeds/events?feed=a", "events"),
            ("/diff/a/latest.json", "diff"),
            ("/healthz.json", "health"),
            ("/atom", "other"),
            ("/home", "other"),
            ("/feeds/a/home", "other"),
        ] {
            assert_eq!(Route::of(path).name(), route, "{path}");
        }
        assert_eq!(Route::of("/feeds/a/items"), Route::ITEMS);
    }

    #[test]
    fn each_status_of_a_route_is_a_series() {
        let metrics = RequestMetrics::default();
        metrics.count(Route::of("/feeds"), StatusCode::NOT_MODIFIED);
        metrics.count(Route::of("/feeds"), StatusCode::NOT_MODIFIED);
        metrics.observe(Route::of("/feeds/a"), StatusCode::IM_A_TEAPOT, Duration::from_millis(3));
        let mut text = String::new();
        encode(&mut text, metrics.registry()).unwrap();
        for line in [
            r#"towpath_http_requests_total{route="feeds",status="304"} 2"#,
            r#"towpath_http_requests_total{route="feed",status="other"} 1"#,
            r#"towpath_http_request_duration_seconds_bucket{le="0.002",route="feed"} 0"#,
            r#"towpath_http_request_duration_seconds_bucket{le="0.01",route="feed"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
