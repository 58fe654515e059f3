//! Stored state of a chain: the chain, its last head, its snapshots and their index.
//!
//! A snapshot is written once, in one atomic write with everything else that its run changes. `latest.json` is not
//! stored: it is the last snapshot, or that snapshot carried to the time of the last run, with the same bytes each time.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_proto::diffdelta::Cursor;
use towpath_proto::diffdelta::publish::{DocumentChain, NewSnapshot, PublishedDocuments, SourceHealth};
use towpath_proto::diffdelta::wire::SnapshotEntry;
use towpath_store::{Precondition, Store, Table, TableWrite};

use crate::engine::table_scan::TableScan;
use crate::engine::{Feed, json_record as record};
use crate::store_error::StoreError;

/// The state of one chain.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct StoredChain {
    /// The chain as the last mint left it, so that it fits the snapshot.
    minted: DocumentChain,
    /// Path of the last snapshot.
    path: Option<String>,
    /// The chain's state before the last carry, and when that was; none since the last mint.
    carried: Option<CarryRecord>,
    /// The SHA-256 of the current `latest.json`.
    hash: Option<Cursor>,
    /// When the current `latest.json` was made.
    generated_at: Option<Timestamp>,
    /// Health of the source.
    health: SourceHealth,
    /// The current `head.json`.
    head: String,
    /// True if the feed was public at each mint. Its snapshots are then served for ever, also after the feed was removed
    /// from the configuration (section 1.3).
    #[serde(default)]
    is_public: bool,
    /// This state as it is stored.
    #[serde(skip)]
    // The precondition of the next write: a node that read an older state must not extend the chain.
    stored: Option<Bytes>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct CarryRecord {
    at: Timestamp,
    hash: Option<Cursor>,
    generated_at: Option<Timestamp>,
}

/// The key of a chain's state.
fn chain_key(name: &str) -> Vec<u8> {
    format!("diffdelta/{name}/chain").into_bytes()
}

/// Prefix of the keys of a chain's index entries.
fn index_prefix(name: &str) -> Vec<u8> {
    format!("diffdelta/{name}/snapshot/").into_bytes()
}

impl StoredChain {
    /// Loads the state of a chain; a new one if there is none.
    pub(crate) async fn load(store: &dyn Store, name: &str) -> Result<Self, StoreError> {
        let Some(bytes) = store.get(Table::Chains, &chain_key(name)).await? else {
            return Ok(Self::default());
        };
        let chain: Self = record::parse(&chain_key(name), &bytes)?;
        Ok(Self { stored: Some(bytes), ..chain })
    }

    /// The chain as it now is.
    pub(crate) fn chain(&self) -> DocumentChain {
        let mut chain = self.minted.clone();
        (chain.hash, chain.generated_at, chain.health) = (self.hash, self.generated_at, self.health.clone());
        chain
    }

    /// Returns true if everybody may see every snapshot, whatever became of the feed.
    pub(crate) fn is_public(&self) -> bool {
        self.is_public
    }

    /// The current `head.json`; empty before the first run.
    pub(crate) fn head(&self) -> Bytes {
        Bytes::copy_from_slice(self.head.as_bytes())
    }

    /// The last snapshot; empty before the first.
    pub(crate) async fn snapshot(&self, store: &dyn Store) -> Result<Bytes, StoreError> {
        let Some(path) = &self.path else { return Ok(Bytes::new()) };
        let snapshot = store.get(Table::Documents, path.as_bytes()).await?;
        // Snapshots are written with the chain in one batch, so a missing one is damage, not a crash's trace.
        snapshot.ok_or_else(|| StoreError::Damaged(format!("the snapshot {path} is missing")))
    }

    /// Returns true if the last mint is shown as it was minted, and its readers may not have seen it yet.
    pub(crate) fn shows_fresh_mint(&self, ttl_sec: u64, now: Timestamp) -> bool {
        self.carried.is_none() && self.minted.is_fresh(ttl_sec, now)
    }

    /// When the last run carried, and the chain as it was before that.
    pub(crate) fn before_carry(&self) -> Option<(DocumentChain, Timestamp)> {
        let carried = self.carried.as_ref()?;
        let mut chain = self.chain();
        (chain.hash, chain.generated_at) = (carried.hash, carried.generated_at);
        Some((chain, carried.at))
    }

    /// Applies and stores a mint, with its new snapshot.
    pub(crate) async fn mint(
        &mut self,
        store: &dyn Store,
        feed: &Feed,
        published: &PublishedDocuments,
    ) -> Result<(), StoreError> {
        let name = feed.id().as_str();
        // One mint while the feed is private closes the archive for good once the feed is removed.
        self.is_public = feed.is_listed() && (self.is_public || self.minted.is_unpublished());
        self.minted = published.chain.clone();
        // The snapshot itself is the current document again.
        self.carried = None;
        self.apply(published);
        if let Some(snapshot) = &published.snapshot {
            self.path = Some(snapshot.path.clone());
        }
        let (writes, conditions) = snapshot_writes(name, published);
        self.write(store, name, writes, conditions).await
    }

    /// Applies and stores a carry at a time, with the chain before it.
    pub(crate) async fn carry(
        &mut self,
        store: &dyn Store,
        name: &str,
        (before, at): (&DocumentChain, Timestamp),
        published: &PublishedDocuments,
    ) -> Result<(), StoreError> {
        self.carried = Some(CarryRecord { at, hash: before.hash, generated_at: before.generated_at });
        self.apply(published);
        self.write(store, name, Vec::new(), Vec::new()).await
    }

    fn apply(&mut self, published: &PublishedDocuments) {
        self.hash = published.chain.hash;
        self.generated_at = published.chain.generated_at;
        self.health = published.chain.health.clone();
        self.head = String::from_utf8_lossy(&published.head).into_owned();
    }

    /// Stores that the changes up to a position left nothing to mint.
    pub(crate) async fn skip_to(
        &mut self,
        store: &dyn Store,
        name: &str,
        seq: u64,
    ) -> Result<(), StoreError> {
        self.minted.minted_seq = seq;
        self.write(store, name, Vec::new(), Vec::new()).await
    }

    /// Stores the state, unless it was changed since it was read.
    async fn write(
        &mut self,
        store: &dyn Store,
        name: &str,
        mut writes: Vec<TableWrite>,
        mut conditions: Vec<Precondition>,
    ) -> Result<(), StoreError> {
        let write = record::put(chain_key(name), self);
        let state = write.value.clone();
        let (table, key, value) = (write.table, write.key.clone(), self.stored.clone());
        conditions.push(Precondition { table, key, value });
        writes.push(write);
        store.write(writes, conditions).await?;
        // Only after the write: a failed one must not change the precondition of the next.
        self.stored = state;
        Ok(())
    }
}

/// The writes of a minted snapshot: the document, exclusively, and its index entry.
pub(crate) fn snapshot_writes(
    name: &str,
    published: &PublishedDocuments,
) -> (Vec<TableWrite>, Vec<Precondition>) {
    let Some(NewSnapshot { path, entry }) = &published.snapshot else { return (Vec::new(), Vec::new()) };
    let mut key = index_prefix(name);
    // Twenty digits hold any u64, so the order of the keys is the order of the mints.
    key.extend_from_slice(format!("{:020}", published.chain.snapshots).as_bytes());
    let document = path.clone().into_bytes();
    let latest = Some(published.latest.clone());
    let write = TableWrite { table: Table::Documents, key: document.clone(), value: latest };
    let writes = vec![write, record::put(key, entry)];
    // A snapshot is immutable (section 1.3): the same path must never get other bytes.
    let unwritten = Precondition { table: Table::Documents, key: document, value: None };
    (writes, vec![unwritten])
}

/// Every snapshot of a chain, oldest first, beginning after so many.
pub(crate) async fn snapshot_index(
    store: &dyn Store,
    name: &str,
    after: u64,
) -> Result<Vec<SnapshotEntry>, StoreError> {
    let prefix = index_prefix(name);
    let mut last = prefix.clone();
    last.extend_from_slice(format!("{after:020}").as_bytes());
    let mut entries = Vec::new();
    let mut scan = TableScan::after(store, Table::Chains, &prefix, last);
    while let Some(page) = scan.next().await? {
        for (key, value) in &page {
            entries.push(record::parse(key, value)?);
        }
    }
    Ok(entries)
}
