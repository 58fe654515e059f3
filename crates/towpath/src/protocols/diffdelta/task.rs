//! The tasks of DiffDelta: publishing feeds after appends, and the global feed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::{Instant, timeout};
use towpath_proto::FeedId;
use towpath_store::ReadError;

use crate::engine::Engine;
use crate::engine::roles::{self, DIFFDELTA, Lease};
use crate::protocols::diffdelta::publish::{PUBLISH, PUBLISH_GLOBAL, publish, publish_global};
use crate::protocols::diffdelta::recovery::{AT_ONCE, recover};
use crate::protocols::diffdelta::run::Run;
use crate::protocols::diffdelta::state::DiffDelta;
use crate::protocols::sup::Sup;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Shortest time between two mints of a feed that is published to.
const MINT_INTERVAL: Duration = Duration::from_millis(250);
/// Time until a feed is published again after the store took no writes.
const RETRY: Duration = Duration::from_secs(2);
/// Time until a feed is published again after an error that seldom passes by itself.
const LONG_RETRY: Duration = Duration::from_secs(60);
/// Time that the global feed waits for more sources to finish their runs, at least.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// Part of the time that making the global feed's documents may take: one in so many.
const COST_SHARE: u32 = 10;
/// Bytes of the global feed's documents that are written per second, on average. Below 100 kB a document adds no pause.
const BYTES_PER_SECOND: u64 = 1_000_000;
/// Shortest time between two documents of the global feed without news.
const CARRY_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest time between such documents in a cluster, whose log keeps each of them, while no source's status changes.
const SHARED_CARRY_INTERVAL: Duration = Duration::from_secs(60);
/// Longest time between two documents of the global feed when each takes long.
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// Time in which a server that stops publishes what was appended just before. The next start publishes the rest.
const LAST_PUBLISHING: Duration = Duration::from_secs(5);
/// Longest wait for a role that is free, or whose last holder ran on the same folder.
const LEASE_WAIT: Duration = Duration::from_secs(5);

/// Publishes what came while no server ran, then feeds after their appends, and the global feed, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    DiffDelta::of(&engine).set_publishing(true);
    if engine.is_shared() {
        DiffDelta::of(&engine).global.take_over(lease).await;
    }
    let over_all_feeds = async {
        // First: a document over all feeds for each part of them would say ten times that sources changed.
        let recovered = tokio::select! {
            recovered = recover(&engine) => recovered,
            () = stopped(&stop) => return,
        };
        if let Err(error) = &recovered {
            tracing::error!(%error, "cannot publish");
        }
        run_global(&engine, recovered.is_err(), stop.clone()).await;
    };
    tokio::join!(run_feeds(&engine, stop.clone()), over_all_feeds);
    if engine.is_shared() {
        DiffDelta::of(&engine).set_publishing(false);
        DiffDelta::of(&engine).take_dirty();
        DiffDelta::of(&engine).global.hand_over().await;
    }
    // Sources are published by the nodes that poll them.
    let is_here = |name: &str| engine.feed(name).is_none_or(|feed| !feed.is_polled());
    engine.failures.hand_over(PUBLISH, is_here);
    engine.failures.hand_over(PUBLISH_GLOBAL, |_| true);
}

/// Reads every source's chain, which another node may have written.
///
/// # Errors
///
/// [`StoreError`] if a chain cannot be read.
pub async fn refresh(engine: &Arc<Engine>) -> Result<(), StoreError> {
    for feed in engine.feeds().into_iter().filter(|feed| feed.is_listed()) {
        DiffDelta::of(engine).global.refresh(engine, &feed).await?;
    }
    Ok(())
}

/// Reads the chains that other nodes wrote, and lists updates whose documents came late. Returns false if a chain could
/// not be read, which the next call reads again.
pub(crate) async fn apply_remote(engine: &Arc<Engine>) -> bool {
    let mut is_done = true;
    for name in DiffDelta::of(engine).take_written() {
        if let Err(e) = apply_chain(engine, &name).await {
            tracing::error!(feed = name, error = %e, "cannot read the DiffDelta chain");
            DiffDelta::of(engine).mark_written(name);
            is_done = false;
        }
    }
    is_done
}

async fn apply_chain(engine: &Arc<Engine>, name: &str) -> Result<(), StoreError> {
    let Some(feed) = engine.feed(name).filter(|feed| feed.is_listed()) else { return Ok(()) };
    if let Some(seq) = DiffDelta::of(engine).global.refresh(engine, &feed).await? {
        Sup::of(engine).on_late_document(&feed, seq, engine.now());
    }
    Ok(())
}

/// Conduct of a command where another node holds the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldRole {
    /// Waits a moment for the role: its holder may be gone.
    Await,
    /// Leaves publishing to the holder.
    Leave,
}

/// Publishes all changes that no document shows yet, once.
///
/// In a cluster the node with the role does that instead.
///
/// # Errors
///
/// [`StoreError`] if the chains cannot be read or written.
pub async fn publish_pending(engine: &Arc<Engine>, held_role: HeldRole) -> Result<(), StoreError> {
    if !engine.is_shared() {
        return publish_pending_now(engine).await;
    }
    // A running holder publishes by itself; waiting for its lease would only delay the caller.
    if held_role == HeldRole::Leave && !roles::is_free(engine, DIFFDELTA).await? {
        return Ok(());
    }
    let mut holding = engine.store.acquire_lease(DIFFDELTA);
    let Ok(lease) = timeout(LEASE_WAIT, holding.held()).await else { return Ok(()) };
    DiffDelta::of(engine).global.take_over(lease).await;
    let published = publish_pending_now(engine).await;
    DiffDelta::of(engine).global.hand_over().await;
    published
}

async fn publish_pending_now(engine: &Arc<Engine>) -> Result<(), StoreError> {
    recover(engine).await?;
    publish_feeds(engine, DiffDelta::of(engine).take_dirty()).await;
    if engine.is_shared() {
        // No task applies remote writes here, so the chains minted just now are read once.
        refresh(engine).await?;
    }
    DiffDelta::of(engine).global.run(engine).await?;
    Ok(())
}

async fn run_feeds(engine: &Arc<Engine>, stop: Stop) {
    let diffdelta = DiffDelta::of(engine);
    let mut next_due: Option<Instant> = None;
    loop {
        tokio::select! {
            () = diffdelta.feed_dirty.notified() => {}
            () = tokio::time::sleep_until(next_due.unwrap_or_else(Instant::now)), if next_due.is_some() => {}
            () = stopped(&stop) => break,
        }
        let (feeds, due) = diffdelta.take_due();
        next_due = due;
        publish_feeds(engine, feeds).await;
        // After the mint, not before: a single append is published at once.
        tokio::time::sleep(MINT_INTERVAL).await;
    }
    // Appends that were acknowledged just before the stop are published, too.
    let _ = timeout(LAST_PUBLISHING, publish_feeds(engine, diffdelta.take_dirty())).await;
}

async fn publish_feeds(engine: &Arc<Engine>, feeds: Vec<FeedId>) {
    // Many at a time, whose writes share a sync.
    stream::iter(feeds).for_each_concurrent(AT_ONCE, |id| publish_or_retry(engine, id).boxed()).await;
}

async fn publish_or_retry(engine: &Arc<Engine>, id: FeedId) {
    let Some(feed) = engine.feed(id.as_str()) else { return };
    let Err(e) = publish(engine, &feed, Run::Moved).await else { return };
    tracing::error!(feed = %id, error = %e, "cannot publish");
    let Some(wait) = retry_after(&e) else { return };
    let engine = engine.clone();
    tokio::spawn(
        async move {
            tokio::time::sleep(wait).await;
            DiffDelta::of(&engine).mark_dirty(id);
        }
        .boxed(),
    );
}

/// Returns the time after which a feed is published again; `None` once the store is closed.
fn retry_after(error: &StoreError) -> Option<Duration> {
    match error {
        _ if error.is_closed() => None,
        // The store is opened again after a failed write.
        StoreError::Read(ReadError::Storage { .. }) => Some(RETRY),
        _ if error.is_transient() || error.is_conflict() => Some(RETRY),
        // Such as damaged data. Without a retry, the feed would show old documents until its next append.
        _ => Some(LONG_RETRY),
    }
}

/// Publishes documents of the global feed as sources run, until `stop` turns true. With `is_due`, the first comes without a
/// run, after the interval: the state could not be read.
async fn run_global(engine: &Arc<Engine>, is_due: bool, stop: Stop) {
    let global = &DiffDelta::of(engine).global;
    let mut last = Instant::now();
    let mut waiting = is_due;
    let mut next = last;
    loop {
        let is_slow = engine.is_shared() && !global.has_new_status().await;
        let due = next.max(last + if is_slow { SHARED_CARRY_INTERVAL } else { CARRY_INTERVAL });
        let batched = async {
            global.source_ran().await;
            // Sources that are polled at the same minute end within a moment of each other.
            tokio::time::sleep_until(next.max(Instant::now() + BATCH_DELAY)).await;
        };
        tokio::select! {
            () = batched => {}
            () = tokio::time::sleep_until(due), if waiting => {}
            () = stopped(&stop) => break,
        }
        // News is never held back; a run without news may wait for the interval.
        waiting = !global.has_news().await && Instant::now() < due;
        if waiting {
            continue;
        }
        last = Instant::now();
        let published = publish_global(engine).await;
        if let Err(e) = &published {
            report(e);
            // Tried again when the interval ends, not at once: the store may need time.
            waiting = true;
        }
        next = Instant::now() + pause_after(last.elapsed(), published.unwrap_or_default());
    }
    if let Err(e) = publish_global(engine).await {
        report(&e);
    }
}

/// Returns the pause after a document, by the time that it took and the bytes that were written.
///
/// A document says something of every source. With a hundred thousand of them it takes a third of a second, and 23 MB on disk.
fn pause_after(took: Duration, written: u64) -> Duration {
    let for_disk = Duration::from_millis(written.saturating_mul(1000) / BYTES_PER_SECOND);
    (took * (COST_SHARE - 1)).max(for_disk).min(LONGEST_DELAY)
}

fn report(error: &StoreError) {
    if error.is_conflict() {
        tracing::info!("another node publishes the global feed");
    } else {
        tracing::error!(%error, "cannot publish the global feed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_over_many_feeds_come_less_often() {
        let pause =
            |milliseconds, written| pause_after(Duration::from_millis(milliseconds), written).as_millis();
        assert_eq!([0, 12, 300, 60_000].map(|took| pause(took, 0)), [0, 108, 2700, 300_000]);
        // Below 100 kB the wait for other sources is longer.
        let written = [1000, 99_000, 2_400_000, 23_000_000, u64::MAX];
        assert_eq!(written.map(|written| pause(0, written)), [1, 99, 2400, 23_000, 300_000]);
        assert_eq!(pause(300, 1_000_000), 2700);
    }
}
