//! State of a subscriber and of a topic.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::change::Seq;
use crate::follow::Monotonic;
use crate::push::websub::publish::delivery::DeliveryCursor;

/// Unique id of a subscription.
pub type SubscriptionId = u128;

/// Topic, host and address of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriberPlace<'a> {
    /// Key of the topic.
    pub topic: &'a str,
    /// Host and port of the callback. They fail, and are slow, together.
    pub host: &'a str,
    /// Network address of the callback. Limits and shares count by it.
    pub address: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SubscriberState {
    Idle,
    /// In the queue of its host, with this ticket.
    Queued(u64),
    Running,
    Waiting(Monotonic),
}

#[derive(Debug)]
pub(super) struct SubscriberEntry<S> {
    pub(super) data: S,
    pub(super) topic: u32,
    pub(super) host: u32,
    pub(super) delivery: DeliveryCursor,
    pub(super) state: SubscriberState,
    /// Time of the next lease check.
    pub(super) lease: Monotonic,
}

#[derive(Debug)]
pub(super) struct TopicEntry {
    pub(super) name: Arc<str>,
    pub(super) head: Seq,
    pub(super) subscribers: BTreeSet<SubscriptionId>,
}

impl TopicEntry {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self { name, head: 0, subscribers: BTreeSet::new() }
    }
}
