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
use towpath_store::{Condition, Store, StoreError, Table, Write};

use super::kept::{self, Kept};
use super::served;
use crate::engine::roles::Lease;
use crate::engine::{Engine, Feed, blocking};

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
    /// Where that is.
    path: String,
    /// What is served: the chain, `head.json` and `latest.json`.
    current: Option<(Chain, Bytes, Bytes)>,
    /// Every source's chain as its last run left it.
    sources: BTreeMap<FeedId, Chain>,
    pending: Pending,
    /// Whether a source ran since the last document.
    dirty: bool,
    /// What is stored of all this, and under which lease it is written.
    stored: Option<Bytes>,
    lease: Option<Lease>,
}

/// What is kept between starts, written with each mint. In a cluster a carry is written as well, so that every node
/// serves it.
#[derive(Serialize, Deserialize)]
struct KeptGlobal {
    global: GlobalChain,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    carried: Option<Carried>,
    #[serde(default)]
    head: String,
}

/// `latest.json` as it was carried: the buckets are those of the snapshot, and stand at the ends of both.
#[derive(Serialize, Deserialize)]
struct Carried {
    /// The chain as the mint left it.
    minted: Chain,
    /// What stands before the end that both have.
    begin: String,
    /// Where that end begins in the snapshot.
    end_at: usize,
}

impl Carried {
    fn new(minted: Chain, snapshot: &[u8], latest: &[u8]) -> Self {
        let same = snapshot.iter().rev().zip(latest.iter().rev()).take_while(|(a, b)| a == b).count();
        // Not within a character.
        let is_whole = |at: usize| latest.get(at).is_none_or(|byte| byte & 0xC0 != 0x80);
        let cut = (latest.len() - same..=latest.len()).find(|at| is_whole(*at)).unwrap_or(latest.len());
        let end_at = snapshot.len() - (latest.len() - cut);
        Self { minted, begin: String::from_utf8_lossy(&latest[..cut]).into_owned(), end_at }
    }

    fn latest(&self, snapshot: &[u8]) -> Bytes {
        [self.begin.as_bytes(), snapshot.get(self.end_at..).unwrap_or_default()].concat().into()
    }
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
        // Where others write chains as well, what is written is looked at.
        if engine.is_shared() {
            return Ok(());
        }
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

    /// Takes in a source's chain as it is stored, with what it minted where this node tells of that. Returns up to
    /// where it minted, if it did since the last look.
    pub(super) async fn look(&self, engine: &Arc<Engine>, feed: &Feed) -> Result<Option<u64>, StoreError> {
        let mut state = self.state.lock().await;
        let chain = Kept::load(engine.store.as_ref(), feed.id().as_str()).await?.chain();
        let known = state.sources.get(feed.id()).map_or(0, |known| known.snapshots);
        let minted = (chain.snapshots > known).then_some(chain.minted_seq);
        if state.lease.is_none() || !state.loaded {
            state.sources.insert(feed.id().clone(), chain);
            return Ok(minted);
        }
        state.dirty = true;
        self.moved.notify_one();
        let taken = recover(engine, &mut state, feed.id(), chain).await;
        state.loaded = taken.is_ok();
        taken.map(|()| minted)
    }

    /// Begins to make the documents, from what is stored.
    pub(super) async fn take_over(&self, lease: Lease) {
        let mut state = self.state.lock().await;
        (state.lease, state.loaded) = (Some(lease), false);
    }

    /// Leaves that to another node.
    pub(super) async fn hand_over(&self) {
        let mut state = self.state.lock().await;
        (state.lease, state.loaded, state.pending) = (None, false, Pending::new());
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
    // What each source minted is read again from what the global feed has told of.
    state.sources.clear();
    state.stored = None;
    if let Some((kept, snapshot, bytes)) = stored(store).await? {
        state.snapshot = snapshot;
        state.minted = kept.carried.map_or_else(|| kept.global.chain.clone(), |carried| carried.minted);
        (state.global, state.path, state.stored) = (kept.global, kept.path, Some(bytes));
    }
    let mut chains = Vec::new();
    for feed in engine.feeds().into_iter().filter(|feed| feed.is_listed()) {
        let chain = Kept::load(store, feed.id().as_str()).await?.chain();
        if let Some(told) = state.global.included.get(feed.id()) {
            let mut shown = chain.clone();
            (shown.cursor, shown.snapshots) = (told.cursor, told.snapshots);
            state.sources.insert(feed.id().clone(), shown);
        }
        chains.push((feed.id().clone(), chain));
    }
    for (source, chain) in chains {
        recover(engine, state, &source, chain).await?;
    }
    state.loaded = true;
    state.dirty = true;
    Ok(())
}

/// What is stored of the global feed, and its last snapshot.
async fn stored(store: &dyn Store) -> Result<Option<(KeptGlobal, Bytes, Bytes)>, StoreError> {
    let Some(bytes) = store.get(Table::Chains, KEY).await? else { return Ok(None) };
    let kept: KeptGlobal = serde_json::from_slice(&bytes).map_err(|e| damaged(&e))?;
    // Carried before anything was minted.
    if kept.path.is_empty() {
        return Ok(Some((kept, Bytes::new(), bytes)));
    }
    let snapshot = store.get(Table::Documents, kept.path.as_bytes()).await?;
    let snapshot = snapshot.ok_or_else(|| damaged(&format_args!("{} is missing", kept.path)))?;
    Ok(Some((kept, snapshot, bytes)))
}

/// The chain, `head.json` and `latest.json` as the node that makes them stored them.
pub(super) async fn shared(engine: &Engine) -> Result<Option<(Chain, Bytes, Bytes)>, StoreError> {
    let Some((kept, snapshot, _)) = stored(engine.store.as_ref()).await? else { return Ok(None) };
    let latest = kept.carried.map_or(snapshot.clone(), |carried| carried.latest(&snapshot));
    Ok(Some((kept.global.chain, kept.head.into(), latest)))
}

/// Takes a source's chain, with what it minted that the global feed has not told of. The chain is shown as far
/// as it is told, so that a crash in between loses nothing.
async fn recover(
    engine: &Arc<Engine>,
    state: &mut State,
    source: &FeedId,
    chain: Chain,
) -> Result<(), StoreError> {
    let mut told = state.global.included.get(source).cloned().unwrap_or_default();
    // What is pending already is not taken twice.
    if let Some(known) = state.sources.get(source).filter(|known| known.snapshots > told.snapshots) {
        (told.cursor, told.snapshots) = (known.cursor, known.snapshots);
    }
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
    if engine.is_shared() {
        return Ok(());
    }
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
        let head = String::from_utf8_lossy(&published.head).into_owned();
        let kept = KeptGlobal { global: global.clone(), path: snapshot.path.clone(), carried: None, head };
        let (writes, conditions) = kept::snapshot_writes(GLOBAL, &published);
        write(engine, state, &kept, writes, conditions).await?;
        state.path = kept.path;
        engine.metrics.mints.inc();
    }
    state.minted = published.chain.clone();
    state.snapshot = published.latest.clone();
    state.global = global;
    Ok(published)
}

/// Makes what is kept last, as long as nobody else has changed it, with other writes.
async fn write(
    engine: &Engine,
    state: &mut State,
    kept: &KeptGlobal,
    mut writes: Vec<Write>,
    mut conditions: Vec<Condition>,
) -> Result<(), StoreError> {
    let value = serde_json::to_vec(kept).map_err(|e| StoreError::Write(e.to_string()))?;
    let value = Bytes::from(value);
    conditions.push(Condition { table: Table::Chains, key: KEY.to_vec(), value: state.stored.clone() });
    conditions.extend(state.lease.iter().filter_map(Lease::condition));
    writes.push(Write { table: Table::Chains, key: KEY.to_vec(), value: Some(value.clone()) });
    engine.store.write(writes, conditions).await?;
    state.stored = Some(value);
    Ok(())
}

async fn carry(engine: &Arc<Engine>, state: &mut State) -> Result<Published, StoreError> {
    let snapshot = state.snapshot.clone();
    let (published, global) = make(engine, state, move |global, chain, sources, now| {
        global.carry(chain, sources, &snapshot, now).map_err(|e| damaged(&e))
    })
    .await?;
    if engine.is_shared() {
        let head = String::from_utf8_lossy(&published.head).into_owned();
        let carried = Carried::new(state.minted.clone(), &state.snapshot, &published.latest);
        let (global, path) = (global.clone(), state.path.clone());
        let kept = KeptGlobal { global, path, carried: Some(carried), head };
        write(engine, state, &kept, Vec::new(), Vec::new()).await?;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carried_document_is_kept_without_its_buckets() {
        for (snapshot, latest) in [
            (r#"{"a":1,"buckets":["x","y"]}"#, r#"{"a":22,"buckets":["x","y"]}"#),
            ("\u{e9}", "\u{129}"),
            ("", "{}"),
            ("same", "same"),
            ("longer than", "an"),
        ] {
            let carried = Carried::new(Chain::default(), snapshot.as_bytes(), latest.as_bytes());
            assert_eq!(carried.latest(snapshot.as_bytes()), latest);
        }
        let large = format!("1{}", "x".repeat(1000));
        let carried = Carried::new(Chain::default(), large.as_bytes(), large.replace('1', "2").as_bytes());
        assert_eq!(carried.begin, "2");
    }
}
