//! Records of feeds that were made over HTTP, as they are stored.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use towpath_proto::FeedId;
use towpath_store::{Store, Table};

use super::json_record;
use super::removed_feed::RemovedFeed;
use super::table_scan::TableScan;
use crate::config::FeedConfig;
use crate::store_error::StoreError;

/// Prefix of the records' keys.
const PREFIX: &[u8] = b"http-feed/";

/// A feed as it was made, or the note that it was removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FeedRecord {
    /// Keys of `[[feed]]`; `None` once it was removed.
    pub(super) keys: Option<Map<String, Value>>,
    /// Words for those who followed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// True if strangers may know of it.
    pub(super) is_public: bool,
    /// Sender of the request.
    pub(super) by: String,
    /// Time of the request.
    pub(super) at: Timestamp,
}

/// All feeds that were made over HTTP.
#[derive(Debug, Default)]
pub(super) struct StoredFeeds {
    /// Feeds that are served.
    pub(super) feeds: Vec<Arc<FeedConfig>>,
    /// Feeds that were removed.
    pub(super) removed: HashMap<FeedId, RemovedFeed>,
}

impl StoredFeeds {
    /// Reads the records. One that this version does not understand is told, and left out.
    pub(super) async fn load(store: &dyn Store) -> Result<Self, StoreError> {
        let mut stored = Self::default();
        let mut scan = TableScan::new(store, Table::Chains, PREFIX);
        while let Some(page) = scan.next().await? {
            for (key, value) in page {
                let record: FeedRecord = json_record::parse(&key, &value)?;
                let Some(id) = id_of(&key) else { continue };
                match record.config(&id) {
                    Ok(Some(config)) => stored.feeds.push(config),
                    Ok(None) => drop(stored.removed.insert(id, record.as_removed())),
                    Err(e) => tracing::error!(feed = %id, "{e}"),
                }
            }
        }
        Ok(stored)
    }
}

impl FeedRecord {
    /// Returns the settings; `None` once it was removed.
    ///
    /// # Errors
    ///
    /// The message for settings that this version does not understand.
    pub(super) fn config(&self, id: &FeedId) -> Result<Option<Arc<FeedConfig>>, String> {
        let config = self.keys.as_ref().map(|keys| FeedConfig::from_json(id, keys).map(Arc::new)).transpose();
        config.map_err(|e| format!("a feed that was made over HTTP is not served: {e}"))
    }

    /// Returns the note of a removed feed.
    pub(super) fn as_removed(&self) -> RemovedFeed {
        RemovedFeed {
            is_public: self.is_public,
            is_deleted: true,
            reason: self.reason.as_deref().map(Arc::from),
        }
    }
}

/// Key of a feed's record.
pub(super) fn key(id: &FeedId) -> Vec<u8> {
    [PREFIX, id.as_str().as_bytes()].concat()
}

/// Returns the feed of a record's key; `None` for a key of another kind.
pub(super) fn id_of(key: &[u8]) -> Option<FeedId> {
    let name = std::str::from_utf8(key.strip_prefix(PREFIX)?).ok()?;
    FeedId::new(name).ok()
}
