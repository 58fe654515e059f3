//! Sources whose hub says when to poll them (`push = true`).
//!
//! A subscription runs beside the schedule. A delivery makes its source due at once; what it holds is not read, because
//! it may be a part, or older than what is there. While the subscription lasts, the polls in between only repair.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use towpath_client::{Fetcher, FollowNotice, Output, drive_with_calls, redact, topic_follower};
use towpath_proto::FeedId;
use towpath_proto::follow::{Backoff, Followed};
use towpath_proto::push::websub::follow::topic::TopicNews;
use towpath_store::{Table, TableWrite};

use crate::engine::roles::{Lease, conditions};
use crate::engine::{Engine, Feed};
use crate::protocols::websub;
use crate::source::detail_visibility::DetailVisibility;
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Deliveries that wait for a schedule which is busy. One that misses some polls all pushed sources.
const QUEUE: usize = 256;
/// Shortest time between two polls of a source, however often its hub delivers.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);
/// Number of intervals after which a source is polled without a delivery.
const REPAIR_INTERVALS: u32 = 10;
/// Longest time without a poll, unless the interval is longer.
const LONGEST_REPAIR: Duration = Duration::from_secs(86_400);
/// Waits after a store that cannot be written.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(600));

/// Returns true if the source is polled, and is to be pushed as well.
pub(super) fn is_pushed(feed: &Feed) -> bool {
    feed.config.polled().is_some_and(|(source, _)| source.enabled && source.push)
}

/// Pushed sources of this node.
struct PushedSources {
    // Each shard of this node has a schedule of its own, which takes the deliveries of its sources.
    news: broadcast::Sender<FeedId>,
    /// Sources with a subscription; true if the last delivery was not followed by a second poll yet.
    subscribed: Mutex<HashMap<FeedId, bool>>,
}

impl PushedSources {
    fn of(engine: &Engine) -> &Self {
        engine
            .extensions
            .get_or_insert_with(|| Self { news: broadcast::channel(QUEUE).0, subscribed: Mutex::default() })
    }

    /// Records a delivery, or the begin of a subscription.
    fn on_delivery(&self, feed: &FeedId) {
        self.subscribed.lock().insert(feed.clone(), true);
        self.announce(feed);
    }

    /// Records the end of a subscription.
    fn on_end(&self, feed: &FeedId) {
        self.subscribed.lock().remove(feed);
        self.announce(feed);
    }

    fn announce(&self, feed: &FeedId) {
        // Without a schedule nobody listens, and the next one polls what is due.
        let _ = self.news.send(feed.clone());
    }
}

/// Returns the time until the next regular poll of a source.
pub(super) fn interval(engine: &Engine, feed: &FeedId, every: Duration) -> Duration {
    let mut subscribed = PushedSources::of(engine).subscribed.lock();
    let Some(awaits_second) = subscribed.get_mut(feed) else { return every };
    if std::mem::take(awaits_second) {
        // A cache between the source and here may still have had the document from before the delivery.
        return every;
    }
    // Not less than the interval itself, which may be longer than a day.
    every.max(every.saturating_mul(REPAIR_INTERVALS).min(LONGEST_REPAIR))
}

/// Deliveries for a schedule.
pub(super) struct Deliveries {
    news: broadcast::Receiver<FeedId>,
    /// Sources that are being polled, and are to be polled again: the response may be older than the delivery.
    again: HashSet<FeedId>,
    /// Ends of polls, for the shortest wait.
    polled: HashMap<FeedId, Instant>,
}

impl Deliveries {
    /// Takes the deliveries from now on.
    pub(super) fn new(engine: &Engine) -> Self {
        let news = PushedSources::of(engine).news.subscribe();
        Self { news, again: HashSet::new(), polled: HashMap::new() }
    }

    /// Waits for a delivery. Returns its feed, or `None` if it is not known which feeds had one.
    pub(super) async fn next(&mut self) -> Option<FeedId> {
        match self.news.recv().await {
            Ok(feed) => Some(feed),
            Err(RecvError::Lagged(_)) => None,
            // The engine keeps the sender.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Returns the due time of a source after a delivery. `None` while it is being polled: that poll's end has it.
    pub(super) fn due(&mut self, feed: &FeedId, is_running: bool) -> Option<Instant> {
        if is_running {
            self.again.insert(feed.clone());
            return None;
        }
        let now = Instant::now();
        Some(self.polled.get(feed).map_or(now, |end| now.max(*end + SHORTEST_WAIT)))
    }

    /// Notes the end of a poll. Returns the wait until the next, which is `wait` unless there was a delivery.
    pub(super) fn end(&mut self, feed: &Feed, wait: Duration) -> Duration {
        if !is_pushed(feed) {
            return wait;
        }
        self.polled.insert(feed.id().clone(), Instant::now());
        if self.again.remove(feed.id()) { SHORTEST_WAIT } else { wait }
    }
}

/// State of a subscription to a source, as its status shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum PushState {
    /// The hub was not asked yet, or has not answered.
    #[default]
    Waiting,
    /// The hub pushes.
    Subscribed,
    /// There is no hub, or it refuses. The source is polled, and the hub is asked again.
    Polled,
}

/// Subscription to a source, as its status shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PushStatus {
    state: PushState,
    /// Time since which this is so.
    since: Timestamp,
    /// Reason for which nothing is pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

fn key(feed: &FeedId) -> Vec<u8> {
    format!("push/{feed}").into_bytes()
}

impl PushStatus {
    /// Reads the subscription to a feed's source, if it has `push = true`. Strangers do not read the problem.
    pub(crate) async fn load(
        engine: &Engine,
        feed: &Feed,
        details: DetailVisibility,
    ) -> Result<Option<Self>, StoreError> {
        if !is_pushed(feed) {
            return Ok(None);
        }
        let Some(bytes) = engine.store.get(Table::Sources, &key(feed.id())).await? else {
            return Ok(Some(Self::default()));
        };
        let mut status: Self = serde_json::from_slice(&bytes)
            .map_err(|e| StoreError::Damaged(format!("the subscription of source {}: {e}", feed.id())))?;
        status.problem = status.problem.filter(|_| details.are_shown());
        Ok(Some(status))
    }
}

/// Subscribes to the source of a feed until `stop` turns true.
pub(super) async fn subscribe(
    engine: Arc<Engine>,
    feed: Arc<Feed>,
    lease: Lease,
    fetcher: &Fetcher,
    stop: Stop,
) {
    let Some((source, url)) = feed.config.polled() else { return };
    let fetcher = super::fetcher_of(fetcher, source, url);
    let callback = format!("{}/feeds/{}/callback", engine.base_url, feed.id());
    let mut failures = 0;
    while !*stop.borrow() {
        let (mut follower, key) = topic_follower(url, &callback, source.max_mib << 20);
        match websub::open_inbox(&engine, &feed, &key, &lease).await {
            Ok(calls) => {
                let mut output = SourceNews::new(&engine, &feed, &lease);
                output.set(PushState::Waiting, None).await;
                // It fails in no way: the output stores nothing that a follow depends on.
                let _ = drive_with_calls(follower.as_mut(), &fetcher, &mut output, &stop, calls).await;
            }
            Err(e) => tracing::warn!(feed = %feed.id(), error = %e, "cannot subscribe to the source"),
        }
        failures += 1;
        tokio::select! {
            () = tokio::time::sleep(BACKOFF.jittered(failures, fastrand::u64(..))) => {}
            () = stopped(&stop) => {}
        }
    }
}

/// Output of a subscription: makes the source due.
struct SourceNews {
    engine: Arc<Engine>,
    feed: FeedId,
    lease: Lease,
    status: PushStatus,
}

impl SourceNews {
    fn new(engine: &Arc<Engine>, feed: &Feed, lease: &Lease) -> Self {
        let (engine, feed, lease) = (engine.clone(), feed.id().clone(), lease.clone());
        Self { engine, feed, lease, status: PushStatus::default() }
    }

    /// Changes the state. Returns its write to the store, unless it is the same.
    fn change(&mut self, state: PushState, problem: Option<String>) -> Option<BoxFuture<'static, ()>> {
        let is_new = (state, &problem) != (self.status.state, &self.status.problem);
        if !is_new && self.status.since != Timestamp::default() {
            return None;
        }
        self.status = PushStatus { state, since: self.engine.now(), problem };
        let value = serde_json::to_vec(&self.status).unwrap_or_default();
        let write = TableWrite { table: Table::Sources, key: key(&self.feed), value: Some(value.into()) };
        let (engine, conditions) = (self.engine.clone(), conditions(&self.lease));
        let feed = self.feed.clone();
        let storing = async move {
            if let Err(e) = engine.store.write(vec![write], conditions).await {
                tracing::debug!(%feed, error = %e, "cannot store the state of the subscription");
            }
        };
        Some(storing.boxed())
    }

    async fn set(&mut self, state: PushState, problem: Option<String>) {
        if let Some(storing) = self.change(state, problem) {
            storing.await;
        }
    }
}

/// The source is polled as without a hub from then on.
impl Drop for SourceNews {
    fn drop(&mut self) {
        PushedSources::of(&self.engine).subscribed.lock().remove(&self.feed);
    }
}

impl Output for SourceNews {
    type Error = std::convert::Infallible;

    async fn deliver(&mut self, _: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), Self::Error> {
        let Some(checkpoint) = checkpoint else { return Ok(()) };
        if TopicNews::is_subscribed(&checkpoint) {
            self.set(PushState::Subscribed, None).await;
            PushedSources::of(&self.engine).on_delivery(&self.feed);
        } else {
            self.set(PushState::Polled, self.status.problem.clone()).await;
            PushedSources::of(&self.engine).on_end(&self.feed);
        }
        Ok(())
    }

    fn notice(&mut self, notice: FollowNotice) {
        let text = redact::text(&notice.to_string());
        // A delivery that was refused or ignored ends no subscription.
        if self.status.state == PushState::Subscribed {
            tracing::warn!(feed = %self.feed, reason = text, "a problem with the hub of the source, which still pushes");
            return;
        }
        tracing::warn!(feed = %self.feed, reason = text, "the source is not pushed");
        if let Some(storing) = self.change(PushState::Polled, Some(text)) {
            // A notice is taken at once, so that the follower goes on.
            tokio::spawn(storing);
        }
    }
}
