//! Stored records of snapshots.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_store::{Store, Table};

use crate::engine::table_scan::remove_all;
use crate::protocols::pages::PageHeaders;
use crate::store_error::StoreError;

/// A complete snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Id of the snapshot, a number that grows.
    pub id: u64,
    /// Time at which it was begun.
    pub created_at: Timestamp,
    /// Number of pages.
    pub pages: u64,
    /// Number of items.
    pub items: u64,
    /// Last position of the log when it was begun.
    pub seq: Seq,
    /// Position from which the feed continues: the number of the page, and the Content-ID there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goes_on: Option<(u64, Option<String>)>,
}

/// Record of a snapshot's page: positions of its items in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotPageRecord {
    /// Runs of consecutive positions: the first, and their number.
    pub(crate) places: Vec<(Seq, u64)>,
    pub(crate) made: PageHeaders,
}

/// Removes all snapshots of a feed.
pub(crate) async fn remove_snapshots(store: &dyn Store, feed: &FeedId) -> Result<(), StoreError> {
    // The indexes first: they must not lead to removed pages.
    for kind in ["snapshot", "items", "begun"] {
        remove_all(store, Table::Chains, format!("replication/{feed}/{kind}/").as_bytes()).await?;
    }
    Ok(())
}

pub(crate) fn snapshot_key(feed: &FeedId, id: u64) -> Vec<u8> {
    // Twenty digits, so that keys sort as the numbers do. `table::prefix` cuts them off.
    format!("replication/{feed}/snapshot/{id:020}").into_bytes()
}

/// Key that marks a snapshot whose pages are being written. Removed with the write of its index.
pub(crate) fn begun_key(feed: &FeedId, id: u64) -> Vec<u8> {
    format!("replication/{feed}/begun/{id:020}").into_bytes()
}

pub(crate) fn snapshot_page_key(feed: &FeedId, id: u64, number: u64) -> Vec<u8> {
    format!("replication/{feed}/items/{id:020}/{number:020}").into_bytes()
}
