//! A run: a seed, so many simulated hours, and the schedule of what happens in them.
//!
//! Each round has a time with faults, and a time without, in which publishers rest. Then every copy must become equal to
//! what was published, within `PATIENCE`. After every crash of a node the log is compared at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use towpath_client::Protocol;
use towpath_proto::change::{Change, Op};

use crate::bug::Bug;
use crate::fleet::SimulatedFleet;
use crate::follower::{Delivered, SimulatedFollower};
use crate::node::{self, Crash, Node};
use crate::publisher::Publisher;
use crate::receiver::{self, Receiver};
use crate::world::{Faults, World};
use crate::{system, trace, trace::count};

/// Time without faults after which everything has what it is promised.
const PATIENCE: Duration = Duration::from_secs(40 * 60);
/// Interval of looks at that.
const LOOK: Duration = Duration::from_secs(30);
/// Longest time that a node takes to start, on a disk without faults.
const START: Duration = Duration::from_secs(60);

/// Number of tasks of two nodes and their clients at rest, with a margin.
const MOST_TASKS: usize = 300;
/// Longest wait for a moment at which a kill does most harm.
const AMBUSH: Duration = Duration::from_secs(300);

/// Most bytes that are left on a disk that fills up: minutes of publishing.
const FILLING: u64 = 60_000;

/// Host of the node that is published to.
const ORIGIN: &str = "origin.test";
/// Host of the node that mirrors and polls.
const MIRROR: &str = "mirror.test";
/// Feeds that are published to.
const FEEDS: [&str; 2] = ["orders", "notes"];

/// Configuration of the node that is published to.
const ORIGIN_CONFIG: &str = r#"
[[feed]]
id = "orders"
[[feed]]
id = "notes"
[[sink]]
name = "hook"
feeds = ["orders", "notes"]
into = "webhook:http://receiver.test/hook"
from = "beginning"
"#;

/// Feeds of the mirroring node, with the feed of the origin that each copies.
const COPIES: [(&str, &str); 4] =
    [("by-diffdelta", "orders"), ("by-replication", "orders"), ("by-smart", "notes"), ("by-poll", "notes")];

/// Configuration of the node that mirrors and polls.
const MIRROR_CONFIG: &str = r#"
[[feed]]
id = "by-diffdelta"
[feed.source]
follow = "http://origin.test/diff/orders/head.json"
every = "2m"
[[feed]]
id = "by-replication"
[feed.source]
follow = "http://origin.test/feeds/orders/replication"
every = "2m"
[[feed]]
id = "by-smart"
[feed.source]
follow = "http://origin.test/feeds/notes/items"
[[feed]]
id = "by-poll"
[feed.source]
url = "http://origin.test/feeds/notes/rss"
every = "3m"
"#;

/// Runs a seed for so many simulated hours. Returns the invariant that was broken.
pub async fn run(seed: u64, hours: u64, bug: Option<Bug>, scratch: &Path) -> Option<String> {
    let world = World::new(seed, bug);
    let mut simulation = match Simulation::new(&world, scratch).await {
        Ok(simulation) => simulation,
        Err(e) => return Some(e),
    };
    let end = Duration::from_secs(hours * 3600);
    while system::elapsed() < end && world.broken().is_none() {
        if let Err(broken) = simulation.round().await {
            world.violate(broken);
        }
    }
    world.broken()
}

struct Simulation {
    world: Arc<World>,
    nodes: Vec<Node>,
    followers: Vec<SimulatedFollower>,
    fleet: SimulatedFleet,
    receiver: Arc<Receiver>,
    works: watch::Sender<bool>,
    /// Copies of the mirroring node, as last read.
    mirrored: Mutex<BTreeMap<&'static str, MirroredCopy>>,
}

/// Live items of a copy.
struct MirroredCopy {
    /// Step of the store that has it.
    step: u64,
    /// Titles by id.
    live: BTreeMap<String, String>,
}

impl Simulation {
    async fn new(world: &Arc<World>, scratch: &Path) -> Result<Self, String> {
        let mut nodes = vec![
            Node::new(world, ORIGIN, ORIGIN_CONFIG, scratch)?,
            Node::new(world, MIRROR, MIRROR_CONFIG, scratch)?,
        ];
        let receiver = Receiver::new(world);
        world.nodes.lock().insert(receiver::HOST.into(), receiver.address());
        for node in &mut nodes {
            node.start().await?;
        }
        for feed in FEEDS {
            let (receiver, fetcher) = (receiver.clone(), node::fetcher(world, receiver::HOST)?);
            tokio::spawn(async move {
                receiver.subscriber.subscribe(&fetcher, ORIGIN, receiver::HOST, feed).await;
            });
        }
        let works = watch::Sender::new(true);
        for (number, feed) in FEEDS.iter().cycle().take(4).enumerate() {
            let name = format!("p{number}");
            let publisher = Publisher {
                world: world.clone(),
                fetcher: node::fetcher(world, &name)?,
                name,
                host: ORIGIN.into(),
                feed: (*feed).into(),
                pause: Duration::from_secs(180),
                works: works.subscribe(),
            };
            tokio::spawn(publisher.run());
        }
        let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
        let followers = [
            ("diffdelta", (ORIGIN, "orders"), Protocol::DiffDelta, minutes(3)),
            ("replication", (ORIGIN, "orders"), Protocol::Replication, minutes(3)),
            ("smart-waiting", (ORIGIN, "orders"), Protocol::Smart, None),
            ("smart-polling", (ORIGIN, "notes"), Protocol::Smart, minutes(4)),
            ("history", (ORIGIN, "notes"), Protocol::History, minutes(4)),
            ("of-mirror", (MIRROR, "by-diffdelta"), Protocol::Smart, minutes(5)),
            ("of-second-mirror", (MIRROR, "by-smart"), Protocol::DiffDelta, minutes(5)),
            ("of-poll", (MIRROR, "by-poll"), Protocol::Replication, minutes(5)),
        ];
        let followers = followers
            .map(|(name, feed, protocol, every)| SimulatedFollower::new(world, name, feed, protocol, every));
        let mut followers = Vec::from(followers);
        followers.iter_mut().for_each(SimulatedFollower::start);
        let mut fleet = SimulatedFleet::new(world, "fleet", ORIGIN, &FEEDS);
        fleet.start();
        Ok(Self {
            world: world.clone(),
            nodes,
            followers,
            fleet,
            receiver,
            works,
            mirrored: Mutex::default(),
        })
    }

    /// A time with faults, and one without.
    async fn round(&mut self) -> Result<(), String> {
        self.works.send_replace(true);
        let steps = 5 + self.world.below(20);
        for _ in 0..steps {
            self.choose_faults();
            sleep(Duration::from_secs(20) + self.world.time(Duration::from_secs(240))).await;
            self.disturb().await?;
            if self.world.broken().is_some() {
                return Ok(());
            }
        }
        self.heal().await?;
        self.converge().await
    }

    fn choose_faults(&self) {
        let world = &self.world;
        let is_calm = world.one_in(3);
        let chance =
            |likely: u64, most: u64| if is_calm || !world.percent(likely) { 0 } else { world.below(most) };
        let mut faults = Faults {
            cut: chance(50, 40),
            slow: chance(30, 40),
            twice: chance(50, 30),
            refused: chance(30, 40),
            delay: chance(50, 3000),
            sync: chance(50, 2000),
            failing_sync: chance(20, 30),
            ..Faults::default()
        };
        if !is_calm && world.percent(30) {
            let followers = self.followers.iter().map(|follower| follower.name.as_str());
            let hosts: Vec<&str> =
                [MIRROR, receiver::HOST, "fleet", "p0", "p1", "p2"].into_iter().chain(followers).collect();
            for _ in 0..=world.below(3) {
                let host = hosts[world.below(hosts.len() as u64) as usize];
                faults.partitions.insert((host.into(), ORIGIN.into()));
                count("partitions");
            }
        }
        trace!("faults: {faults:?}");
        world.faults.send_replace(faults);
        for node in &self.nodes {
            let free = (!is_calm && world.percent(15)).then(|| world.below(FILLING));
            if let Some(free) = free {
                trace!("{}: {free} bytes are left on the disk", node.host);
                count("disks that fill up");
            }
            node.set_free(free);
        }
    }

    /// Kills what is chosen.
    async fn disturb(&mut self) -> Result<(), String> {
        let world = self.world.clone();
        if world.one_in(4) {
            let node = world.below(self.nodes.len() as u64) as usize;
            let crash = if world.one_in(2) { Crash::Kill } else { Crash::PowerLoss };
            count(if crash == Crash::Kill { "kills of nodes" } else { "power losses" });
            if node == 0 && world.one_in(4) {
                // While a message is on its way.
                let _ = timeout(AMBUSH, self.receiver.taking()).await;
            } else if world.one_in(2)
                && let Some(store) = self.nodes[node].store()
            {
                // While it syncs, or, for a planted bug, shortly after it told of what it did not sync.
                let _ = timeout(AMBUSH, store.syncing()).await;
                sleep(world.time(world.sync_time())).await;
            }
            self.nodes[node].crash(crash).await?;
            sleep(world.time(Duration::from_secs(120))).await;
            self.start(node).await?;
        }
        if world.one_in(12) {
            self.fleet.kill();
            sleep(world.time(Duration::from_secs(600))).await;
            self.fleet.start();
        }
        if world.one_in(2) {
            let follower = world.below(self.followers.len() as u64) as usize;
            if world.one_in(2) {
                let _ = timeout(AMBUSH, self.followers[follower].writing()).await;
            }
            self.followers[follower].kill();
            sleep(world.time(Duration::from_secs(30))).await;
            self.followers[follower].start();
        }
        Ok(())
    }

    /// Starts a node, and compares its logs with what is known of them.
    async fn start(&mut self, node: usize) -> Result<(), String> {
        let starting = timeout(START, self.nodes[node].start()).await;
        starting.map_err(|_| format!("{} does not start", self.nodes[node].host))??;
        self.verify(node).await
    }

    /// Compares the logs of a node with the ledger, and its indexes with the logs, if anything has changed.
    async fn verify(&self, node: usize) -> Result<(), String> {
        let node = &self.nodes[node];
        let Some(store) = node.store() else { return Ok(()) };
        if store.is_compared(self.world.ledger.lock().events()) {
            return Ok(());
        }
        let problems = store.verify()?;
        if let Some(problem) = problems.first() {
            return Err(format!("the store of {} is damaged: {problem}", node.host));
        }
        if node.host == ORIGIN {
            for feed in FEEDS {
                let log = node.log(feed).await?;
                let compared = self.world.ledger.lock().feed(feed).compare(&log);
                compared.map_err(|e| format!("{feed} at {}: {e}", node.host))?;
            }
        }
        Ok(())
    }

    /// Ends all faults.
    async fn heal(&mut self) -> Result<(), String> {
        self.works.send_replace(false);
        trace!("all faults end");
        self.world.faults.send_replace(Faults::default());
        self.nodes.iter().for_each(|node| node.set_free(None));
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_on() {
                self.start(node).await?;
            }
        }
        self.followers.iter_mut().for_each(SimulatedFollower::start);
        self.fleet.start();
        Ok(())
    }

    /// Waits until every copy has what it is promised.
    async fn converge(&mut self) -> Result<(), String> {
        let begun = system::elapsed();
        // What was on its way arrives.
        sleep(Duration::from_secs(150)).await;
        for node in &self.nodes {
            let Some(store) = node.store() else { continue };
            // A disk that was full has space again, and no sync fails.
            let written = timeout(START, store.probe()).await;
            let written = written.map_err(|_| format!("a write of {} waits for ever", node.host))?;
            written.map_err(|e| format!("{} takes no writes after all faults ended: {e}", node.host))?;
        }
        loop {
            for node in 0..self.nodes.len() {
                self.verify(node).await?;
            }
            let lagging = match self.lagging(begun).await? {
                None => break,
                Some(lagging) => lagging,
            };
            if system::elapsed() > begun + PATIENCE {
                return Err(format!("{lagging}, {} minutes after the last fault", PATIENCE.as_secs() / 60));
            }
            sleep(LOOK).await;
        }
        count("times at which all was equal");
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        trace!("{tasks} tasks");
        // What is left of killed nodes and followers ends, and no request waits for ever.
        if tasks > MOST_TASKS {
            return Err(format!("{tasks} tasks are left, of nodes and followers that were killed"));
        }
        self.flip().await?;
        self.compare_deliveries()
    }

    /// Flips a bit of the origin's disk in a copy of it. It is found, or it changes nothing that is read.
    async fn flip(&self) -> Result<(), String> {
        let (place, store) = self.nodes[0].flip().await?;
        let Some(store) = store else {
            trace::remark(format_args!("{place}: flipped, and found"));
            count("flipped bits found");
            return Ok(());
        };
        trace::remark(format_args!("{place}: flipped"));
        count("flipped bits of no effect");
        for feed in FEEDS {
            let log = node::read_log(&store, feed).await.map_err(|e| format!("{place} flipped: {e}"))?;
            let compared = self.world.ledger.lock().feed(feed).compare(&log);
            compared.map_err(|e| format!("{place} was flipped, and nothing found it: {e}"))?;
        }
        Ok(())
    }

    /// Returns a copy that is not yet what it shall be.
    async fn lagging(&self, healed: Duration) -> Result<Option<String>, String> {
        let mut feeds = BTreeMap::new();
        for feed in FEEDS {
            feeds.insert(feed, self.world.ledger.lock().feed(feed).live());
        }
        for (copy, of) in COPIES {
            let found = self.mirrored(copy).await?;
            let differs = match copy {
                // A document that is polled shows the newest items, so one that is not in it may be there still.
                "by-poll" => missing(&feeds[of], &found),
                _ => difference(&feeds[of], &found),
            };
            if let Some(difference) = differs {
                return Ok(Some(format!("mirror {copy} of {of} differs: {difference}")));
            }
            feeds.insert(copy, found);
        }
        for follower in &self.followers {
            let feed = follower.feed.as_str();
            if let Some(difference) = difference(&feeds[feed], &follower.saved().copy) {
                return Ok(Some(format!("follower {} of {feed} differs: {difference}", follower.name)));
            }
        }
        for feed in FEEDS {
            let log = self.world.ledger.lock().feed(feed).log().to_vec();
            let missing = self.receiver.compare(feed, &log)?;
            let missing = missing.or_else(|| self.receiver.subscriber.compare(feed, &log, healed));
            if missing.is_some() {
                return Ok(missing);
            }
            if let Some(difference) = difference(&feeds[feed], &self.fleet.copy(feed)) {
                return Ok(Some(format!("the fleet's copy of {feed} differs: {difference}")));
            }
        }
        Ok(None)
    }

    /// Returns the titles of the live items of a copy.
    async fn mirrored(&self, copy: &'static str) -> Result<BTreeMap<String, String>, String> {
        let mirror = &self.nodes[1];
        let step = mirror.store().map(|store| store.step());
        if let Some(known) = self.mirrored.lock().get(copy).filter(|known| Some(known.step) == step) {
            return Ok(known.live.clone());
        }
        let found = live(&mirror.log(copy).await?);
        if let Some(step) = step {
            self.mirrored.lock().insert(copy, MirroredCopy { step, live: found.clone() });
        }
        Ok(found)
    }

    /// Compares the order of what was delivered with that of the log.
    fn compare_deliveries(&self) -> Result<(), String> {
        for follower in &self.followers {
            let feed = origin_of(&follower.feed);
            let mut ledger = self.world.ledger.lock();
            let ledger = ledger.feed(feed);
            let mut saved = follower.saved();
            let is_exact =
                matches!(follower.protocol, Protocol::DiffDelta | Protocol::Replication | Protocol::Smart);
            let mut latest: BTreeMap<String, u64> = BTreeMap::new();
            for Delivered { id, title, is_first, is_covered } in std::mem::take(&mut saved.delivered) {
                if is_first {
                    // After a kill, changes that no checkpoint covered come again.
                    latest.clear();
                    if is_exact {
                        latest.clone_from(&saved.covered);
                    }
                }
                let Some(title) = &title else { continue };
                let name = &follower.name;
                let Some(position) = ledger.position(title) else {
                    return Err(format!("{name} got {title} of {id}, which is not in the log"));
                };
                ledger.read(&id, title);
                let before = latest.insert(id.clone(), position);
                if let Some(before) =
                    before.filter(|before| *before > position || is_exact && *before == position)
                {
                    return Err(format!("{name} got version {position} of {id} after version {before}"));
                }
                if is_covered {
                    saved.covered.insert(id, position);
                }
            }
        }
        Ok(())
    }
}

/// Returns the feed of the origin that a feed shows.
fn origin_of(feed: &str) -> &str {
    COPIES.iter().find(|(copy, _)| *copy == feed).map_or(feed, |(_, of)| of)
}

/// Returns the titles of the live items of a log.
fn live(log: &[Change]) -> BTreeMap<String, String> {
    let mut live = BTreeMap::new();
    for change in log {
        match change.op {
            Op::Delete => drop(live.remove(&change.item.id)),
            _ => drop(live.insert(change.item.id.clone(), change.item.title.clone().unwrap_or_default())),
        }
    }
    live
}

/// Returns the first difference of two copies.
fn difference(expected: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Option<String> {
    missing(expected, found).or_else(|| {
        let added = found.keys().find(|id| !expected.contains_key(*id))?;
        Some(format!("{added} is there and was deleted"))
    })
}

/// Returns the first item that a copy does not have as it is.
fn missing(expected: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Option<String> {
    let (id, title) = expected.iter().find(|(id, title)| found.get(*id) != Some(title))?;
    Some(format!("{id} is {:?} and not {title:?}", found.get(id)))
}
