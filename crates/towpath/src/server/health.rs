//! `/livez` and `/readyz`, for supervisors and load balancers. `/healthz.json` tells readers of the feeds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use towpath_proto::diffdelta::discovery::SinkCounts;

use crate::document::prebuilt::Answer;
use crate::document::respond::whole;
use crate::engine::Engine;
use crate::engine::certificate::CertificateEnd;
use crate::engine::export_health::ExportHealth;
use crate::protocols::diffdelta::Recovery;
use crate::protocols::websub::HubState;
use crate::protocols::websub::pings::PingHealth;
use crate::source::metrics::SourceMetrics;

/// Remaining days of the certificate below which it should have been renewed.
const CERTIFICATE_DAYS: i64 = 14;
/// Time by which appends may be ahead of the clock.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_mins(1);
/// Time for which counts of sources are kept.
const SOURCES_PAUSE: Duration = Duration::from_secs(2);

/// Answers `/livez`: the process serves requests. A supervisor that gets no answer should start it again.
pub(super) fn live() -> Answer {
    uncached(StatusCode::OK, &json!({ "status": "live" }))
}

/// Answers `/readyz` before the store is open.
pub(super) fn starting() -> Answer {
    let parts = json!({ "store": { "status": "starting" } });
    not_ready("starting", &parts)
}

fn not_ready(status: &str, parts: &Value) -> Answer {
    let body = json!({ "status": status, "parts": parts });
    let mut answer = uncached(StatusCode::SERVICE_UNAVAILABLE, &body);
    answer.headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// Answers `/readyz`: 503 where a load balancer should turn away, with the state of each part.
pub(super) fn ready(engine: &Engine) -> Answer {
    let parts = parts(engine);
    let has = |status: &str| parts.values().any(|part| part["status"] == status);
    if has("failed") {
        not_ready("not ready", &parts.into())
    } else if has("starting") {
        not_ready("starting", &parts.into())
    } else {
        uncached(StatusCode::OK, &json!({ "status": "ready", "parts": parts }))
    }
}

/// Returns the state of each part, also for `/healthz.json`.
pub(super) fn parts(engine: &Engine) -> Map<String, Value> {
    let mut parts =
        vec![("store", store(engine)), ("replica", replica(engine)), ("publishing", publishing(engine))];
    parts.extend(disk(engine).map(|part| ("disk", part)));
    parts.extend(clock(engine).map(|part| ("clock", part)));
    parts.extend(certificate(engine).map(|part| ("certificate", part)));
    parts.extend(sources(engine).map(|part| ("sources", part)));
    parts.extend(engine.sinks.counts().map(|counts| ("sinks", sinks(counts))));
    parts.extend(PingHealth::of(engine).counts().map(|(failing, total)| ("hubs", receivers(failing, total))));
    parts.extend(HubState::of(engine).counts().map(|(failing, total)| ("hub", receivers(failing, total))));
    parts.extend(
        ExportHealth::of(engine).counts().map(|(failing, total)| ("exports", receivers(failing, total))),
    );
    if engine.is_shared() {
        parts.push(("cluster", json!({ "status": "ok", "roles": engine.metrics.roles.get() })));
    }
    parts.into_iter().map(|(name, part)| (name.to_owned(), part)).collect()
}

// The reasons name files of this machine, so they are in the log and in `towpath status` only.

fn store(engine: &Engine) -> Value {
    if let Some(failure) = engine.store_failure() {
        let error = if failure.is_full { "the disk is full" } else { "the store takes no writes" };
        return json!({ "status": "failed", "error": error });
    }
    match engine.store_damage() {
        // Everything else is served, and another node's data may be damaged as well.
        Some(damage) => {
            json!({ "status": "degraded", "error": "reads met damaged data", "reads": damage.reads })
        }
        None => json!({ "status": "ok" }),
    }
}

fn replica(engine: &Engine) -> Value {
    match engine.replica_age() {
        None => json!({ "status": "ok" }),
        Some(age) if !engine.has_stale_replica() => json!({ "status": "ok", "age_seconds": age }),
        Some(age) => {
            json!({ "status": "failed", "error": "the replica is behind the log", "age_seconds": age })
        }
    }
}

fn publishing(engine: &Engine) -> Value {
    if let Some(published) = Recovery::of(engine).progress() {
        return json!({ "status": "starting", "feeds": engine.feed_count(), "published": published });
    }
    let failed = engine.failures.feeds().len();
    // What is published already is served.
    if failed == 0 {
        json!({ "status": "ok" })
    } else {
        json!({ "status": "degraded", "failed_feeds": failed })
    }
}

/// Says when the disk will soon refuse writes. Once it does, the store says so.
fn disk(engine: &Engine) -> Option<Value> {
    let free = engine.free_disk()? >> 20;
    let alert = engine.alerts.load().as_ref().map_or(0, |alerts| alerts.disk_free_mib);
    let is_low = free < alert.max(2 * engine.config.server.reserve_mib);
    Some(if is_low {
        json!({ "status": "degraded", "error": "little space is free" })
    } else {
        json!({ "status": "ok" })
    })
}

/// Says that a log has changes in this clock's future: it is wrong now, or was then.
fn clock(engine: &Engine) -> Option<Value> {
    let counted = engine.extensions.get_or_insert_with(NewestChange::default);
    let mut counted = counted.0.lock();
    let newest = match *counted {
        Some((at, newest)) if at.elapsed() < SOURCES_PAUSE => newest,
        _ => {
            let feeds = engine.feeds();
            // A mirror has its publisher's times.
            let own = feeds.iter().filter(|feed| feed.is_polled() || feed.config.source.is_none());
            let newest = own.filter_map(|feed| feed.last_change()).max();
            *counted = Some((Instant::now(), newest));
            newest
        }
    };
    // Other nodes' clocks differ a little.
    let newest = newest.filter(|newest| newest.duration_since(engine.now()) > CLOCK_SLACK)?;
    let error = "changes are dated ahead of this machine's clock";
    Some(json!({ "status": "degraded", "error": error, "until": newest }))
}

/// Time of the newest change of any own feed, with the time of the look.
#[derive(Default)]
struct NewestChange(Mutex<Option<(Instant, Option<Timestamp>)>>);

fn certificate(engine: &Engine) -> Option<Value> {
    let end = engine.extensions.get::<Arc<CertificateEnd>>()?.get()?;
    let days = end.duration_since(engine.now()).as_hours() / 24;
    // Other nodes have the same certificate, so it is no reason to turn away from this one.
    let status = if days < CERTIFICATE_DAYS { "degraded" } else { "ok" };
    Some(json!({ "status": status, "expires": end, "days": days }))
}

/// Sources that this node reads, counted every few seconds: there may be a million.
fn sources(engine: &Engine) -> Option<Value> {
    let counted = engine.extensions.get_or_insert_with(CountedSources::default);
    let mut counted = counted.0.lock();
    let (total, failing) = match *counted {
        Some((at, counts)) if at.elapsed() < SOURCES_PAUSE => counts,
        _ => {
            let (mut total, mut failing) = (0, 0);
            for feed in engine.feeds().iter().filter(|feed| feed.config.source.is_some()) {
                total += 1;
                failing += usize::from(SourceMetrics::is_failing(feed));
            }
            *counted = Some((Instant::now(), (total, failing)));
            (total, failing)
        }
    };
    // Readers are served what was read before.
    let status = if failing > 0 { "degraded" } else { "ok" };
    (total > 0).then(|| json!({ "status": status, "total": total, "failing": failing }))
}

/// Numbers of sources and of failing ones, with the time of the count.
#[derive(Default)]
struct CountedSources(Mutex<Option<(Instant, (usize, usize))>>);

fn sinks(counts: SinkCounts) -> Value {
    // Readers are served whatever becomes of the copies.
    let status = if counts.failing > 0 { "degraded" } else { "ok" };
    let SinkCounts { dead_letters, failing, paused, total } = counts;
    json!({ "status": status, "total": total, "failing": failing, "paused": paused, "dead_letters": dead_letters })
}

/// State of hubs of others, of the subscribers at the own hub, or of exported trees.
fn receivers(failing: usize, total: usize) -> Value {
    // Readers are served whatever becomes of them, and subscribers can pull.
    let status = if failing > 0 { "degraded" } else { "ok" };
    json!({ "status": status, "total": total, "failing": failing })
}

fn uncached(status: StatusCode, body: &Value) -> Answer {
    let mut answer = whole(status, "application/json; charset=utf-8", format!("{body}\n"));
    answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
