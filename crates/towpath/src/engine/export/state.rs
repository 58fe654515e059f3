//! What is known of a tree between exports: for each feed how much of it is there, kept beside the log.
//!
//! Before a feed's documents are put, what will be there is noted ([`Exported::begun`]); afterwards that is what is
//! there. An export that ended in between is taken up by the next one: it puts the documents again, and knows what
//! else may lie around.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use towpath_proto::FeedId;
use towpath_store::{Store, StoreError, Table, Write};

use crate::engine::record;
use crate::engine::scan::Scan;

/// A stretch of the log that a document of Feed History shows: its first and its last change.
pub(super) type Stretch = (u64, u64);

/// How much of a feed is in the tree. What is not listed one by one follows from numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    /// What its documents depend on beside the log.
    pub(super) settings: String,
    /// The last change.
    pub(super) seq: u64,
    /// How many snapshots of DiffDelta there are.
    pub(super) archives: u64,
    /// Whether its documents of Feed History have no past.
    pub(super) complete: bool,
    /// The oldest page that is listed, and the oldest that is there.
    pub(super) first_page: u64,
    pub(super) gone_below: u64,
    /// The last sealed page, and what the newest one behind it is just now.
    pub(super) sealed: u64,
    pub(super) newest: String,
    /// The snapshots of Data Replication: their numbers, and how many pages each has.
    pub(super) snapshots: Vec<(u64, u64)>,
    /// The documents of Feed History that show what the newest one does, and those that did so before.
    pub(super) windows: Vec<Stretch>,
    pub(super) past_windows: Vec<Stretch>,
    /// The documents that are replaced again and again, and what they are just now.
    pub(super) pointers: BTreeMap<String, String>,
}

/// A feed in the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Exported {
    /// What is there, all of it.
    pub(super) done: Option<Extent>,
    /// What was begun to be put, and may be there in part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) begun: Option<Extent>,
    /// When the tree showed that the feed moved, last.
    pub(super) moved: Timestamp,
}

impl Exported {
    /// The same while documents are put up to an extent. What an export that was killed may have put stays known.
    pub(super) fn begin(&self, extent: &Extent) -> Self {
        let mut begun = extent.clone();
        if let Some(killed) = &self.begun {
            begun.past_windows.extend(killed.windows.iter().chain(&killed.past_windows));
            begun.snapshots.extend(killed.snapshots.iter().filter(|one| !extent.snapshots.contains(one)));
        }
        Self { begun: Some(begun), ..self.clone() }
    }

    /// How many documents of a feed are in the tree.
    pub(super) fn documents(&self) -> u64 {
        let Some(done) = &self.done else { return 0 };
        let pages = (done.sealed + 1).saturating_sub(done.gone_below.max(1));
        let past = if done.complete { 0 } else { 3 * pages };
        let windows = 3 * (done.windows.len() + done.past_windows.len()) as u64;
        let snapshots: u64 = done.snapshots.iter().map(|(_, pages)| pages + 1).sum();
        let newest = u64::from(!done.newest.is_empty());
        done.archives + pages + past + newest + windows + snapshots + done.pointers.len() as u64
    }
}

/// The documents over all feeds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Around {
    /// How many snapshots the global feed has.
    pub(super) archives: u64,
    /// Up to when the documents of SUP tell which feeds moved.
    pub(super) told: Timestamp,
    /// The documents that are replaced again and again, and what they are just now.
    pub(super) pointers: BTreeMap<String, String>,
}

/// What is kept of one tree.
pub(super) struct States {
    prefix: String,
}

impl States {
    /// Of the tree with this name.
    pub(super) fn of(tree: &str) -> Self {
        Self { prefix: format!("export/{tree}/") }
    }

    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}{name}", self.prefix).into_bytes()
    }

    /// What is known of a feed.
    pub(super) async fn load(&self, store: &dyn Store, feed: &FeedId) -> Result<Exported, StoreError> {
        self.get(store, feed.as_str()).await
    }

    /// What is known of the documents over all feeds. Their name is no feed's.
    pub(super) async fn around(&self, store: &dyn Store) -> Result<Around, StoreError> {
        self.get(store, "_global").await
    }

    async fn get<T: DeserializeOwned + Default>(
        &self,
        store: &dyn Store,
        name: &str,
    ) -> Result<T, StoreError> {
        Ok(record::load(store, &self.key(name)).await?.unwrap_or_default())
    }

    pub(super) fn save(&self, feed: &FeedId, exported: &Exported) -> Write {
        record::put(self.key(feed.as_str()), exported)
    }

    pub(super) fn save_around(&self, around: &Around) -> Write {
        record::put(self.key("_global"), around)
    }

    pub(super) fn forget(&self, feed: &FeedId) -> Write {
        record::remove(self.key(feed.as_str()))
    }

    /// Every feed of which something is or may be in the tree.
    pub(super) async fn feeds(&self, store: &dyn Store) -> Result<Vec<FeedId>, StoreError> {
        let mut feeds = Vec::new();
        let mut scan = Scan::new(store, Table::Chains, self.prefix.as_bytes());
        while let Some(records) = scan.next().await? {
            let names = records
                .iter()
                .map(|(key, _)| String::from_utf8_lossy(&key[self.prefix.len()..]).into_owned());
            feeds.extend(names.filter_map(|name| FeedId::new(&name).ok()));
        }
        Ok(feeds)
    }
}
