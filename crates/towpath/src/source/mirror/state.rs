//! Saved position of a mirror, in the table of sources.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use towpath_store::Table;

use crate::engine::{Engine, Feed};
use crate::store_error::StoreError;

/// Saved position of a mirror.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MirrorState {
    /// Configured URL; a state for another one is ignored.
    pub(super) url: String,
    /// URL that is followed, after discovery.
    pub(super) follows: String,
    pub(super) protocol: String,
    /// Last `seq` of the local log when `state` was saved.
    pub(super) seq: u64,
    pub(super) state: Value,
}

/// Protocol of a mirror, once discovered.
pub(crate) async fn protocol(engine: &Engine, feed: &Feed, url: &str) -> Result<Option<String>, StoreError> {
    Ok(MirrorState::load(engine, feed, url).await?.map(|saved| saved.protocol))
}

pub(super) fn key(feed: &Feed) -> Vec<u8> {
    format!("follow/{}", feed.id()).into_bytes()
}

impl MirrorState {
    pub(super) async fn load(engine: &Engine, feed: &Feed, url: &str) -> Result<Option<Self>, StoreError> {
        let Some(bytes) = engine.store.get(Table::Sources, &key(feed)).await? else { return Ok(None) };
        let saved: Self = serde_json::from_slice(&bytes)
            .map_err(|e| StoreError::Damaged(format!("the mirror state of {}: {e}", feed.id())))?;
        // Another URL is another feed: its position means nothing there.
        Ok(Some(saved).filter(|saved| saved.url == url))
    }
}
