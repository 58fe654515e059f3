//! What an export asks of the chains: how far each has come, and its documents as a site at another address has
//! them.

use std::sync::Arc;

use bytes::Bytes;
use towpath_proto::diffdelta::headers::{self, Resource};
use towpath_proto::diffdelta::wire::{GLOBAL, Head, Snapshot};
use towpath_store::StoreError;

use super::kept::{self, Kept};
use super::served::made;
use super::source;
use crate::engine::{Engine, Feed};
use crate::server::document::{Document, Valid};

/// How far a chain has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// How many snapshots were minted.
    pub(crate) snapshots: u64,
    /// The place in the feed's log up to which changes are minted.
    pub(crate) minted_seq: u64,
}

/// `head.json` and `latest.json`, which fit each other.
pub(crate) struct Current {
    pub(crate) head: Document,
    pub(crate) latest: Document,
}

/// How far a feed's chain has come.
pub(crate) async fn progress(engine: &Engine, feed: &Feed) -> Result<Progress, StoreError> {
    let chain = Kept::load(engine.store.as_ref(), feed.id().as_str()).await?.chain();
    Ok(Progress { snapshots: chain.snapshots, minted_seq: chain.minted_seq })
}

/// A feed's current documents.
pub(crate) async fn current(engine: &Arc<Engine>, feed: &Arc<Feed>) -> Result<Current, StoreError> {
    let _alone = feed.publishing.lock().await;
    let name = feed.id().as_str();
    let kept = Kept::load(engine.store.as_ref(), name).await?;
    let (chain, head, latest) = source::current(engine, feed, &kept).await?;
    Ok(documents(engine, name, chain.cursor, &head, latest))
}

/// The global feed's current documents; none before its first run.
pub(crate) async fn global(engine: &Arc<Engine>) -> Option<Current> {
    let current = match engine.is_shared() {
        true => super::global::shared(engine).await.ok().flatten(),
        false => engine.diffdelta.global.current().await,
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
) -> Current {
    let head = head_of_site(engine, name, head);
    let make = |resource, body| made(resource, cursor, body, Valid::UntilReplaced);
    Current { head: make(Resource::Head, head), latest: make(Resource::Latest, latest) }
}

/// A head that was made for one site, at another one: the link to `latest.json` has the site's path in it.
fn head_of_site(engine: &Engine, name: &str, head: &Bytes) -> Bytes {
    let Ok(mut parsed) = serde_json::from_slice::<Head>(head) else { return head.clone() };
    let source = (name != GLOBAL).then_some(name);
    let latest_url = engine.site.link(&headers::paths(source, "latest.json")[0]);
    if parsed.latest_url == latest_url {
        return head.clone();
    }
    parsed.latest_url = latest_url;
    serde_json::to_vec(&parsed).map_or_else(|_| head.clone(), Bytes::from)
}

/// Every snapshot of a chain, oldest first, beginning after so many, with links as the site has them.
pub(crate) async fn snapshots(engine: &Engine, name: &str, after: u64) -> Result<Vec<Snapshot>, StoreError> {
    let mut all = kept::index(engine.store.as_ref(), name, after).await?;
    for snapshot in &mut all {
        snapshot.url = engine.site.link(path(&snapshot.url));
    }
    Ok(all)
}

/// A snapshot's path, without what the site has before it.
pub(crate) fn path(url: &str) -> &str {
    url.find("/archive/").map_or(url, |at| &url[at..])
}
