//! The next document of the global feed: minted from what the sources have, or carried.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use towpath_proto::FeedId;
use towpath_proto::diffdelta::global::{GlobalChain, GlobalPublisher};
use towpath_proto::diffdelta::publish::{DocumentChain, PublishedDocuments, Repeats, SourcePublisher};
use towpath_proto::diffdelta::wire::{FetchStatus, GLOBAL};
use towpath_store::{Precondition, TableWrite};

use super::state::GlobalState;
use crate::engine::roles::Lease;
use crate::engine::work::blocking;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::documents;
use crate::protocols::diffdelta::global_stored::{CarriedLatest, KEY, StoredGlobal, damaged, table_of};
use crate::protocols::diffdelta::site::{site, source as source_of};
use crate::protocols::diffdelta::stored::snapshot_writes;
use crate::store_error::StoreError;

/// Mints or carries, and caches the result. After a failure the pending deltas are read again from the sources'
/// snapshots.
pub(super) async fn make_next(engine: &Arc<Engine>, state: &mut GlobalState) -> Result<(), StoreError> {
    let first =
        state.global.chain.is_unpublished() && state.sources.values().any(|chain| !chain.is_unpublished());
    // Also if this future is dropped: what is pending is read again.
    state.loaded = false;
    let made = if first || !state.pending.is_empty() {
        mint(engine, state).await
    } else if shows_fresh_mint(engine, state) {
        (state.loaded, state.has_new_status) = (true, false);
        return Ok(());
    } else {
        carry(engine, state).await
    };
    state.loaded = made.is_ok();
    let published = made?;
    (state.dirty, state.has_new_status) = (false, false);
    if engine.is_shared() {
        return Ok(());
    }
    state.current = Some((published.chain.clone(), published.head.clone(), published.latest.clone()));
    documents::put(engine, GLOBAL, &published.chain, published.head, published.latest);
    Ok(())
}

fn status(state: &GlobalState) -> BTreeMap<FeedId, FetchStatus> {
    state.sources.iter().map(|(id, chain)| (id.clone(), chain.health.status())).collect()
}

/// Returns true if the last mint is shown as it was minted, its readers may not have seen it yet, and no source's status
/// changed since.
fn shows_fresh_mint(engine: &Engine, state: &GlobalState) -> bool {
    let is_shown = state.global.chain.hash == state.minted.hash;
    // Not so after a mint of what a failed write had left over.
    let is_served = |(chain, ..): &(DocumentChain, Bytes, Bytes)| chain.hash == state.global.chain.hash;
    let is_served = engine.is_shared() || state.current.as_ref().is_some_and(is_served);
    let ttl_sec = ttl_sec(state.sources.keys().filter_map(|id| engine.feed(id.as_str())));
    is_shown
        && is_served
        && state.minted.is_fresh(ttl_sec, engine.now())
        && state.minted_status == Some(status(state))
}

/// Returns the shortest poll interval of some feeds.
fn ttl_sec(feeds: impl Iterator<Item = Arc<Feed>>) -> u64 {
    feeds.map(|feed| feed.config.ttl.as_secs()).min().unwrap_or(300)
}

/// The snapshot, its index entry and the chain are written in one.
pub(super) async fn mint(
    engine: &Arc<Engine>,
    state: &mut GlobalState,
) -> Result<PublishedDocuments, StoreError> {
    // Taken even if the write fails: `make_next` then has everything read again.
    let pending = std::mem::take(&mut state.pending);
    let snapshot = state.snapshot.clone();
    let (published, global) = make(engine, state, move |global, chain, sources, now| {
        let repeats = Repeats::of(&chain.chain, global.ttl_sec, &snapshot, now);
        Ok(global.mint(chain, sources, pending, repeats, now))
    })
    .await?;
    if let Some(snapshot) = &published.snapshot {
        let head = String::from_utf8_lossy(&published.head).into_owned();
        let kept = StoredGlobal { global: global.clone(), path: snapshot.path.clone(), carried: None, head };
        // If the write fails, `make_next` has the difference read again as well.
        state.note_included(engine, &global);
        write(engine, state, kept, snapshot_writes(GLOBAL, &published)).await?;
        state.path.clone_from(&snapshot.path);
        engine.metrics.mints.inc();
    }
    state.minted = published.chain.clone();
    state.minted_status = Some(status(state));
    state.snapshot = published.latest.clone();
    state.global = global;
    Ok(published)
}

/// Stores the state with other writes, unless another node has changed it.
async fn write(
    engine: &Engine,
    state: &mut GlobalState,
    kept: StoredGlobal,
    (mut writes, mut conditions): (Vec<TableWrite>, Vec<Precondition>),
) -> Result<(), StoreError> {
    let table = table_of(engine);
    let (last_table, last) = state.stored.clone().unzip();
    let last_table = last_table.unwrap_or(table);
    // By the whole value: a node that lost its role in between must not extend the chain from an older state.
    conditions.push(Precondition { table: last_table, key: KEY.to_vec(), value: last });
    conditions.extend(state.lease.iter().filter_map(Lease::condition));
    if last_table != table {
        writes.push(TableWrite { table: last_table, key: KEY.to_vec(), value: None });
    }
    let (rows, has_list) = kept.writes(table, &state.difference)?;
    let row = rows.last().and_then(|row| row.value.clone());
    writes.extend(rows);
    let bytes: usize = writes.iter().filter_map(|write| write.value.as_ref()).map(Bytes::len).sum();
    engine.store.write(writes, conditions).await?;
    state.difference.on_written(has_list);
    state.written += bytes as u64;
    state.stored = row.map(|row| (table, row));
    Ok(())
}

async fn carry(engine: &Arc<Engine>, state: &mut GlobalState) -> Result<PublishedDocuments, StoreError> {
    let snapshot = state.snapshot.clone();
    let (published, global) = make(engine, state, move |global, chain, sources, now| {
        global.carry(chain, sources, &snapshot, now).map_err(|e| damaged(&e))
    })
    .await?;
    if engine.is_shared() {
        let head = String::from_utf8_lossy(&published.head).into_owned();
        let carried = CarriedLatest::new(state.minted.clone(), &state.snapshot, &published.latest);
        let (global, path) = (global.clone(), state.path.clone());
        let kept = StoredGlobal { global, path, carried: Some(carried), head };
        write(engine, state, kept, (Vec::new(), Vec::new())).await?;
    }
    state.note_included(engine, &global);
    state.global = global;
    Ok(published)
}

/// Builds a document apart from the threads that serve.
async fn make<F>(
    engine: &Arc<Engine>,
    state: &GlobalState,
    how: F,
) -> Result<(PublishedDocuments, GlobalChain), StoreError>
where
    F: FnOnce(
            &GlobalPublisher<'_>,
            &GlobalChain,
            &[(SourcePublisher<'_>, &DocumentChain)],
            jiff::Timestamp,
        ) -> Result<(PublishedDocuments, GlobalChain), StoreError>
        + Send
        + 'static,
{
    let engine = engine.clone();
    // A copy of the pointer, for the thread that builds.
    let sources = state.sources.clone();
    // A carry is built from the last snapshot, so the chain must be the one of that mint.
    let mut global = state.global.clone();
    // Of the current document, not of the last mint: readers compare `hash` with what they have.
    let (hash, generated_at) = (global.chain.hash, global.chain.generated_at);
    global.chain = state.minted.clone();
    (global.chain.hash, global.chain.generated_at) = (hash, generated_at);
    blocking(move || {
        // A name that a public feed had may be a private one's by now.
        let listed = |id: &FeedId| engine.feed(id.as_str()).filter(|feed| feed.is_listed());
        let feeds: Vec<_> = sources.keys().filter_map(listed).collect();
        let ttl_sec = ttl_sec(feeds.iter().cloned());
        let shown: Vec<(SourcePublisher<'_>, &DocumentChain)> = feeds
            .iter()
            .filter_map(|feed| Some((source_of(&engine, feed), sources.get(feed.id())?)))
            .collect();
        how(&GlobalPublisher { site: site(&engine), ttl_sec }, &global, &shown, engine.now())
    })
    .await?
}
