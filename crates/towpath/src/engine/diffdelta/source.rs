//! One source's chain: what a run mints or carries.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::diffdelta::collapse::{Delta, Window};
use towpath_proto::diffdelta::delta_item::{Rendered, Rendering};
use towpath_proto::diffdelta::publish::{Chain, Published, Source};
use towpath_store::{Limit, StoreError};

use super::Run;
use super::kept::Kept;
use crate::engine::{Engine, Feed, blocking};

/// How many changes are read from the log at a time.
const PAGE: Limit = Limit { items: 1000, bytes: 8 << 20 };

/// What a run published.
pub(super) struct Outcome {
    /// The chain from now on.
    pub(super) chain: Chain,
    /// The current `head.json`.
    pub(super) head: Bytes,
    /// The current `latest.json`.
    pub(super) latest: Bytes,
    /// Whether it told of changes.
    pub(super) minted: bool,
}

/// How often a run is taken in again because another node went on with the chain meanwhile.
const TRIES: usize = 10;

/// Takes a run into the chain: one mint for every window of changes since the last, or a carry; `None` where
/// there is nothing to tell. Whatever was minted lasts, and the global feed knows of it, before this returns.
pub(super) async fn run(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    run: &Run,
) -> Result<Option<Outcome>, StoreError> {
    for _ in 1..TRIES {
        match attempt(engine, feed, run).await {
            Err(StoreError::Condition) => {}
            done => return done,
        }
    }
    attempt(engine, feed, run).await
}

async fn attempt(engine: &Arc<Engine>, feed: &Arc<Feed>, run: &Run) -> Result<Option<Outcome>, StoreError> {
    let name = feed.id().as_str();
    let mut kept = Kept::load(engine.store.as_ref(), name).await?;
    let now = engine.now();
    let mut last = None;
    loop {
        let mut chain = kept.chain();
        run.apply(&mut chain.health, now);
        let (deltas, reached, more) = window(engine, feed, chain.minted_seq).await?;
        let first = chain.is_unborn() && run.is_success();
        if !deltas.is_empty() || first {
            let (published, rendered) = mint(engine, feed, chain, reached, deltas).await?;
            kept.mint(engine.store.as_ref(), feed, &published).await?;
            engine.metrics.mints.inc();
            engine.diffdelta.global.note(engine, feed.id(), published.chain.clone(), rendered).await?;
            last = Some(published);
        } else if reached > chain.minted_seq {
            kept.skip_to(engine.store.as_ref(), name, reached).await?;
        }
        if !more {
            break;
        }
    }
    let minted = last.is_some();
    if last.is_none() && run.is_told() {
        let published = carry(engine, feed, Some(run), kept, now).await?;
        engine.diffdelta.global.note(engine, feed.id(), published.chain.clone(), Vec::new()).await?;
        last = Some(published);
    }
    Ok(last.map(|Published { chain, head, latest, .. }| Outcome { chain, head, latest, minted }))
}

/// The deltas of the next window after a place of the log, the place that it reaches, and whether there is more.
async fn window(engine: &Engine, feed: &Feed, after: u64) -> Result<(Vec<Delta>, u64, bool), StoreError> {
    let mut window = Window::new();
    let mut reached = after;
    loop {
        let page = engine.store.read(feed.id(), reached, PAGE).await?;
        if page.is_empty() {
            return Ok((window.into_deltas(), reached, false));
        }
        for change in page {
            let earlier = match window.needs(&change) {
                Some(seq) => engine.store.change(feed.id(), seq).await?,
                None => None,
            };
            reached = change.seq;
            window.add(change, earlier);
            if window.is_full() {
                return Ok((window.into_deltas(), reached, true));
            }
        }
    }
}

async fn mint(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    chain: Chain,
    reached: u64,
    deltas: Vec<Delta>,
) -> Result<(Published, Vec<Rendered>), StoreError> {
    let (engine, feed) = (engine.clone(), feed.clone());
    blocking(move || {
        let risk = |item: &towpath_proto::Item| engine.scorer.score(item);
        let rendering =
            Rendering { site: &engine.site, source: feed.id(), lang: feed.config.lang(), risk: &risk };
        source(&engine, &feed).mint(&chain, reached, &deltas, &rendering, engine.now())
    })
    .await
}

/// Carries the chain to `now`, with what a run says of its source.
async fn carry(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    run: Option<&Run>,
    mut kept: Kept,
    now: Timestamp,
) -> Result<Published, StoreError> {
    let mut chain = kept.chain();
    if let Some(run) = run {
        run.apply(&mut chain.health, now);
    }
    let snapshot = kept.snapshot(engine.store.as_ref()).await?;
    let published = carried(engine, feed, chain.clone(), snapshot, now).await?;
    kept.carry(engine.store.as_ref(), feed.id().as_str(), (&chain, now), &published).await?;
    Ok(published)
}

async fn carried(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    chain: Chain,
    snapshot: Bytes,
    at: Timestamp,
) -> Result<Published, StoreError> {
    let (engine, feed) = (engine.clone(), feed.clone());
    let carried = blocking(move || source(&engine, &feed).carry(&chain, &snapshot, at)).await?;
    carried.map_err(|e| StoreError::Damaged(format!("a chain: {e}")))
}

/// The chain, `head.json` and `latest.json` as the last run left them, made again. A feed that never had a run
/// shows documents that say so.
pub(super) async fn current(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    kept: &Kept,
) -> Result<(Chain, Bytes, Bytes), StoreError> {
    let snapshot = kept.snapshot(engine.store.as_ref()).await?;
    let (chain, at) = match kept.before_carry() {
        Some(carry) => carry,
        None if kept.chain().is_unborn() && engine.is_shared() && !engine.is_tree => {
            return unborn(engine, feed).await;
        }
        None if kept.chain().is_unborn() => (kept.chain(), engine.now()),
        None => return Ok((kept.chain(), kept.head(), snapshot)),
    };
    let Published { chain, head, latest, .. } = carried(engine, feed, chain, snapshot, at).await?;
    Ok((chain, head, latest))
}

/// The same before a source's first run, where other nodes show it, too: the first that is asked says since when.
async fn unborn(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<(Chain, Bytes, Bytes), StoreError> {
    let name = feed.id().as_str();
    let now = engine.now();
    let kept = Kept::load(engine.store.as_ref(), name).await?;
    let Published { chain, head, latest, .. } = match carry(engine, feed, None, kept, now).await {
        Err(StoreError::Condition) => {
            let kept = Kept::load(engine.store.as_ref(), name).await?;
            return Box::pin(current(engine, feed, &kept)).await;
        }
        // Readers are answered whether the log takes writes or not.
        Err(StoreError::Unavailable { .. }) => {
            carried(engine, feed, Chain::default(), Bytes::new(), now).await?
        }
        carried => carried?,
    };
    Ok((chain, head, latest))
}

/// The feed as a publisher of documents.
pub(super) fn source<'a>(engine: &'a Engine, feed: &'a Feed) -> Source<'a> {
    Source { site: &engine.site, id: feed.id(), ttl_sec: feed.config.ttl.as_secs() }
}
