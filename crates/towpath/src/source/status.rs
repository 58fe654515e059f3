//! Health of a feed's source, for people and programs.

use schemars::JsonSchema;
use serde::Serialize;
use towpath_client::{Protocol, redact};
use towpath_proto::diffdelta::wire::GLOBAL;

use crate::engine::export_health::ExportHealth;
use crate::engine::mirror_state;
use crate::engine::scheduled::{self, ScheduledChange};
use crate::engine::{Engine, Feed};
use crate::protocols::catalog::{FeedDescription, FeedStatus, describe, feed_status};
use crate::protocols::websub::pings::{HubStatus, ping_statuses};
use crate::source::detail_visibility::DetailVisibility;
use crate::source::poll;
use crate::source::pushed::PushStatus;
use crate::source::state::{SourceFailure, SourceState};
use crate::store_error::StoreError;

/// Limit of scheduled changes in the status of a feed.
// The status is polled by dashboards, and a feed may have thousands.
const MAX_SCHEDULED: usize = 100;

/// Health of a source.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SourceHealth {
    /// Address without credentials: readers of the feed are not readers of the configuration.
    pub(crate) address: String,
    /// Protocol that a mirror follows by, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<&'static str>,
    /// Subscription at the source's hub, with `push = true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) push: Option<PushStatus>,
    pub(crate) last_ok: Option<jiff::Timestamp>,
    pub(crate) next: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<SourceFailure>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

/// Describes a feed with the health of its source. Strangers do not read the details of a failure.
pub(crate) async fn describe_feed(
    engine: &Engine,
    feed: &Feed,
    details: DetailVisibility,
) -> Result<FeedDescription<SourceHealth>, StoreError> {
    let mut described = describe(engine, feed, source_health(engine, feed, details).await?).await?;
    described.status.failure = engine.failures.of(feed.id().as_str()).filter(|_| details.are_shown());
    described.status.scheduled = scheduled_changes(engine, feed, details).await?;
    described.status.hubs = hub_statuses(engine, feed, details).await?;
    Ok(described)
}

/// Reads the state of a feed with the health of its source.
pub(crate) async fn status_of(
    engine: &Engine,
    feed: &Feed,
    details: DetailVisibility,
) -> Result<FeedStatus<SourceHealth>, StoreError> {
    let mut status = feed_status(engine, feed, source_health(engine, feed, details).await?).await?;
    status.failure = engine.failures.of(feed.id().as_str()).filter(|_| details.are_shown());
    status.scheduled = scheduled_changes(engine, feed, details).await?;
    status.hubs = hub_statuses(engine, feed, details).await?;
    Ok(status)
}

/// Lists what is to be published later. Strangers do not read it before its time.
async fn scheduled_changes(
    engine: &Engine,
    feed: &Feed,
    details: DetailVisibility,
) -> Result<Vec<ScheduledChange>, StoreError> {
    if !details.are_shown() || feed.is_filter() {
        return Ok(Vec::new());
    }
    scheduled::list(engine.store.as_ref(), feed.id(), MAX_SCHEDULED).await
}

/// Lists the hubs of others, with what they were told.
async fn hub_statuses(
    engine: &Engine,
    feed: &Feed,
    details: DetailVisibility,
) -> Result<Vec<HubStatus>, StoreError> {
    if details.are_shown() { ping_statuses(engine, feed).await } else { Ok(Vec::new()) }
}

/// Returns what is wrong with the node: its store takes no writes, or has damaged data.
pub(crate) fn node_problems(engine: &Engine) -> Vec<String> {
    let failure =
        engine.store_failure().map(|failure| format!("the store takes no writes: {}", failure.reason));
    let damage = engine.store_damage();
    let damage = damage.map(|damage| format!("{} reads met damaged data: {}", damage.reads, damage.first));
    let global = engine.failures.of(GLOBAL);
    failure
        .into_iter()
        .chain(damage)
        .chain(replica_problem(engine))
        .chain(engine.log_failure())
        .chain(global)
        .chain(engine.sinks.problems())
        .chain(ExportHealth::of(engine).problems())
        .collect()
}

/// Returns why a node's replica falls behind its cluster's log: it is known, or the replica is as old as `/readyz` allows.
pub(crate) fn replica_problem(engine: &Engine) -> Option<String> {
    let age = engine.replica_age()?;
    let reason = engine.store.replica_status().and_then(|status| status.problem);
    if reason.is_none() && !engine.has_stale_replica() {
        return None;
    }
    let age = age.map_or("an unknown time".to_owned(), |seconds| format!("{seconds} s"));
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    Some(format!("this node is {age} behind its cluster{reason}"))
}

/// Describes the log of the node's cluster as JSON; null for a single server.
pub(crate) async fn cluster_json(engine: &Engine) -> serde_json::Value {
    let Some(log) = engine.store.log_status().await else { return serde_json::Value::Null };
    serde_json::json!({
        "first": log.first,
        "last": log.last,
        "applied": log.applied,
        "messages": log.messages,
        "bytes": log.bytes,
        "level": log.level,
        "supported_level": log.supported_level,
        "snapshot": log.snapshot.map(|snapshot| {
            serde_json::json!({ "sequence": snapshot.sequence, "made": snapshot.made.to_string() })
        }),
    })
}

/// Describes every sink as JSON.
pub(crate) async fn sinks_json(engine: &Engine) -> Result<Vec<serde_json::Value>, StoreError> {
    let encode = |status| serde_json::to_value(status).map_err(|e| StoreError::Internal(e.to_string()));
    engine.sink_statuses().await?.into_iter().map(encode).collect()
}

/// Describes a feed as JSON, with the details of a failure.
pub(crate) async fn feed_json(engine: &Engine, feed: &Feed) -> Result<serde_json::Value, StoreError> {
    let description = describe_feed(engine, feed, DetailVisibility::Shown).await?;
    serde_json::to_value(description).map_err(|e| StoreError::Internal(e.to_string()))
}

/// Returns the protocol that a mirror follows by, once it is known.
pub(crate) async fn source_protocol(engine: &Engine, feed: &Feed) -> Result<Option<Protocol>, StoreError> {
    match feed.config.mirrored() {
        Some((_, url)) => mirror_state::protocol(engine, feed, url).await,
        None => Ok(None),
    }
}

/// Returns the saved state of a feed's source, redacted; `None` without a source. Strangers do not read the details of a
/// failure.
pub(crate) async fn source_state(
    engine: &Engine,
    feed: &Feed,
    details: DetailVisibility,
) -> Result<Option<SourceState>, StoreError> {
    let Some((source, address)) = feed.config.polled().or(feed.config.mirrored()) else { return Ok(None) };
    let mut state = SourceState::load(engine.store.as_ref(), feed.id(), &poll::fingerprint(source)).await?;
    if !details.are_shown() {
        // The message may say which hosts and ports of this network answer.
        state.error = state.error.map(|_| SourceFailure::undisclosed());
        if feed.config.mirrored().is_some() {
            // They name addresses of the mirrored feed.
            state.problems.clear();
        }
    } else if let Some(SourceFailure { message, .. }) = &mut state.error {
        *message = redact::text(&message.replace(address, &redact::url(address)));
    }
    Ok(Some(state))
}

/// Returns the health of a feed's source; `None` without a source.
async fn source_health(
    engine: &Engine,
    feed: &Feed,
    details: DetailVisibility,
) -> Result<Option<SourceHealth>, StoreError> {
    let (polled, mirrored) = (feed.config.polled(), feed.config.mirrored());
    let Some((_, address)) = polled.or(mirrored) else { return Ok(None) };
    let protocol = source_protocol(engine, feed).await?.map(Protocol::name);
    let Some(state) = source_state(engine, feed, details).await? else { return Ok(None) };
    let SourceState { last_ok, next, error, problems, .. } = state;
    let push = PushStatus::load(engine, feed, details).await?;
    Ok(Some(SourceHealth { address: redact::url(address), protocol, push, last_ok, next, error, problems }))
}
