//! Health of a feed's source, for people and programs.

use serde::Serialize;
use towpath_client::redact;
use towpath_proto::diffdelta::wire::GLOBAL;

use crate::engine::{Engine, Feed};
use crate::protocols::catalog::{FeedDescription, FeedStatus, describe, feed_status};
use crate::source::state::{SourceFailure, SourceState};
use crate::source::{mirror, poll};
use crate::store_error::StoreError;

/// Health of a source.
#[derive(Debug, Serialize)]
pub(crate) struct SourceHealth {
    /// Address without credentials: readers of the feed are not readers of the configuration.
    pub(crate) address: String,
    /// Protocol that a mirror follows by, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<String>,
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
    with_details: bool,
) -> Result<FeedDescription<SourceHealth>, StoreError> {
    let mut described = describe(engine, feed, source_health(engine, feed, with_details).await?).await?;
    described.status.failure = engine.failures.of(feed.id().as_str()).filter(|_| with_details);
    Ok(described)
}

/// Reads the state of a feed with the health of its source.
pub(crate) async fn status_of(
    engine: &Engine,
    feed: &Feed,
    with_details: bool,
) -> Result<FeedStatus<SourceHealth>, StoreError> {
    let mut status = feed_status(engine, feed, source_health(engine, feed, with_details).await?).await?;
    status.failure = engine.failures.of(feed.id().as_str()).filter(|_| with_details);
    Ok(status)
}

/// Returns what is wrong with the node: its store takes no writes, or has damaged data.
pub(crate) fn node_problems(engine: &Engine) -> Vec<String> {
    let failure =
        engine.store_failure().map(|failure| format!("the store takes no writes: {}", failure.reason));
    let damage = engine.store_damage();
    let damage = damage.map(|damage| format!("{} reads met damaged data: {}", damage.reads, damage.first));
    let global = engine.failures.of(GLOBAL);
    failure.into_iter().chain(damage).chain(global).collect()
}

/// Describes a feed as JSON, with the details of a failure.
pub(crate) async fn feed_json(engine: &Engine, feed: &Feed) -> Result<serde_json::Value, StoreError> {
    let description = describe_feed(engine, feed, true).await?;
    serde_json::to_value(description).map_err(|e| StoreError::View(e.to_string()))
}

/// Returns the health of a feed's source; `None` without a source.
async fn source_health(
    engine: &Engine,
    feed: &Feed,
    with_details: bool,
) -> Result<Option<SourceHealth>, StoreError> {
    let (polled, mirrored) = (feed.config.polled(), feed.config.mirrored());
    let Some((source, address)) = polled.or(mirrored) else { return Ok(None) };
    let protocol = match mirrored {
        Some((_, url)) => mirror::protocol(engine, feed, url).await?,
        None => None,
    };
    let fingerprint = poll::fingerprint(source);
    let state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint).await?;
    let SourceState { last_ok, next, mut error, problems, .. } = state;
    let shown = redact::url(address);
    if !with_details {
        error = error.map(|_| SourceFailure::undisclosed());
    } else if let Some(SourceFailure { message, .. }) = &mut error {
        *message = redact::text(&message.replace(address, &shown));
    }
    Ok(Some(SourceHealth { address: shown, protocol, last_ok, next, error, problems }))
}
