//! Fleets of up to 10,000 feeds: the real client and real requests, with a simulated clock that advances whenever no
//! request is in flight.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use raw_server::{RawServer, ReceivedRequest, ScriptStep, answer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use towpath_client::fleet::{FeedRoute, FleetOptions, FleetOutput, SavedFeed, follow_fleet};
use towpath_client::{DriverActivity, DriverClock, FetchOptions, Fetcher, FollowNotice, Offer, Protocol};
use towpath_proto::follow::{Followed, Monotonic, Now};
use towpath_proto::sup::id::SupId;
use towpath_proto::sup::publish::RecentUpdates;

/// Xorshift generator that decides which responses are lost: reproducible, unlike a random seed.
struct LossDice(u64);

impl LossDice {
    fn roll(&mut self, sides: u64) -> u64 {
        // xorshift64 with a fixed seed: a failing run can be repeated.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// Simulated publisher of many Smart Feeds, with its clock.
struct SimulatedPublisher {
    now: Timestamp,
    /// Seconds between two updates, up to `until`.
    every: i64,
    until: Timestamp,
    next: Timestamp,
    dice: LossDice,
    /// Percentage of lost responses.
    lost: u64,
    base: String,
    /// Number of items of each feed.
    feeds: Vec<usize>,
    updates_log: RecentUpdates,
    /// Makes the SUP document unavailable.
    is_dead: bool,
    updates: usize,
}

impl SimulatedPublisher {
    fn new(feeds: usize, lost: u64) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let (base, updates_log) = (String::new(), RecentUpdates::default());
        Self {
            now,
            every: 6,
            until: now,
            next: now,
            dice: LossDice(7),
            lost,
            base,
            feeds: vec![0; feeds],
            updates_log,
            is_dead: false,
            updates: 0,
        }
    }

    /// Lets time pass up to `until`, or the next move.
    fn pass(&mut self, until: Timestamp) {
        self.next = self.next.max(self.now);
        if self.next > until.max(self.now) || self.next >= self.until {
            self.now = self.now.max(until);
            return;
        }
        self.now = self.next;
        self.next += SignedDuration::from_secs(self.every);
        let feed = self.dice.roll(self.feeds.len() as u64) as usize;
        self.feeds[feed] += 1;
        self.updates += 1;
        let id = SupId::of(&format!("{}/f/{feed}", self.base));
        self.updates_log.record(id, self.feeds[feed] as u64, self.now);
    }

    fn answer(&mut self, asked: &ReceivedRequest) -> Vec<ScriptStep> {
        if self.dice.roll(100) < self.lost {
            return vec![ScriptStep::Close];
        }
        let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        if path == "/sup.json" && self.is_dead {
            return answer("503 Closed", "Retry-After: 30\r\n", "");
        }
        if path == "/sup.json" {
            let seconds = query.strip_prefix("seconds=").map_or(60, |seconds| seconds.parse().unwrap());
            let document = self.updates_log.document(self.now, seconds, &format!("{}/sup.json", self.base));
            return answer("200 OK", "Content-Type: application/json\r\n", document.body);
        }
        let since = query
            .split("since=cursor%3A")
            .nth(1)
            .map_or(0, |rest| rest.split('&').next().unwrap().parse::<usize>().unwrap());
        let feed: usize = path.strip_prefix("/f/").unwrap().parse().unwrap();
        let items: Vec<Value> = (since + 1..=self.feeds[feed])
            .map(|n| json!({"id": n.to_string(), "objectType": "note"}))
            .collect();
        let cursor = (self.feeds[feed] > 0).then(|| self.feeds[feed].to_string());
        let page = json!({"items": items, "last_cursor": cursor}).to_string();
        let id = SupId::of(&format!("{}/f/{feed}", self.base));
        answer("200 OK", &format!("Content-Type: application/json\r\nX-SUP-ID: /sup.json#{id}\r\n"), page)
    }
}

/// A publisher's time as its follower's clock: while nothing is under route, it goes where it is waited for.
#[derive(Clone)]
struct SimulatedClock {
    publisher: Arc<Mutex<SimulatedPublisher>>,
    end: Timestamp,
    stop: watch::Sender<bool>,
}

impl std::fmt::Debug for SimulatedClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("simulated")
    }
}

impl SimulatedClock {
    fn publisher(&self) -> MutexGuard<'_, SimulatedPublisher> {
        self.publisher.lock().unwrap()
    }
}

impl DriverClock for SimulatedClock {
    fn now(&self) -> Now {
        Now::simulated(self.publisher().now)
    }

    fn sleep_until(&self, until: Monotonic, activity: DriverActivity) -> BoxFuture<'static, ()> {
        // Time stands still while requests run, so that results do not depend on the machine's speed.
        if activity == DriverActivity::Busy {
            return Box::pin(std::future::pending());
        }
        let clock = self.clone();
        Box::pin(async move {
            let mut publisher = clock.publisher();
            publisher.pass(until.simulated_wall().min(clock.end));
            if publisher.now >= clock.end {
                clock.stop.send_replace(true);
            }
        })
    }
}

/// Records deliveries and states in memory.
#[derive(Default)]
struct RecordedFleet {
    states: Mutex<HashMap<Arc<str>, (FeedRoute, Value)>>,
    schedule: Mutex<Option<Box<RawValue>>>,
    /// Number of deliveries of each item, by feed and id.
    delivered: Mutex<BTreeMap<(String, String), usize>>,
    warnings: Mutex<Vec<String>>,
    failures: AtomicUsize,
}

impl FleetOutput for RecordedFleet {
    type Error = String;

    async fn load(&self, feed: &str) -> Result<Option<SavedFeed>, String> {
        let states = self.states.lock().unwrap();
        Ok(states.get(feed).map(|(route, state)| SavedFeed { route: route.clone(), state: state.clone() }))
    }

    async fn deliver(
        &self,
        feed: &Arc<str>,
        route: &FeedRoute,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), String> {
        for change in changes {
            *self.delivered.lock().unwrap().entry((change.feed, change.item.id)).or_default() += 1;
        }
        let mut states = self.states.lock().unwrap();
        states.extend(checkpoint.map(|state| (feed.clone(), (route.clone(), state))));
        Ok(())
    }

    async fn save_schedule(&self, schedule: Box<RawValue>) -> Result<(), String> {
        *self.schedule.lock().unwrap() = Some(schedule);
        Ok(())
    }

    fn notice(&self, _feed: &str, notice: FollowNotice) {
        match notice {
            FollowNotice::Failed(_) => drop(self.failures.fetch_add(1, Ordering::Relaxed)),
            other => self.warnings.lock().unwrap().push(other.to_string()),
        }
    }

    fn discovered(&self, _feed: &str, _offer: &Offer) {}
}

struct FleetSimulation {
    publisher: Arc<Mutex<SimulatedPublisher>>,
    server: RawServer,
    output: Arc<RecordedFleet>,
    feeds: Vec<Arc<str>>,
}

impl FleetSimulation {
    async fn new(feeds: usize, lost: u64) -> Self {
        let publisher = Arc::new(Mutex::new(SimulatedPublisher::new(feeds, lost)));
        let asked = publisher.clone();
        let server = RawServer::start(move |request| asked.lock().unwrap().answer(request)).await;
        publisher.lock().unwrap().base.clone_from(&server.base);
        let feeds = (0..feeds).map(|n| server.url(&format!("/f/{n}")).into()).collect();
        Self { publisher, server, output: Arc::default(), feeds }
    }

    /// Follows for `minutes` of simulated time. Feeds are updated until `quiet` minutes before the end.
    async fn follow(&self, minutes: i64, quiet: i64) {
        let (stop, stopped) = watch::channel(false);
        let end = {
            let mut publisher = self.publisher.lock().unwrap();
            let end = publisher.now + SignedDuration::from_mins(minutes);
            publisher.until = end - SignedDuration::from_mins(quiet);
            end
        };
        let clock = Arc::new(SimulatedClock { publisher: self.publisher.clone(), end, stop });
        let schedule = self.output.schedule.lock().unwrap().take();
        let protocol = Some(Protocol::Smart);
        let options =
            FleetOptions::default().with_protocol(protocol).with_schedule(schedule).with_clock(clock);
        let fetcher = Fetcher::new(FetchOptions::default()).unwrap();
        let ended = follow_fleet(self.feeds.clone(), self.output.clone(), &fetcher, options, &stopped);
        assert!(ended.await.unwrap().stopped);
    }

    /// Asserts that every item of every feed was delivered exactly once.
    fn assert_nothing_missed(&self) {
        let publisher = self.publisher.lock().unwrap();
        let delivered = self.output.delivered.lock().unwrap();
        for (feed, count) in publisher.feeds.iter().enumerate() {
            for n in 1..=*count {
                let item = (self.feeds[feed].to_string(), n.to_string());
                assert_eq!(delivered.get(&item), Some(&1), "{item:?}");
            }
        }
        assert_eq!(delivered.len(), publisher.updates);
    }

    /// Returns the numbers of requests for feeds and for SUP documents.
    fn requests(&self) -> (usize, usize) {
        let asked = self.server.asked();
        let documents = asked.iter().filter(|asked| asked.path.starts_with("/sup.json")).count();
        (asked.len() - documents, documents)
    }
}

/// 10,000 feeds, 10% of responses lost, two hours and a restart: no item is missing or repeated.
///
/// Prints the number of requests, compared with polling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_feeds_at_one_publisher() {
    const FEEDS: usize = 10_000;
    let begun = Instant::now();
    let world = FleetSimulation::new(FEEDS, 10).await;
    // Initially every feed is polled once; lost responses are retried.
    world.follow(15, 15).await;
    let (first, first_documents) = world.requests();
    world.follow(60, 15).await;
    // The follower is down for 20 minutes, during which feeds are updated.
    {
        let mut publisher = world.publisher.lock().unwrap();
        let back = publisher.now + SignedDuration::from_mins(20);
        publisher.until = back;
        while publisher.now < back {
            publisher.pass(back);
        }
    }
    world.follow(45, 15).await;
    world.assert_nothing_missed();
    let (feeds, documents) = world.requests();
    let (feeds, documents) = (feeds - first, documents - first_documents);
    let updates = world.publisher.lock().unwrap().updates;
    // Polling with the same delay needs a request per feed and minute.
    let polls = FEEDS * (60 + 45);
    println!(
        "{FEEDS} feeds, {updates} updates in 2 hours, 10% of the answers lost: {} requests ({feeds} of feeds, \
         {documents} of SUP documents) after the first {first}; plain polling: {polls} requests, each a document \
         ({:.0} times as many); conditional polling: {polls} requests, {updates} of them documents; {:?}",
        feeds + documents,
        polls as f64 / (feeds + documents) as f64,
        begun.elapsed()
    );
    let warnings = world.output.warnings.lock().unwrap();
    assert!(warnings.iter().all(|text| text.contains("(a SUP document)")), "{warnings:?}");
    // At least a hundred times fewer requests than polling: the point of SUP.
    assert!((feeds + documents) * 100 < polls, "{feeds} and {documents} beside {polls}");
}

/// Without its SUP document all feeds are polled, and no item is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feeds_whose_sup_document_dies_are_polled() {
    let world = FleetSimulation::new(50, 0).await;
    world.follow(10, 5).await;
    world.publisher.lock().unwrap().is_dead = true;
    // Lost responses on top: the fallback must retry, not only poll.
    world.publisher.lock().unwrap().lost = 40;
    world.follow(120, 60).await;
    world.publisher.lock().unwrap().lost = 0;
    world.follow(30, 30).await;
    world.assert_nothing_missed();
}
