//! When to poll.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{self, JoinSet};
use tokio::time::Instant;

use towpath_store::StoreError;

use super::poll::{Polled, poll};
use super::state::SourceState;
use crate::client::{Fetcher, backoff_or_asked, local_path};
use crate::engine::roles::{Lease, Shard};
use crate::engine::{Engine, Feed};
use crate::shown;
use crate::stop::{Stop, stopped};

/// The longest time between two polls of a source that fails, where its own interval is not longer.
const LONGEST: Duration = Duration::from_secs(3600);

/// How long after a poll the next one is due: the source's interval and up to a tenth more, so that many sources
/// spread out; after failures longer and longer, and never before the server wants to be asked.
pub fn next_poll(every: Duration, failures: u32, asked: Option<Duration>, entropy: u64) -> Duration {
    if failures > 0 {
        // A server that asks to be asked at once gets a second all the same.
        let asked = asked.map(|asked| asked.max(Duration::from_secs(1)));
        return backoff_or_asked(asked, failures, every, every.max(LONGEST), entropy);
    }
    every + every.mul_f64((entropy % 1000) as f64 / 10_000.0)
}

/// What polls have in common.
#[derive(Clone)]
pub struct Polling {
    /// Where.
    pub engine: Arc<Engine>,
    /// What fetches.
    pub fetcher: Arc<Fetcher>,
    /// How many may fetch at the same time.
    pub places: Arc<Semaphore>,
}

/// Polls the sources of a shard when they are due, until `stop` turns true.
pub async fn run(polling: Polling, shard: Shard, lease: Lease, stop: Stop) {
    let engine = &polling.engine;
    let is_here = |feed: &Arc<Feed>| is_on(feed) && shard.has(feed.id().as_str());
    let feeds: Vec<Arc<Feed>> = engine.feeds().into_iter().filter(is_here).collect();
    let mut due = BinaryHeap::with_capacity(feeds.len());
    for (index, feed) in feeds.iter().enumerate() {
        due.push(Reverse((Instant::now() + first_wait(engine, feed).await, index)));
    }
    let mut polls: JoinSet<bool> = JoinSet::new();
    let mut under_way: HashMap<task::Id, usize> = HashMap::new();
    loop {
        let next = due.peek().map(|Reverse((at, _))| *at);
        tokio::select! {
            () = stopped(&stop) => break,
            Some(done) = polls.join_next_with_id(), if !polls.is_empty() => {
                // If one poll panics, the source is still polled again.
                let (id, is_kept) = done.unwrap_or_else(|e| {
                    tracing::error!("a poll broke off: {e}");
                    (e.id(), false)
                });
                let Some(index) = under_way.remove(&id) else { continue };
                let mut until = wait(engine, &feeds[index]).await;
                if !is_kept {
                    // Where it is not known when the next poll is due, the source is spared.
                    until = until.max(every(&feeds[index]));
                }
                due.push(Reverse((Instant::now() + until, index)));
            }
            () = until(next), if next.is_some() => {
                let Some(Reverse((_, index))) = due.pop() else { continue };
                let poll = polls.spawn(one(polling.clone(), lease.clone(), feeds[index].clone()));
                under_way.insert(poll.id(), index);
            }
        }
    }
    // A poll that is cut off here appends all of its changes or nothing.
    polls.shutdown().await;
}

async fn until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}

/// One poll; whether what it found is kept.
async fn one(polling: Polling, lease: Lease, feed: Arc<Feed>) -> bool {
    let Ok(_place) = polling.places.acquire().await else { return false };
    let polled = poll(&polling.engine, &polling.fetcher, &lease, &feed).await;
    match &polled {
        Ok(polled) => log(&feed, polled),
        Err(StoreError::Condition) => tracing::info!(feed = %feed.id(), "another node polls it"),
        Err(e) => tracing::error!(feed = %feed.id(), "{e}"),
    }
    polled.is_ok()
}

fn every(feed: &Feed) -> Duration {
    feed.config.polled().map_or(Duration::ZERO, |(source, _)| source.every())
}

fn log(feed: &Feed, polled: &Polled) {
    let feed = feed.id();
    if let Some(error) = &polled.error {
        tracing::warn!(%feed, code = error.code, "{}", shown::text(&error.message));
        return;
    }
    for problem in polled.problems.iter().take(5) {
        tracing::warn!(%feed, "{problem}");
    }
    let Polled { new, updated, removed, .. } = polled;
    if new + updated + removed > 0 {
        tracing::info!(%feed, new, updated, removed, "polled");
    } else {
        tracing::debug!(%feed, "polled, nothing changed");
    }
}

/// Whether a feed has a source that is to be polled.
pub fn is_on(feed: &Feed) -> bool {
    feed.config.polled().is_some_and(|(source, _)| source.enabled)
}

/// How long after a poll a file is read again. Nobody is spared by reading it less often after failures, and
/// whoever mends it wants to see that.
pub fn next_read(every: Duration) -> Duration {
    every.max(Duration::from_secs(1))
}

/// At the start: files at once, addresses when they are due, spread over a few seconds.
async fn first_wait(engine: &Engine, feed: &Feed) -> Duration {
    let is_file = feed.config.polled().is_some_and(|(_, address)| local_path(address).is_some());
    if is_file { Duration::ZERO } else { wait(engine, feed).await }
}

/// How long until the source's next poll is due.
async fn wait(engine: &Engine, feed: &Feed) -> Duration {
    let Some((source, _)) = feed.config.polled() else { return Duration::MAX };
    let state = SourceState::load(engine.store.as_ref(), feed.id(), &super::poll::fingerprint(source)).await;
    match state.ok().and_then(|state| state.next) {
        Some(next) => Duration::try_from(next.duration_since(engine.now())).unwrap_or_default(),
        None => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_works_is_polled_at_its_interval() {
        let every = Duration::from_secs(100);
        for entropy in [0, 999, u64::MAX] {
            let wait = next_poll(every, 0, None, entropy);
            assert!(wait >= every && wait <= every.mul_f64(1.1), "{wait:?}");
        }
    }

    #[test]
    fn a_file_is_read_at_its_interval_whether_it_fails_or_not() {
        assert_eq!(next_read(Duration::from_secs(10)), Duration::from_secs(10));
        assert_eq!(next_read(Duration::ZERO), Duration::from_secs(1));
    }

    #[test]
    fn a_source_that_fails_is_left_alone_longer_and_longer() {
        let every = Duration::from_secs(10);
        let longest = |failures| (0..50).map(|e| next_poll(every, failures, None, e * 7919)).max().unwrap();
        assert!(longest(1) < longest(4) && longest(4) < longest(12));
        assert!(longest(60) <= LONGEST);
        let asked = Some(Duration::from_secs(120));
        assert!(next_poll(every, 1, asked, 0) >= Duration::from_secs(120));
    }
}
