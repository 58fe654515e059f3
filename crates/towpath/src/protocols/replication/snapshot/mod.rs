//! Snapshots: a feed's live items at some time, as pages under an index.
//!
//! A snapshot is walked in the order in which items were created, which does not move, one page at a time in
//! memory. Its index is written last: before that nobody sees it, and what a crash left of it is removed when the
//! next one is made.

mod build;
mod documents;
mod kept;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use towpath_proto::change::Seq;

use self::build::SnapshotBase;
use self::kept::remove;
use crate::engine::roles::{Lease, conditions};
use crate::engine::{Engine, Feed};
use crate::protocols::pages::report;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

pub use self::build::make;
pub use self::documents::{index, index_of};
pub(crate) use self::documents::{on_snapshot_written, page};
pub use self::kept::{index_path, list};
pub use crate::protocols::replication::stored::Snapshot;

/// Longest time between two rounds.
const LONGEST: Duration = Duration::from_secs(60);
/// Time until the next round while another node may still write a snapshot.
const RETRY: Duration = Duration::from_secs(1);

/// Makes the configured snapshots when they are due, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    let (engine, lease) = (&engine, &lease);
    let every = |feed: &Arc<Feed>| feed.config.snapshots.every;
    let mut changes = engine.feed_changes();
    while !*stop.borrow() {
        changes.mark_unchanged();
        let feeds: Vec<(Arc<Feed>, Duration)> =
            engine.feeds().into_iter().filter_map(|feed| Some((feed.clone(), every(&feed)?))).collect();
        let Some(shortest) = feeds.iter().map(|(_, every)| *every).min() else {
            tokio::select! {
                _ = changes.changed() => continue,
                () = stopped(&stop) => return,
            }
        };
        let mut wait = (shortest / 4).min(LONGEST);
        for (feed, every) in &feeds {
            tokio::select! {
                done = make_if_due(engine, lease, feed, *every) => match done {
                    Ok(true) => report(engine, feed, "make a snapshot", Ok(())),
                    Ok(false) => wait = wait.min(RETRY),
                    Err(e) => report(engine, feed, "make a snapshot", Err(e)),
                },
                // An incomplete snapshot is removed and begun again after the restart.
                () = stopped(&stop) => return,
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = changes.changed() => {}
            () = stopped(&stop) => return,
        }
    }
}

/// Makes a snapshot if it is due and the feed changed since the last. Returns false if another node makes one.
async fn make_if_due(
    engine: &Arc<Engine>,
    lease: &Lease,
    feed: &Arc<Feed>,
    every: Duration,
) -> Result<bool, StoreError> {
    let head = engine.store.head(feed.id()).await?;
    let last = list(engine, feed).await?.pop();
    let every = SignedDuration::try_from(every).unwrap_or(SignedDuration::MAX);
    let is_due = last.is_none_or(|last| head.seq > last.seq && age(engine, last.id) >= every);
    if head.seq > 0 && is_due {
        return Ok(make(engine, feed, conditions(lease)).await?.is_some());
    }
    Ok(true)
}

/// Returns the position up to which no snapshot needs the log: what comes after replaces a version that one has.
///
/// Removes snapshots from which nobody can go on, because the page at their end is `gone`.
///
/// # Errors
///
/// [`StoreError`] if the snapshots cannot be listed or removed.
pub(crate) async fn needed_after(engine: &Engine, feed: &Feed, gone: Seq) -> Result<Seq, StoreError> {
    // Before the list: a snapshot that is complete by then is in it.
    let base = feed.extensions.get_or_insert_with(SnapshotBase::default).get();
    let mut needed = base.unwrap_or(Seq::MAX);
    for snapshot in list(engine, feed).await? {
        if gone > 0 && snapshot.seq <= gone {
            remove(engine, feed, &snapshot).await?;
        } else {
            needed = needed.min(snapshot.seq);
        }
    }
    Ok(needed)
}

/// Returns the time since a snapshot was begun.
fn age(engine: &Engine, id: u64) -> SignedDuration {
    let begun = i64::try_from(id).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    begun.map_or(SignedDuration::MAX, |begun| engine.now().duration_since(begun))
}
