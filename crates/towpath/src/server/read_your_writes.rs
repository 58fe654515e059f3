//! Read your writes in a cluster: the position of an append in its answer, reads that wait for a position, and the age
//! of the replica.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{sleep, timeout};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;

use crate::document::route_error::RouteError;
use crate::engine::Engine;

/// Header with a position: in the answer to an append the feed's last one, in a read the one that it must include.
pub(super) const POSITION: HeaderName = HeaderName::from_static("towpath-position");
/// Header with the replica's age in seconds, if it is not current; `unknown` since a start without the cluster.
pub(super) const AGE: HeaderName = HeaderName::from_static("towpath-replica-age");

/// Longest wait of a read for its position.
// A replica is usually behind by a round trip. After this, another node is the better choice.
const POSITION_WAIT: Duration = Duration::from_secs(5);
/// Time in which the hooks of an append usually end.
const HOOK_TIME: Duration = Duration::from_millis(1);

/// Sets the position of an append.
pub(super) fn set_position(headers: &mut HeaderMap, seq: Seq) {
    headers.insert(POSITION, seq.into());
}

/// Sets the replica's age, unless the replica is current.
pub(super) fn set_age(engine: &Engine, headers: &mut HeaderMap) {
    let age = engine.replica_age().map(|age| age.map_or(HeaderValue::from_static("unknown"), Into::into));
    age.map(|age| headers.insert(AGE, age));
}

/// Waits until this node's replica includes the position that the request names.
pub(super) async fn wait(engine: &Arc<Engine>, feed: &str, request: &HeaderMap) -> Result<(), RouteError> {
    let Some(value) = request.get(POSITION) else { return Ok(()) };
    let wanted: Option<Seq> = value.to_str().ok().and_then(|value| value.trim().parse().ok());
    let wanted = wanted.ok_or_else(|| RouteError::bad_request("Towpath-Position is not a number"))?;
    let known = engine.feed(feed);
    let has = |seq: Seq| seq >= wanted;
    // Zero is before the first append. Every replica has it, and `wanted - 1` below cannot underflow.
    if wanted == 0 || known.as_ref().is_some_and(|known| has(known.head.load(Ordering::Acquire))) {
        return Ok(());
    }
    // Nothing creates it, so nobody waits for it. And a wait would tell a log that is not served from none.
    if known.is_none() && !engine.server.load().create_feeds {
        return Ok(());
    }
    // Another node may have created the feed by that append.
    let log = match &known {
        Some(known) => known.log().clone(),
        None => FeedId::new(feed).map_err(|e| RouteError::not_found(e.to_string()))?,
    };
    let behind = || RouteError::behind(format!("this node does not have position {wanted} of {log} yet"));
    let reached = async {
        engine.store.wait(&log, wanted - 1).await?;
        head_moved(engine, feed, wanted).await;
        Ok(())
    };
    timeout(POSITION_WAIT, reached).await.unwrap_or_else(|_| Err(behind()))
}

/// Waits until the feed's head includes a position that the store has.
///
/// The store shows an append a moment before its hooks move the head. Until then, documents that were built before the
/// append still count as current.
async fn head_moved(engine: &Engine, feed: &str, wanted: Seq) {
    loop {
        match engine.feed(feed) {
            Some(known) if known.head.load(Ordering::Acquire) >= wanted => return,
            // Nothing creates it here: the request ends with 404.
            None if !engine.server.load().create_feeds => return,
            _ => sleep(HOOK_TIME).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::{Item, NewChange};
    use towpath_store::memory::MemoryStore;
    use towpath_store::{Expected, Store};

    use super::*;
    use crate::config::Config;
    use crate::engine::Hooks;

    /// Appends once, with a hook before the engine's that takes a while, and reads with the append's position meanwhile.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_read_waits_for_the_hooks_of_its_append() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(jiff::Timestamp::now)));
        let slow = Duration::from_millis(200);
        store.on_append(Arc::new(move |_, _| std::thread::sleep(slow)));
        let config =
            Config::parse("[[feed]]\nid = \"news\"\n", std::path::Path::new("towpath.toml")).unwrap();
        let (engine, _) = Engine::open(config, store.clone()).await.unwrap();
        engine.listen(Hooks { before_head: &[], after_head: &[], table_write: &[], feed_removed: &[] });
        let feed = FeedId::new("news").unwrap();
        let item = Item { title: Some("One".into()), ..Item::new("one") };
        let append = tokio::spawn({
            let (store, feed) = (store.clone(), feed.clone());
            async move { store.append(&feed, Expected::Any, vec![NewChange::put(item)]).await }
        });
        while store.head(&feed).await.unwrap().seq == 0 {
            sleep(HOOK_TIME).await;
        }
        wait(&engine, "news", &HeaderMap::from_iter([(POSITION, HeaderValue::from_static("1"))]))
            .await
            .unwrap();
        assert_eq!(engine.feed("news").unwrap().head.load(Ordering::Acquire), 1);
        append.await.unwrap().unwrap();
    }
}
