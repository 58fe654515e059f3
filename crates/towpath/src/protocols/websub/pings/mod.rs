//! Pings to hubs of others: each hub that a feed's documents name is told when they changed.
//!
//! A site is the server, or a static tree: its documents have addresses of their own. [`PingQueue`] decides when a hub
//! is told. The position of each ping is stored, so that a change is told after a restart if it was not before. Nothing
//! here delays an append or an export.

mod health;
mod records;
mod request;
mod server;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use towpath_client::{Fetcher, redact};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::push::websub::ping::{DuePing, PingLimits, PingOutcome, PingQueue};

use crate::engine::roles::Lease;
use crate::engine::{Engine, Feed};
use crate::protocols::websub::jobs::now;
use crate::stop::{Stop, stopped};
use records::PingRecords;

pub(crate) use health::{HubStatus, PingHealth, ping_statuses};
pub(crate) use server::run;

/// Interval of storing positions.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// Longest sleep until the clock is read again: monotonic time stands still while a machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Time that pings get to finish when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// Returns the maximum number of connections to hubs of others.
pub(crate) fn connections() -> usize {
    PingLimits::default().connections
}

/// Documents that hubs are told of.
#[derive(Debug, Clone)]
pub(crate) struct PingSite {
    /// Name in the keys of its records.
    name: String,
    /// Address of its documents, without a slash at its end.
    base_url: String,
    is_tree: bool,
}

impl PingSite {
    /// The documents of a server.
    fn server(engine: &Engine) -> Self {
        Self { name: records::SERVER.to_owned(), base_url: engine.base_url.clone(), is_tree: false }
    }

    /// The documents of the static tree of this name.
    pub(crate) fn tree(name: &str, base_url: &str) -> Self {
        Self { name: format!("tree-{name}"), base_url: base_url.to_owned(), is_tree: true }
    }

    /// Returns the hubs that a feed's documents name here.
    fn hubs<'a>(&self, engine: &'a Engine, feed: &'a Feed) -> &'a [String] {
        if self.is_tree { engine.tree_hubs_of(feed) } else { engine.hubs_of(feed) }
    }
}

/// Tells hubs of the changes of a site.
pub(crate) struct Pinger {
    engine: Arc<Engine>,
    fetcher: Arc<Fetcher>,
    site: PingSite,
    lease: Lease,
    queue: Mutex<PingQueue<FeedId>>,
    records: PingRecords,
    /// Wakes the task when a ping is due.
    wake: Notify,
}

/// A ping that has ended.
struct EndedPing {
    ping: DuePing<FeedId>,
    /// Result, with the reason if it failed. `None` if nothing was sent.
    result: Option<(PingOutcome, Option<String>)>,
}

impl Pinger {
    /// Opens a site's state, under the lease of the role that tells its hubs.
    pub(crate) async fn open(
        engine: &Arc<Engine>,
        fetcher: Arc<Fetcher>,
        site: PingSite,
        lease: Lease,
    ) -> Arc<Self> {
        // An unreadable record must not keep hubs from being told of what comes.
        let records = PingRecords::load(engine.store.as_ref(), &site.name).await.unwrap_or_else(|e| {
            // Hubs are told once more, which harms nobody.
            tracing::error!(error = %e, "cannot read what hubs were told");
            PingRecords::new(&site.name)
        });
        let queue = Mutex::new(PingQueue::new(PingLimits::default()));
        Arc::new(Self { engine: engine.clone(), fetcher, site, lease, queue, records, wake: Notify::new() })
    }

    /// Notes that the documents of a feed show its changes up to a position.
    pub(crate) fn handle_change(&self, feed: &FeedId, head: Seq) {
        let Some(feed) = self.engine.feed(feed.as_str()) else { return };
        for hub in self.site.hubs(&self.engine, &feed) {
            if self.records.pinged_through(feed.id(), hub) < head {
                self.queue.lock().handle_change(now().monotonic, hub, feed.id().clone(), head);
                self.wake.notify_one();
            }
        }
    }

    /// Tells hubs until `stop` turns true.
    pub(crate) async fn run(self: Arc<Self>, stop: Stop) {
        let mut under_way = JoinSet::new();
        while !*stop.borrow() {
            self.start(&mut under_way);
            tokio::select! {
                Some(ended) = under_way.join_next(), if !under_way.is_empty() => self.finish(ended),
                () = self.wake.notified() => {}
                () = sleep(self.until_timeout()) => {}
                () = sleep(SAVE_INTERVAL), if self.records.are_unsaved() => self.save().await,
                () = stopped(&stop) => {}
            }
        }
        let finishing = async {
            while let Some(ended) = under_way.join_next().await {
                self.finish(ended);
            }
        };
        // What is not confirmed is told after the next start.
        let _ = timeout(GRACE, finishing).await;
        self.save().await;
    }

    /// Tells each hub once, within a time. What fails is left to the next run.
    pub(crate) async fn run_once(self: Arc<Self>, patience: Duration) {
        let mut under_way = JoinSet::new();
        let telling = async {
            loop {
                self.start(&mut under_way);
                let Some(ended) = under_way.join_next().await else { break };
                self.finish(ended);
            }
        };
        let _ = timeout(patience, telling).await;
        self.save().await;
    }

    fn until_timeout(&self) -> Duration {
        let next = self.queue.lock().poll_timeout();
        let wait = next.map_or(LONGEST_SLEEP, |next| next.since(now().monotonic));
        // At least 10 ms: a ping that is due but waits for a free connection must not spin the loop.
        wait.clamp(Duration::from_millis(10), LONGEST_SLEEP)
    }

    fn start(self: &Arc<Self>, under_way: &mut JoinSet<EndedPing>) {
        while self.lease.is_current()
            // Without the role, another node tells the hub, perhaps of later changes.
            && let Some(ping) = self.queue.lock().poll_ping(now().monotonic)
        {
            let pinger = self.clone();
            under_way.spawn(async move { pinger.ping(ping).await });
        }
    }

    async fn ping(&self, ping: DuePing<FeedId>) -> EndedPing {
        let feed = self.engine.feed(ping.feed.as_str());
        // Read again meanwhile, the configuration may name the hub no more.
        let is_named =
            feed.is_some_and(|feed| self.site.hubs(&self.engine, &feed).iter().any(|hub| **hub == *ping.hub));
        // Counted as accepted, so that the queue lets go of it.
        if !is_named {
            return EndedPing { ping, result: None };
        }
        // The feed's own address stands for all of its documents: the hub fetches those that it has subscribers for.
        let url = format!("{}/feeds/{}", self.site.base_url, ping.feed);
        let result = AssertUnwindSafe(request::ping(&self.fetcher, &ping.hub, &url)).catch_unwind().await;
        // Without an end, the hub's place among the running pings would be lost.
        let result = result.unwrap_or_else(|_| {
            tracing::error!(hub = redact::url(&ping.hub), feed = %ping.feed, "a ping panicked");
            (PingOutcome::Failed(None), Some("internal error: the ping panicked".into()))
        });
        EndedPing { ping, result: Some(result) }
    }

    fn finish(&self, ended: Result<EndedPing, JoinError>) {
        let EndedPing { ping, result } = match ended {
            Ok(ended) => ended,
            Err(e) => {
                tracing::error!(error = %e, "a ping panicked");
                return;
            }
        };
        // For the jitter of retries: the queue is pure and has no source of randomness.
        let entropy = fastrand::u64(..);
        let Some((outcome, error)) = result else {
            self.queue.lock().handle_end(now().monotonic, &ping, PingOutcome::Accepted, entropy);
            return;
        };
        let metrics = &self.engine.metrics;
        match &error {
            None => metrics.hub_pings_ok.inc(),
            Some(_) => metrics.hub_pings_failed.inc(),
        };
        PingHealth::of(&self.engine).record(&ping.hub, error.as_deref());
        let through = (!matches!(outcome, PingOutcome::Failed(_))).then_some(ping.through);
        self.records.record(&ping.feed, &ping.hub, through, self.engine.now(), error);
        self.queue.lock().handle_end(now().monotonic, &ping, outcome, entropy);
    }

    async fn save(&self) {
        let named = |feed: &FeedId, hub: &str| {
            let feed = self.engine.feed(feed.as_str());
            feed.is_some_and(|feed| self.site.hubs(&self.engine, &feed).iter().any(|named| named == hub))
        };
        if let Err(e) = self.records.save(self.engine.store.as_ref(), &self.lease, named).await {
            tracing::warn!(error = %e, "cannot store what hubs were told");
        }
    }
}
