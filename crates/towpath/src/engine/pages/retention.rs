//! "A prev link may be removed from an older page as part of a gradual cleanup process."

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use towpath_proto::replication::pages::Retention;
use towpath_store::{StoreError, Write};

use super::report;
use super::table::{self, RECORDS, Tidied};
use crate::config::RetentionConfig;
use crate::engine::record;
use crate::engine::replica::forget_pages;
use crate::engine::roles::{Lease, conditions};
use crate::engine::{Engine, Feed};
use crate::stop::{Stop, stopped};

/// The longest and the shortest time between two looks.
const LONGEST: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_millis(200);

/// Lets go what is too old or too much, feed by feed, until `stop` turns true.
pub(super) async fn run(engine: &Arc<Engine>, lease: &Lease, stop: Stop) {
    let feeds: Vec<(Arc<Feed>, RetentionConfig)> =
        engine.feeds().into_iter().filter_map(|feed| Some((feed.clone(), feed.config.retention?))).collect();
    let times = feeds.iter().flat_map(|(_, retention)| [Some(retention.grace), retention.age]);
    let Some(shortest) = times.flatten().min() else { return };
    let wait = (shortest / 4).clamp(SHORTEST, LONGEST);
    while !*stop.borrow() {
        for (feed, retention) in &feeds {
            report(feed, "let old pages go", tidy(engine, lease, feed, *retention, engine.now()).await);
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stopped(&stop) => {}
        }
    }
}

async fn tidy(
    engine: &Engine,
    lease: &Lease,
    feed: &Feed,
    config: RetentionConfig,
    now: Timestamp,
) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    let key = table::tidied_key(feed.id());
    let before: Tidied = record::load(store, &key).await?.unwrap_or_default();
    let sealed = table::sealed_from(store, feed.id(), before.cleanup.first_page).await?;
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let retention =
        Retention { age: config.age.map(seconds), bytes: config.bytes, grace: seconds(config.grace) };
    let mut after = before.clone();
    after.cleanup = retention.decide(now, &sealed, before.cleanup, &mut after.pending);
    if after == before {
        return Ok(());
    }
    // Stored before it is acted on: what was let go once does not come back after a crash.
    store.write(vec![record::put(key, &after)], conditions(lease)).await?;
    *feed.pages.cleanup.lock() = Some(after.cleanup);
    feed.pages.tidied.fetch_add(1, Ordering::AcqRel);
    // Every page from the first that was listed to the first that is has lost its prev, or is gone.
    forget_pages(engine, feed, before.cleanup, after.cleanup);
    let gone: Vec<u64> = (before.cleanup.gone_below.max(1)..after.cleanup.gone_below).collect();
    for some in gone.chunks(RECORDS) {
        let writes: Vec<Write> =
            some.iter().map(|number| record::remove(table::page_key(feed.id(), *number))).collect();
        store.write(writes, conditions(lease)).await?;
    }
    Ok(())
}
