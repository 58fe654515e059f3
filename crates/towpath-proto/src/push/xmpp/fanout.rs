//! Who is sent what ("Push Interface": in order, with the previous and the last cursor, not queued indefinitely).
//!
//! Nothing is queued for a subscriber. A topic, a feed in one order, has one position for all of its subscribers; when
//! its log moves, one page is made and written for each of them in turn, and what is appended meanwhile goes together
//! into the next. Topics take turns as well, so that one with many subscribers does not hold up the others.

mod place;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Bound;

pub use place::{Kept, Place, Subscription, Topic};

use super::entry::{MIN_ROOM, fit};
use super::jid;
use super::ns;
use super::shim::PushHeaders;
use super::stanza::write_attribute;
use crate::feed_id::FeedId;
use crate::smart::pull::{FeedSettings, Page};
use crate::smart::query::PullQuery;
use crate::smart::spec::By;

/// How much is written before another topic has its turn, in bytes.
const TURN: usize = 64 << 10;
/// How many topics are read at the same time.
const READING: usize = 16;
/// Items of one push, at the most.
const ITEMS: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// It is in the queue of those to be read.
    Queued,
    Reading,
    Sending,
}

#[derive(Debug)]
struct State {
    place: Place,
    /// Up to where everything was sent to everybody.
    sent_to: Place,
    doing: Doing,
    /// Whether the log has moved since it was last read.
    moved: bool,
    /// What every message to a subscriber begins with, by the number that the subscriber has.
    subscribers: BTreeMap<u64, Box<str>>,
    /// What every message ends with, and the subscriber who was sent it last.
    sending: Option<(String, Option<u64>)>,
}

#[derive(Debug)]
struct Subscriber {
    topic: Topic,
    number: u64,
    from: String,
}

/// All topics that have subscribers.
#[derive(Debug)]
pub struct Fanout {
    stanza_bytes: usize,
    topics: HashMap<Topic, State>,
    /// By address and node.
    subscribers: BTreeMap<(String, String), Subscriber>,
    numbers: u64,
    to_read: VecDeque<Topic>,
    to_send: VecDeque<Topic>,
    reading: usize,
    sent: u64,
    /// Topics that stand elsewhere than was kept.
    unkept: HashSet<Topic>,
}

impl Fanout {
    /// None yet. A message has so many bytes at the most.
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
            unkept: HashSet::new(),
        }
    }

    /// Whether there is anything for [`Self::take_unkept`].
    pub fn has_unkept(&self) -> bool {
        !self.unkept.is_empty()
    }

    /// The topics that stand elsewhere than was kept, and up to where each was sent; `None` for one without
    /// subscribers, or one of which that is not known.
    pub fn take_unkept(&mut self) -> Vec<(Topic, Option<Place>)> {
        let sent_to = |topic: &Topic| {
            let place = self.topics.get(topic).map(|state| &state.sent_to);
            place.filter(|place| matches!(place, Place::At { .. })).cloned()
        };
        let unkept = std::mem::take(&mut self.unkept);
        unkept.into_iter().map(|topic| (topic.clone(), sent_to(&topic))).collect()
    }

    /// Whether anybody subscribes to this topic.
    pub fn knows(&self, topic: &Topic) -> bool {
        self.topics.contains_key(topic)
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.subscribers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    /// How many messages were written.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The feeds that have subscribers, some of them twice.
    pub fn feeds(&self) -> impl Iterator<Item = &FeedId> {
        self.topics.keys().map(|topic| &topic.feed)
    }

    /// Whether there is this subscription.
    pub fn has(&self, jid: &str, node: &str) -> bool {
        self.subscribers.contains_key(&(jid.to_owned(), node.to_owned()))
    }

    /// The subscriptions of one account, those of its resources included.
    pub fn of_account(&self, account: &str) -> impl Iterator<Item = Subscription> {
        let bare = jid::bare(account).to_lowercase();
        let (from, resources) = (bare.clone(), format!("{bare}/"));
        let first = (Bound::Included((from, String::new())), Bound::Unbounded);
        let second = (Bound::Included((resources.clone(), String::new())), Bound::Unbounded);
        let own = self.subscribers.range(first).take_while(move |((jid, _), _)| *jid == bare);
        let of_resources =
            self.subscribers.range(second).take_while(move |((jid, _), _)| jid.starts_with(&resources));
        own.chain(of_resources).map(|((jid, node), subscriber)| Subscription {
            jid: jid.clone(),
            node: node.clone(),
            from: subscriber.from.clone(),
        })
    }

    /// Takes a subscriber in. `place` is where the topic is to begin if nobody knows it yet.
    pub fn add(&mut self, subscription: Subscription, topic: &Topic, place: Place) {
        let Subscription { jid, node, from } = subscription;
        let mut start = String::from("<message");
        write_attribute(&mut start, "from", &from);
        write_attribute(&mut start, "to", &jid);
        start.push_str(" type=\"headline\"><event");
        write_attribute(&mut start, "xmlns", ns::PUBSUB_EVENT);
        start.push_str("><items");
        write_attribute(&mut start, "node", &node);
        start.push('>');
        self.remove(&jid, &node);
        self.numbers += 1;
        let number = self.numbers;
        let state = self.topics.entry(topic.clone()).or_insert_with(|| State {
            place: Place::Unknown(None),
            sent_to: Place::Unknown(None),
            doing: Doing::Nothing,
            moved: false,
            subscribers: BTreeMap::new(),
            sending: None,
        });
        state.subscribers.insert(number, start.into());
        if matches!(state.place, Place::Unknown(_)) {
            (state.place, state.sent_to) = (place.clone(), place);
        }
        self.subscribers.insert((jid, node), Subscriber { topic: topic.clone(), number, from });
        // It may have moved before anybody listened.
        self.moved(topic);
    }

    /// Lets a subscriber go; says whether there was one.
    pub fn remove(&mut self, jid: &str, node: &str) -> bool {
        let Some(gone) = self.subscribers.remove(&(jid.to_owned(), node.to_owned())) else { return false };
        if let Some(state) = self.topics.get_mut(&gone.topic) {
            state.subscribers.remove(&gone.number);
            if state.subscribers.is_empty() {
                self.topics.remove(&gone.topic);
                self.unkept.insert(gone.topic.clone());
                self.to_read.retain(|topic| *topic != gone.topic);
                self.to_send.retain(|topic| *topic != gone.topic);
            }
        }
        true
    }

    /// A feed's log has moved.
    pub fn feed_moved(&mut self, feed: &FeedId) {
        for by in [By::Created, By::Modified] {
            self.moved(&Topic { feed: feed.clone(), by });
        }
    }

    fn moved(&mut self, topic: &Topic) {
        if let Some(state) = self.topics.get_mut(topic) {
            state.moved = true;
            if state.doing == Doing::Nothing {
                state.doing = Doing::Queued;
                self.to_read.push_back(topic.clone());
            }
        }
    }

    /// The next topic to read, and what to ask of its feed.
    pub fn poll_read(&mut self) -> Option<(Topic, PullQuery)> {
        if self.reading >= READING {
            return None;
        }
        let topic = self.to_read.pop_front()?;
        let state = self.topics.get_mut(&topic)?;
        (state.doing, state.moved) = (Doing::Reading, false);
        self.reading += 1;
        let query = state.place.query(topic.by);
        Some((topic, query))
    }

    /// What was read for a topic with this query, if it could be.
    pub fn handle_read(&mut self, topic: &Topic, query: &PullQuery, read: Option<(&FeedSettings, Page)>) {
        self.reading = self.reading.saturating_sub(1);
        let room = self.stanza_bytes;
        let Some(state) = self.topics.get_mut(topic).filter(|state| state.doing == Doing::Reading) else {
            return;
        };
        state.doing = Doing::Nothing;
        if state.place.query(topic.by) != *query {
            // It is somewhere else by now.
            return self.moved(topic);
        }
        // What cannot be read now is read when the log moves next.
        let Some((feed, page)) = read else { return };
        match state.place.clone() {
            Place::Unknown(_) => {
                state.place = Place::of_end(feed, topic.by, &page);
                // It may have moved since; and a search may have to go on.
                state.moved = true;
            }
            Place::At { previous, .. } => state.take(feed, topic.by, page, previous, room),
        }
        if state.sending.is_some() {
            state.doing = Doing::Sending;
            self.to_send.push_back(topic.clone());
            return;
        }
        if state.sent_to != state.place {
            state.sent_to = state.place.clone();
            self.unkept.insert(topic.clone());
        }
        if state.moved {
            self.moved(topic);
        }
    }

    /// Messages to send: whole ones, about as many as are written in one go.
    pub fn poll_output(&mut self) -> Option<String> {
        while let Some(topic) = self.to_send.pop_front() {
            let Some(state) = self.topics.get_mut(&topic) else { continue };
            let mut out = String::new();
            let Some((end, last)) = &mut state.sending else { continue };
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let mut is_done = true;
            for (number, start) in state.subscribers.range((from, Bound::Unbounded)) {
                if out.len() >= TURN {
                    is_done = false;
                    break;
                }
                out.push_str(start);
                out.push_str(end);
                *last = Some(*number);
                self.sent += 1;
            }
            if is_done {
                (state.sending, state.doing) = (None, Doing::Nothing);
                state.sent_to = state.place.clone();
                self.unkept.insert(topic.clone());
                if state.moved {
                    self.moved(&topic);
                }
            } else {
                self.to_send.push_back(topic);
            }
            if !out.is_empty() {
                return Some(out);
            }
        }
        None
    }

    /// The stream is open again: what was under way when it broke is sent again from the first subscriber on, who
    /// will know it by its cursor. After a long time down, what came meanwhile is not sent: the next push shows the gap
    /// by its previous cursor, and it is pulled.
    pub fn handle_reconnected(&mut self, was_long: bool) {
        let topics: Vec<Topic> = self.topics.keys().cloned().collect();
        for topic in topics {
            if let Some(state) = self.topics.get_mut(&topic) {
                if was_long {
                    state.place = Place::Unknown(None);
                    if state.sending.take().is_some() {
                        state.doing = Doing::Nothing;
                        self.to_send.retain(|sending| *sending != topic);
                    }
                } else if let Some((_, last)) = &mut state.sending {
                    *last = None;
                }
            }
            self.moved(&topic);
        }
    }
}

impl State {
    /// A page that begins after the topic's place.
    fn take(
        &mut self,
        feed: &FeedSettings,
        by: By,
        page: Page,
        previous: Option<String>,
        stanza_bytes: usize,
    ) {
        // Around the items: addresses, the node, the headers.
        let longest = self.subscribers.values().map(|start| start.len()).max().unwrap_or_default();
        let room = stanza_bytes.saturating_sub(longest + 1024).max(MIN_ROOM);
        let fitting = fit(feed, by, &page.changes, room);
        let Some(last) = fitting.items.len().checked_sub(1).and_then(|index| page.changes.get(index)) else {
            // A filter hides all that was looked at; further on there may be something.
            if page.more && page.last_cursor.is_some() {
                (self.place, self.moved) = (Place::At { since: page.last_cursor, previous }, true);
            }
            return;
        };
        let own = feed.tag.cursor(by, by.position(last));
        let given = if fitting.cut { None } else { page.last_cursor };
        let given = given.unwrap_or_else(|| own.clone());
        let headers = PushHeaders { total: Some(page.total), previous, last: Some(given.clone()) };
        let mut end = fitting.items.concat();
        end.push_str("</items></event>");
        headers.element().write(&mut end, "");
        end.push_str("</message>");
        self.moved |= fitting.cut || page.more;
        self.place = Place::At { since: Some(own), previous: Some(given) };
        self.sending = Some((end, None));
    }
}
