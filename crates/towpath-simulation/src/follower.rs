//! Followers: the program's state machines and driver, with an output that survives their kills.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use towpath_client::{
    FeedReset, Fetcher, FollowNotice, FollowRoute, Followed, FollowerOptions, Output, Protocol, drive,
    follower, locate,
};
use towpath_proto::change::Op;

use crate::bug::Bug;
use crate::node;
use crate::world::World;
use crate::{trace, trace::count};

/// A follower, which is killed and started again.
pub struct SimulatedFollower {
    /// Its name.
    pub name: String,
    /// Feed that is followed, on its host.
    pub feed: String,
    /// Protocol by which it is followed.
    pub protocol: Protocol,
    url: String,
    every: Option<Duration>,
    world: Arc<World>,
    saved: Arc<Mutex<Saved>>,
    /// True while its output writes.
    is_writing: Arc<watch::Sender<bool>>,
    running: Option<JoinHandle<()>>,
}

/// Durable state of a follower.
#[derive(Default)]
pub struct Saved {
    /// Title by id.
    pub copy: BTreeMap<String, String>,
    checkpoint: Option<Value>,
    /// The checkpoint before.
    previous: Option<Value>,
    /// URL that discovery found.
    url: Option<String>,
    /// Changes since the last comparison, in order.
    pub delivered: Vec<Delivered>,
    /// Positions that a checkpoint covered, by id, as last compared.
    pub covered: BTreeMap<String, u64>,
}

/// A change that was delivered.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// Id of the item.
    pub id: String,
    /// Its title; `None` for a deletion.
    pub title: Option<String>,
    /// True if the follower was started since the change before.
    pub is_first: bool,
    /// True once a checkpoint covers it.
    pub is_covered: bool,
}

impl SimulatedFollower {
    /// Creates a follower of a feed's page.
    pub fn new(
        world: &Arc<World>,
        name: &str,
        (host, feed): (&str, &str),
        protocol: Protocol,
        every: Option<Duration>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            feed: feed.to_owned(),
            protocol,
            url: format!("http://{host}/feeds/{feed}"),
            every,
            world: world.clone(),
            saved: Arc::default(),
            is_writing: Arc::default(),
            running: None,
        }
    }

    /// Returns what it has.
    pub fn saved(&self) -> parking_lot::MutexGuard<'_, Saved> {
        self.saved.lock()
    }

    /// Starts it from what it has, if it does not run.
    pub fn start(&mut self) {
        if self.running.as_ref().is_some_and(|running| !running.is_finished()) {
            return;
        }
        let Ok(fetcher) = node::fetcher(&self.world, &self.name) else { return };
        trace!("{} starts", self.name);
        let following = Following {
            world: self.world.clone(),
            name: self.name.clone(),
            page: self.url.clone(),
            protocol: self.protocol,
            every: self.every,
            fetcher,
            saved: self.saved.clone(),
            is_writing: self.is_writing.clone(),
        };
        self.running = Some(tokio::spawn(async move {
            loop {
                following.follow().await;
                sleep(Duration::from_secs(20)).await;
            }
        }));
    }

    /// Returns once its output writes.
    pub async fn writing(&self) {
        let _ = self.is_writing.subscribe().wait_for(|is_writing| *is_writing).await;
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            trace!("{} is killed", self.name);
            count("followers killed");
            running.abort();
            self.is_writing.send_replace(false);
        }
    }
}

/// A follower that runs.
struct Following {
    world: Arc<World>,
    name: String,
    page: String,
    protocol: Protocol,
    every: Option<Duration>,
    fetcher: Fetcher,
    saved: Arc<Mutex<Saved>>,
    is_writing: Arc<watch::Sender<bool>>,
}

impl Following {
    /// Follows until it fails.
    async fn follow(&self) {
        let Self { world, name, saved, .. } = self;
        let Some(url) = self.find().await else { return };
        let state = {
            let saved = saved.lock();
            let reused = world.has(Bug::ReuseCursor).then(|| saved.previous.clone()).flatten();
            reused.or_else(|| saved.checkpoint.clone())
        };
        let options = FollowerOptions::default().with_every(self.every);
        let mut follower = match follower(FollowRoute::held(self.protocol, url, state), options) {
            Ok(follower) => follower,
            Err(e) => return world.violate(format!("{name} cannot go on from its checkpoint: {e}")),
        };
        let mut output = Copy {
            world: world.clone(),
            name: name.clone(),
            saved: saved.clone(),
            is_writing: self.is_writing.clone(),
            is_first: true,
        };
        let (_running, stop) = watch::channel(false);
        let ended = drive(&mut *follower, &self.fetcher, &mut output, &stop).await;
        trace!("{name} ended: {ended:?}");
    }

    /// Returns the URL that discovery finds, once.
    async fn find(&self) -> Option<String> {
        if let Some(url) = self.saved.lock().url.clone() {
            return Some(url);
        }
        match locate(&self.fetcher, &self.page, self.protocol).await {
            Ok(found) => {
                self.saved.lock().url.clone_from(&found);
                found
            }
            Err(e) => {
                trace!("{}: {e}", self.name);
                None
            }
        }
    }
}

/// Output of a follower: a copy, saved with the checkpoint as a database would.
struct Copy {
    world: Arc<World>,
    name: String,
    saved: Arc<Mutex<Saved>>,
    is_writing: Arc<watch::Sender<bool>>,
    is_first: bool,
}

impl Output for Copy {
    type Error = ();

    async fn deliver(&mut self, mut changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), ()> {
        if self.world.has(Bug::CheckpointFirst)
            && let Some(checkpoint) = &checkpoint
        {
            self.saved.lock().checkpoint = Some(checkpoint.clone());
        }
        if self.world.has(Bug::DropChange) && self.world.one_in(40) {
            changes.pop();
        }
        // A transaction takes time, in which the follower may be killed.
        self.is_writing.send_replace(true);
        sleep(self.world.time(Duration::from_secs(1))).await;
        self.is_writing.send_replace(false);
        let mut saved = self.saved.lock();
        for change in changes {
            let (id, title) = (change.item.id.clone(), change.item.title.clone().unwrap_or_default());
            trace!("{}: {:?} {id} {title}", self.name, change.op);
            count("changes followed");
            let title = (change.op != Op::Delete).then_some(title);
            match &title {
                Some(title) => drop(saved.copy.insert(id.clone(), title.clone())),
                None if self.world.has(Bug::IgnoreDeletions) => {}
                None => drop(saved.copy.remove(&id)),
            }
            let is_first = std::mem::take(&mut self.is_first);
            saved.delivered.push(Delivered { id, title, is_first, is_covered: false });
        }
        if let Some(checkpoint) = checkpoint {
            saved.previous = saved.checkpoint.replace(checkpoint);
            saved.delivered.iter_mut().for_each(|delivered| delivered.is_covered = true);
        }
        Ok(())
    }

    async fn reset(&mut self, reset: FeedReset) -> Result<(), ()> {
        self.world.violate(format!("{} was told that the feed began anew: {}", self.name, reset.reason));
        self.saved.lock().copy.clear();
        Ok(())
    }

    fn notice(&mut self, notice: FollowNotice) {
        trace!("{}: {notice}", self.name);
        if let FollowNotice::Incomplete(what) = notice {
            self.world.incomplete(&self.name, &what);
        }
    }
}
