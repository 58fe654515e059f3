//! A fleet: the program's follower of many feeds, which SUP documents lead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use towpath_client::fleet::{FeedRoute, FleetOptions, FleetOutput, SavedFeed, follow_fleet};
use towpath_client::{FeedReset, FollowNotice, Followed, Offer};
use towpath_proto::change::Op;

use crate::node;
use crate::world::World;
use crate::{trace, trace::count};

/// Poll interval of feeds that no SUP document covers. Those that one covers are polled once in twelve hours.
const EVERY: Duration = Duration::from_secs(1800);

/// A fleet, which is killed and started again.
pub struct SimulatedFleet {
    name: String,
    feeds: Vec<Arc<str>>,
    world: Arc<World>,
    saved: Arc<Mutex<SavedFleet>>,
    running: Option<JoinHandle<()>>,
}

/// Durable state of a fleet.
#[derive(Default)]
struct SavedFleet {
    /// Titles by id, by the feed's URL.
    copies: BTreeMap<String, BTreeMap<String, String>>,
    states: BTreeMap<String, SavedFeed>,
    schedule: Option<Box<RawValue>>,
}

impl SimulatedFleet {
    /// Creates a fleet that follows feeds of a host.
    pub fn new(world: &Arc<World>, name: &str, host: &str, feeds: &[&str]) -> Self {
        let feeds = feeds.iter().map(|feed| format!("http://{host}/feeds/{feed}").into()).collect();
        Self { name: name.to_owned(), feeds, world: world.clone(), saved: Arc::default(), running: None }
    }

    /// Returns the copy of a feed.
    pub fn copy(&self, feed: &str) -> BTreeMap<String, String> {
        let url = self.feeds.iter().find(|url| url.ends_with(&format!("/{feed}")));
        url.and_then(|url| self.saved.lock().copies.get(&**url).cloned()).unwrap_or_default()
    }

    /// Starts it from what it has, if it does not run.
    pub fn start(&mut self) {
        if self.running.as_ref().is_some_and(|running| !running.is_finished()) {
            return;
        }
        let Ok(fetcher) = node::fetcher(&self.world, &self.name) else { return };
        trace!("{} starts", self.name);
        let output =
            FleetCopy { world: self.world.clone(), name: self.name.clone(), saved: self.saved.clone() };
        let (feeds, output) = (self.feeds.clone(), Arc::new(output));
        self.running = Some(tokio::spawn(async move {
            let schedule = output.saved.lock().schedule.clone();
            let options = FleetOptions::default().with_every(EVERY).with_schedule(schedule);
            let (_running, stop) = watch::channel(false);
            let ended = follow_fleet(feeds, output.clone(), &fetcher, options, &stop).await;
            trace!("{} ended: {ended:?}", output.name);
        }));
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            trace!("{} is killed", self.name);
            count("followers killed");
            running.abort();
        }
    }
}

/// Output of a fleet: copies, each saved with its checkpoint.
struct FleetCopy {
    world: Arc<World>,
    name: String,
    saved: Arc<Mutex<SavedFleet>>,
}

impl FleetOutput for FleetCopy {
    type Error = ();

    async fn load(&self, feed: &str) -> Result<Option<SavedFeed>, ()> {
        Ok(self.saved.lock().states.get(feed).cloned())
    }

    async fn deliver(
        &self,
        feed: &Arc<str>,
        route: &FeedRoute,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), ()> {
        sleep(self.world.time(Duration::from_secs(1))).await;
        let mut saved = self.saved.lock();
        let copy = saved.copies.entry(feed.to_string()).or_default();
        for change in changes {
            let (id, title) = (change.item.id.clone(), change.item.title.clone().unwrap_or_default());
            trace!("{}: {:?} {id} {title}", self.name, change.op);
            count("changes followed");
            match change.op {
                Op::Delete => drop(copy.remove(&id)),
                _ => drop(copy.insert(id, title)),
            }
        }
        if let Some(state) = checkpoint {
            saved.states.insert(feed.to_string(), SavedFeed { route: route.clone(), state });
        }
        Ok(())
    }

    async fn reset(&self, feed: &Arc<str>, reset: FeedReset) -> Result<(), ()> {
        self.world.violate(format!("{} was told that {feed} began anew: {}", self.name, reset.reason));
        Ok(())
    }

    async fn save_schedule(&self, schedule: Box<RawValue>) -> Result<(), ()> {
        self.saved.lock().schedule = Some(schedule);
        Ok(())
    }

    fn notice(&self, feed: &str, notice: FollowNotice) {
        trace!("{}: {feed}: {notice}", self.name);
        if let FollowNotice::Incomplete(what) = notice {
            self.world.incomplete(&format!("{} of {feed}", self.name), &what);
        }
    }

    fn discovered(&self, feed: &str, offer: &Offer) {
        trace!("{}: {feed} is followed by {}", self.name, offer.protocol);
    }
}
