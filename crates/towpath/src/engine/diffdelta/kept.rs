//! What is kept of a chain of documents between runs: the chain, the last head, the snapshots and their list.
//!
//! A snapshot is written once, with everything else that its run changes, in one atomic write. `latest.json` is
//! not written: it is its last snapshot, or that snapshot carried to the time of the last run, which gives the
//! same bytes whenever it is done again.

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_proto::diffdelta::Cursor;
use towpath_proto::diffdelta::publish::{Chain, Health, NewSnapshot, Published};
use towpath_proto::diffdelta::wire::Snapshot;
use towpath_store::{Condition, Store, StoreError, Table, Write};

use crate::engine::scan::Scan;
use crate::engine::{Feed, record};

/// The state of one chain.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    /// The chain as the last mint left it, so that it fits the snapshot.
    minted: Chain,
    /// Where the last snapshot is.
    path: Option<String>,
    /// The chain's state before the last carry, and when that was; none since the last mint.
    carried: Option<Carried>,
    /// The SHA-256 of the current `latest.json`.
    hash: Option<Cursor>,
    /// When the current `latest.json` was made.
    generated_at: Option<Timestamp>,
    /// How the source is.
    health: Health,
    /// The current `head.json`.
    head: String,
    /// Whether everybody could read the feed whenever it minted. Its snapshots are then served for ever, also
    /// where the configuration does not name the feed any more (section 1.3).
    #[serde(default)]
    is_public: bool,
    /// This state as it is stored.
    #[serde(skip)]
    stored: Option<Bytes>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Carried {
    at: Timestamp,
    hash: Option<Cursor>,
    generated_at: Option<Timestamp>,
}

/// The key of a chain's state.
fn chain_key(name: &str) -> Vec<u8> {
    format!("diffdelta/{name}/chain").into_bytes()
}

/// What the keys of a chain's index entries begin with.
fn index_prefix(name: &str) -> Vec<u8> {
    format!("diffdelta/{name}/snapshot/").into_bytes()
}

impl Kept {
    /// The state of a chain, new where there is none.
    pub(super) async fn load(store: &dyn Store, name: &str) -> Result<Self, StoreError> {
        let Some(bytes) = store.get(Table::Chains, &chain_key(name)).await? else {
            return Ok(Self::default());
        };
        let kept: Self = record::parse(&chain_key(name), &bytes)?;
        Ok(Self { stored: Some(bytes), ..kept })
    }

    /// The chain as it now is.
    pub(super) fn chain(&self) -> Chain {
        let mut chain = self.minted.clone();
        (chain.hash, chain.generated_at, chain.health) = (self.hash, self.generated_at, self.health.clone());
        chain
    }

    /// Whether everybody may see every snapshot, whatever became of the feed.
    pub(super) fn is_public(&self) -> bool {
        self.is_public
    }

    /// The current `head.json`; empty before the first run.
    pub(super) fn head(&self) -> Bytes {
        Bytes::copy_from_slice(self.head.as_bytes())
    }

    /// The last snapshot; empty before the first.
    pub(super) async fn snapshot(&self, store: &dyn Store) -> Result<Bytes, StoreError> {
        let Some(path) = &self.path else { return Ok(Bytes::new()) };
        let snapshot = store.get(Table::Documents, path.as_bytes()).await?;
        snapshot.ok_or_else(|| StoreError::Damaged(format!("the snapshot {path} is missing")))
    }

    /// When the last run carried, and the chain as it was before that.
    pub(super) fn before_carry(&self) -> Option<(Chain, Timestamp)> {
        let carried = self.carried.as_ref()?;
        let mut chain = self.chain();
        (chain.hash, chain.generated_at) = (carried.hash, carried.generated_at);
        Some((chain, carried.at))
    }

    /// Takes over what a mint published and makes it last: the snapshot is written for the first time.
    pub(super) async fn mint(
        &mut self,
        store: &dyn Store,
        feed: &Feed,
        published: &Published,
    ) -> Result<(), StoreError> {
        let name = feed.id().as_str();
        self.is_public = feed.is_listed() && (self.is_public || self.minted.is_unborn());
        self.minted = published.chain.clone();
        self.carried = None;
        self.settle(published);
        if let Some(snapshot) = &published.snapshot {
            self.path = Some(snapshot.path.clone());
        }
        let (writes, conditions) = snapshot_writes(name, published);
        self.write(store, name, writes, conditions).await
    }

    /// Takes over what a carry at a time published, from the chain as it was, and makes it last.
    pub(super) async fn carry(
        &mut self,
        store: &dyn Store,
        name: &str,
        (before, at): (&Chain, Timestamp),
        published: &Published,
    ) -> Result<(), StoreError> {
        self.carried = Some(Carried { at, hash: before.hash, generated_at: before.generated_at });
        self.settle(published);
        self.write(store, name, Vec::new(), Vec::new()).await
    }

    fn settle(&mut self, published: &Published) {
        self.hash = published.chain.hash;
        self.generated_at = published.chain.generated_at;
        self.health = published.chain.health.clone();
        self.head = String::from_utf8_lossy(&published.head).into_owned();
    }

    /// Notes that changes up to a place left nothing to mint.
    pub(super) async fn skip_to(
        &mut self,
        store: &dyn Store,
        name: &str,
        seq: u64,
    ) -> Result<(), StoreError> {
        self.minted.minted_seq = seq;
        self.write(store, name, Vec::new(), Vec::new()).await
    }

    /// Makes the state last, as long as nobody else has changed it since it was read.
    async fn write(
        &mut self,
        store: &dyn Store,
        name: &str,
        mut writes: Vec<Write>,
        mut conditions: Vec<Condition>,
    ) -> Result<(), StoreError> {
        let write = record::put(chain_key(name), self);
        let state = write.value.clone();
        let (table, key, value) = (write.table, write.key.clone(), self.stored.clone());
        conditions.push(Condition { table, key, value });
        writes.push(write);
        store.write(writes, conditions).await?;
        self.stored = state;
        Ok(())
    }
}

/// The writes of a minted snapshot: the document, exclusively, and its index entry.
pub(super) fn snapshot_writes(name: &str, published: &Published) -> (Vec<Write>, Vec<Condition>) {
    let Some(NewSnapshot { path, entry }) = &published.snapshot else { return (Vec::new(), Vec::new()) };
    let mut key = index_prefix(name);
    key.extend_from_slice(format!("{:020}", published.chain.snapshots).as_bytes());
    let document = path.clone().into_bytes();
    let latest = Some(published.latest.clone());
    let write = Write { table: Table::Documents, key: document.clone(), value: latest };
    let writes = vec![write, record::put(key, entry)];
    let unwritten = Condition { table: Table::Documents, key: document, value: None };
    (writes, vec![unwritten])
}

/// Every snapshot of a chain, oldest first, beginning after so many.
pub(super) async fn index(store: &dyn Store, name: &str, after: u64) -> Result<Vec<Snapshot>, StoreError> {
    let prefix = index_prefix(name);
    let mut last = prefix.clone();
    last.extend_from_slice(format!("{after:020}").as_bytes());
    let mut entries = Vec::new();
    let mut scan = Scan::after(store, Table::Chains, &prefix, last);
    while let Some(page) = scan.next().await? {
        for (key, value) in &page {
            entries.push(record::parse(key, value)?);
        }
    }
    Ok(entries)
}
