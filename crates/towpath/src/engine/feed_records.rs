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
    pub(super) feeds: Vec<FeedConfig>,
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
                let name = key.get(PREFIX.len()..).and_then(|name| std::str::from_utf8(name).ok());
                let Some(id) = name.and_then(|name| FeedId::new(name).ok()) else { continue };
                match &record.keys {
                    Some(keys) => match FeedConfig::from_json(&id, keys) {
                        Ok(config) => stored.feeds.push(config),
                        Err(e) => {
                            tracing::error!(feed = %id, "a feed that was made over HTTP is not served: {e}");
                        }
                    },
                    None => drop(stored.removed.insert(id, record.as_removed())),
                }
            }
        }
        Ok(stored)
    }
}

impl FeedRecord {
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
