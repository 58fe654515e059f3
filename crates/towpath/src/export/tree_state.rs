//! State of a tree between exports: the extent of each feed in it, stored beside the log.
//!
//! Before a feed's documents are put, their extent is stored ([`ExportedFeed::begun`]); afterwards it is
//! the extent of the tree. If an export is killed in between, the next one puts the documents again, and knows which
//! others may exist.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_store::{Store, Table, TableWrite};

use crate::engine::json_record;
use crate::engine::table_scan::TableScan;
use crate::store_error::StoreError;

/// Range of a document of Feed History: its first and its last change.
pub(super) type WindowRange = (u64, u64);

/// Documents of a feed in a tree. Most follow from numbers; the others are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FeedExtent {
    /// Digest of the settings that its documents depend on.
    pub(super) settings: String,
    /// Last change.
    pub(super) seq: u64,
    /// Number of DiffDelta snapshots.
    pub(super) archives: u64,
    /// True if its documents of Feed History have no past.
    pub(super) complete: bool,
    /// Oldest listed page, and oldest existing page.
    pub(super) first_page: u64,
    pub(super) gone_below: u64,
    /// Last sealed page, and the fingerprint of the newest page after it.
    pub(super) sealed: u64,
    pub(super) newest: String,
    /// Snapshots of Data Replication: their ids and numbers of pages.
    pub(super) snapshots: Vec<(u64, u64)>,
    /// Immutable copies of the newest document of Feed History: the current ones and the previous ones.
    pub(super) windows: Vec<WindowRange>,
    pub(super) past_windows: Vec<WindowRange>,
    /// Documents that are replaced, with their fingerprints.
    pub(super) pointers: BTreeMap<String, String>,
    /// Paths of uploaded files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) files: Vec<String>,
}

/// State of a feed in a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExportedFeed {
    /// Complete extent.
    pub(super) done: Option<FeedExtent>,
    /// Extent of an unfinished export, of which any part may exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) begun: Option<FeedExtent>,
    /// Time of the last change that the tree shows.
    pub(super) moved: Timestamp,
}

impl ExportedFeed {
    /// Returns the state while an extent is put. Documents that a killed export may have put stay known.
    pub(super) fn with_begun(&self, extent: &FeedExtent) -> Self {
        let mut begun = extent.clone();
        if let Some(killed) = &self.begun {
            // They may have been put but are in no finished state: only this lets a later export remove them.
            begun.past_windows.extend(killed.windows.iter().chain(&killed.past_windows));
            begun.snapshots.extend(killed.snapshots.iter().filter(|one| !extent.snapshots.contains(one)));
        }
        Self { begun: Some(begun), ..self.clone() }
    }

    /// Number of the feed's documents in the tree.
    pub(super) fn documents(&self) -> u64 {
        let Some(done) = &self.done else { return 0 };
        let pages = (done.sealed + 1).saturating_sub(done.gone_below.max(1));
        // Three syntaxes: Atom, RSS and JSON Feed.
        let past = if done.complete { 0 } else { 3 * pages };
        let windows = 3 * (done.windows.len() + done.past_windows.len()) as u64;
        // Each has its index beside its pages.
        let snapshots: u64 = done.snapshots.iter().map(|(_, pages)| pages + 1).sum();
        let newest = u64::from(!done.newest.is_empty());
        let files = done.files.len() as u64;
        done.archives + pages + past + newest + windows + snapshots + files + done.pointers.len() as u64
    }
}

/// State of the documents over all feeds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SharedState {
    /// Number of snapshots of the global feed.
    pub(super) archives: u64,
    /// Time up to which the SUP documents list changes.
    #[serde(rename = "told")]
    pub(super) listed: Timestamp,
    /// Documents that are replaced, with their fingerprints.
    pub(super) pointers: BTreeMap<String, String>,
}

/// Stored states of one tree.
pub(super) struct TreeStates {
    prefix: String,
}

impl TreeStates {
    /// Returns the states of the tree with this name.
    pub(super) fn of(tree: &str) -> Self {
        Self { prefix: format!("export/{tree}/") }
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    /// Loads the state of a feed.
    pub(super) async fn load(&self, store: &dyn Store, feed: &FeedId) -> Result<ExportedFeed, StoreError> {
        self.get(store, feed.as_str()).await
    }

    /// Loads the state of the documents over all feeds. No feed can have its key.
    pub(super) async fn shared(&self, store: &dyn Store) -> Result<SharedState, StoreError> {
        self.get(store, "_global").await
    }

    async fn get<T: DeserializeOwned + Default>(
        &self,
        store: &dyn Store,
        name: &str,
    ) -> Result<T, StoreError> {
        Ok(json_record::load(store, &self.key(name)).await?.unwrap_or_default())
    }

    pub(super) fn save(&self, feed: &FeedId, exported: &ExportedFeed) -> TableWrite {
        json_record::put(self.key(feed.as_str()), exported)
    }

    pub(super) fn save_shared(&self, shared: &SharedState) -> TableWrite {
        json_record::put(self.key("_global"), shared)
    }

    pub(super) fn forget(&self, feed: &FeedId) -> TableWrite {
        json_record::remove(self.key(feed.as_str()))
    }

    /// Returns all feeds that have, or may have, documents in the tree.
    pub(super) async fn feeds(&self, store: &dyn Store) -> Result<Vec<FeedId>, StoreError> {
        let mut feeds = Vec::new();
        let mut scan = TableScan::new(store, Table::Chains, self.prefix.as_bytes());
        while let Some(records) = scan.next().await? {
            let names = records
                .iter()
                .map(|(key, _)| String::from_utf8_lossy(&key[self.prefix.len()..]).into_owned());
            feeds.extend(names.filter_map(|name| FeedId::new(&name).ok()));
        }
        Ok(feeds)
    }
}
