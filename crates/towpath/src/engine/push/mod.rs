//! The hub: every feed in every order can be subscribed to (WebSub, Smart Feeds "HTTP Push").
//!
//! What is kept of a subscriber is its subscription and its position; deliveries are made from the log when it moves,
//! once for all who stand at the same place. [`run`] is the one task that makes them; requests to the hub change what
//! it works on ([`subscribe`]).

mod calls;
mod deliver;
mod kept;
mod page;
mod topic;
mod verify;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use towpath_proto::FeedId;
use towpath_proto::push::websub::delivery::Patience;
use towpath_proto::push::websub::dispatch::{Dispatcher, Id};
use towpath_proto::push::websub::request::Leases;
use towpath_proto::push::websub::subscription::Subscription;
use towpath_store::{Condition, StoreError};

use super::Engine;
use super::roles::Lease;
use super::smart::Access;
use crate::client::{CallOptions, Caller, SetupError};
use crate::config::{Config, HubConfig};

pub use calls::{Inbox, inbox, open_inbox};
pub use deliver::run;
pub use topic::{Topic, TopicError};
pub use verify::{Asking, SubscribeError, Taken, subscribe};

/// What the engine holds for its subscribers.
pub struct Push {
    subscribers: Mutex<Dispatcher<Arc<Subscribed>>>,
    /// The topics that have subscribers, by the log that they show.
    topics: RwLock<HashMap<FeedId, Vec<Arc<Topic>>>>,
    /// Logs that have moved.
    moved: Mutex<HashSet<FeedId>>,
    /// Rung when there is something to do.
    bell: Notify,
    /// Those whose positions, or whose end, are not kept yet.
    unkept: Mutex<HashSet<Id>>,
    /// What other nodes may have written of subscriptions.
    written: Mutex<HashSet<Id>>,
    /// Under what this node delivers; `None` where another one does.
    lease: Mutex<Option<Lease>>,
    /// Held by those who keep what begins, and alone by who keeps what has changed or ended.
    keeping: tokio::sync::RwLock<()>,
    /// Feeds that mirror another one and are pushed to.
    inboxes: calls::Inboxes,
    pages: page::Pages,
    asking: verify::AskingNow,
    leases: Leases,
    calls: CallOptions,
    caller: OnceLock<Caller>,
}

/// One subscriber.
#[derive(Debug)]
pub struct Subscribed {
    subscription: Subscription,
    topic: Arc<Topic>,
    access: Access,
}

impl Push {
    pub(super) fn new(config: &Config) -> Self {
        let hub = config.hub;
        let calls = CallOptions {
            allow_private: config.server.allow_private_callbacks,
            idle_connections: hub.host_connections,
            ..CallOptions::default()
        };
        Self {
            subscribers: Mutex::new(Dispatcher::new(hub.into(), Patience::default())),
            topics: RwLock::default(),
            moved: Mutex::default(),
            bell: Notify::new(),
            unkept: Mutex::default(),
            written: Mutex::default(),
            lease: Mutex::default(),
            keeping: tokio::sync::RwLock::default(),
            inboxes: calls::Inboxes::default(),
            pages: page::Pages::default(),
            asking: verify::AskingNow::default(),
            leases: Leases::default(),
            calls,
            caller: OnceLock::new(),
        }
    }

    /// Notes that a log has moved. Called on the store's thread.
    pub(super) fn note(&self, log: &FeedId) {
        if self.topics.read().contains_key(log) {
            self.moved.lock().insert(log.clone());
            self.bell.notify_one();
        }
    }

    /// Notes a write to a subscription, or to a call; whether it is to be taken in. Called on the store's thread.
    pub(super) fn wrote(&self, key: &[u8]) -> bool {
        let Some(id) = kept::id_of(key) else { return self.inboxes.wrote(key) };
        self.written.lock().insert(id);
        true
    }

    /// Begins to deliver, from what is stored.
    fn take_over(&self, config: HubConfig, lease: Lease) {
        *self.lease.lock() = Some(lease);
        *self.subscribers.lock() = Dispatcher::new(config.into(), Patience::default());
        self.topics.write().clear();
        self.moved.lock().clear();
        self.unkept.lock().clear();
    }

    /// Whether it is this node that delivers.
    fn delivers(&self) -> bool {
        self.lease.lock().is_some()
    }

    /// What writes demand that only the node makes that delivers.
    fn conditions(&self) -> Vec<Condition> {
        self.lease.lock().iter().filter_map(Lease::condition).collect()
    }

    /// How many subscribers there are.
    pub fn len(&self) -> usize {
        self.subscribers.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What calls subscribers. Made when it is first needed.
    fn caller(&self) -> Result<&Caller, SetupError> {
        if let Some(caller) = self.caller.get() {
            return Ok(caller);
        }
        let made = Caller::new(self.calls)?;
        Ok(self.caller.get_or_init(|| made))
    }

    /// Takes a subscriber in, from this position on; one who is there already stays where it stands.
    fn add(&self, engine: &Engine, id: Id, position: u64, subscribed: Subscribed) {
        let Subscribed { subscription, topic, .. } = &subscribed;
        let topic = topic.clone();
        let lease = subscription.refresh().filter(|time| *time > engine.now()).unwrap_or(subscription.end());
        let host = subscription.host();
        let mut subscribers = self.subscribers.lock();
        {
            let mut topics = self.topics.write();
            let known = topics.entry(topic.feed.log().clone()).or_default();
            if !known.iter().any(|known| known.key == topic.key) {
                known.push(topic.clone());
            }
        }
        subscribers.add(id, &topic.key, &host, position, lease, Arc::new(subscribed));
        // It may have moved before anybody listened.
        subscribers.moved(&topic.key, topic.head());
        drop(subscribers);
        self.bell.notify_one();
    }

    /// Ends a subscription; that is kept soon.
    fn end(&self, id: Id) {
        self.remove(id);
        self.unkept.lock().insert(id);
    }

    fn remove(&self, id: Id) -> Option<Arc<Subscribed>> {
        let mut subscribers = self.subscribers.lock();
        let gone = subscribers.remove(id)?;
        if !subscribers.has(&gone.topic.key) {
            let mut topics = self.topics.write();
            if let Some(known) = topics.get_mut(gone.topic.feed.log()) {
                known.retain(|topic| topic.key != gone.topic.key);
                if known.is_empty() {
                    topics.remove(gone.topic.feed.log());
                }
            }
        }
        Some(gone)
    }

    /// Tells the dispatcher of the logs that have moved.
    fn take_moves(&self) {
        let moved: Vec<FeedId> = self.moved.lock().drain().collect();
        for log in moved {
            let topics = self.topics.read().get(&log).cloned().unwrap_or_default();
            for topic in topics {
                self.subscribers.lock().moved(&topic.key, topic.head());
            }
        }
    }
}

/// Reads who is subscribed, where another node may be the one that delivers: there may be no more than are allowed.
pub(super) async fn begin(engine: &Arc<Engine>) -> Result<(), StoreError> {
    kept::load(engine).await
}

/// Takes in what other nodes wrote of subscriptions.
pub(super) async fn take_written(engine: &Arc<Engine>) {
    calls::take_written(engine).await;
    let written: Vec<Id> = engine.push.written.lock().drain().collect();
    for id in written {
        if let Err(e) = kept::look(engine, id).await {
            tracing::error!("cannot read a subscription: {e}");
        }
    }
}

impl Engine {
    /// Where a feed can be subscribed to.
    pub fn hub_url(&self, feed: &FeedId) -> String {
        format!("{}/feeds/{feed}/hub", self.base_url)
    }
}
