//! Stored results of pings: what each hub was told about each feed.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_store::{Store, Table};

use crate::engine::json_record;
use crate::engine::roles::{Lease, conditions};
use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

/// Name of the server's own documents, which no tree has.
pub(super) const SERVER: &str = "server";

/// Result of the last ping to a hub about a feed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PingStatus {
    /// Position up to which the hub was told.
    pub(crate) seq: Seq,
    /// Time of the last ping.
    pub(crate) at: Timestamp,
    /// Reason why the last ping failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// Results by the URL of the hub.
type FeedRecord = BTreeMap<String, PingStatus>;

/// Results of a site's pings.
pub(super) struct PingRecords {
    prefix: String,
    known: Mutex<HashMap<FeedId, FeedRecord>>,
    /// Feeds whose results are not stored yet.
    unsaved: Mutex<HashSet<FeedId>>,
}

fn prefix(site: &str) -> String {
    format!("pings/{site}/")
}

/// Reads the results of the server's pings about a feed.
pub(super) async fn load(store: &dyn Store, feed: &FeedId) -> Result<FeedRecord, StoreError> {
    let key = format!("{}{feed}", prefix(SERVER)).into_bytes();
    Ok(json_record::load(store, &key).await?.unwrap_or_default())
}

impl PingRecords {
    /// Makes the records of a site that told nothing yet.
    pub(super) fn new(site: &str) -> Self {
        Self { prefix: prefix(site), known: Mutex::default(), unsaved: Mutex::default() }
    }

    /// Reads the records of a site.
    pub(super) async fn load(store: &dyn Store, site: &str) -> Result<Self, StoreError> {
        let records = Self::new(site);
        let mut known = HashMap::new();
        let mut scan = TableScan::new(store, Table::Chains, records.prefix.as_bytes());
        while let Some(page) = scan.next().await? {
            for (key, value) in page {
                let name = String::from_utf8_lossy(&key[records.prefix.len()..]).into_owned();
                // Written by a later version, perhaps. One feed less is no reason to tell no hub at all.
                let Ok(feed) = FeedId::new(&name) else { continue };
                known.insert(feed, json_record::parse(&key, &value)?);
            }
        }
        *records.known.lock() = known;
        Ok(records)
    }

    /// Returns the position up to which a hub was told of a feed.
    pub(super) fn pinged_through(&self, feed: &FeedId, hub: &str) -> Seq {
        self.known.lock().get(feed).and_then(|record| record.get(hub)).map_or(0, |status| status.seq)
    }

    /// Records a ping that told everything up to a position, or failed.
    pub(super) fn record(
        &self,
        feed: &FeedId,
        hub: &str,
        through: Option<Seq>,
        at: Timestamp,
        error: Option<String>,
    ) {
        // A failed ping has told nothing, so the position stays where it was.
        let seq = through.unwrap_or_else(|| self.pinged_through(feed, hub));
        let status = PingStatus { seq, at, error };
        self.known.lock().entry(feed.clone()).or_default().insert(hub.to_owned(), status);
        self.unsaved.lock().insert(feed.clone());
    }

    /// Returns true if results wait to be stored.
    pub(super) fn are_unsaved(&self) -> bool {
        !self.unsaved.lock().is_empty()
    }

    /// Stores what is new, without hubs that the configuration names no more.
    pub(super) async fn save(
        &self,
        store: &dyn Store,
        lease: &Lease,
        is_named: impl Fn(&FeedId, &str) -> bool,
    ) -> Result<(), StoreError> {
        // Taken first: a ping that ends during the write is unsaved again, and written next time.
        let feeds: Vec<FeedId> = self.unsaved.lock().drain().collect();
        if feeds.is_empty() {
            return Ok(());
        }
        let mut writes = Vec::with_capacity(feeds.len());
        {
            // In a block of its own: this lock must not be held while the store writes.
            let mut known = self.known.lock();
            for feed in &feeds {
                let Some(record) = known.get_mut(feed) else { continue };
                record.retain(|hub, _| is_named(feed, hub));
                writes.push(json_record::put(format!("{}{feed}", self.prefix).into_bytes(), record));
            }
        }
        let written = store.write(writes, conditions(lease)).await;
        if written.is_err() {
            // The records in memory are newer than what failed to be written, so the names suffice.
            self.unsaved.lock().extend(feeds);
        }
        Ok(written?)
    }
}
