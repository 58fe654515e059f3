//! State of the hub: subscribers, their topics, and deliveries to make.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use towpath_client::{CallbackClient, CallbackOptions, SetupError, Transport};
use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_proto::push::websub::delivery::RetryPolicy;
use towpath_proto::push::websub::dispatch::{Dispatcher, SubscriberPlace, SubscriptionId};
use towpath_proto::push::websub::request::Leases;
use towpath_proto::push::websub::subscription::HubSubscription;
use towpath_store::Precondition;

use crate::config::{Config, HubConfig};
use crate::engine::access::Access;
use crate::engine::roles::Lease;
use crate::engine::{Append, Engine, Feed};
use crate::plural::counted;
use crate::protocols::websub::jobs::{Verifier, now};
use crate::protocols::websub::subscriber::VerifiedSubscriber;
use crate::protocols::websub::topic::Topic;

/// The engine's part of WebSub.
pub struct HubState {
    // Locked before `topics` by whoever needs both. `on_append` takes neither this nor `saving`, for it runs on the
    // store's thread.
    pub(super) subscribers: Mutex<Dispatcher<Arc<VerifiedSubscriber>>>,
    /// The topics that have subscribers, by the log that they show.
    topics: RwLock<HashMap<FeedId, Vec<Arc<Topic>>>>,
    /// Logs with appends that the dispatcher does not know.
    dirty: Mutex<HashSet<FeedId>>,
    /// Feeds that were removed, whose subscriptions are to end.
    pub(super) removed: Mutex<Vec<Arc<Feed>>>,
    /// Wakes the task that delivers.
    pub(super) wake: Notify,
    /// Subscribers whose position, or end, is not stored yet.
    pub(super) unsaved: Mutex<HashSet<SubscriptionId>>,
    /// Subscriptions that other nodes may have written.
    written: Mutex<HashSet<SubscriptionId>>,
    /// Lease under which this node delivers; `None` while another node does.
    pub(super) lease: Mutex<Option<Lease>>,
    /// Deliveries that were given up since this node delivers.
    pub(super) missed: AtomicU64,
    /// Shared while a new subscription is stored, exclusive while positions and ends are: an end must not delete a
    /// subscription that is being renewed.
    pub(super) saving: tokio::sync::RwLock<()>,
    pub(super) leases: Leases,
    /// Verifications, which every node makes for the requests that reach it.
    pub(super) verifier: Verifier,
    calls: CallbackOptions,
    caller: OnceLock<CallbackClient>,
    /// Transport of the requests to callbacks, in place of the network.
    transport: OnceLock<Arc<dyn Transport>>,
}

/// A subscriber as operators see it.
#[derive(Debug)]
pub(crate) struct SubscriberInfo {
    /// Host and port of the callback. Its path may be a secret of the subscriber.
    pub(crate) callback: String,
    /// Key of the topic.
    pub(crate) topic: String,
    /// Position up to which it was told.
    pub(crate) position: Seq,
    /// End of the lease.
    pub(crate) ends: Timestamp,
}

impl HubState {
    /// Returns the engine's part of WebSub.
    pub fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(|| Self::new(&engine.config))
    }

    fn new(config: &Config) -> Self {
        let hub = config.hub;
        let calls = CallbackOptions::default()
            .with_allow_private(config.server.allow_private_callbacks)
            // As many as are used at a time: fewer would have each burst open new connections.
            .with_idle_connections(hub.host_connections);
        Self {
            subscribers: Mutex::new(Dispatcher::new(hub.into(), RetryPolicy::default())),
            topics: RwLock::default(),
            dirty: Mutex::default(),
            removed: Mutex::default(),
            wake: Notify::new(),
            unsaved: Mutex::default(),
            written: Mutex::default(),
            lease: Mutex::default(),
            missed: AtomicU64::new(0),
            saving: tokio::sync::RwLock::default(),
            leases: Leases::default(),
            verifier: Verifier::new(hub.into(), calls),
            calls,
            caller: OnceLock::new(),
            transport: OnceLock::new(),
        }
    }

    /// Notes that a subscription was written, by whichever node.
    pub(super) fn on_subscription_written(&self, id: SubscriptionId) {
        self.written.lock().insert(id);
    }

    /// Takes the subscriptions that other nodes may have written.
    pub(super) fn take_written(&self) -> Vec<SubscriptionId> {
        self.written.lock().drain().collect()
    }

    /// Begins to deliver under a lease. The subscriptions are read from the store after that.
    pub(super) fn take_over(&self, config: HubConfig, lease: Lease) {
        *self.lease.lock() = Some(lease);
        *self.subscribers.lock() = Dispatcher::new(config.into(), RetryPolicy::default());
        self.topics.write().clear();
        self.dirty.lock().clear();
        self.unsaved.lock().clear();
        self.missed.store(0, Ordering::Relaxed);
    }

    /// Returns true if this node delivers.
    pub(crate) fn delivers(&self) -> bool {
        self.lease.lock().is_some()
    }

    /// Preconditions of writes that only the delivering node may make.
    pub(super) fn conditions(&self) -> Vec<Precondition> {
        self.lease.lock().iter().filter_map(Lease::condition).collect()
    }

    /// Returns true for a subscriber, and for one whose end is not stored yet.
    pub(super) fn knows(&self, id: SubscriptionId) -> bool {
        self.subscribers.lock().get(id).is_some() || self.unsaved.lock().contains(&id)
    }

    /// Returns the number of subscribers.
    pub fn len(&self) -> usize {
        self.subscribers.lock().len()
    }

    /// Returns true if there are no subscribers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many subscribers are behind a failed delivery, and the number of all; `None` if there are none, or
    /// another node delivers.
    pub(crate) fn counts(&self) -> Option<(usize, usize)> {
        if !self.delivers() {
            return None;
        }
        let subscribers = self.subscribers.lock();
        (!subscribers.is_empty()).then(|| (subscribers.failing().len(), subscribers.len()))
    }

    /// Describes the deliveries that fail, in a sentence; `None` if all is well, or another node delivers.
    pub(crate) fn problem(&self) -> Option<String> {
        let subscribers = self.subscribers.lock();
        let (missed, total) = (self.missed.load(Ordering::Relaxed), subscribers.len());
        let mut failing = subscribers.failing();
        let (count, first) = (failing.len(), failing.next().and_then(|id| subscribers.get(id)));
        let mut told = Vec::new();
        if let Some(first) = first {
            let host = first.subscription.host();
            let of_total = counted(total, "subscriber");
            told.push(format!("deliveries to {count} of {of_total} fail and are repeated, next to {host}"));
        }
        if missed > 0 {
            let were = if missed == 1 { "was" } else { "were" };
            told.push(format!("{} {were} given up since the start", counted(missed, "delivery")));
        }
        (!told.is_empty()).then(|| format!("The WebSub hub: {}.", told.join("; ")))
    }

    /// Returns the first subscribers of a feed, and the number of all.
    pub(crate) fn of_feed(&self, feed: &Feed, most: usize) -> (Vec<SubscriberInfo>, usize) {
        // Cloned, so that this lock is free before that of the subscribers is taken: `add` holds them in the other
        // order.
        let topics: Vec<Arc<Topic>> = self.topics.read().get(feed.log()).cloned().unwrap_or_default();
        let (subscribers, mut infos, mut total) = (self.subscribers.lock(), Vec::new(), 0);
        for topic in topics.iter().filter(|topic| topic.feed.id() == feed.id()) {
            for id in subscribers.of_topic(&topic.key) {
                total += 1;
                let Some(subscriber) = subscribers.get(id).filter(|_| infos.len() < most) else { continue };
                let subscription = &subscriber.subscription;
                infos.push(SubscriberInfo {
                    callback: subscription.host(),
                    topic: topic.key.to_string(),
                    position: subscribers.position(id).unwrap_or(0),
                    ends: subscription.end(),
                });
            }
        }
        (infos, total)
    }

    /// Returns the subscribers of a feed.
    pub(super) fn subscribers_of(&self, feed: &Feed) -> Vec<(SubscriptionId, Arc<VerifiedSubscriber>)> {
        let topics: Vec<Arc<Topic>> = self.topics.read().get(feed.log()).cloned().unwrap_or_default();
        let subscribers = self.subscribers.lock();
        let of_feed = topics.iter().filter(|topic| topic.feed.id() == feed.id());
        let ids = of_feed.flat_map(|topic| subscribers.of_topic(&topic.key));
        ids.filter_map(|id| Some((id, subscribers.get(id)?.clone()))).collect()
    }

    /// Sends the requests to callbacks by a transport. Call it before the first of them.
    pub(crate) fn set_transport(&self, transport: Arc<dyn Transport>) {
        let _ = self.transport.set(transport);
    }

    pub(super) fn transport(&self) -> Option<Arc<dyn Transport>> {
        self.transport.get().cloned()
    }

    /// Returns the HTTP client that calls subscribers, made on first use.
    ///
    /// # Errors
    ///
    /// TLS that cannot be set up.
    pub(super) fn caller(&self) -> Result<&CallbackClient, SetupError> {
        if let Some(caller) = self.caller.get() {
            return Ok(caller);
        }
        let made = CallbackClient::new(self.calls)?.with_transport(self.transport());
        // Two first deliveries may both make a client; one is dropped.
        Ok(self.caller.get_or_init(|| made))
    }

    /// Adds a subscriber at a position. A known subscriber keeps its position.
    pub(super) fn add(
        &self,
        id: SubscriptionId,
        position: u64,
        subscription: HubSubscription,
        topic: Arc<Topic>,
        access: Access,
    ) {
        let now = now();
        // The stored date may come from a wrong clock: no lease lasts longer than the longest one.
        let ends = now.restore(subscription.end(), self.leases.max);
        // 0.3 asks before the end (section 6.3); WebSub leaves renewal to the subscriber.
        let look = subscription.refresh_before().and_then(|before| {
            let wait = ends.since(now.monotonic).checked_sub(before).filter(|wait| !wait.is_zero())?;
            Some(now.after(wait))
        });
        let (host, address) = (subscription.host(), subscription.address());
        let mut subscribers = self.subscribers.lock();
        let topic = self.shared_topic(topic);
        let place = SubscriberPlace { topic: &topic.key, host: &host, address: &address };
        let subscribed = VerifiedSubscriber { subscription, topic: topic.clone(), access, ends };
        subscribers.add(id, place, position, look.unwrap_or(ends), Arc::new(subscribed));
        // An append before the topic was known to `on_append` marked nothing.
        subscribers.handle_append(&topic.key, topic.head());
        drop(subscribers);
        self.wake.notify_one();
    }

    /// Returns the topic that all its subscribers share, and has appends to its log noted.
    fn shared_topic(&self, topic: Arc<Topic>) -> Arc<Topic> {
        let mut topics = self.topics.write();
        // A million subscribers of one topic share one object.
        let known = topics.entry(topic.feed.log().clone()).or_default();
        if let Some(shared) = known.iter().find(|known| known.key == topic.key) {
            return shared.clone();
        }
        known.push(topic.clone());
        topic
    }

    /// Ends a subscription. The store follows with the next round of positions.
    pub(super) fn end(&self, id: SubscriptionId) {
        self.remove(id);
        self.unsaved.lock().insert(id);
    }

    /// Removes a subscriber.
    pub(super) fn remove(&self, id: SubscriptionId) -> Option<Arc<VerifiedSubscriber>> {
        let mut subscribers = self.subscribers.lock();
        let gone = subscribers.remove(id)?;
        if !subscribers.has_topic(&gone.topic.key) {
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

    /// Passes appends to the dispatcher.
    pub(super) fn dispatch_appends(&self) {
        // Drained before the heads are read: an append in between marks its log again.
        let logs: Vec<FeedId> = self.dirty.lock().drain().collect();
        for log in logs {
            let topics = self.topics.read().get(&log).cloned().unwrap_or_default();
            for topic in topics {
                self.subscribers.lock().handle_append(&topic.key, topic.head());
            }
        }
    }
}

/// Wakes deliveries to the subscribers of a feed's log after an append.
pub(crate) fn on_append(engine: &Arc<Engine>, feed: &Arc<Feed>, _: Append) {
    let hub = HubState::of(engine);
    // Runs on the store's thread for every append: most feeds have no subscriber.
    if hub.topics.read().contains_key(feed.id()) {
        hub.dirty.lock().insert(feed.id().clone());
        hub.wake.notify_one();
    }
}
