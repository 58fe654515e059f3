//! Retention of pages: "A prev link may be removed from an older page as part of a gradual cleanup process."

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use towpath_proto::replication::pages::Retention;
use towpath_store::{Store, Table, TableWrite};

use crate::config::RetentionConfig;
use crate::engine::roles::{Lease, conditions};
use crate::engine::{Engine, Feed, json_record};
use crate::protocols::log_retention;
use crate::protocols::pages::cleanup::{notify_removed, set_cleanup};
use crate::protocols::pages::log_range::report;
use crate::protocols::pages::table::{self, RECORDS, RetentionRecord};
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Longest and shortest time between two rounds.
const LONGEST: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_millis(200);

/// Name of the removal in the health of a feed.
pub(super) const REMOVE: &str = "remove old pages";

/// Removes pages that are too old or too many, feed by feed, until `stop` turns true.
pub(crate) async fn run(engine: &Arc<Engine>, lease: &Lease, stop: Stop) {
    let mut changes = engine.feed_changes();
    while !*stop.borrow() {
        changes.mark_unchanged();
        let feeds: Vec<(Arc<Feed>, RetentionConfig)> = engine
            .feeds()
            .into_iter()
            .filter_map(|feed| Some((feed.clone(), feed.config.retention?)))
            .collect();
        let times = feeds
            .iter()
            .flat_map(|(feed, retention)| [Some(retention.grace), retention.age, feed.config.log.keep]);
        let Some(shortest) = times.flatten().min() else {
            tokio::select! {
                _ = changes.changed() => continue,
                () = stopped(&stop) => return,
            }
        };
        // A quarter, so that a page outlives its time by no more than that.
        let wait = (shortest / 4).clamp(SHORTEST, LONGEST);
        for (feed, retention) in &feeds {
            report(engine, feed, REMOVE, remove_old(engine, lease, feed, *retention, engine.now()).await);
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = changes.changed() => {}
            () = stopped(&stop) => {}
        }
    }
}

async fn remove_old(
    engine: &Engine,
    lease: &Lease,
    feed: &Feed,
    config: RetentionConfig,
    now: Timestamp,
) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    let key = table::retention_key(feed.id());
    let before: RetentionRecord = json_record::load(store, &key).await?.unwrap_or_default();
    let sealed = table::sealed_pages_from(store, feed.id(), before.cleanup.first_page).await?;
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let retention = Retention {
        age: config.age.map(seconds),
        bytes: config.bytes,
        up_to: Some(log_retention::due(engine, feed, now).await?),
        grace: seconds(config.grace),
    };
    let mut after = before.clone();
    after.cleanup = retention.decide(now, &sealed, before.cleanup, &mut after.pending);
    if after == before {
        // A crash may have come between the record of a removal and the removal itself.
        return remove_records(store, lease, feed, before.cleanup.gone_below).await;
    }
    // Stored before it takes effect: a removed page must not come back after a crash.
    store.write(vec![json_record::put(key, &after)], conditions(lease)).await?;
    // Before the listeners: a document that is built after they dropped it has the new links.
    set_cleanup(feed, after.cleanup);
    notify_removed(engine, feed, before.cleanup, after.cleanup);
    // Records last, because readers are told "gone" by the cleanup state already.
    remove_records(store, lease, feed, after.cleanup.gone_below).await
}

/// Removes the records of all pages below a number.
async fn remove_records(store: &dyn Store, lease: &Lease, feed: &Feed, below: u64) -> Result<(), StoreError> {
    let end = table::page_key(feed.id(), below);
    loop {
        let records = store.scan(Table::Chains, table::prefix(&end), None, RECORDS).await?;
        let keys = records.into_iter().map(|(key, _)| key.to_vec()).filter(|key| *key < end);
        let writes: Vec<TableWrite> = keys.map(json_record::remove).collect();
        if writes.is_empty() {
            return Ok(());
        }
        store.write(writes, conditions(lease)).await?;
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::{FeedId, Item, NewChange};
    use towpath_store::Expected;

    use super::*;
    use crate::protocols::failing_store;
    use crate::protocols::pages::paging;

    /// The process dies between the record of a removal and the removal of the pages' records.
    #[tokio::test]
    async fn a_crash_in_retention_leaves_no_records() {
        let config =
            "[[feed]]\nid = \"notes\"\npage_items = 1\n[feed.retention]\nage = \"1s\"\ngrace = \"0s\"\n";
        let (engine, store) = failing_store::engine(config).await;
        let (feed, lease) = (engine.feed("notes").unwrap(), Lease::alone("upkeep"));
        let id = FeedId::new("notes").unwrap();
        let changes = (0..9).map(|n| NewChange::put(Item::new(n.to_string()))).collect();
        store.append(&id, Expected::Any, changes).await.unwrap();
        paging::catch_up(&engine, &feed).await.unwrap();
        let sealed = || async { table::sealed_pages_from(store.as_ref(), &id, 1).await.unwrap().len() };
        let before = sealed().await;
        assert!(before > 5, "{before}");

        let retention = feed.config.retention.unwrap();
        let hour = |hours: i64| engine.now() + jiff::SignedDuration::from_hours(hours);
        *store.write_fault.lock() = Some("replication/notes/page/");
        let mut round = 0;
        // A round unlinks the pages, and a later one removes them.
        while remove_old(&engine, &lease, &feed, retention, hour(1 + round)).await.is_ok() {
            round += 1;
            assert!(round < 9, "no page was removed");
        }
        assert_eq!(sealed().await, before, "the crash came before");
        // Nothing is left to decide, and the records go all the same.
        remove_old(&engine, &lease, &feed, retention, hour(1 + round)).await.unwrap();
        assert!(sealed().await <= 1, "{} of {before} records are left", sealed().await);
    }
}
