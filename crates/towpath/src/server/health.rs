//! `/livez` and `/readyz`, for supervisors and load balancers. `/healthz.json` tells readers of the feeds.

use http::header::CACHE_CONTROL;
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use towpath_proto::diffdelta::discovery::SinkCounts;

use crate::document::prebuilt::Answer;
use crate::document::respond::whole;
use crate::engine::Engine;
use crate::protocols::websub::pings::PingHealth;

/// Age of a replica from which a load balancer should prefer other nodes.
const STALE_SECONDS: u64 = 60;

/// Answers `/livez`: the process serves requests. A supervisor that gets no answer should start it again.
pub(super) fn live() -> Answer {
    uncached(StatusCode::OK, &json!({ "status": "live" }))
}

/// Answers `/readyz`: 503 where a load balancer should turn away, with the state of each part.
pub(super) fn ready(engine: &Engine) -> Answer {
    let mut parts =
        vec![("store", store(engine)), ("replica", replica(engine)), ("publishing", publishing(engine))];
    parts.extend(engine.sinks.counts().map(|counts| ("sinks", sinks(counts))));
    parts.extend(PingHealth::of(engine).counts().map(|(failing, total)| ("hubs", hubs(failing, total))));
    let is_ready = parts.iter().all(|(_, part)| part["status"] != "failed");
    let parts: serde_json::Map<String, Value> =
        parts.into_iter().map(|(name, part)| (name.to_owned(), part)).collect();
    let (code, status) =
        if is_ready { (StatusCode::OK, "ready") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready") };
    uncached(code, &json!({ "status": status, "parts": parts }))
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
        Some(Some(age)) if age <= STALE_SECONDS => json!({ "status": "ok", "age_seconds": age }),
        Some(age) => {
            json!({ "status": "failed", "error": "the replica is behind the log", "age_seconds": age })
        }
    }
}

fn publishing(engine: &Engine) -> Value {
    let failed = engine.failures.feeds().len();
    // What is published already is served.
    if failed == 0 {
        json!({ "status": "ok" })
    } else {
        json!({ "status": "degraded", "failed_feeds": failed })
    }
}

fn sinks(counts: SinkCounts) -> Value {
    // Readers are served whatever becomes of the copies.
    let status = if counts.failing > 0 { "degraded" } else { "ok" };
    let SinkCounts { dead_letters, failing, paused, total } = counts;
    json!({ "status": status, "total": total, "failing": failing, "paused": paused, "dead_letters": dead_letters })
}

fn hubs(failing: usize, total: usize) -> Value {
    // Readers are served whatever becomes of other hubs, and their subscribers pull.
    let status = if failing > 0 { "degraded" } else { "ok" };
    json!({ "status": status, "total": total, "failing": failing })
}

fn uncached(status: StatusCode, body: &Value) -> Answer {
    let mut answer = whole(status, "application/json; charset=utf-8", format!("{body}\n"));
    answer.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
