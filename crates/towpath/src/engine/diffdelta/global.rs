//! The global feed: every source's deltas in one chain.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, Notify};
use towpath_proto::FeedId;
use towpath_proto::diffdelta::delta_item::Rendered;
use towpath_proto::diffdelta::global::{Global, GlobalChain, Pending};
use towpath_proto::diffdelta::publish::{Chain, Published, Source};
use towpath_proto::diffdelta::wire::{GLOBAL, Snapshot};
use towpath_store::{StoreError, Table, Write};

use super::kept::{self, Kept};
use super::{blocking, served};
use crate::engine::Engine;

/// The global feed of a running engine.
#[derive(Default)]
pub(super) struct GlobalFeed {
    state: Mutex<State>,
    /// Rung when a source ran.
    moved: Notify,
}

#[derive(Default)]
struct State {
    /// Whether what was kept has been read.
    loaded: bool,
    global: GlobalChain,
    /// The chain as the last mint left it, and that mint's snapshot: what is carried.
    minted: Chain,
    snapshot: Bytes,
    /// What is served: the chain, `head.json` and `latest.json`.
    current: Option<(Chain, Bytes, Bytes)>,
    /// Every source's chain as its last run left it.
    sources: BTreeMap<FeedId, Chain>,
    pending: Pending,
    /// Whether a source ran since the last document.
    dirty: bool,
}

/// What is kept between starts, written with each mint.
#[derive(Serialize, Deserialize)]
struct KeptGlobal {
    global: GlobalChain,
    path: String,
}

const KEY: &[u8] = b"diffdelta/_global/chain";

impl GlobalFeed {
    /// Takes what a source's run left behind.
    pub(super) async fn note(
        &self,
        engine: &Arc<Engine>,
        source: &FeedId,
        chain: Chain,
        minted: Vec<Rendered>,
    ) -> Result<(), StoreError> {
        // What not everybody may read stands in no document over all feeds.
        if !engine.feed(source.as_str()).is_some_and(|feed| feed.is_listed()) {
            return Ok(());
        }
        let mut state = self.state.lock().await;
        state.sources.insert(source.clone(), chain);
        state.pending.add(minted);
        state.dirty = true;
        self.moved.notify_one();
        if state.pending.is_full() {
            make_next(engine, &mut state).await?;
        }
        Ok(())
    }

    /// Returns when a source has run.
    pub(super) async fn moved(&self) {
        self.moved.notified().await;
    }

    /// Every source's chain as its last run left it.
    pub(super) async fn sources(&self) -> BTreeMap<FeedId, Chain> {
        self.state.lock().await.sources.clone()
    }

    /// The chain, `head.json` and `latest.json`; none before the first source ran.
    pub(super) async fn current(&self) -> Option<(Chain, Bytes, Bytes)> {
        self.state.lock().await.current.clone()
    }

    /// Whether sources minted something that the global feed has not told of.
    pub(super) async fn has_news(&self) -> bool {
        !self.state.lock().await.pending.is_empty()
    }

    /// Reads what was kept, every source's chain, and what sources minted while the global feed did not run.
    pub(super) async fn load(&self, engine: &Arc<Engine>) -> Result<(), StoreError> {
        let mut state = self.state.lock().await;
        if state.loaded { Ok(()) } else { load(engine, &mut state).await }
    }

    /// Makes the next document: a mint where sources minted, else a carry. Does nothing if no source ran.
    pub(super) async fn run(&self, engine: &Arc<Engine>) -> Result<(), StoreError> {
        let mut state = self.state.lock().await;
        if !state.loaded {
            load(engine, &mut state).await?;
        }
        if !state.dirty || state.sources.is_empty() {
            return Ok(());
        }
        make_next(engine, &mut state).await
    }
}

async fn load(engine: &Arc<Engine>, state: &mut State) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    state.pending = Pending::new();
    if let Some(bytes) = store.get(Table::Chains, KEY).await? {
        let kept: KeptGlobal = serde_json::from_slice(&bytes).map_err(|e| damaged(&e))?;
        let snapshot = store.get(Table::Documents, kept.path.as_bytes()).await?;
        state.snapshot = snapshot.ok_or_else(|| damaged(&format_args!("{} is missing", kept.path)))?;
        state.minted = kept.global.chain.clone();
        state.global = kept.global;
    }
    for feed in engine.feeds().into_iter().filter(|feed| feed.is_listed()) {
        let chain = Kept::load(store, feed.id().as_str()).await?.chain();
        recover(engine, state, feed.id(), chain).await?;
    }
    state.loaded = true;
    state.dirty = true;
    Ok(())
}

/// Takes a source's chain, with what it minted that the global feed has not told of. The chain is shown as far
/// as it is told, so that a crash in between loses nothing.
async fn recover(
    engine: &Arc<Engine>,
    state: &mut State,
    source: &FeedId,
    chain: Chain,
) -> Result<(), StoreError> {
    let told = state.global.included.get(source).cloned().unwrap_or_default();
    if chain.snapshots > told.snapshots {
        let mut shown = chain.clone();
        (shown.cursor, shown.snapshots) = (told.cursor, told.snapshots);
        for Snapshot { url, cursor, .. } in
            kept::index(engine.store.as_ref(), source.as_str(), told.snapshots).await?
        {
            let path = super::tree::path(&url);
            let snapshot = engine.store.get(Table::Documents, path.as_bytes()).await?;
            let snapshot = snapshot.ok_or_else(|| damaged(&format_args!("{path} is missing")))?;
            state.pending.recover(source, &snapshot).map_err(|e| damaged(&e))?;
            shown.snapshots += 1;
            shown.cursor = cursor.parse().map_err(|e| damaged(&e))?;
            state.sources.insert(source.clone(), shown.clone());
            if state.pending.is_full() {
                mint(engine, state).await?;
            }
        }
    }
    state.sources.insert(source.clone(), chain);
    Ok(())
}

/// Mints or carries, and serves the result. Where that fails, what is pending is read again from the sources'
/// snapshots before the next attempt.
async fn make_next(engine: &Arc<Engine>, state: &mut State) -> Result<(), StoreError> {
    let first = state.global.chain.is_unborn() && state.sources.values().any(|chain| !chain.is_unborn());
    let made = if first || !state.pending.is_empty() {
        mint(engine, state).await
    } else {
        carry(engine, state).await
    };
    state.loaded = made.is_ok();
    let published = made?;
    state.dirty = false;
    state.current = Some((published.chain.clone(), published.head.clone(), published.latest.clone()));
    served::put(engine, GLOBAL, &published.chain, published.head, published.latest);
    Ok(())
}

/// The snapshot, its index entry and the chain are written in one.
async fn mint(engine: &Arc<Engine>, state: &mut State) -> Result<Published, StoreError> {
    let pending = std::mem::take(&mut state.pending);
    let (published, global) =
        make(engine, state, move |global, chain, sources, now| Ok(global.mint(chain, sources, pending, now)))
            .await?;
    if let Some(snapshot) = &published.snapshot {
        let kept = KeptGlobal { global: global.clone(), path: snapshot.path.clone() };
        let value = serde_json::to_vec(&kept).map_err(|e| StoreError::Write(e.to_string()))?;
        let (mut writes, conditions) = kept::snapshot_writes(GLOBAL, &published);
        writes.push(Write { table: Table::Chains, key: KEY.to_vec(), value: Some(value.into()) });
        engine.store.write(writes, conditions).await?;
        engine.metrics.mints.inc();
    }
    state.minted = published.chain.clone();
    state.snapshot = published.latest.clone();
    state.global = global;
    Ok(published)
}

async fn carry(engine: &Arc<Engine>, state: &mut State) -> Result<Published, StoreError> {
    let snapshot = state.snapshot.clone();
    let (published, global) = make(engine, state, move |global, chain, sources, now| {
        global.carry(chain, sources, &snapshot, now).map_err(|e| damaged(&e))
    })
    .await?;
    state.global = global;
    Ok(published)
}

/// Makes a document apart from the threads that serve.
async fn make<F>(engine: &Arc<Engine>, state: &State, how: F) -> Result<(Published, GlobalChain), StoreError>
where
    F: FnOnce(
            &Global<'_>,
            &GlobalChain,
            &[(Source<'_>, &Chain)],
            jiff::Timestamp,
        ) -> Result<(Published, GlobalChain), StoreError>
        + Send
        + 'static,
{
    let engine = engine.clone();
    let sources = state.sources.clone();
    // What is carried is the last snapshot, so the chain is the one that fits it.
    let mut global = state.global.clone();
    let (hash, generated_at) = (global.chain.hash, global.chain.generated_at);
    global.chain = state.minted.clone();
    (global.chain.hash, global.chain.generated_at) = (hash, generated_at);
    blocking(move || {
        let feeds: Vec<_> = sources.keys().filter_map(|id| engine.feed(id.as_str())).collect();
        let ttl_sec = feeds.iter().map(|feed| feed.config.ttl.as_secs()).min().unwrap_or(300);
        let shown: Vec<(Source<'_>, &Chain)> = feeds
            .iter()
            .filter_map(|feed| Some((super::source::source(&engine, feed), sources.get(feed.id())?)))
            .collect();
        how(&Global { site: &engine.site, ttl_sec }, &global, &shown, engine.now())
    })
    .await?
}

fn damaged(reason: &dyn std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("the global chain: {reason}"))
}
