//! Ten thousand feeds at one publisher: the real client and real requests, by a clock that runs ahead whenever
//! nothing is under way.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod raw_server;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use raw_server::{Asked, RawServer, Step, answer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use towpath::client::fleet::{FleetOptions, Kept, Ledger, Way, follow_fleet};
use towpath::client::{Clock, FetchOptions, Fetcher, Notice, Offer, Protocol};
use towpath_proto::follow::Followed;
use towpath_proto::sup::id::SupId;
use towpath_proto::sup::publish::RecentMoves;

/// Small and good enough to decide what is lost.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// A publisher of many Smart Feeds, and its time.
struct Publisher {
    now: Timestamp,
    /// Seconds between two moves, up to a time.
    every: i64,
    until: Timestamp,
    next: Timestamp,
    dice: Dice,
    /// Of a hundred answers so many are lost.
    lost: u64,
    base: String,
    /// How many items each feed has.
    feeds: Vec<usize>,
    moves: RecentMoves,
    /// Whether the SUP document cannot be had.
    is_dead: bool,
    updates: usize,
}

impl Publisher {
    fn new(feeds: usize, lost: u64) -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let (base, moves) = (String::new(), RecentMoves::default());
        Self {
            now,
            every: 6,
            until: now,
            next: now,
            dice: Dice(7),
            lost,
            base,
            feeds: vec![0; feeds],
            moves,
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
        self.moves.record(id, self.feeds[feed] as u64, self.now);
    }

    fn answer(&mut self, asked: &Asked) -> Vec<Step> {
        if self.dice.roll(100) < self.lost {
            return vec![Step::Close];
        }
        let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
        if path == "/sup.json" && self.is_dead {
            return answer("503 Closed", "Retry-After: 30\r\n", "");
        }
        if path == "/sup.json" {
            let seconds = query.strip_prefix("seconds=").map_or(60, |seconds| seconds.parse().unwrap());
            let document = self.moves.document(self.now, seconds, &format!("{}/sup.json", self.base));
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

/// A publisher's time as its follower's clock: while nothing is under way, it goes where it is waited for.
#[derive(Clone)]
struct Simulated {
    publisher: Arc<Mutex<Publisher>>,
    end: Timestamp,
    stop: watch::Sender<bool>,
}

impl std::fmt::Debug for Simulated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("simulated")
    }
}

impl Simulated {
    fn publisher(&self) -> MutexGuard<'_, Publisher> {
        self.publisher.lock().unwrap()
    }
}

impl Clock for Simulated {
    fn now(&self) -> Timestamp {
        self.publisher().now
    }

    fn sleep_until(&self, until: Timestamp, idle: bool) -> BoxFuture<'static, ()> {
        if !idle {
            return Box::pin(std::future::pending());
        }
        let clock = self.clone();
        Box::pin(async move {
            let mut publisher = clock.publisher();
            publisher.pass(until.min(clock.end));
            if publisher.now >= clock.end {
                clock.stop.send_replace(true);
            }
        })
    }
}

/// Remembers what it is told, and how often.
#[derive(Default)]
struct Memory {
    states: Mutex<HashMap<Arc<str>, (Way, Value)>>,
    schedule: Mutex<Option<Box<RawValue>>>,
    /// How many times each item was told: by feed and id.
    told: Mutex<BTreeMap<(String, String), usize>>,
    warnings: Mutex<Vec<String>>,
    failures: AtomicUsize,
}

impl Ledger for Memory {
    type Error = String;

    async fn load(&self, feed: &str) -> Result<Option<Kept>, String> {
        let states = self.states.lock().unwrap();
        Ok(states.get(feed).map(|(way, state)| Kept { way: way.clone(), state: state.clone() }))
    }

    async fn deliver(
        &self,
        feed: &Arc<str>,
        way: &Way,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), String> {
        for change in changes {
            *self.told.lock().unwrap().entry((change.feed, change.item.id)).or_default() += 1;
        }
        let mut states = self.states.lock().unwrap();
        states.extend(checkpoint.map(|state| (feed.clone(), (way.clone(), state))));
        Ok(())
    }

    async fn keep_schedule(&self, schedule: Box<RawValue>) -> Result<(), String> {
        *self.schedule.lock().unwrap() = Some(schedule);
        Ok(())
    }

    fn notice(&self, _feed: &str, notice: Notice) {
        match notice {
            Notice::Failed(_) => drop(self.failures.fetch_add(1, Ordering::Relaxed)),
            Notice::Warning(text) | Notice::Incomplete(text) => self.warnings.lock().unwrap().push(text),
        }
    }

    fn chosen(&self, _feed: &str, _offer: &Offer) {}
}

struct World {
    publisher: Arc<Mutex<Publisher>>,
    server: RawServer,
    ledger: Arc<Memory>,
    feeds: Vec<Arc<str>>,
}

impl World {
    async fn new(feeds: usize, lost: u64) -> Self {
        let publisher = Arc::new(Mutex::new(Publisher::new(feeds, lost)));
        let asked = publisher.clone();
        let server = RawServer::start(move |request| asked.lock().unwrap().answer(request)).await;
        publisher.lock().unwrap().base.clone_from(&server.base);
        let feeds = (0..feeds).map(|n| server.url(&format!("/f/{n}")).into()).collect();
        Self { publisher, server, ledger: Arc::default(), feeds }
    }

    /// Follows for some minutes of the publisher's time; feeds move until `quiet` minutes before the end.
    async fn follow(&self, minutes: i64, quiet: i64) {
        let (stop, stopped) = watch::channel(false);
        let end = {
            let mut publisher = self.publisher.lock().unwrap();
            let end = publisher.now + SignedDuration::from_mins(minutes);
            publisher.until = end - SignedDuration::from_mins(quiet);
            end
        };
        let clock = Arc::new(Simulated { publisher: self.publisher.clone(), end, stop });
        let schedule = self.ledger.schedule.lock().unwrap().take();
        let protocol = Some(Protocol::Smart);
        let options = FleetOptions { protocol, schedule, clock, ..FleetOptions::default() };
        let fetcher = Fetcher::new(FetchOptions::default()).unwrap();
        let ended = follow_fleet(self.feeds.clone(), self.ledger.clone(), &fetcher, options, &stopped);
        assert!(ended.await.unwrap().stopped);
    }

    /// Every item of every feed was told, and once.
    fn assert_nothing_missed(&self) {
        let publisher = self.publisher.lock().unwrap();
        let told = self.ledger.told.lock().unwrap();
        for (feed, count) in publisher.feeds.iter().enumerate() {
            for n in 1..=*count {
                let item = (self.feeds[feed].to_string(), n.to_string());
                assert_eq!(told.get(&item), Some(&1), "{item:?}");
            }
        }
        assert_eq!(told.len(), publisher.updates);
    }

    /// Requests for feeds, and for SUP documents.
    fn requests(&self) -> (usize, usize) {
        let asked = self.server.asked();
        let documents = asked.iter().filter(|asked| asked.path.starts_with("/sup.json")).count();
        (asked.len() - documents, documents)
    }
}

/// 10,000 feeds, 10 of 100 answers lost, for two hours and a restart: nothing is missed, nothing told twice,
/// and what that costs beside polling.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_feeds_at_one_publisher() {
    const FEEDS: usize = 10_000;
    let begun = Instant::now();
    let world = World::new(FEEDS, 10).await;
    // To begin with every feed is asked once; what was lost is asked again.
    world.follow(15, 15).await;
    let (first, first_documents) = world.requests();
    world.follow(60, 15).await;
    // The follower is away for a while, in which feeds move.
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
    // Polling that is as timely asks each feed once a minute.
    let polls = FEEDS * (60 + 45);
    println!(
        "{FEEDS} feeds, {updates} updates in 2 hours, 10% of the answers lost: {} requests ({feeds} of feeds, \
         {documents} of SUP documents) after the first {first}; plain polling: {polls} requests, each a document \
         ({:.0} times as many); conditional polling: {polls} requests, {updates} of them documents; {:?}",
        feeds + documents,
        polls as f64 / (feeds + documents) as f64,
        begun.elapsed()
    );
    let warnings = world.ledger.warnings.lock().unwrap();
    assert!(warnings.iter().all(|text| text.contains("(a SUP document)")), "{warnings:?}");
    assert!((feeds + documents) * 100 < polls, "{feeds} and {documents} beside {polls}");
}

/// A SUP document that is dead costs requests, and no update.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn feeds_whose_sup_document_dies_are_polled() {
    let world = World::new(50, 0).await;
    world.follow(10, 5).await;
    world.publisher.lock().unwrap().is_dead = true;
    world.publisher.lock().unwrap().lost = 40;
    world.follow(120, 60).await;
    world.publisher.lock().unwrap().lost = 0;
    world.follow(30, 30).await;
    world.assert_nothing_missed();
}
