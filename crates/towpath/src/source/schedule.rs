//! Schedule of the polls.
//!
//! Timers run on monotonic time. The due time in a source's saved state is a wall-clock date, read at the start only,
//! and believed up to the longest wait that a poll returns. The clock may have been wrong when it was saved: with a due
//! time a year ahead the source would never be polled again.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use tokio::task::{self, AbortHandle, JoinSet};
use tokio::time::Instant;
use towpath_client::{Fetcher, redact};
use towpath_proto::FeedId;
use tracing::Instrument as _;

use super::fetch_permits::FetchPermits;
use super::metrics::SourceMetrics;
use super::poll::{PollSummary, fingerprint, poll};
use super::pushed::{Deliveries, is_pushed};
use super::state::SourceState;
use super::waits::longest_wait;
use crate::config::local_path;
use crate::engine::roles::{Lease, Shard};
use crate::engine::source_control::{self, SourceControl};
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::PUBLISH;
use crate::spans::span;
use crate::stop::{Stop, stopped};

/// Shared context of polls.
#[derive(Clone)]
pub struct PollContext {
    /// The engine.
    pub engine: Arc<Engine>,
    /// HTTP client of the sources.
    pub fetcher: Arc<Fetcher>,
    /// Permits that limit concurrent fetches.
    pub permits: Arc<FetchPermits>,
}

/// Polls the sources of a shard when they are due, until the stop signal is set.
pub async fn run(context: PollContext, shard: Shard, lease: Lease, stop: Stop) {
    let engine = &context.engine;
    // Before the rows are read: a request that is written meanwhile must not be missed.
    let mut requests = source_control::requests(engine);
    let mut changes = engine.feed_changes();
    let mut deliveries = Deliveries::new(engine);
    let mut due = DueSources::default();
    due.refresh(engine, shard).await;
    // A set, so that the polls end with the role: a node without it must not append.
    let mut polls: JoinSet<Option<NextPoll>> = JoinSet::new();
    let mut running: HashMap<task::Id, RunningPoll> = HashMap::new();
    loop {
        let next = due.next();
        tokio::select! {
            () = stopped(&stop) => break,
            _ = changes.changed() => {
                due.refresh(engine, shard).await;
                // What a poll with earlier settings reads must not come after what the new ones give.
                running.values().filter(|poll| !due.is_current(&poll.feed)).for_each(|poll| poll.task.abort());
            }
            Some(done) = polls.join_next_with_id(), if !polls.is_empty() => {
                // After a panic the source is still polled again.
                let (id, next) = done.unwrap_or_else(|e| {
                    if e.is_panic() {
                        tracing::error!(error = %e, "a poll panicked");
                    }
                    (e.id(), None)
                });
                if let Some(ended) = running.remove(&id) {
                    schedule_next(engine, &ended, next, &mut deliveries, &mut due).await;
                }
            }
            delivered = deliveries.next() => {
                let is_new = |feed: &Feed| delivered.as_ref().map_or(is_pushed(feed), |id| id == feed.id());
                for feed in due.feeds().into_iter().filter(|feed| is_new(feed)) {
                    let is_running = running.values().any(|running| running.feed.id() == feed.id());
                    if let Some(at) = deliveries.due(feed.id(), is_running)
                        && !is_paused(engine, &feed, due.time(&feed)).await
                    {
                        due.set(&feed, at);
                    }
                }
            }
            asked = requests.recv() => {
                // A receiver that missed requests looks at all sources.
                let is_asked = |feed: &FeedId| asked.as_ref().map_or(true, |asked| asked == feed);
                for feed in due.feeds().into_iter().filter(|feed| is_asked(feed.id())) {
                    // The end of a running poll looks for requests, too.
                    if !running.values().any(|running| running.feed.id() == feed.id()) {
                        apply_request(engine, &feed, &mut due).await;
                    }
                }
            }
            // The heap's first entry decides; a new poll result re-evaluates it.
            () = until(next), if next.is_some() => {
                let Some(feed) = due.take() else { continue };
                let begun = Timestamp::now();
                let task = polls.spawn(one(context.clone(), lease.clone(), feed.clone()).boxed());
                running.insert(task.id(), RunningPoll { feed, begun, task });
            }
        }
    }
    // A poll that is aborted here has appended all of its changes or none.
    polls.shutdown().await;
    let is_here = |name: &str| shard.has(name) && engine.feed(name).is_some_and(|feed| feed.is_polled());
    engine.failures.hand_over(PUBLISH, is_here);
}

/// A poll that runs.
struct RunningPoll {
    feed: Arc<Feed>,
    /// Time of its beginning.
    begun: Timestamp,
    task: AbortHandle,
}

/// Due times of a shard's sources.
#[derive(Default)]
struct DueSources {
    // A heap rather than a task per source: ten thousand idle sources cost a few bytes each.
    heap: BinaryHeap<Reverse<(Instant, FeedId)>>,
    /// Each source with its due time. Other entries of the heap are outdated.
    sources: HashMap<FeedId, (Arc<Feed>, Option<Instant>)>,
}

impl DueSources {
    /// Takes over added, changed and removed feeds. The others keep their times.
    async fn refresh(&mut self, engine: &Engine, shard: Shard) {
        let is_here = |feed: &Arc<Feed>| is_on(feed) && shard.has(feed.id().as_str());
        let current: Vec<Arc<Feed>> = engine.feeds().into_iter().filter(is_here).collect();
        let mut before = std::mem::take(&mut self.sources);
        for feed in current {
            let kept = before.remove(feed.id()).filter(|(old, _)| Arc::ptr_eq(old, &feed));
            let is_new = kept.is_none();
            self.sources.insert(feed.id().clone(), kept.unwrap_or_else(|| (feed.clone(), None)));
            if is_new
                && let Some(wait) = first_wait(engine, &feed).await
                && !is_paused(engine, &feed, None).await
            {
                self.set(&feed, Instant::now() + wait);
            }
        }
    }

    /// Returns true if a feed is polled here with these settings.
    fn is_current(&self, feed: &Arc<Feed>) -> bool {
        self.sources.get(feed.id()).is_some_and(|(current, _)| Arc::ptr_eq(current, feed))
    }

    fn feeds(&self) -> Vec<Arc<Feed>> {
        self.sources.values().map(|(feed, _)| feed.clone()).collect()
    }

    /// Sets the due time of a source, unless the feed was changed or removed meanwhile.
    fn set(&mut self, feed: &Arc<Feed>, at: Instant) {
        let Some((current, time)) = self.sources.get_mut(feed.id()) else { return };
        if Arc::ptr_eq(current, feed) {
            *time = Some(at);
            self.heap.push(Reverse((at, feed.id().clone())));
        }
    }

    fn time(&self, feed: &Feed) -> Option<Instant> {
        self.sources.get(feed.id()).and_then(|(_, time)| *time)
    }

    fn remove(&mut self, feed: &Feed) {
        if let Some((_, time)) = self.sources.get_mut(feed.id()) {
            *time = None;
        }
    }

    /// Returns the earliest due time.
    fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, id))) = self.heap.peek() {
            if self.sources.get(id).is_some_and(|(_, time)| *time == Some(*at)) {
                return Some(*at);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes the source that is due first.
    fn take(&mut self) -> Option<Arc<Feed>> {
        self.next()?;
        let Reverse((_, id)) = self.heap.pop()?;
        let (feed, time) = self.sources.get_mut(&id)?;
        *time = None;
        Some(feed.clone())
    }
}

/// Sets the due time of a source whose poll has ended.
async fn schedule_next(
    engine: &Engine,
    ended: &RunningPoll,
    next: Option<NextPoll>,
    deliveries: &mut Deliveries,
    due: &mut DueSources,
) {
    let feed = &ended.feed;
    let control = SourceControl::load_or_announce(engine, feed).await;
    let asked = control.as_ref().and_then(|control| control.poll);
    let wait = match next {
        // This poll may have read the source as it was before.
        _ if asked.is_some_and(|asked| asked > ended.begun) => Duration::ZERO,
        Some(NextPoll::Never) => return,
        Some(NextPoll::After(wait)) => wait,
        // The result was not saved. The last saved due time has passed, so the interval limits the polls.
        None => saved_wait(engine, feed).await.max(every(feed)),
    };
    let wait = deliveries.end(feed, wait);
    if control.is_some_and(|control| control.paused.is_none()) {
        due.set(feed, Instant::now() + wait);
    }
}

/// Returns true if a source is paused. Where that cannot be read now, a source with a due time stays unpaused.
async fn is_paused(engine: &Engine, feed: &Feed, due: Option<Instant>) -> bool {
    let control = SourceControl::load_or_announce(engine, feed).await;
    control.map_or(due.is_none(), |control| control.paused.is_some())
}

/// Does what an operator asked of a source: poll now, pause, resume.
async fn apply_request(engine: &Engine, feed: &Arc<Feed>, due: &mut DueSources) {
    let Some(control) = SourceControl::load_or_announce(engine, feed).await else { return };
    let last_attempt = match feed.config.polled() {
        Some((source, _)) => {
            let state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint(source)).await;
            state.ok().and_then(|state| state.last_attempt)
        }
        None => None,
    };
    let is_new = |asked: Timestamp| last_attempt.is_none_or(|last| last < asked);
    if control.paused.is_some() {
        due.remove(feed);
    } else if control.poll.is_some_and(is_new) {
        due.set(feed, Instant::now());
    } else if due.time(feed).is_none() {
        // Resumed.
        let wait = saved_wait(engine, feed).await;
        due.set(feed, Instant::now() + wait);
    }
}

async fn until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}

/// The poll after one.
enum NextPoll {
    After(Duration),
    /// The source has ended.
    Never,
}

/// Runs one poll; returns the next, or `None` if the result was not saved.
async fn one(context: PollContext, lease: Lease, feed: Arc<Feed>) -> Option<NextPoll> {
    let (_, address) = feed.config.polled()?;
    let _permit = context.permits.acquire(address).await;
    let span = span!("poll", feed = %feed.id());
    let polled = poll(&context.engine, &context.fetcher, &lease, &feed).instrument(span).await;
    match &polled {
        Ok(polled) => log(&feed, polled),
        Err(e) if e.is_conflict() => tracing::info!(feed = %feed.id(), "another node polls it"),
        Err(e) => tracing::error!(feed = %feed.id(), error = %e, "cannot save a poll"),
    }
    polled.ok().map(|polled| if polled.ended { NextPoll::Never } else { NextPoll::After(polled.next) })
}

fn every(feed: &Feed) -> Duration {
    feed.config.polled().map_or(Duration::ZERO, |(source, _)| source.every())
}

fn log(feed: &Feed, polled: &PollSummary) {
    let feed = feed.id();
    if let Some(error) = &polled.error {
        tracing::warn!(%feed, code = error.code, error = redact::text(&error.message), "the poll failed");
        return;
    }
    // A document with a thousand invalid entries must not flood the log at every poll.
    for problem in polled.problems.iter().take(5) {
        tracing::warn!(%feed, problem, "problem of the document");
    }
    let PollSummary { new, updated, removed, .. } = polled;
    if new + updated + removed > 0 {
        tracing::info!(%feed, new, updated, removed, "polled");
    } else {
        tracing::debug!(%feed, "polled, nothing changed");
    }
}

/// Returns true if the feed has a source to poll.
pub fn is_on(feed: &Feed) -> bool {
    feed.config.polled().is_some_and(|(source, _)| source.enabled)
}

/// Returns the wait before the first poll: none for files, the saved due time for URLs; `None` for an ended source.
async fn first_wait(engine: &Engine, feed: &Feed) -> Option<Duration> {
    let is_file = feed.config.polled().is_some_and(|(_, address)| local_path(address).is_some());
    if is_file {
        return Some(Duration::ZERO);
    }
    let (source, _) = feed.config.polled()?;
    let state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint(source)).await;
    if let Ok(state) = &state {
        SourceMetrics::load(feed, state);
    }
    if state.is_ok_and(|state| state.ended) {
        tracing::warn!(feed = %feed.id(), "the source has ended (410) and is not polled");
        return None;
    }
    Some(saved_wait(engine, feed).await)
}

/// Returns the wait until the saved due time of a source, at most its longest regular wait.
async fn saved_wait(engine: &Engine, feed: &Feed) -> Duration {
    let Some((source, address)) = feed.config.polled() else { return Duration::MAX };
    let state = SourceState::load(engine.store.as_ref(), feed.id(), &fingerprint(source)).await;
    let Ok(SourceState { next: Some(next), failures, .. }) = state else { return Duration::ZERO };
    let wait = Duration::try_from(next.duration_since(engine.now())).unwrap_or_default();
    wait.min(longest_wait(source.every(), local_path(address).is_some(), failures))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jiff::SignedDuration;
    use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

    use super::*;
    use crate::config::Config;
    use crate::source::waits::MAX_RETRY_AFTER;

    const CONFIG: &str =
        "[[feed]]\nid = \"news\"\n[feed.source]\nurl = \"http://127.0.0.1:1/\"\nevery = \"10m\"\n";

    async fn wait_with(failures: u32, due_in: SignedDuration) -> Duration {
        let next = Some(Timestamp::now().checked_add(due_in).unwrap());
        first_wait_of(SourceState { next, failures, ..SourceState::default() }).await.unwrap()
    }

    async fn first_wait_of(state: SourceState) -> Option<Duration> {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::parse(CONFIG, Path::new("towpath.toml")).unwrap();
        let store = EmbeddedStore::open(folder.path().join("data"), EmbeddedOptions::default()).unwrap();
        let engine = crate::protocols::start(config, Arc::new(store)).await.unwrap();
        let feed = engine.feed("news").unwrap();
        let configured = fingerprint(feed.config.polled().unwrap().0);
        let state = SourceState { configured, ..state };
        state.save(engine.store.as_ref(), &Lease::alone("sources"), feed.id()).await.unwrap();
        first_wait(&engine, &feed).await
    }

    /// The clock was a year ahead when the due time was saved.
    #[tokio::test]
    async fn a_saved_due_time_is_believed_up_to_the_longest_wait() {
        let year = SignedDuration::from_hours(365 * 24);
        assert!(wait_with(0, year).await <= Duration::from_secs(11 * 60));
        assert!(wait_with(3, year).await <= MAX_RETRY_AFTER);
        assert_eq!(wait_with(0, -year).await, Duration::ZERO);
        let soon = wait_with(0, SignedDuration::from_secs(300)).await;
        assert!((295..=300).contains(&soon.as_secs()), "{soon:?}");
    }

    /// The store is being opened again when the sources are listed.
    #[tokio::test(start_paused = true)]
    async fn a_source_whose_control_cannot_be_read_waits_for_it() {
        for (paused, is_due) in [(Some(Timestamp::UNIX_EPOCH), false), (None, true)] {
            let (engine, store) = crate::protocols::failing_store::engine(CONFIG).await;
            let feed = engine.feed("news").unwrap();
            SourceControl::change(&engine, &feed, |control| control.paused = paused).await.unwrap();
            let mut requests = source_control::requests(&engine);
            *store.read_fault.lock() = Some("control/news");
            let mut due = DueSources::default();
            due.refresh(&engine, Shard::ALL).await;
            assert_eq!(due.next(), None);
            assert_eq!(requests.recv().await.as_ref(), Ok(feed.id()));
            apply_request(&engine, &feed, &mut due).await;
            assert_eq!(due.next().is_some(), is_due);
        }
    }

    #[tokio::test]
    async fn an_ended_source_is_not_polled_after_a_restart() {
        assert_eq!(first_wait_of(SourceState { ended: true, ..SourceState::default() }).await, None);
    }
}
