//! Retention of a feed's log: `[feed.log] keep`.
//!
//! Every protocol reads the log, so the horizon waits for each that needs the changes in front of it:
//!
//! - Data Replication and Feed History make their pages from the log: it stays from the first page that is still served.
//! - A snapshot's pages are made from the versions that were the latest then. The log stays from the oldest snapshot, and a
//!   snapshot goes once the page at its end is gone.
//! - DiffDelta's archives are stored documents. The log stays from the last change that the chain has.
//! - Smart Feeds tells clients behind the horizon to begin anew, and so do the sinks of this server.
//! - The counts of changes for the web page are made from each change once.
//! - A mirror compares what is delivered again after a crash with the changes since its checkpoint.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use towpath_proto::change::Seq;

use crate::engine::roles::Lease;
use crate::engine::{Engine, Feed, change_counts, mirror_state};
use crate::protocols::diffdelta::stored::StoredChain;
use crate::protocols::pages::{self, table};
use crate::protocols::replication::snapshot;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Longest and shortest time between two rounds.
const LONGEST: Duration = Duration::from_secs(60);
const SHORTEST: Duration = Duration::from_secs(1);
/// Part of what is kept that is let go at once. A client that is reading what is before the horizon begins anew whenever
/// that moves, so it moves seldom.
const PART: u64 = 10;
/// Time that appends have for themselves, as a multiple of that of a step, which they wait for.
const REST: u32 = 4;

/// Lets go of what feeds are not to keep, until `stop` turns true.
pub(crate) async fn run(engine: &Arc<Engine>, lease: &Lease, stop: Stop) {
    let mut changes = engine.feed_changes();
    while !*stop.borrow() {
        changes.mark_unchanged();
        let feeds = engine.feeds().into_iter().filter(|feed| feed.config.log.is_bounded());
        let feeds: Vec<Arc<Feed>> = feeds.collect();
        for feed in &feeds {
            let done = remove_old_versions(engine, feed, lease, &stop).await;
            pages::report(engine, feed, "let go of old versions", done);
        }
        let grace = |feed: &Arc<Feed>| feed.config.retention.map(|retention| retention.grace);
        let times = feeds.iter().flat_map(|feed| [feed.config.log.keep, grace(feed)]);
        let shortest = times.flatten().min().unwrap_or_default();
        let wait = (shortest / 4).clamp(SHORTEST, LONGEST);
        tokio::select! {
            () = tokio::time::sleep(wait), if !feeds.is_empty() => {}
            _ = changes.changed() => {}
            () = stopped(&stop) => {}
        }
    }
}

/// Returns the position up to which a feed's configuration lets go; zero if it keeps everything.
pub(crate) async fn due(engine: &Engine, feed: &Feed, now: Timestamp) -> Result<Seq, StoreError> {
    let config = feed.config.log;
    let (store, id) = (engine.store.as_ref(), feed.id());
    let by_time = match config.keep {
        Some(keep) => {
            let keep = SignedDuration::try_from(keep).unwrap_or(SignedDuration::MAX);
            // A time before all times keeps everything.
            let since = now.checked_sub(keep).unwrap_or(Timestamp::MIN);
            Some(store.last_before(id, since).await?)
        }
        None => None,
    };
    let by_count = match config.keep_changes {
        Some(count) => Some(store.head(id).await?.seq.saturating_sub(count.get())),
        None => None,
    };
    Ok(by_time.into_iter().chain(by_count).min().unwrap_or(0))
}

/// Returns the position up to which nothing of this server needs the log.
async fn free_up_to(engine: &Engine, feed: &Feed, lease: &Lease, stop: &Stop) -> Result<Seq, StoreError> {
    let (store, id) = (engine.store.as_ref(), feed.id());
    let pages = table::end_of_gone_pages(store, id).await?;
    let minted = StoredChain::load(store, id.as_str()).await?.chain().minted_seq;
    let mirrored = mirror_state::confirmed_up_to(engine, feed).await?;
    let snapshots = snapshot::needed_after(engine, feed, pages).await?;
    let free = pages.min(snapshots).min(minted).min(mirrored.unwrap_or(Seq::MAX));
    let mut counted = change_counts::counted_up_to(store, id).await?;
    if counted < free {
        // Small feeds are counted seldom.
        counted = change_counts::count(engine, feed, lease, stop).await?;
    }
    Ok(free.min(counted))
}

async fn remove_old_versions(
    engine: &Engine,
    feed: &Feed,
    lease: &Lease,
    stop: &Stop,
) -> Result<(), StoreError> {
    let store = engine.store.as_ref();
    let due = due(engine, feed, engine.now()).await?;
    let mut head = store.head(feed.id()).await?;
    // A step that seemed to have failed may be stored.
    feed.set_horizon(head.horizon);
    if due <= head.horizon {
        return Ok(());
    }
    let end = due.min(free_up_to(engine, feed, lease, stop).await?).min(head.seq.saturating_sub(1));
    // A part of what stays, so that the work is a bounded share of that of the appends.
    if end.saturating_sub(head.horizon) < ((head.seq - end) / PART).max(1) {
        return Ok(());
    }
    let from = head.horizon;
    while head.horizon < end && !*stop.borrow() {
        let begun = Instant::now();
        let before = head.horizon;
        head = store.let_go(feed.id(), end).await?;
        feed.set_horizon(head.horizon);
        if head.horizon == before {
            break;
        }
        tokio::time::sleep(begun.elapsed() * REST).await;
    }
    tracing::info!(feed = %feed.id(), from, to = head.horizon, "let go of old versions");
    Ok(())
}
