//! The chain of one source: a run mints new documents, or carries the last ones to its time.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;
use jiff::Timestamp;
use towpath_proto::diffdelta::collapse::{Delta, DeltaWindow};
use towpath_proto::diffdelta::delta_item::{ItemRenderer, RenderedItem};
use towpath_proto::diffdelta::publish::{DocumentChain, PublishedDocuments, Repeats};
use towpath_store::ReadLimit;

use crate::engine::feed_about::feed_about;
use crate::engine::work::blocking;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::run::Run;
use crate::protocols::diffdelta::site::{site, source};
use crate::protocols::diffdelta::state::DiffDelta;
use crate::protocols::diffdelta::stored::StoredChain;
use crate::store_error::StoreError;

/// Fewest deltas that are worth a core of their own.
const RENDERED_PART: usize = 200;
/// Limits of one read of the log.
const PAGE: ReadLimit = ReadLimit { items: 1000, bytes: 8 << 20 };

/// Result of a run.
pub(crate) enum SourceRun {
    /// Documents were published.
    Published(PublishedRun),
    /// There was nothing to publish. The chain is as it is stored.
    Unchanged(DocumentChain),
}

/// Documents that a run published.
pub(crate) struct PublishedRun {
    /// The chain after the run.
    pub(crate) chain: DocumentChain,
    /// The current `head.json`.
    pub(crate) head: Bytes,
    /// The current `latest.json`.
    pub(crate) latest: Bytes,
    /// True if the documents hold new changes.
    pub(crate) minted: bool,
    /// Bytes of the changes of earlier mints in new documents.
    pub(crate) repeated_bytes: usize,
}

/// Attempts to add a run to the chain while other nodes write it.
const TRIES: usize = 10;

/// Adds a run to the chain: one mint for each window of changes since the last mint, or a carry. Mints are durable, and
/// known to the global feed, before this returns.
pub(crate) async fn run(engine: &Arc<Engine>, feed: &Arc<Feed>, run: &Run) -> Result<SourceRun, StoreError> {
    for _ in 1..TRIES {
        match attempt(engine, feed, run).await {
            Err(error) if error.is_conflict() => {}
            done => return done,
        }
    }
    attempt(engine, feed, run).await
}

async fn attempt(engine: &Arc<Engine>, feed: &Arc<Feed>, run: &Run) -> Result<SourceRun, StoreError> {
    let name = feed.id().as_str();
    // Read in each attempt: a conflict means that it has changed.
    let mut stored = StoredChain::load(engine.store.as_ref(), name).await?;
    let now = engine.now();
    let mut last = None;
    loop {
        let mut chain = stored.chain();
        run.apply(&mut chain.health, now);
        let (deltas, reached, more) = window(engine, feed, chain.minted_seq).await?;
        // The first success mints even without items: readers then know that the source works.
        let first = chain.is_unpublished() && run.is_success();
        if !deltas.is_empty() || first {
            let before = last_snapshot(engine, feed, &stored).await?;
            let (published, rendered) = mint(engine, feed, (chain, before), reached, deltas).await?;
            // The store first: the global feed must not tell of a mint that a crash undoes.
            stored.mint(engine.store.as_ref(), feed, &published).await?;
            engine.metrics.mints.inc();
            DiffDelta::of(engine)
                .global
                .add_run(engine, feed.id(), published.chain.clone(), Some(rendered))
                .await?;
            last = Some(published);
        } else if reached > chain.minted_seq {
            // Changes that cancel each other mint nothing, but must not be read again in each run.
            stored.skip_to(engine.store.as_ref(), name, reached).await?;
        }
        if !more {
            break;
        }
    }
    let minted = last.is_some();
    // Section 5 does not let an error wait.
    let stays = run.is_success() && stored.shows_fresh_mint(feed.config.ttl.as_secs(), now);
    let published = match last {
        Some(published) => published,
        None if run.is_shown() && !stays => {
            let published = carry(engine, feed, Some(run), stored, now).await?;
            DiffDelta::of(engine).global.add_run(engine, feed.id(), published.chain.clone(), None).await?;
            published
        }
        None => {
            let mut chain = stored.chain();
            if run.is_shown() {
                run.apply(&mut chain.health, now);
                // The health of the source is news although its documents stay.
                DiffDelta::of(engine).global.add_run(engine, feed.id(), chain.clone(), None).await?;
            }
            return Ok(SourceRun::Unchanged(chain));
        }
    };
    let PublishedDocuments { chain, head, latest, repeated_bytes, .. } = published;
    Ok(SourceRun::Published(PublishedRun { chain, head, latest, minted, repeated_bytes }))
}

/// Returns the deltas of the next window after a position, the position that it reaches, and whether there is more.
async fn window(engine: &Engine, feed: &Feed, after: u64) -> Result<(Vec<Delta>, u64, bool), StoreError> {
    let mut window = DeltaWindow::new();
    let mut reached = after;
    loop {
        let page = engine.store.read(feed.id(), reached, PAGE).await?;
        if page.is_empty() {
            return Ok((window.into_deltas(), reached, false));
        }
        for change in page {
            let earlier = match window.missing_version(&change) {
                Some(seq) => engine.store.change(feed.id(), seq).await?,
                None => None,
            };
            reached = change.seq;
            window.add(change, earlier);
            // The rest becomes the next link of the chain.
            if window.is_full() {
                return Ok((window.into_deltas(), reached, true));
            }
        }
    }
}

/// Returns the snapshot whose changes the next mint repeats; empty if it repeats none.
async fn last_snapshot(engine: &Engine, feed: &Feed, stored: &StoredChain) -> Result<Bytes, StoreError> {
    if !stored.chain().has_repeats(feed.config.ttl.as_secs(), engine.now()) {
        return Ok(Bytes::new());
    }
    match stored.snapshot(engine.store.as_ref()).await {
        // A lost snapshot must not keep later changes from being published.
        Err(StoreError::Damaged(_)) => Ok(Bytes::new()),
        snapshot => snapshot,
    }
}

async fn mint(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    (chain, before): (DocumentChain, Bytes),
    reached: u64,
    deltas: Vec<Delta>,
) -> Result<(PublishedDocuments, Vec<RenderedItem>), StoreError> {
    let lang = feed_about(engine, feed).await?.lang;
    let lang: Arc<str> = lang.as_deref().unwrap_or("und").into();
    let deltas = Arc::new(deltas);
    let rendered = match deltas.len() < 2 * RENDERED_PART {
        true => None,
        false => Some(render_in_parts(engine, feed, &lang, &deltas).await?),
    };
    let (engine, feed) = (engine.clone(), feed.clone());
    blocking(move || {
        let rendered = rendered.unwrap_or_else(|| render(&engine, &feed, &lang, &deltas));
        let (source, now) = (source(&engine, &feed), engine.now());
        let repeats = Repeats::of(&chain, source.ttl_sec, &before, now);
        (source.mint(&chain, reached, (&deltas, &rendered), repeats, now), rendered)
    })
    .await
}

/// Renders many deltas, a part on each core: most of a long mint is rendering.
async fn render_in_parts(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    lang: &Arc<str>,
    deltas: &Arc<Vec<Delta>>,
) -> Result<Vec<RenderedItem>, StoreError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let size = deltas.len().div_ceil(cores).max(RENDERED_PART);
    let parts = (0..deltas.len()).step_by(size).map(|begin| {
        let (engine, feed) = (engine.clone(), feed.clone());
        let (lang, deltas) = (lang.clone(), deltas.clone());
        blocking(move || render(&engine, &feed, &lang, &deltas[begin..deltas.len().min(begin + size)]))
    });
    Ok(try_join_all(parts).await?.into_iter().flatten().collect())
}

fn render(engine: &Engine, feed: &Feed, lang: &str, deltas: &[Delta]) -> Vec<RenderedItem> {
    let risk = |item: &towpath_proto::Item| engine.scorer.score(item);
    ItemRenderer { site: site(engine), source: feed.id(), lang, risk: &risk }.render(deltas)
}

/// Carries the chain to `now`, with the run's effect on the source's health.
async fn carry(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    run: Option<&Run>,
    mut stored: StoredChain,
    now: Timestamp,
) -> Result<PublishedDocuments, StoreError> {
    let mut chain = stored.chain();
    if let Some(run) = run {
        run.apply(&mut chain.health, now);
    }
    let snapshot = stored.snapshot(engine.store.as_ref()).await?;
    let published = carried(engine, feed, chain.clone(), snapshot, now).await?;
    stored.carry(engine.store.as_ref(), feed.id().as_str(), (&chain, now), &published).await?;
    Ok(published)
}

async fn carried(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    chain: DocumentChain,
    snapshot: Bytes,
    at: Timestamp,
) -> Result<PublishedDocuments, StoreError> {
    let (engine, feed) = (engine.clone(), feed.clone());
    let carried = blocking(move || source(&engine, &feed).carry(&chain, &snapshot, at)).await?;
    carried.map_err(|e| StoreError::Damaged(format!("a chain: {e}")))
}

/// Returns the chain, `head.json` and `latest.json` of the last run, built again. Before the first run the documents say
/// so.
pub(crate) async fn current(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
    stored: &StoredChain,
) -> Result<(DocumentChain, Bytes, Bytes), StoreError> {
    let snapshot = stored.snapshot(engine.store.as_ref()).await?;
    // Carried again from the stored time, so the bytes equal those of the last run.
    let (chain, at) = match stored.before_carry() {
        Some(carry) => carry,
        None if stored.chain().is_unpublished() && engine.is_shared() && !engine.is_tree => {
            return unpublished(engine, feed).await;
        }
        None if stored.chain().is_unpublished() => (stored.chain(), engine.now()),
        None => return Ok((stored.chain(), stored.head(), snapshot)),
    };
    let PublishedDocuments { chain, head, latest, .. } = carried(engine, feed, chain, snapshot, at).await?;
    Ok((chain, head, latest))
}

/// Returns the documents before a source's first run in a cluster. The first node that needs them stores their time, so
/// that every node serves the same bytes.
async fn unpublished(
    engine: &Arc<Engine>,
    feed: &Arc<Feed>,
) -> Result<(DocumentChain, Bytes, Bytes), StoreError> {
    let name = feed.id().as_str();
    let now = engine.now();
    let stored = StoredChain::load(engine.store.as_ref(), name).await?;
    let PublishedDocuments { chain, head, latest, .. } = match carry(engine, feed, None, stored, now).await {
        Err(error) if error.is_conflict() => {
            let stored = StoredChain::load(engine.store.as_ref(), name).await?;
            return Box::pin(current(engine, feed, &stored)).await;
        }
        // Readers get an answer even if the log takes no writes.
        Err(error) if error.retry_after().is_some() => {
            carried(engine, feed, DocumentChain::default(), Bytes::new(), now).await?
        }
        carried => carried?,
    };
    Ok((chain, head, latest))
}
