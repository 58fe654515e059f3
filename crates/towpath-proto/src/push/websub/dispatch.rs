//! Deliveries to all subscribers, with fair shares of a bounded number of connections.
//!
//! Hosts take turns, each has a share of the connections, and one that is dead is left alone: slow and dead
//! subscribers do not delay the others.
//!
//! Call [`Dispatcher::moved`] when a topic's log has moved, [`Dispatcher::poll_send`] until it is empty, and
//! [`Dispatcher::handle_end`] for each delivery once; [`Dispatcher::poll_lease`] until it is empty; and begin again
//! at [`Dispatcher::poll_timeout`].

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::delivery::{Breaker, Carried, Delivery, Outcome, Patience, Verdict};
use crate::change::Seq;

/// What tells one subscription from all others.
pub type Id = u128;

/// How much there may be of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Deliveries under way at the same time.
    pub connections: usize,
    /// Of these, to one host.
    pub host_connections: usize,
    /// Subscriptions in all.
    pub subscribers: usize,
    /// Subscriptions of one topic.
    pub topic_subscribers: usize,
    /// Subscriptions whose callbacks are on one host.
    pub host_subscribers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            host_connections: 64,
            subscribers: 1_000_000,
            topic_subscribers: 100_000,
            host_subscribers: 10_000,
        }
    }
}

/// There are as many subscriptions as may be. The hub's decision: 5xx, or denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Full {
    /// In all.
    #[error("this hub has as many subscriptions as it may have")]
    Hub,
    /// Of this topic.
    #[error("this topic has as many subscribers as it may have")]
    Topic,
    /// With callbacks on this host.
    #[error("this callback's host has as many subscriptions as it may have")]
    Host,
}

/// A delivery to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Send {
    /// To whom.
    pub id: Id,
    /// It begins after this position.
    pub after: Seq,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Queued,
    Running,
    Waiting(Timestamp),
}

#[derive(Debug)]
struct Subscriber<S> {
    what: S,
    topic: u32,
    host: u32,
    delivery: Delivery,
    state: State,
    /// When its lease is to be looked at.
    lease: Timestamp,
}

#[derive(Debug)]
struct Topic {
    name: Arc<str>,
    head: Seq,
    subscribers: HashSet<Id>,
}

#[derive(Debug)]
struct Host {
    name: Arc<str>,
    breaker: Breaker,
    queue: VecDeque<Id>,
    running: usize,
    subscribers: usize,
    /// Whether it is in [`Dispatcher::turns`] or in [`Dispatcher::parked`].
    listed: bool,
    /// Until when it is in [`Dispatcher::parked`].
    parked: Option<Timestamp>,
}

impl Topic {
    fn new(name: Arc<str>) -> Self {
        Self { name, head: 0, subscribers: HashSet::new() }
    }
}

impl Host {
    fn new(name: Arc<str>) -> Self {
        let (breaker, queue) = Default::default();
        Self { name, breaker, queue, running: 0, subscribers: 0, listed: false, parked: None }
    }
}

/// All subscribers of a hub. `S` is what is kept of each beside its position.
#[derive(Debug)]
pub struct Dispatcher<S> {
    limits: Limits,
    patience: Patience,
    subscribers: HashMap<Id, Subscriber<S>>,
    topic_names: HashMap<Arc<str>, u32>,
    topics: HashMap<u32, Topic>,
    host_names: HashMap<Arc<str>, u32>,
    hosts: HashMap<u32, Host>,
    names: u32,
    /// Hosts that may have something to send, and some that were forgotten since.
    turns: VecDeque<u32>,
    /// Hosts that are left alone for now.
    parked: BTreeSet<(Timestamp, u32)>,
    retries: BTreeSet<(Timestamp, Id)>,
    leases: BTreeSet<(Timestamp, Id)>,
    /// Deliveries under way, with their hosts.
    running: HashMap<Id, u32>,
}

impl<S> Dispatcher<S> {
    /// A dispatcher without subscribers.
    pub fn new(limits: Limits, patience: Patience) -> Self {
        Self {
            limits,
            patience,
            subscribers: HashMap::new(),
            topic_names: HashMap::new(),
            topics: HashMap::new(),
            host_names: HashMap::new(),
            hosts: HashMap::new(),
            names: 0,
            turns: VecDeque::new(),
            parked: BTreeSet::new(),
            retries: BTreeSet::new(),
            leases: BTreeSet::new(),
            running: HashMap::new(),
        }
    }

    /// How many subscribers there are.
    pub fn len(&self) -> usize {
        self.subscribers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    /// How many deliveries are under way.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// What is kept of a subscriber.
    pub fn get(&self, id: Id) -> Option<&S> {
        self.subscribers.get(&id).map(|subscriber| &subscriber.what)
    }

    /// The position after which a subscriber's next delivery begins.
    pub fn position(&self, id: Id) -> Option<Seq> {
        self.subscribers.get(&id).map(|subscriber| subscriber.delivery.position())
    }

    /// Whether a topic has subscribers.
    pub fn has(&self, topic: &str) -> bool {
        self.topic_names.contains_key(topic)
    }

    /// Whether there is room for one more.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn room(&self, topic: &str, host: &str) -> Result<(), Full> {
        if self.subscribers.len() >= self.limits.subscribers {
            return Err(Full::Hub);
        }
        let topic = self.topic_names.get(topic).and_then(|name| self.topics.get(name));
        if topic.is_some_and(|topic| topic.subscribers.len() >= self.limits.topic_subscribers) {
            return Err(Full::Topic);
        }
        let host = self.host_names.get(host).and_then(|name| self.hosts.get(name));
        if host.is_some_and(|host| host.subscribers >= self.limits.host_subscribers) {
            return Err(Full::Host);
        }
        Ok(())
    }

    /// Adds a subscriber who is to get what comes after `position`, or changes what is kept of one who is there
    /// already: it stays where it stands. Its lease comes up at `lease`.
    pub fn add(&mut self, id: Id, topic: &str, host: &str, position: Seq, lease: Timestamp, what: S) {
        self.leases.insert((lease, id));
        if let Some(known) = self.subscribers.get_mut(&id) {
            if known.lease != lease {
                self.leases.remove(&(known.lease, id));
            }
            (known.what, known.lease) = (what, lease);
            return;
        }
        let (topic, topic_name) = name(&mut self.topic_names, &mut self.names, topic);
        let (host, host_name) = name(&mut self.host_names, &mut self.names, host);
        self.topics.entry(topic).or_insert_with(|| Topic::new(topic_name)).subscribers.insert(id);
        self.hosts.entry(host).or_insert_with(|| Host::new(host_name)).subscribers += 1;
        let (delivery, state) = (Delivery::new(position), State::Idle);
        self.subscribers.insert(id, Subscriber { what, topic, host, delivery, state, lease });
        self.wake(id);
    }

    /// Ends a subscription. Returns what was kept of it.
    pub fn remove(&mut self, id: Id) -> Option<S> {
        let gone = self.subscribers.remove(&id)?;
        self.leases.remove(&(gone.lease, id));
        if let State::Waiting(until) = gone.state {
            self.retries.remove(&(until, id));
        }
        if let Some(topic) = self.topics.get_mut(&gone.topic) {
            topic.subscribers.remove(&id);
            if topic.subscribers.is_empty() {
                self.topic_names.remove(&topic.name);
                self.topics.remove(&gone.topic);
            }
        }
        if let Some(host) = self.hosts.get_mut(&gone.host) {
            host.subscribers -= 1;
            if gone.state == State::Queued {
                host.queue.retain(|queued| *queued != id);
            }
        }
        self.forget_host(gone.host);
        Some(gone.what)
    }

    /// A host without subscribers and deliveries is forgotten, its failures with it.
    fn forget_host(&mut self, name: u32) {
        if self.hosts.get(&name).is_none_or(|host| host.subscribers > 0 || host.running > 0) {
            return;
        }
        let Some(host) = self.hosts.remove(&name) else { return };
        self.host_names.remove(&host.name);
        if let Some(until) = host.parked {
            self.parked.remove(&(until, name));
        }
    }

    /// A topic's log ends at `head` now.
    pub fn moved(&mut self, topic: &str, head: Seq) {
        let Some(topic) = self.topic_names.get(topic).and_then(|name| self.topics.get_mut(name)) else {
            return;
        };
        topic.head = topic.head.max(head);
        // Taken out and put back, so that each can be woken.
        let ids = std::mem::take(&mut topic.subscribers);
        let head = topic.head;
        let name =
            ids.iter().next().and_then(|id| self.subscribers.get(id)).map(|subscriber| subscriber.topic);
        for id in &ids {
            self.queue(*id, head);
        }
        if let Some(topic) = name.and_then(|name| self.topics.get_mut(&name)) {
            topic.subscribers = ids;
        }
    }

    fn wake(&mut self, id: Id) {
        let Some(topic) = self.subscribers.get(&id).and_then(|s| self.topics.get(&s.topic)) else { return };
        self.queue(id, topic.head);
    }

    /// Queues a subscriber who is idle and behind.
    fn queue(&mut self, id: Id, head: Seq) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        let idle = subscriber.state == State::Idle && !self.running.contains_key(&id);
        if !idle || !subscriber.delivery.is_behind(head) {
            return;
        }
        subscriber.state = State::Queued;
        let name = subscriber.host;
        if let Some(host) = self.hosts.get_mut(&name) {
            host.queue.push_back(id);
            if !host.listed {
                host.listed = true;
                self.turns.push_back(name);
            }
        }
    }

    /// The next delivery to make, if any is to be made now. Ends with [`Self::handle_end`].
    pub fn poll_send(&mut self, now: Timestamp) -> Option<Send> {
        self.take_due(now);
        while self.running.len() < self.limits.connections {
            let name = self.turns.pop_front()?;
            if let Some(send) = self.serve(name, now) {
                return Some(send);
            }
        }
        None
    }

    /// Retries whose time has come are queued, hosts that were left alone long enough take their turns.
    fn take_due(&mut self, now: Timestamp) {
        while let Some((_, id)) = self.retries.first().copied().filter(|(time, _)| *time <= now) {
            self.retries.pop_first();
            if let Some(subscriber) = self.subscribers.get_mut(&id) {
                subscriber.state = State::Idle;
                self.wake(id);
            }
        }
        while let Some((_, name)) = self.parked.first().copied().filter(|(time, _)| *time <= now) {
            self.parked.pop_first();
            if let Some(host) = self.hosts.get_mut(&name) {
                host.parked = None;
            }
            self.turns.push_back(name);
        }
    }

    /// One host's turn.
    fn serve(&mut self, name: u32, now: Timestamp) -> Option<Send> {
        let host = self.hosts.get_mut(&name)?;
        if let Some(until) = host.breaker.open_until(now) {
            host.parked = Some(until);
            self.parked.insert((until, name));
            return None;
        }
        let share = if host.breaker.is_suspect() { 1 } else { self.limits.host_connections };
        host.listed = false;
        if host.running >= share {
            // It comes back when one of its deliveries ends.
            return None;
        }
        let id = host.queue.pop_front()?;
        host.running += 1;
        if !host.queue.is_empty() {
            host.listed = true;
            self.turns.push_back(name);
        }
        self.running.insert(id, name);
        let subscriber = self.subscribers.get_mut(&id)?;
        subscriber.state = State::Running;
        Some(Send { id, after: subscriber.delivery.position() })
    }

    /// A delivery has ended. `None` where its subscriber has gone meanwhile. A subscriber whose subscription has
    /// [ended](Verdict::Ended) is to be removed by the caller.
    pub fn handle_end(
        &mut self,
        now: Timestamp,
        id: Id,
        carried: Carried,
        outcome: Outcome,
    ) -> Option<Verdict> {
        let name = self.running.remove(&id)?;
        if let Some(host) = self.hosts.get_mut(&name) {
            host.running -= 1;
            match outcome {
                Outcome::Accepted | Outcome::Gone | Outcome::Refused(_) => host.breaker.succeed(),
                Outcome::Unreachable => host.breaker.fail(now, &self.patience),
                Outcome::Nothing => {}
            }
            if !host.queue.is_empty() && !host.listed {
                host.listed = true;
                self.turns.push_back(name);
            }
        }
        self.forget_host(name);
        let subscriber = self.subscribers.get_mut(&id)?;
        let verdict = subscriber.delivery.handle(now, carried, outcome, &self.patience);
        match verdict {
            Verdict::Retry(at) => {
                subscriber.state = State::Waiting(at);
                self.retries.insert((at, id));
            }
            // It gets nothing more until it is removed.
            Verdict::Ended => {}
            Verdict::Done | Verdict::Dropped => {
                subscriber.state = State::Idle;
                self.wake(id);
            }
        }
        Some(verdict)
    }

    /// A subscriber whose lease is to be looked at: to be added with another time, or removed.
    pub fn poll_lease(&mut self, now: Timestamp) -> Option<Id> {
        let (time, id) = self.leases.first().copied().filter(|(time, _)| *time <= now)?;
        self.leases.remove(&(time, id));
        Some(id)
    }

    /// When to call [`Self::poll_send`] and [`Self::poll_lease`] again although nothing has happened.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let first = |times: &BTreeSet<(Timestamp, Id)>| times.first().map(|(time, _)| *time);
        let parked = self.parked.first().map(|(time, _)| *time);
        [first(&self.retries), first(&self.leases), parked].into_iter().flatten().min()
    }
}

/// The number that stands for a name, and the name.
fn name(names: &mut HashMap<Arc<str>, u32>, next: &mut u32, text: &str) -> (u32, Arc<str>) {
    if let Some((name, number)) = names.get_key_value(text) {
        return (*number, name.clone());
    }
    *next = next.wrapping_add(1);
    let name: Arc<str> = text.into();
    names.insert(name.clone(), *next);
    (*next, name)
}
