//! Deliveries to all subscribers, with fair shares of a bounded number of connections.
//!
//! Addresses take turns, and each has a share of the connections. A circuit breaker stops deliveries to a dead
//! host, and slow hosts have lanes of their own. So slow and dead subscribers do not delay the others.
//!
//! Timers run on monotonic time. Adding and removing a subscriber takes logarithmic time.
//!
//! Call [`Dispatcher::handle_append`] after an append to a topic's log. Call [`Dispatcher::poll_delivery`]
//! until it returns `None`, and [`Dispatcher::handle_end`] once for each delivery. Call
//! [`Dispatcher::handle_overdue`] for a delivery without an answer after [`SLOW_ANSWER`]. Call
//! [`Dispatcher::poll_lease`] until it returns `None`. Repeat at [`Dispatcher::poll_timeout`].

mod entries;
mod lanes;
mod limits;
mod names;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::delivery::{AfterDelivery, DeliveredRange, DeliveryCursor, DeliveryOutcome, RetryPolicy};
use crate::change::Seq;
use crate::follow::Monotonic;
use entries::{SubscriberEntry, SubscriberState, TopicEntry};
pub use entries::{SubscriberPlace, SubscriptionId};
use lanes::HostTable;
pub use lanes::SLOW_ANSWER;
pub use limits::{HubFull, HubLimits};
use names::NameTable;

/// A delivery to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueDelivery {
    /// Subscription to deliver to.
    pub id: SubscriptionId,
    /// Position after which the delivery begins.
    pub after: Seq,
}

/// A delivery that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedDelivery {
    /// Subscription that it went to.
    pub id: SubscriptionId,
    /// Range of the log that it covered.
    pub range: DeliveredRange,
    /// Result.
    pub outcome: DeliveryOutcome,
    /// Time from the request to its answer.
    pub took: Duration,
}

/// All subscribers of a hub. `S` is the caller's data for each subscriber.
#[derive(Debug)]
pub struct Dispatcher<S> {
    limits: HubLimits,
    policy: RetryPolicy,
    subscribers: HashMap<SubscriptionId, SubscriberEntry<S>>,
    topic_names: NameTable,
    topics: HashMap<u32, TopicEntry>,
    hosts: HostTable,
    retries: BTreeSet<(Monotonic, SubscriptionId)>,
    leases: BTreeSet<(Monotonic, SubscriptionId)>,
}

impl<S> Dispatcher<S> {
    /// Creates a dispatcher without subscribers.
    pub fn new(limits: HubLimits, policy: RetryPolicy) -> Self {
        Self {
            limits,
            policy,
            subscribers: HashMap::new(),
            topic_names: NameTable::default(),
            topics: HashMap::new(),
            hosts: HostTable::new(limits),
            retries: BTreeSet::new(),
            leases: BTreeSet::new(),
        }
    }

    /// Returns the number of subscribers.
    pub fn len(&self) -> usize {
        self.subscribers.len()
    }

    /// Returns `true` without subscribers.
    pub fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    /// Returns the number of deliveries in progress.
    pub fn running(&self) -> usize {
        self.hosts.running()
    }

    /// Returns the caller's data for a subscriber.
    pub fn get(&self, id: SubscriptionId) -> Option<&S> {
        self.subscribers.get(&id).map(|subscriber| &subscriber.data)
    }

    /// Returns the position after which a subscriber's next delivery begins.
    pub fn position(&self, id: SubscriptionId) -> Option<Seq> {
        self.subscribers.get(&id).map(|subscriber| subscriber.delivery.position())
    }

    /// Returns the subscribers whose last delivery failed and is repeated later, the next one first.
    pub fn failing(&self) -> impl ExactSizeIterator<Item = SubscriptionId> {
        self.retries.iter().map(|(_, id)| *id)
    }

    /// Returns the subscribers of a topic, in the order of their ids.
    pub fn of_topic(&self, topic: &str) -> impl Iterator<Item = SubscriptionId> {
        let topic = self.topic_names.get(topic).and_then(|key| self.topics.get(&key));
        topic.into_iter().flat_map(|topic| topic.subscribers.iter().copied())
    }

    /// Returns `true` if a topic has subscribers.
    pub fn has_topic(&self, topic: &str) -> bool {
        self.topic_names.get(topic).is_some()
    }

    /// Checks that another subscription to a topic, with a callback at an address, is within the limits.
    ///
    /// # Errors
    ///
    /// Returns [`HubFull`] if it is not.
    pub fn check_limits(&self, topic: &str, address: &str) -> Result<(), HubFull> {
        let HubLimits { subscribers, topic_subscribers, host_subscribers, .. } = self.limits;
        if self.subscribers.len() >= subscribers {
            return Err(HubFull::Hub(subscribers));
        }
        let topic = self.topic_names.get(topic).and_then(|name| self.topics.get(&name));
        if topic.is_some_and(|topic| topic.subscribers.len() >= topic_subscribers) {
            return Err(HubFull::Topic(topic_subscribers));
        }
        if self.hosts.subscribers_at(address) >= host_subscribers {
            return Err(HubFull::Host(host_subscribers));
        }
        Ok(())
    }

    /// Adds a subscriber that is to receive the entries after `position`, or replaces the data of an existing
    /// subscriber. An existing subscriber keeps its position. `lease` is the time of its lease check.
    pub fn add(
        &mut self,
        id: SubscriptionId,
        place: SubscriberPlace<'_>,
        position: Seq,
        lease: Monotonic,
        data: S,
    ) {
        if let Some(known) = self.subscribers.get_mut(&id) {
            known.data = data;
            self.set_lease(id, lease);
            return;
        }
        let (topic, topic_name) = self.topic_names.number(place.topic);
        self.topics.entry(topic).or_insert_with(|| TopicEntry::new(topic_name)).subscribers.insert(id);
        let host = self.hosts.add_subscriber(place.host, place.address);
        let (delivery, state) = (DeliveryCursor::new(position), SubscriberState::Idle);
        self.subscribers.insert(id, SubscriberEntry { data, topic, host, delivery, state, lease });
        self.leases.insert((lease, id));
        self.wake(id);
    }

    /// Sets the time of a subscriber's next lease check.
    pub fn set_lease(&mut self, id: SubscriptionId, lease: Monotonic) {
        let Some(known) = self.subscribers.get_mut(&id) else { return };
        self.leases.remove(&(known.lease, id));
        known.lease = lease;
        self.leases.insert((lease, id));
    }

    /// Removes a subscriber and returns the caller's data for it.
    pub fn remove(&mut self, id: SubscriptionId) -> Option<S> {
        let gone = self.subscribers.remove(&id)?;
        self.leases.remove(&(gone.lease, id));
        if let SubscriberState::Waiting(until) = gone.state {
            self.retries.remove(&(until, id));
        }
        if let Some(topic) = self.topics.get_mut(&gone.topic) {
            topic.subscribers.remove(&id);
            if topic.subscribers.is_empty() {
                self.topic_names.remove(&topic.name);
                self.topics.remove(&gone.topic);
            }
        }
        let ticket = if let SubscriberState::Queued(ticket) = gone.state { Some(ticket) } else { None };
        self.hosts.remove_subscriber(gone.host, ticket);
        Some(gone.data)
    }

    /// Records that a topic's log now ends at `head`, and queues its subscribers.
    pub fn handle_append(&mut self, topic: &str, head: Seq) {
        let topic = self.topic_names.get(topic).and_then(|name| Some((name, self.topics.get_mut(&name)?)));
        // Notifications may arrive out of order. Subscribers behind a known head are queued already, so each head
        // is passed to all of them once.
        let Some((name, topic)) = topic.filter(|(_, topic)| head > topic.head) else { return };
        topic.head = head;
        // Taken out and put back, because queueing borrows all of `self`. Copying the ids would cost an
        // allocation per append.
        let ids = std::mem::take(&mut topic.subscribers);
        for id in &ids {
            self.queue(*id, head);
        }
        if let Some(topic) = self.topics.get_mut(&name) {
            topic.subscribers = ids;
        }
    }

    fn wake(&mut self, id: SubscriptionId) {
        let Some(topic) = self.subscribers.get(&id).and_then(|s| self.topics.get(&s.topic)) else { return };
        self.queue(id, topic.head);
    }

    /// Queues a subscriber that is idle and behind `head`.
    fn queue(&mut self, id: SubscriptionId, head: Seq) {
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        // A removed and added subscriber may still have its old delivery running.
        let idle = subscriber.state == SubscriberState::Idle && !self.hosts.is_running(id);
        if idle && subscriber.delivery.is_behind(head) {
            subscriber.state = SubscriberState::Queued(self.hosts.push(subscriber.host, id));
        }
    }

    /// Returns the next delivery to make now, if any. Each is ended by [`Self::handle_end`].
    pub fn poll_delivery(&mut self, now: Monotonic) -> Option<DueDelivery> {
        while let Some((_, id)) = self.retries.first().copied().filter(|(time, _)| *time <= now) {
            self.retries.pop_first();
            if let Some(subscriber) = self.subscribers.get_mut(&id) {
                subscriber.state = SubscriberState::Idle;
                self.wake(id);
            }
        }
        self.hosts.release_parked(now);
        let id = self.hosts.start_next(now)?;
        let subscriber = self.subscribers.get_mut(&id)?;
        subscriber.state = SubscriberState::Running;
        Some(DueDelivery { id, after: subscriber.delivery.position() })
    }

    /// Handles a delivery without an answer after [`SLOW_ANSWER`]: from now on it takes a lane of slow hosts.
    /// Returns `false` if the caller is to cut it, with [`DeliveryOutcome::TooSlow`].
    pub fn handle_overdue(&mut self, id: SubscriptionId) -> bool {
        self.hosts.handle_overdue(id)
    }

    /// Handles the end of a delivery. Returns `None` if its subscriber was removed meanwhile. On
    /// [`AfterDelivery::Ended`] the caller must remove the subscriber.
    pub fn handle_end(&mut self, now: Monotonic, ended: EndedDelivery) -> Option<AfterDelivery> {
        let EndedDelivery { id, range, outcome, took } = ended;
        if !self.hosts.handle_end(now, id, outcome, took, &self.policy) {
            return None;
        }
        let subscriber = self.subscribers.get_mut(&id)?;
        let next = subscriber.delivery.handle(now, range, outcome, &self.policy);
        match next {
            AfterDelivery::Retry(at) => {
                subscriber.state = SubscriberState::Waiting(at);
                self.retries.insert((at, id));
            }
            // The subscriber stays inactive until the caller removes it.
            AfterDelivery::Ended => {}
            AfterDelivery::Done | AfterDelivery::Dropped => {
                subscriber.state = SubscriberState::Idle;
                self.wake(id);
            }
        }
        Some(next)
    }

    /// Returns a subscriber with a due lease check. The caller sets its next one, or removes it.
    pub fn poll_lease(&mut self, now: Monotonic) -> Option<SubscriptionId> {
        let (time, id) = self.leases.first().copied().filter(|(time, _)| *time <= now)?;
        self.leases.remove(&(time, id));
        Some(id)
    }

    /// Returns the time of the next call of [`Self::poll_delivery`] and [`Self::poll_lease`].
    pub fn poll_timeout(&self) -> Option<Monotonic> {
        let first = |times: &BTreeSet<(Monotonic, SubscriptionId)>| times.first().map(|(time, _)| *time);
        // Running deliveries end by themselves and need no timer.
        [first(&self.retries), first(&self.leases), self.hosts.poll_timeout()].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
