//! Publishing a source's run: its chain, its documents and the global feed.

use std::sync::Arc;

use towpath_proto::diffdelta::publish::{DocumentChain, wait_after_mint};
use towpath_proto::diffdelta::wire::GLOBAL;

use crate::engine::work::run_detached;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::documents;
use crate::protocols::diffdelta::run::Run;
use crate::protocols::diffdelta::source_chain::{self, SourceRun};
use crate::protocols::diffdelta::state::DiffDelta;
use crate::protocols::sup::Sup;
use crate::store_error::StoreError;

/// Name of publishing in the health of a feed.
pub(crate) const PUBLISH: &str = "publish its DiffDelta documents";
/// Name of publishing the global feed in its health.
pub(super) const PUBLISH_GLOBAL: &str = "publish the global feed";

/// Adds a run of a source to its chain, and to the global feed. It does so to the end, also if this future is dropped.
///
/// # Errors
///
/// [`StoreError`] if the chain cannot be read or written. It is counted among the failures of the feed.
pub async fn publish(engine: &Arc<Engine>, feed: &Arc<Feed>, run: Run) -> Result<(), StoreError> {
    let (at, of) = (engine.clone(), feed.clone());
    // Requests publish as well while a server starts, and their clients may go away.
    let publishing = async move {
        let published = publish_run(&at, &of, run).await;
        at.failures.record(of.id().as_str(), PUBLISH, &published);
        published
    };
    run_detached(engine, publishing).await?
}

/// Publishes the next document of the global feed, and records in its health if it failed. Returns the bytes written.
pub(super) async fn publish_global(engine: &Arc<Engine>) -> Result<u64, StoreError> {
    let done = DiffDelta::of(engine).global.run(engine).await;
    engine.failures.record(GLOBAL, PUBLISH_GLOBAL, &done);
    done
}

async fn publish_run(engine: &Arc<Engine>, feed: &Arc<Feed>, run: Run) -> Result<(), StoreError> {
    let _chain = DiffDelta::chain_lock(feed).lock().await;
    let name = feed.id().as_str();
    let outcome = source_chain::run(engine, feed, &run).await;
    DiffDelta::of(engine).count_write(name);
    if outcome.is_err() {
        // The chain may be written although the run failed later, and a retry then has nothing left to publish.
        documents::forget(engine, name);
    }
    let published = match outcome? {
        SourceRun::Published(published) => published,
        SourceRun::Unchanged(chain) => return show_stored(engine, feed, chain).await,
    };
    if published.minted {
        let wait = wait_after_mint(published.repeated_bytes, feed.config.ttl.as_secs());
        DiffDelta::of(engine).pause_minting(feed.id(), wait);
    }
    // In a cluster every node makes its documents from the stored chain, the publishing node too.
    if engine.is_shared() {
        return Ok(());
    }
    let minted = published.minted.then_some(published.chain.minted_seq);
    documents::put(engine, name, &published.chain, published.head, published.latest);
    // After the document is in the cache: a reader sent by SUP must find it.
    if let Some(seq) = minted {
        Sup::of(engine).on_late_document(feed, seq, engine.now());
    }
    Ok(())
}

/// Brings the cache and the global feed to the stored chain: a mint whose write seemed to have failed may be in it, and
/// then the retry has nothing left to publish.
async fn show_stored(engine: &Arc<Engine>, feed: &Feed, chain: DocumentChain) -> Result<(), StoreError> {
    documents::forget_others(engine, feed.id().as_str(), chain.cursor);
    let seq = chain.minted_seq;
    if DiffDelta::of(engine).global.catch_up(engine, feed.id(), chain).await? {
        Sup::of(engine).on_late_document(feed, seq, engine.now());
    }
    Ok(())
}
