//! The global feed: every source's deltas in one chain.

mod mint;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Mutex, Notify};
use towpath_proto::FeedId;
use towpath_proto::diffdelta::delta_item::RenderedItem;
use towpath_proto::diffdelta::global::PendingDeltas;
use towpath_proto::diffdelta::publish::DocumentChain;
use towpath_proto::diffdelta::wire::SnapshotEntry;
use towpath_store::Table;

use self::mint::{make_next, mint};
use self::state::GlobalState;
use crate::engine::roles::Lease;
use crate::engine::work::share_thread;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::documents::archive_path;
use crate::protocols::diffdelta::global_included::IncludedDifference;
use crate::protocols::diffdelta::global_stored::{LoadedGlobal, damaged, stored};
use crate::protocols::diffdelta::stored::{StoredChain, snapshot_index};
use crate::store_error::StoreError;

/// Global feed of an engine.
#[derive(Default)]
pub(crate) struct GlobalFeed {
    state: Mutex<GlobalState>,
    /// Woken when a source ran.
    source_ran: Notify,
}

impl GlobalFeed {
    /// Adds the result of a source's run, with the items of its mint.
    pub(super) async fn add_run(
        &self,
        engine: &Arc<Engine>,
        source: &FeedId,
        chain: DocumentChain,
        minted: Option<Vec<RenderedItem>>,
    ) -> Result<(), StoreError> {
        if !is_told(engine, source) {
            return Ok(());
        }
        let mut state = self.state.lock().await;
        let known = state.known_snapshots(source);
        let expected = known + u64::from(minted.is_some());
        if state.loaded && chain.snapshots > expected {
            // A mint before this one seemed to have failed, and is stored.
            read_mints(engine, &mut state, source, chain).await?;
        } else if !state.loaded || chain.snapshots == expected {
            state.set_source(source, chain);
            state.pending.add(minted.unwrap_or_default());
        } else if chain.snapshots == known {
            // `refresh` has read this mint before.
            state.set_source(source, chain);
        }
        state.dirty = true;
        self.source_ran.notify_one();
        // Not later: a document has a limit, and many sources may mint within one interval.
        match state.pending.is_full(state.sources.len()) {
            true if state.loaded => make_next(engine, &mut state).await,
            // A mint must follow what is stored. What is pending is read again.
            true => load(engine, &mut state).await,
            false => Ok(()),
        }
    }

    /// Adds mints of a source that are stored although their writes seemed to have failed. Returns true if there are some.
    pub(super) async fn catch_up(
        &self,
        engine: &Arc<Engine>,
        source: &FeedId,
        chain: DocumentChain,
    ) -> Result<bool, StoreError> {
        if !is_told(engine, source) {
            return Ok(false);
        }
        let mut state = self.state.lock().await;
        // The load reads all that are stored.
        if !state.loaded || chain.snapshots <= state.known_snapshots(source) {
            return Ok(false);
        }
        state.dirty = true;
        self.source_ran.notify_one();
        read_mints(engine, &mut state, source, chain).await?;
        Ok(true)
    }

    /// Reads a source's stored chain, with its new mints if this node publishes the global feed. Returns the last minted
    /// position, if it changed.
    pub(super) async fn refresh(&self, engine: &Arc<Engine>, feed: &Feed) -> Result<Option<u64>, StoreError> {
        let mut state = self.state.lock().await;
        // In the lock of the state, or a chain that was read earlier could replace a newer one.
        let chain = StoredChain::load(engine.store.as_ref(), feed.id().as_str()).await?.chain();
        let known = state.known_snapshots(feed.id());
        // A carried chain has no new changes for SUP to list.
        let minted = (chain.snapshots > known).then_some(chain.minted_seq);
        let publishes = !engine.is_shared() || state.lease.is_some();
        if !publishes || !state.loaded {
            state.set_source(feed.id(), chain);
            return Ok(minted);
        }
        state.dirty = true;
        self.source_ran.notify_one();
        read_mints(engine, &mut state, feed.id(), chain).await?;
        Ok(minted)
    }

    /// Begins to publish, from the stored state.
    pub(crate) async fn take_over(&self, lease: Lease) {
        let mut state = self.state.lock().await;
        // Not loaded: the node that had the role before may have published since.
        (state.lease, state.loaded) = (Some(lease), false);
    }

    /// Stops publishing: another node may begin.
    pub(crate) async fn hand_over(&self) {
        let mut state = self.state.lock().await;
        (state.lease, state.loaded, state.pending) = (None, false, PendingDeltas::new());
    }

    /// Waits until no document is being published, and holds off the next until the result is dropped.
    pub(super) async fn hold(&self) -> impl Drop + '_ {
        self.state.lock().await
    }

    /// Returns when a source has run.
    pub(super) async fn source_ran(&self) {
        self.source_ran.notified().await;
    }

    /// Every source's chain as its last run left it.
    pub(crate) async fn sources(&self) -> Arc<BTreeMap<FeedId, DocumentChain>> {
        self.state.lock().await.sources.clone()
    }

    /// The chain, `head.json` and `latest.json`; none before the first source ran.
    pub(crate) async fn current(&self) -> Option<(DocumentChain, Bytes, Bytes)> {
        self.state.lock().await.current.clone()
    }

    /// Returns true if sources minted changes that no global document has.
    pub(crate) async fn has_news(&self) -> bool {
        !self.state.lock().await.pending.is_empty()
    }

    /// Returns true if the status of a source changed since the last document.
    pub(crate) async fn has_new_status(&self) -> bool {
        self.state.lock().await.has_new_status
    }

    /// Reads the stored state, every source's chain, and mints that no global document has.
    pub(crate) async fn load(&self, engine: &Arc<Engine>) -> Result<(), StoreError> {
        let mut state = self.state.lock().await;
        if state.loaded { Ok(()) } else { load(engine, &mut state).await }
    }

    /// Publishes the next document: a mint if sources minted, else a carry. Does nothing if no source ran.
    ///
    /// Returns the number of bytes that were written since the last call.
    pub(crate) async fn run(&self, engine: &Arc<Engine>) -> Result<u64, StoreError> {
        let mut state = self.state.lock().await;
        if !state.loaded {
            load(engine, &mut state).await?;
        }
        if state.dirty && !state.sources.is_empty() {
            make_next(engine, &mut state).await?;
        }
        Ok(std::mem::take(&mut state.written))
    }
}

async fn load(engine: &Arc<Engine>, state: &mut GlobalState) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    // What is pending is in the sources' snapshots, from which it is read again.
    state.pending = PendingDeltas::new();
    // Mints after those that the global feed includes are read again below.
    state.sources = Arc::default();
    state.stored = None;
    state.difference = IncludedDifference::default();
    if let Some(LoadedGlobal { state: kept, snapshot, row, difference }) = stored(store).await? {
        (state.snapshot, state.difference) = (snapshot, difference);
        state.minted = kept.carried.map_or_else(|| kept.global.chain.clone(), |carried| carried.minted);
        (state.global, state.path, state.stored) = (kept.global, kept.path, Some(row));
    }
    let mut chains = Vec::new();
    for feed in engine.feeds().into_iter().filter(|feed| feed.is_listed()) {
        share_thread().await;
        let chain = StoredChain::load(store, feed.id().as_str()).await?.chain();
        if let Some(told) = state.global.included.get(feed.id()) {
            let mut shown = chain.clone();
            (shown.cursor, shown.snapshots) = (told.cursor, told.snapshots);
            Arc::make_mut(&mut state.sources).insert(feed.id().clone(), shown);
        }
        chains.push((feed.id().clone(), chain));
    }
    for (source, chain) in chains {
        share_thread().await;
        recover(engine, state, &source, chain).await?;
    }
    // Nodes of a tree that is built from sorted entries are full. One by one, entries in this order leave them half
    // empty, and there may be a million.
    let sources = Arc::unwrap_or_clone(std::mem::take(&mut state.sources));
    state.sources = Arc::new(sources.into_iter().collect());
    state.loaded = true;
    state.dirty = true;
    Ok(())
}

/// Returns true if runs of a source are added as they end.
fn is_told(engine: &Engine, source: &FeedId) -> bool {
    // In a cluster the chain is read after its write, whichever node made it.
    // Private feeds are in no document over all feeds.
    !engine.is_shared() && engine.feed(source.as_str()).is_some_and(|feed| feed.is_listed())
}

/// Does what [`recover`] does. If it fails or is dropped, everything is read again.
async fn read_mints(
    engine: &Arc<Engine>,
    state: &mut GlobalState,
    source: &FeedId,
    chain: DocumentChain,
) -> Result<(), StoreError> {
    state.loaded = false;
    recover(engine, state, source, chain).await?;
    state.loaded = true;
    Ok(())
}

/// Adds a source's chain, with its mints that no global document has. The chain is shown up to the last published mint,
/// so that a crash in between loses nothing.
async fn recover(
    engine: &Arc<Engine>,
    state: &mut GlobalState,
    source: &FeedId,
    chain: DocumentChain,
) -> Result<(), StoreError> {
    let mut told = state.global.included.get(source).cloned().unwrap_or_default();
    // Mints that are pending already must not be added twice.
    if let Some(known) = state.sources.get(source).filter(|known| known.snapshots > told.snapshots) {
        (told.cursor, told.snapshots) = (known.cursor, known.snapshots);
    }
    if chain.snapshots > told.snapshots {
        let mut shown = chain.clone();
        (shown.cursor, shown.snapshots) = (told.cursor, told.snapshots);
        for SnapshotEntry { url, cursor, .. } in
            snapshot_index(engine.store.as_ref(), source.as_str(), told.snapshots).await?
        {
            let path = archive_path(&url);
            let snapshot = engine.store.get(Table::Documents, path.as_bytes()).await?;
            let snapshot = snapshot.ok_or_else(|| damaged(&format_args!("{path} is missing")))?;
            state.pending.recover(&snapshot).map_err(|e| damaged(&e))?;
            shown.snapshots += 1;
            shown.cursor = cursor.parse().map_err(|e| damaged(&e))?;
            Arc::make_mut(&mut state.sources).insert(source.clone(), shown.clone());
            // After a long stop there may be more than one document may have.
            if state.pending.is_full(state.sources.len()) {
                mint(engine, state).await?;
            }
        }
    }
    state.set_source(source, chain);
    Ok(())
}
