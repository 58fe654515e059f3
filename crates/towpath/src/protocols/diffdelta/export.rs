//! Chains for a static tree: progress of each chain, and its documents with the addresses of another site.

use std::sync::Arc;

use bytes::Bytes;
use towpath_proto::diffdelta::headers::{self, Resource};
use towpath_proto::diffdelta::wire::{GLOBAL, HeadDocument, SnapshotEntry};

use crate::document::prebuilt::{Document, Valid};
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::documents::{archive_path, make};
use crate::protocols::diffdelta::site::site;
use crate::protocols::diffdelta::state::DiffDelta;
use crate::protocols::diffdelta::stored::{StoredChain, snapshot_index};
use crate::protocols::diffdelta::{global_stored, source_chain};
use crate::store_error::StoreError;

/// Progress of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainProgress {
    /// Number of minted snapshots.
    pub(crate) snapshots: u64,
    /// Last position of the log whose change is minted.
    pub(crate) minted_seq: u64,
}

/// `head.json` and `latest.json` of the same moment.
pub(crate) struct ExportedDocuments {
    pub(crate) head: Document,
    pub(crate) latest: Document,
}

/// Returns the progress of a feed's chain.
pub(crate) async fn progress(engine: &Engine, feed: &Feed) -> Result<ChainProgress, StoreError> {
    let chain = StoredChain::load(engine.store.as_ref(), feed.id().as_str()).await?.chain();
    Ok(ChainProgress { snapshots: chain.snapshots, minted_seq: chain.minted_seq })
}

/// Returns a feed's current documents.
pub(crate) async fn current(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<ExportedDocuments, StoreError> {
    let _chain = DiffDelta::chain_lock(feed).lock().await;
    let name = feed.id().as_str();
    let stored = StoredChain::load(engine.store.as_ref(), name).await?;
    let (chain, head, latest) = source_chain::current(engine, feed, &stored).await?;
    Ok(documents(engine, name, chain.cursor, &head, latest))
}

/// Returns the global feed's current documents; none before its first run.
pub(crate) async fn current_global(engine: &Arc<Engine>) -> Option<ExportedDocuments> {
    let current = match engine.is_shared() {
        true => global_stored::load_shared(engine).await.ok().flatten(),
        false => DiffDelta::of(engine).global.current().await,
    };
    let (chain, head, latest) = current?;
    Some(documents(engine, GLOBAL, chain.cursor, &head, latest))
}

fn documents(
    engine: &Engine,
    name: &str,
    cursor: towpath_proto::diffdelta::Cursor,
    head: &Bytes,
    latest: Bytes,
) -> ExportedDocuments {
    let head = head_of_site(engine, name, head);
    let make = |resource, body| make(resource, cursor, body, Valid::UntilReplaced);
    ExportedDocuments { head: make(Resource::Head, head), latest: make(Resource::Latest, latest) }
}

/// Rewrites a `head.json` for another site: its link to `latest.json` contains the site's path.
fn head_of_site(engine: &Engine, name: &str, head: &Bytes) -> Bytes {
    let Ok(mut parsed) = serde_json::from_slice::<HeadDocument>(head) else { return head.clone() };
    let source = (name != GLOBAL).then_some(name);
    let latest_url = site(engine).link(&headers::paths(source, "latest.json")[0]);
    if parsed.latest_url == latest_url {
        return head.clone();
    }
    parsed.latest_url = latest_url;
    serde_json::to_vec(&parsed).map_or_else(|_| head.clone(), Bytes::from)
}

/// Returns the snapshots of a chain after the first `after`, oldest first, with the site's links.
pub(crate) async fn snapshots(
    engine: &Engine,
    name: &str,
    after: u64,
) -> Result<Vec<SnapshotEntry>, StoreError> {
    let mut all = snapshot_index(engine.store.as_ref(), name, after).await?;
    for snapshot in &mut all {
        snapshot.url = site(engine).link(archive_path(&snapshot.url));
    }
    Ok(all)
}
