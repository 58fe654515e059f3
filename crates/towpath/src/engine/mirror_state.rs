//! Saved position of a mirror, in the table of sources.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_client::Protocol;
use towpath_proto::change::Seq;
use towpath_store::Table;

use super::{Engine, Feed};
use crate::store_error::StoreError;

/// Saved position of a mirror.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct MirrorState {
    /// Configured URL; a state for another one is ignored.
    pub(crate) url: String,
    /// URL that is followed, after discovery.
    pub(crate) follows: String,
    pub(crate) protocol: Protocol,
    /// Last `seq` of the local log when `state` was saved.
    pub(crate) seq: Seq,
    /// Name of the feed at its publisher, as the first change states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    pub(crate) state: Value,
}

/// Protocol of a mirror, once discovered.
pub(crate) async fn protocol(
    engine: &Engine,
    feed: &Feed,
    url: &str,
) -> Result<Option<Protocol>, StoreError> {
    Ok(MirrorState::load(engine, feed, url).await?.map(|saved| saved.protocol))
}

pub(crate) fn key(feed: &Feed) -> Vec<u8> {
    format!("follow/{}", feed.id()).into_bytes()
}

/// Returns the position up to which a mirror needs no change of its log; `None` if the feed is no mirror.
///
/// Changes after it were appended without a checkpoint. The publisher delivers them again, and the log tells which.
pub(crate) async fn confirmed_up_to(engine: &Engine, feed: &Feed) -> Result<Option<Seq>, StoreError> {
    let Some((_, url)) = feed.config.mirrored() else { return Ok(None) };
    let saved = MirrorState::load(engine, feed, url).await?;
    Ok(Some(saved.map_or(0, |saved| saved.seq)))
}

impl MirrorState {
    pub(crate) async fn load(engine: &Engine, feed: &Feed, url: &str) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = engine.store.get(Table::Sources, &key(feed)).await? else { return Ok(None) };
        let saved: Self = serde_json::from_slice(&bytes)
            .map_err(|e| StoreError::Damaged(format!("the mirror state of {}: {e}", feed.id())))?;
        // Another URL is another feed: its position means nothing there.
        Ok(Some(saved).filter(|saved| saved.url == url))
    }
}
