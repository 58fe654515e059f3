//! Fleet: follows many feeds with few requests, and schedules their polls.
//!
//! Between polls a feed is data, not a task: its URL, SUP links, due time and route. Its follow state is stored in the
//! [`FleetOutput`]. A poll creates a follower from these, follows until it has caught up, and drops it. The SUP
//! [`SupFollower`] decides when a feed is due: when a SUP document names it, or else at the poll interval. Idle feeds
//! hold no request open.
//!
//! Polls run concurrently, so that a slow or dead feed delays no other. At most [`PER_HOST`] run for a host, and hosts
//! take turns. At most [`QUICK`] run in all, not counting those longer than [`SLOW`]; with these at most [`ALL`].

mod host_queues;
mod options;
mod poll;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use towpath_proto::follow::Exchange as _;
use towpath_proto::follow::{Event, FeedReset, FollowError, FollowMode, Followed, Follower as _, Now};
use towpath_proto::sup::follow::{FeedKey, PolledContent, SupFollower, SupPollIntervals};
use url::Url;

use self::host_queues::HostQueues;
pub use self::options::FleetOptions;
use self::poll::{FeedPoll, FeedPoller};
use super::clock::{DriverActivity, DriverClock};
use super::delivery_batch::DELIVERY_GRACE;
use super::discover::Offer;
use super::drive::FollowNotice;
use super::fetch::Fetcher;
use super::protocol::Protocol;
use super::request_driver::{ExchangeProgress, RequestDriver};
use super::route::FollowRoute;
use crate::stop::{Stop, stopped};

/// Maximum number of concurrent polls of one host.
pub const PER_HOST: usize = 8;
/// Maximum number of concurrent polls, not counting slow ones.
pub const QUICK: usize = 64;
/// Maximum number of concurrent polls, slow ones included.
pub const ALL: usize = 256;
/// Duration after which a poll counts as slow.
pub const SLOW: Duration = Duration::from_secs(5);
/// Factor of the poll interval for feeds that a SUP document covers.
pub const BACKGROUND: u32 = 24;
/// Interval at which the schedule is saved.
const SAVE_SCHEDULE: Duration = Duration::from_secs(600);

/// Protocol and URL by which a feed is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedRoute {
    /// The protocol.
    pub protocol: Protocol,
    /// URL that is followed, if it differs from the feed's.
    pub follows: Option<Box<str>>,
}

impl FeedRoute {
    /// Returns the route of a follow of `feed`.
    fn of(feed: &str, route: &FollowRoute) -> Self {
        let follows = (route.url != feed).then(|| route.url.as_str().into());
        Self { protocol: route.protocol, follows }
    }

    /// Returns the route on which a follow of `feed` goes on.
    fn held(&self, feed: &str, state: Option<Value>) -> FollowRoute {
        FollowRoute::held(self.protocol, self.follows.as_deref().unwrap_or(feed), state)
    }
}

/// Saved route and state of a feed.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedFeed {
    /// Protocol and URL.
    pub route: FeedRoute,
    /// The last checkpoint.
    pub state: Value,
}

/// Destination of a fleet's changes and storage of its states.
pub trait FleetOutput: Send + Sync + 'static {
    /// Delivery failure, which ends the fleet.
    type Error: Send + 'static;

    /// Loads the saved route and state of a feed.
    fn load(&self, feed: &str) -> impl Future<Output = Result<Option<SavedFeed>, Self::Error>> + Send;

    /// Delivers changes in order, then stores the checkpoint that covers them and all earlier ones.
    ///
    /// Both must be durable when it returns. Several feeds deliver concurrently.
    fn deliver(
        &self,
        feed: &Arc<str>,
        route: &FeedRoute,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Tells that the publisher of a feed began anew, as [`Output::reset`](crate::Output::reset) does.
    fn reset(
        &self,
        _feed: &Arc<str>,
        _reset: FeedReset,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send {
        std::future::ready(Ok(()))
    }

    /// Saves the due time of each feed, for [`FleetOptions::schedule`]. A stale schedule costs extra polls only.
    fn save_schedule(&self, schedule: Box<RawValue>) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Reports a warning or an error about a feed, or about a SUP document (with an empty `feed`).
    fn notice(&self, feed: &str, notice: FollowNotice);

    /// Reports the discovered protocol and URL of a feed.
    fn discovered(&self, feed: &str, offer: &Offer);
}

/// Result of a fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetSummary {
    /// True if the stop signal ended it.
    pub stopped: bool,
    /// Number of failed polls.
    pub failed: usize,
    /// Number of these that were the user's fault.
    pub misused: usize,
    /// Number of polls that found items missing for ever.
    pub incomplete: usize,
}

/// Follows feeds until the stop signal is set or the output fails; with [`FollowMode::CatchUp`], until each was polled.
///
/// # Errors
///
/// Errors of the output.
pub async fn follow_fleet<O: FleetOutput>(
    feeds: Vec<Arc<str>>,
    output: Arc<O>,
    fetcher: &Fetcher,
    options: FleetOptions,
    stop: &Stop,
) -> Result<FleetSummary, O::Error> {
    let mut fleet = Fleet::new(feeds, output, fetcher, options, stop);
    let result = fleet.run(stop).await;
    // After a stop no poll is left. After an error of the output the others have nowhere to deliver to.
    fleet.polls.abort_all();
    result
}

struct Fleet<O: FleetOutput> {
    poller: Arc<FeedPoller<O>>,
    mode: FollowMode,
    clock: Arc<dyn DriverClock>,
    consumer: SupFollower,
    /// Sends the consumer's requests for SUP documents.
    requests: RequestDriver,
    /// URL and route of each feed, by [`FeedKey::index`].
    feeds: Vec<(Arc<str>, Option<FeedRoute>)>,
    queues: HostQueues,
    polls: JoinSet<Result<FeedPoll, O::Error>>,
    running: HashMap<Id, RunningPoll>,
    schedule_saved: Instant,
    summary: FleetSummary,
}

struct RunningPoll {
    feed: FeedKey,
    host: Arc<str>,
    since: Instant,
}

impl<O: FleetOutput> Fleet<O> {
    fn new(
        feeds: Vec<Arc<str>>,
        output: Arc<O>,
        fetcher: &Fetcher,
        options: FleetOptions,
        stop: &Stop,
    ) -> Self {
        let FleetOptions { protocol, from, mode, every, schedule, limits, large_folder, clock } = options;
        let now = clock.now();
        let mut consumer = consumer(&feeds, &*output, every, schedule, now);
        let mut numbered: Vec<(Arc<str>, Option<FeedRoute>)> = vec![("".into(), None); consumer.feed_count()];
        for feed in feeds {
            let number = consumer.add_feed(feed.clone(), now).index();
            // Feeds of the saved schedule may have other indexes than in the list.
            numbered.resize(numbered.len().max(number + 1), (feed.clone(), None));
            numbered[number].0 = feed;
        }
        if mode == FollowMode::CatchUp {
            // A single pass has no time to wait for a SUP document to name feeds.
            consumer.make_all_due();
        }
        let (fetcher, stop) = (fetcher.clone(), stop.clone());
        Self {
            requests: RequestDriver::with_clock(fetcher.clone(), clock.clone()),
            poller: Arc::new(FeedPoller { output, fetcher, protocol, from, limits, large_folder, stop }),
            mode,
            clock,
            consumer,
            feeds: numbered,
            queues: HostQueues::new(PER_HOST),
            polls: JoinSet::new(),
            running: HashMap::new(),
            schedule_saved: Instant::now(),
            summary: FleetSummary::default(),
        }
    }

    async fn run(&mut self, stop: &Stop) -> Result<FleetSummary, O::Error> {
        self.enqueue_due();
        while !*stop.borrow() {
            if self.mode == FollowMode::Continuous {
                self.enqueue_due();
                let fetcher = &self.poller.fetcher;
                // A SUP document's address is its feed's word, so it may lead as far as the feed's own address.
                self.requests.send_by(&mut self.consumer, |consumer, request| {
                    fetcher.with_named(consumer.linking_feed(request))
                });
            }
            self.report_events();
            self.start_polls();
            if self.mode == FollowMode::CatchUp && self.polls.is_empty() && self.queues.is_empty() {
                break;
            }
            // The schedule lists every feed, so it is not saved after each poll.
            if self.schedule_saved.elapsed() >= SAVE_SCHEDULE {
                self.save_schedule().await?;
            }
            self.wait(stop).await?;
        }
        self.summary.stopped = *stop.borrow();
        self.finish_polls().await?;
        self.save_schedule().await?;
        Ok(std::mem::take(&mut self.summary))
    }

    /// Moves due feeds into their host's queue.
    fn enqueue_due(&mut self) {
        let now = self.clock.now();
        while let Some(ask) = self.consumer.poll_feed(now) {
            self.queues.push(host(&ask.url), ask.feed);
        }
    }

    /// Reports the consumer's events. A failed SUP document is only a warning: its feeds are polled instead.
    fn report_events(&mut self) {
        while let Some(event) = self.consumer.poll_event() {
            let text = match event {
                Event::Warning(text) => text,
                Event::Failed(error) => format!("{error} (a SUP document)"),
                // The consumer follows SUP documents, which have neither changes nor checkpoints.
                Event::Change(_)
                | Event::Large(_)
                | Event::File(_)
                | Event::Checkpoint(_)
                | Event::Incomplete(_)
                | Event::Reset(_) => continue,
            };
            self.poller.output.notice("", FollowNotice::Warning(text));
        }
    }

    /// Starts polls while slots are free.
    fn start_polls(&mut self) {
        while self.queues.has_ready() && self.has_free_slot() {
            let Some((host, feed)) = self.queues.pop() else { return };
            let (url, route) = self.feeds[feed.index()].clone();
            // A task for each poll: a panic in one feed's documents ends that task and not the fleet.
            let poller = self.poller.clone();
            let task = self.polls.spawn(async move { poller.poll(url, route).await });
            self.running.insert(task.id(), RunningPoll { feed, host, since: Instant::now() });
        }
    }

    fn has_free_slot(&self) -> bool {
        let quick = || self.running.values().filter(|running| running.since.elapsed() < SLOW).count();
        // Without the higher limit, 64 hanging feeds would stop the fleet until their timeouts.
        self.running.len() < QUICK || (self.running.len() < ALL && quick() < QUICK)
    }

    /// Waits for the next event and handles it.
    async fn wait(&mut self, stop: &Stop) -> Result<(), O::Error> {
        let until = self.consumer.poll_timeout().filter(|_| self.mode == FollowMode::Continuous);
        let is_idle = self.polls.is_empty() && !self.requests.is_busy();
        let activity = if is_idle { DriverActivity::Idle } else { DriverActivity::Busy };
        let clock = self.clock.clone();
        let due = async {
            match until {
                Some(until) => clock.sleep_until(until, activity).await,
                None => std::future::pending().await,
            }
        };
        // All slots are taken. Running polls turn slow with time, which frees slots without an event.
        let blocked = self.queues.has_ready();
        tokio::select! {
            Some(done) = self.polls.join_next_with_id(), if !self.polls.is_empty() => self.finish_poll(done)?,
            ExchangeProgress::Advanced | ExchangeProgress::ResponseComplete =
                self.requests.next_response(&mut self.consumer), if self.requests.is_busy() => {}
            () = due => {}
            () = tokio::time::sleep(SLOW / 10), if blocked => {}
            () = stopped(stop) => {}
        }
        Ok(())
    }

    /// Handles a finished poll.
    fn finish_poll(
        &mut self,
        done: Result<(Id, Result<FeedPoll, O::Error>), JoinError>,
    ) -> Result<(), O::Error> {
        let (id, poll) = match done {
            Ok((id, poll)) => (id, Some(poll?)),
            Err(error) => {
                tracing::error!(%error, "the poll of a feed panicked");
                (error.id(), None)
            }
        };
        // Before anything else: a slot that is not freed here is lost until the process ends.
        let Some(RunningPoll { feed, host, .. }) = self.running.remove(&id) else { return Ok(()) };
        self.queues.done(host);
        let Some(FeedPoll { route, hints, has_changed, summary }) = poll else {
            self.summary.failed += 1;
            // A panic counts as a failure, so that one broken feed backs off and the others go on.
            self.consumer.handle_failure(self.clock.now(), feed, None);
            return Ok(());
        };
        let known = &mut self.feeds[feed.index()].1;
        // A failed discovery must not erase a route that is already known.
        *known = route.or(known.take());
        self.summary.incomplete += usize::from(summary.incomplete);
        // An interrupted poll says nothing about the feed; it stays due.
        if summary.stopped {
            return Ok(());
        }
        match summary.failed {
            None => {
                let content = if has_changed { PolledContent::Changed } else { PolledContent::Unchanged };
                self.consumer.handle_success(self.clock.now(), feed, hints.sup, content);
            }
            Some(error) => {
                self.summary.failed += 1;
                self.summary.misused += usize::from(matches!(error, FollowError::Usage(_)));
                self.consumer.handle_failure(self.clock.now(), feed, hints.retry_after);
            }
        }
        Ok(())
    }

    /// Waits for running polls to finish their deliveries, up to [`DELIVERY_GRACE`].
    async fn finish_polls(&mut self) -> Result<(), O::Error> {
        let end = Instant::now() + DELIVERY_GRACE;
        while !self.polls.is_empty() {
            // One deadline for all: with a timeout for each, many polls could hold up the stop for minutes.
            let next = tokio::time::timeout_at(end, self.polls.join_next_with_id());
            let Ok(Some(done)) = next.await else { break };
            self.finish_poll(done)?;
        }
        Ok(())
    }

    async fn save_schedule(&mut self) -> Result<(), O::Error> {
        // Set before the attempt: a full disk would otherwise be tried again after each poll.
        self.schedule_saved = Instant::now();
        match RawValue::from_string(self.consumer.to_json(self.clock.now())) {
            Ok(schedule) => self.poller.output.save_schedule(schedule).await,
            // Unreachable: the text was serialised just now.
            Err(_) => Ok(()),
        }
    }
}

/// Creates the consumer from its last schedule. An unreadable schedule costs extra polls only.
fn consumer<O: FleetOutput>(
    feeds: &[Arc<str>],
    output: &O,
    every: Duration,
    schedule: Option<Box<RawValue>>,
    now: Now,
) -> SupFollower {
    let settings = SupPollIntervals { background: every.saturating_mul(BACKGROUND), plain: every };
    let Some(schedule) = schedule else { return SupFollower::new(settings) };
    let wanted: std::collections::HashSet<&str> = feeds.iter().map(AsRef::as_ref).collect();
    // Feeds that are no longer on the list are dropped, or their schedule would be kept for ever.
    SupFollower::from_json(settings, schedule.get(), now, |feed| wanted.contains(feed)).unwrap_or_else(
        |error| {
            output.notice("", FollowNotice::Warning(format!("every feed is polled now: {error}")));
            SupFollower::new(settings)
        },
    )
}

/// Returns the origin (scheme, name and port) by which polls are limited.
fn host(url: &str) -> Arc<str> {
    // By origin and not by name: two ports are two servers, and each of them can bear its own polls.
    Url::parse(url).map_or_else(|_| url.into(), |url| url.origin().ascii_serialization().into())
}
