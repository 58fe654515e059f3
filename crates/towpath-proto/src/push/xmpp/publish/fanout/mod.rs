//! Fan-out of pushes to subscribers ("Push Interface": in order, with the previous and the last cursor, not
//! queued indefinitely).
//!
//! Subscribers have no queues. A topic, which is a feed in an order, has a single position for all of its
//! subscribers: a headline message is never acknowledged. After an append a page is read once, and each of its
//! items is written behind each subscriber's own start tag. Items appended meanwhile form the next page. Topics
//! take turns, so that a topic with many subscribers does not delay the others.
//!
//! A message has one item: clients hand pushes on by item, and some fail if there are several.

mod position;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;

pub use position::{FanoutTopic, NodeSubscription, PersistedFanout, PushPosition};

use super::entry::{MIN_ROOM, fit};
use crate::feed_id::FeedId;
use crate::push::xmpp::wire::jid;
use crate::push::xmpp::wire::ns;
use crate::push::xmpp::wire::shim::PushHeaders;
use crate::push::xmpp::wire::stanza::write_attribute;
use crate::smart::pull::{FeedSettings, PullPage};
use crate::smart::query::PullQuery;
use crate::smart::spec::OrderBy;

/// Bytes written before the next topic's turn.
const TURN_BYTES: usize = 64 << 10;
/// Maximum concurrent reads of topics.
const MAX_READS: usize = 16;

/// Time that a component was not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downtime {
    /// Missed items are pushed now.
    Short,
    /// Missed items are left to be pulled.
    Long,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopicPhase {
    Idle,
    /// In the queue of topics to read.
    Queued,
    Reading,
    Sending,
}

#[derive(Debug)]
struct TopicProgress {
    position: PushPosition,
    /// Position up to which all subscribers were sent everything.
    sent_to: PushPosition,
    phase: TopicPhase,
    /// `true` if the log was appended to since the last read.
    has_news: bool,
    /// Start of a message for each subscriber, by subscriber number.
    subscribers: BTreeMap<u64, Box<str>>,
    sending: Option<PushBatch>,
}

/// Messages of one page on their way to the subscribers.
#[derive(Debug)]
struct PushBatch {
    /// Rest of each message after a subscriber's start tag, one for each item.
    ends: Vec<String>,
    /// Number of the last subscriber that they were written for.
    last: Option<u64>,
}

#[derive(Debug)]
struct FanoutSubscriber {
    topic: FanoutTopic,
    number: u64,
    from: String,
}

/// All topics that have subscribers.
#[derive(Debug)]
pub struct Fanout {
    stanza_bytes: usize,
    topics: HashMap<FanoutTopic, TopicProgress>,
    /// OrderBy address and node.
    subscribers: BTreeMap<(String, String), FanoutSubscriber>,
    numbers: u64,
    to_read: VecDeque<FanoutTopic>,
    to_send: VecDeque<FanoutTopic>,
    reading: usize,
    sent: u64,
    /// Topics with a position that is not persisted yet.
    unpersisted: HashSet<FanoutTopic>,
}

impl Fanout {
    /// Creates an empty fan-out. `stanza_bytes` is the maximum size of a message.
    pub fn new(stanza_bytes: usize) -> Self {
        Self {
            stanza_bytes,
            topics: HashMap::new(),
            subscribers: BTreeMap::new(),
            numbers: 0,
            to_read: VecDeque::new(),
            to_send: VecDeque::new(),
            reading: 0,
            sent: 0,
            unpersisted: HashSet::new(),
        }
    }

    /// Returns `true` if [`Self::take_unpersisted`] has changes.
    pub fn has_unpersisted(&self) -> bool {
        !self.unpersisted.is_empty()
    }

    /// Returns the topics whose persisted position is outdated, with their positions. `None` for a topic
    /// without subscribers or without a known position.
    pub fn take_unpersisted(&mut self) -> Vec<(FanoutTopic, Option<PushPosition>)> {
        let sent_to = |topic: &FanoutTopic| {
            let position = self.topics.get(topic).map(|state| &state.sent_to);
            position.filter(|position| matches!(position, PushPosition::At { .. })).cloned()
        };
        let unpersisted = std::mem::take(&mut self.unpersisted);
        unpersisted.into_iter().map(|topic| (topic.clone(), sent_to(&topic))).collect()
    }

    /// Returns `true` if the topic has subscribers.
    pub fn knows(&self, topic: &FanoutTopic) -> bool {
        self.topics.contains_key(topic)
    }

    /// Returns the number of subscriptions.
    pub fn len(&self) -> usize {
        self.subscribers.len()
    }

    /// Returns `true` without subscriptions.
    pub fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    /// Returns the number of messages written.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Iterates over the feeds with subscribers; a feed may occur twice.
    pub fn feeds(&self) -> impl Iterator<Item = &FeedId> {
        self.topics.keys().map(|topic| &topic.feed)
    }

    /// Returns `true` if this subscription exists.
    pub fn has(&self, jid: &str, node: &str) -> bool {
        self.subscribers.contains_key(&(jid.to_owned(), node.to_owned()))
    }

    /// Returns the subscriptions to a feed.
    pub fn of_feed(&self, feed: &FeedId) -> Vec<NodeSubscription> {
        let own = self.subscribers.iter().filter(|(_, subscriber)| subscriber.topic.feed == *feed);
        own.map(|((jid, node), subscriber)| NodeSubscription {
            jid: jid.clone(),
            node: node.clone(),
            from: subscriber.from.clone(),
        })
        .collect()
    }

    /// Iterates over the subscriptions of an account, including its resources.
    pub fn of_account(&self, account: &str) -> impl Iterator<Item = NodeSubscription> {
        let bare = jid::bare(account).to_lowercase();
        // Two ranges of the ordered map: other accounts may sort between the bare address and its resources.
        let (from, resources) = (bare.clone(), format!("{bare}/"));
        let first = (Bound::Included((from, String::new())), Bound::Unbounded);
        let second = (Bound::Included((resources.clone(), String::new())), Bound::Unbounded);
        let own = self.subscribers.range(first).take_while(move |((jid, _), _)| *jid == bare);
        let of_resources =
            self.subscribers.range(second).take_while(move |((jid, _), _)| jid.starts_with(&resources));
        own.chain(of_resources).map(|((jid, node), subscriber)| NodeSubscription {
            jid: jid.clone(),
            node: node.clone(),
            from: subscriber.from.clone(),
        })
    }

    /// Adds a subscriber. `position` is the position of a topic that has none yet.
    pub fn add(&mut self, subscription: NodeSubscription, topic: &FanoutTopic, position: PushPosition) {
        let NodeSubscription { jid, node, from } = subscription;
        let mut start = String::from("<message");
        write_attribute(&mut start, "from", &from);
        write_attribute(&mut start, "to", &jid);
        start.push_str(" type=\"headline\"><event");
        write_attribute(&mut start, "xmlns", ns::PUBSUB_EVENT);
        start.push_str("><items");
        write_attribute(&mut start, "node", &node);
        start.push('>');
        // A renewed subscription replaces the old one, whose sender address may differ.
        self.remove(&jid, &node);
        // Numbers order the subscribers, so that an interrupted turn continues after the last one.
        self.numbers += 1;
        let number = self.numbers;
        let state = self.topics.entry(topic.clone()).or_insert_with(|| TopicProgress {
            position: PushPosition::Unknown(None),
            sent_to: PushPosition::Unknown(None),
            phase: TopicPhase::Idle,
            has_news: false,
            subscribers: BTreeMap::new(),
            sending: None,
        });
        state.subscribers.insert(number, start.into());
        if matches!(state.position, PushPosition::Unknown(_)) {
            (state.position, state.sent_to) = (position.clone(), position);
        }
        self.subscribers.insert((jid, node), FanoutSubscriber { topic: topic.clone(), number, from });
        // The log may have been appended to before the topic had subscribers.
        self.enqueue(topic);
    }

    /// Removes a subscriber; returns `true` if it existed.
    pub fn remove(&mut self, jid: &str, node: &str) -> bool {
        let Some(gone) = self.subscribers.remove(&(jid.to_owned(), node.to_owned())) else { return false };
        if let Some(state) = self.topics.get_mut(&gone.topic) {
            state.subscribers.remove(&gone.number);
            if state.subscribers.is_empty() {
                self.topics.remove(&gone.topic);
                self.unpersisted.insert(gone.topic.clone());
                self.to_read.retain(|topic| *topic != gone.topic);
                self.to_send.retain(|topic| *topic != gone.topic);
            }
        }
        true
    }

    /// Records an append to a feed's log.
    pub fn handle_append(&mut self, feed: &FeedId) {
        for by in [OrderBy::Created, OrderBy::Modified] {
            self.enqueue(&FanoutTopic { feed: feed.clone(), by });
        }
    }

    fn enqueue(&mut self, topic: &FanoutTopic) {
        if let Some(state) = self.topics.get_mut(topic) {
            state.has_news = true;
            if state.phase == TopicPhase::Idle {
                state.phase = TopicPhase::Queued;
                self.to_read.push_back(topic.clone());
            }
        }
    }

    /// Returns the next topic to read, with the query.
    pub fn poll_read(&mut self) -> Option<(FanoutTopic, PullQuery)> {
        // Bounds the concurrent reads of the store after a burst of appends.
        if self.reading >= MAX_READS {
            return None;
        }
        let topic = self.to_read.pop_front()?;
        let state = self.topics.get_mut(&topic)?;
        (state.phase, state.has_news) = (TopicPhase::Reading, false);
        self.reading += 1;
        let query = state.position.query(topic.by);
        Some((topic, query))
    }

    /// Handles the page that was read for a topic; `None` if the read failed.
    pub fn handle_read(
        &mut self,
        topic: &FanoutTopic,
        query: &PullQuery,
        read: Option<(&FeedSettings, PullPage)>,
    ) {
        self.reading = self.reading.saturating_sub(1);
        let room = self.stanza_bytes;
        let Some(state) = self.topics.get_mut(topic).filter(|state| state.phase == TopicPhase::Reading)
        else {
            return;
        };
        state.phase = TopicPhase::Idle;
        if state.position.query(topic.by) != *query {
            // The position changed during the read, for example by a reconnect.
            return self.enqueue(topic);
        }
        // A failed read is repeated after the next append.
        let Some((feed, page)) = read else { return };
        match state.position.clone() {
            PushPosition::Unknown(_) => {
                state.position = PushPosition::of_end(feed, topic.by, &page);
                // The log may have been appended to since, and the search may be incomplete.
                state.has_news = true;
            }
            PushPosition::At { previous, .. } => state.take(feed, topic.by, page, previous, room),
        }
        if state.sending.is_some() {
            state.phase = TopicPhase::Sending;
            self.to_send.push_back(topic.clone());
            return;
        }
        if state.sent_to != state.position {
            state.sent_to = state.position.clone();
            self.unpersisted.insert(topic.clone());
        }
        if state.has_news {
            self.enqueue(topic);
        }
    }

    /// Returns the next messages: whole stanzas, about `TURN_BYTES` bytes.
    pub fn poll_output(&mut self) -> Option<String> {
        while let Some(topic) = self.to_send.pop_front() {
            let Some(state) = self.topics.get_mut(&topic) else { continue };
            let mut out = String::new();
            let Some(PushBatch { ends, last }) = &mut state.sending else { continue };
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let mut is_done = true;
            for (number, start) in state.subscribers.range((from, Bound::Unbounded)) {
                if out.len() >= TURN_BYTES {
                    is_done = false;
                    break;
                }
                for end in ends.iter() {
                    out.push_str(start);
                    out.push_str(end);
                }
                *last = Some(*number);
                self.sent += ends.len() as u64;
            }
            if is_done {
                (state.sending, state.phase) = (None, TopicPhase::Idle);
                state.sent_to = state.position.clone();
                self.unpersisted.insert(topic.clone());
                if state.has_news {
                    self.enqueue(&topic);
                }
            } else {
                // To the back of the queue: other topics go first.
                self.to_send.push_back(topic);
            }
            if !out.is_empty() {
                return Some(out);
            }
        }
        None
    }

    /// Handles a reconnect. An interrupted page is sent again from the first subscriber on; receivers detect
    /// it by its cursor. After a long downtime, missed items are not pushed: the next push shows the gap by
    /// its previous cursor, and subscribers pull.
    pub fn handle_reconnected(&mut self, downtime: Downtime) {
        let topics: Vec<FanoutTopic> = self.topics.keys().cloned().collect();
        for topic in topics {
            if let Some(state) = self.topics.get_mut(&topic) {
                if downtime == Downtime::Long {
                    state.position = PushPosition::Unknown(None);
                    if state.sending.take().is_some() {
                        state.phase = TopicPhase::Idle;
                        self.to_send.retain(|sending| *sending != topic);
                    }
                } else if let Some(batch) = &mut state.sending {
                    batch.last = None;
                }
            }
            self.enqueue(&topic);
        }
    }
}

impl TopicProgress {
    /// Builds the messages for a page that begins after the topic's position.
    fn take(
        &mut self,
        feed: &FeedSettings,
        by: OrderBy,
        page: PullPage,
        previous: Option<String>,
        stanza_bytes: usize,
    ) {
        // Reserve for the markup around the items: addresses, node, headers.
        let longest = self.subscribers.values().map(|start| start.len()).max().unwrap_or_default();
        let room = stanza_bytes.saturating_sub(longest + 1024).max(MIN_ROOM);
        let fitting = fit(feed, by, &page.changes, room);
        let Some(last) = fitting.items.len().checked_sub(1).and_then(|index| page.changes.get(index)) else {
            // The filter hid all scanned items: the next read goes on after them.
            if page.more && page.last_cursor.is_some() {
                (self.position, self.has_news) =
                    (PushPosition::At { since: page.last_cursor, previous }, true);
            }
            return;
        };
        let own = |change| page.cursor(&feed.tag, by, change);
        // A cut page ends at its own last item.
        let given = if fitting.cut { None } else { page.last_cursor.clone() };
        let given = given.unwrap_or_else(|| own(last));
        self.has_news |= fitting.cut || page.more;
        self.position = PushPosition::At { since: Some(own(last)), previous: Some(given.clone()) };
        let count = fitting.items.len();
        let cursors = page.changes.iter().take(count - 1).map(own).chain([given]);
        let mut previous = previous;
        let mut ends = Vec::with_capacity(count);
        for (mut end, cursor) in fitting.items.into_iter().zip(cursors) {
            let previous = previous.replace(cursor.clone());
            let headers = PushHeaders { total: Some(page.total), previous, last: Some(cursor) };
            end.push_str("</items></event>");
            headers.element().write(&mut end, "");
            end.push_str("</message>");
            ends.push(end);
        }
        self.sending = Some(PushBatch { ends, last: None });
    }
}
