//! The task of paging: sealing and retention.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::engine::roles::Lease;
use crate::engine::work::share_thread;
use crate::engine::{Engine, Feed};
use crate::protocols::pages::log_range::report;
use crate::protocols::pages::state::Pages;
use crate::protocols::pages::{paging, retention};
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Shortest time between two rounds of sealing.
const SEAL_INTERVAL: Duration = Duration::from_millis(250);
/// Time until pages are sealed again after an error.
const RETRY: Duration = Duration::from_secs(2);
/// Name of sealing in the health of a feed.
const SEAL: &str = "seal pages";

/// Seals full pages after appends, and removes old pages, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    Pages::of(&engine).set_sealing(true);
    tokio::join!(seal(&engine, stop.clone()), retention::run(&engine, &lease, stop));
    // A single process keeps marking: its role never goes to another node.
    if engine.is_shared() {
        Pages::of(&engine).set_sealing(false);
        Pages::of(&engine).take_dirty();
    }
    engine.failures.hand_over(SEAL, |_| true);
    engine.failures.hand_over(retention::REMOVE, |_| true);
}

/// Records the outcome of sealing a feed's pages. After an error they are sealed again, without a further append.
fn sealed(engine: &Arc<Engine>, feed: &Feed, done: Result<(), StoreError>) {
    if done.as_ref().is_err_and(|error| !error.is_closed()) {
        let (engine, id) = (engine.clone(), feed.id().clone());
        tokio::spawn(
            async move {
                tokio::time::sleep(RETRY).await;
                Pages::of(&engine).mark_dirty(&id);
            }
            .boxed(),
        );
    }
    report(engine, feed, SEAL, done);
}

async fn seal(engine: &Arc<Engine>, stop: Stop) {
    // Appends that no task sealed: those of another process, or just before a crash.
    for feed in engine.feeds() {
        share_thread().await;
        sealed(engine, &feed, paging::recover(engine, &feed).await);
        // Checked for each feed: a large log may take long.
        if *stop.borrow() {
            return;
        }
    }
    loop {
        tokio::select! {
            () = Pages::of(engine).feed_dirty.notified() => {}
            () = stopped(&stop) => return,
        }
        for id in Pages::of(engine).take_dirty() {
            if let Some(feed) = engine.feed(id.as_str()) {
                sealed(engine, &feed, paging::catch_up(engine, &feed).await);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(SEAL_INTERVAL) => {}
            () = stopped(&stop) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::{FeedId, Item, NewChange};
    use towpath_store::Expected;

    use super::*;
    use crate::protocols::failing_store;
    use crate::protocols::pages::table;

    const CONFIG: &str = "[[feed]]\nid = \"notes\"\npage_items = 1\n";

    async fn append(engine: &Engine, items: usize) {
        let changes = (0..items).map(|n| NewChange::put(Item::new(n.to_string()))).collect();
        engine.store.append(&FeedId::new("notes").unwrap(), Expected::Any, changes).await.unwrap();
    }

    /// Without a further append, a feed would be degraded and its full pages unsealed for as long as nobody publishes.
    #[tokio::test(start_paused = true)]
    async fn pages_that_could_not_be_sealed_are_sealed_again() {
        for fault_is_a_read in [true, false] {
            let (engine, store) = failing_store::engine(CONFIG).await;
            let (stopper, stop) = tokio::sync::watch::channel(false);
            let running = tokio::spawn(run(engine.clone(), Lease::alone("upkeep"), stop));
            tokio::time::sleep(Duration::from_millis(10)).await;
            let fault = if fault_is_a_read { &store.read_fault } else { &store.write_fault };
            *fault.lock() = Some("replication/notes/");
            append(&engine, 9).await;
            let id = FeedId::new("notes").unwrap();
            let is_sealed = || async {
                !table::sealed_pages_from(store.as_ref(), &id, 1).await.unwrap().is_empty()
                    && engine.failures.of("notes").is_none()
            };
            let sealed = async {
                while !is_sealed().await {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            let done = tokio::time::timeout(Duration::from_secs(60), sealed).await;
            assert!(done.is_ok() && fault.lock().is_none(), "a read failed: {fault_is_a_read}");
            stopper.send(true).unwrap();
            running.await.unwrap();
        }
    }

    /// Another node has the role from then on, so the failures of this one say nothing.
    #[tokio::test(start_paused = true)]
    async fn failures_end_with_the_role() {
        let (engine, store) = failing_store::engine(CONFIG).await;
        let (stopper, stop) = tokio::sync::watch::channel(false);
        let running = tokio::spawn(run(engine.clone(), Lease::alone("upkeep"), stop));
        // Before the append: else the task seals twice, and the second time ends the failure.
        tokio::time::sleep(Duration::from_millis(10)).await;
        *store.write_fault.lock() = Some("replication/notes/");
        append(&engine, 9).await;
        let failed = async {
            while engine.failures.of("notes").is_none() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), failed).await.unwrap();
        stopper.send(true).unwrap();
        running.await.unwrap();
        assert_eq!(engine.failures.of("notes"), None);
    }
}
