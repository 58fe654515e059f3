//! The publisher: a component beside any XMPP server (XEP-0114) that answers for every feed's nodes and pushes to
//! their subscribers.
//!
//! A state machine. The shell connects when [`Component::poll_connect`] says so, and then calls, over and over:
//!
//! 1. [`Component::handle_bytes`] with what came, as long as [`Component::wants_bytes`];
//! 2. [`Component::poll_question`] until it is empty: read or write the store, and call [`Component::handle_answer`]
//!    when that is done, in any order;
//! 3. [`Component::poll_output`]: send it, and only then ask for more; close when [`Component::is_down`];
//! 4. [`Component::handle_move`] for each feed of [`Component::feeds`] of which the log has moved;
//! 5. at [`Component::poll_timeout`], [`Component::handle_timeout`];
//! 6. now and then, and at the end: keep what [`Component::take_unkept`] says.

mod pending;
mod question;
mod requests;

use std::collections::{HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::connection::{Connection, Incoming};
use super::disco;
use super::error::{self, StanzaError};
use super::fanout::{Fanout, Kept, Place, Subscription, Topic};
use super::node::NodeName;
use super::pubsub;
use super::stanza::Element;
use super::stream::Limits;
use crate::feed_id::FeedId;
use pending::{Pending, Reply};
pub use question::{Answer, MIN_STANZA, Notice, Question, QuestionId, Settings, Unanswered};

/// Stanzas that are being answered at the same time: beyond, none is read.
const ANSWERING: usize = 64;
/// Bytes of answers that are not sent yet: beyond, none is read.
const UNSENT: usize = 1 << 20;
/// Items of a page where the request does not say, and at the most.
const DEFAULT_ITEMS: usize = 50;
const MAX_ITEMS: usize = 1000;
/// Feeds that are listed together.
const LISTED: usize = 100;
/// What of a stanza's id and addresses can be answered with, in bytes.
const MAX_ADDRESSING: usize = 8 << 10;
/// After how long down what was not pushed is left to be pulled.
const LONG: SignedDuration = SignedDuration::from_secs(30 * 60);

/// The publisher's side.
#[derive(Debug)]
pub struct Component {
    settings: Settings,
    connection: Connection,
    fanout: Fanout,
    numbers: u64,
    questions: VecDeque<(QuestionId, Question)>,
    pending: HashMap<QuestionId, Pending>,
    answering: usize,
    output: String,
    notices: VecDeque<Notice>,
    down_since: Option<Timestamp>,
}

impl Component {
    /// A component that is not connected, with what was kept.
    pub fn new(settings: Settings, kept: Kept) -> Self {
        let mut fanout = Fanout::new(settings.stanza_bytes);
        let places: HashMap<Topic, Place> = kept.places.into_iter().collect();
        for subscription in kept.subscriptions {
            // A name that is no node any more has nothing to send.
            if let Ok(node) = NodeName::parse(&subscription.node) {
                let topic = topic(&node);
                let place = places.get(&topic).cloned().unwrap_or(Place::Unknown(None));
                fanout.add(subscription, &topic, place);
            }
        }
        Self {
            connection: Connection::new(&settings.jid, &settings.secret, Limits::default()),
            settings,
            fanout,
            numbers: 0,
            questions: VecDeque::new(),
            pending: HashMap::new(),
            answering: 0,
            output: String::new(),
            notices: VecDeque::new(),
            down_since: kept.seen,
        }
    }

    /// Whether to connect to the server now.
    pub fn poll_connect(&mut self, now: Timestamp) -> bool {
        self.connection.poll_connect(now)
    }

    /// Connected.
    pub fn handle_connected(&mut self, now: Timestamp) {
        self.connection.handle_connected(now);
    }

    /// The connection could not be made, or broke.
    pub fn handle_disconnected(&mut self, now: Timestamp, reason: &str) {
        self.connection.handle_disconnected(now, reason);
        self.look_at_connection(now);
    }

    /// Whether there is no stream: what is still connected is to be closed, once the last output is sent.
    pub fn is_down(&self) -> bool {
        self.connection.is_down()
    }

    /// Whether the server has taken the component in.
    pub fn is_ready(&self) -> bool {
        self.connection.is_ready()
    }

    /// Whether to read from the connection: not while too many answers are on their way.
    pub fn wants_bytes(&self) -> bool {
        !self.connection.is_ready() || (self.answering < ANSWERING && self.output.len() < UNSENT)
    }

    /// Takes what came.
    pub fn handle_bytes(&mut self, now: Timestamp, bytes: &[u8]) {
        self.connection.handle_bytes(now, bytes);
        self.go_on(now);
    }

    /// Looks at what has come, as far as there is room for its answers.
    fn go_on(&mut self, now: Timestamp) {
        while self.wants_bytes() {
            match self.connection.poll_received(now) {
                Some(Incoming::Ready) => self.begin(now),
                Some(Incoming::Stanza(stanza)) => self.take(&stanza),
                Some(Incoming::TooLarge(stanza)) => self.refuse_large(&stanza),
                None => break,
            }
        }
        self.look_at_connection(now);
    }

    fn begin(&mut self, now: Timestamp) {
        let was_long = self.down_since.take().is_some_and(|since| now.duration_since(since) >= LONG);
        // Whoever asked on the old stream has been told by the server that nobody is there.
        self.output.clear();
        self.fanout.handle_reconnected(was_long);
        self.notices.push_back(Notice::Connected);
    }

    fn look_at_connection(&mut self, now: Timestamp) {
        if self.connection.is_down() {
            self.down_since.get_or_insert(now);
        }
        self.notices.extend(self.connection.take_problem().map(Notice::Down));
    }

    /// Something a person should know.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// The feeds of which the moves are of interest; some stand there twice.
    pub fn feeds(&self) -> impl Iterator<Item = &FeedId> {
        self.fanout.feeds()
    }

    /// How many subscriptions there are.
    pub fn subscriptions(&self) -> usize {
        self.fanout.len()
    }

    /// How many pushes were sent.
    pub fn pushes(&self) -> u64 {
        self.fanout.sent()
    }

    /// The log of a feed has moved.
    pub fn handle_move(&mut self, feed: &FeedId) {
        self.fanout.feed_moved(feed);
    }

    /// When to call [`Self::handle_timeout`] and [`Self::poll_connect`] again.
    pub fn poll_timeout(&self) -> Timestamp {
        self.connection.poll_timeout()
    }

    /// The time has come, perhaps.
    pub fn handle_timeout(&mut self, now: Timestamp) {
        self.connection.handle_timeout(now);
        self.look_at_connection(now);
    }

    /// Whether there is anything for [`Self::take_unkept`].
    pub fn has_unkept(&self) -> bool {
        self.fanout.has_unkept()
    }

    /// Up to where topics were sent, for [`Kept::places`] of the next start; `None` is to be forgotten.
    pub fn take_unkept(&mut self) -> Vec<(Topic, Option<Place>)> {
        self.fanout.take_unkept()
    }

    /// Ends the stream in good order: whoever waits for an answer is told that there will be none.
    pub fn close(&mut self) {
        for (_, pending) in std::mem::take(&mut self.pending) {
            if let Some(reply) = pending.reply() {
                self.refuse(&reply, StanzaError::ENDING.because("the service is being stopped"));
            }
        }
        let last = std::mem::take(&mut self.output);
        self.connection.close(&last);
    }

    /// What is to be sent next: whole stanzas.
    pub fn poll_output(&mut self, now: Timestamp) -> Option<String> {
        if let Some(output) = self.connection.poll_output() {
            return Some(output);
        }
        if !self.connection.is_ready() {
            return None;
        }
        if self.output.is_empty() {
            return self.fanout.poll_output();
        }
        let output = std::mem::take(&mut self.output);
        // There is room again for what was left unread.
        self.go_on(now);
        Some(output)
    }

    /// What is to be asked of the store next.
    pub fn poll_question(&mut self) -> Option<(QuestionId, Question)> {
        if let Some(question) = self.questions.pop_front() {
            return Some(question);
        }
        if !self.connection.is_ready() {
            return None;
        }
        let (topic, query) = self.fanout.poll_read()?;
        let question = Question::Page(topic.feed.clone(), query.clone());
        self.numbers += 1;
        let id = QuestionId(self.numbers);
        self.pending.insert(id, Pending::Read(topic, query));
        Some((id, question))
    }

    fn ask(&mut self, question: Question, pending: Pending) {
        self.numbers += 1;
        let id = QuestionId(self.numbers);
        self.answering += 1;
        self.pending.insert(id, pending);
        self.questions.push_back((id, question));
    }

    /// What became of a question.
    pub fn handle_answer(&mut self, now: Timestamp, id: QuestionId, answer: Answer<'_>) {
        let Some(pending) = self.pending.remove(&id) else { return };
        if let Pending::Read(topic, query) = &pending {
            let read = if let Answer::Page(read) = answer { read.ok() } else { None };
            return self.fanout.handle_read(topic, query, read);
        }
        self.answering = self.answering.saturating_sub(1);
        self.answered(pending, answer);
        self.go_on(now);
    }

    fn answered(&mut self, pending: Pending, answer: Answer<'_>) {
        match (pending, answer) {
            (Pending::Items(reply, node, plan), Answer::Page(Ok((feed, page)))) => {
                self.answer_items(&reply, &node, &plan, feed, page);
            }
            (Pending::Info(reply, node), Answer::Page(Ok((feed, _)))) => {
                self.answer(&reply, &disco::node(&node.text, &feed.title));
            }
            (Pending::Begin(reply, node, subscription), Answer::Page(Ok((feed, page)))) => {
                let place = Place::of_end(feed, node.order.by, &page);
                let topic = topic(&node);
                let first = (!self.fanout.knows(&topic)).then(|| (topic, place.clone()));
                let question = Question::Keep(subscription.clone(), first);
                self.ask(question, Pending::Keep(reply, node, subscription, place));
            }
            (Pending::Keep(reply, node, subscription, place), Answer::Written(Ok(()))) => {
                let state = pubsub::subscription(&subscription.node, &subscription.jid, "subscribed");
                self.answer(&reply, &pubsub::pubsub(state));
                self.fanout.add(subscription, &topic(&node), place);
            }
            (Pending::Forget(reply, subscription), Answer::Written(Ok(()))) => {
                self.fanout.remove(&subscription.jid, &subscription.node);
                if let Some(reply) = reply {
                    let state = pubsub::subscription(&subscription.node, &subscription.jid, "none");
                    self.answer(&reply, &pubsub::pubsub(state));
                }
            }
            (Pending::List(reply, after), Answer::Feeds(feeds, total)) => {
                self.answer_list(&reply, after.is_none(), &feeds, total);
            }
            (pending, Answer::Page(Err(reason)) | Answer::Written(Err(reason))) => {
                if let Some(reply) = pending.reply() {
                    self.refuse(&reply, reason.into());
                }
            }
            (pending, _) => {
                if let Some(reply) = pending.reply() {
                    self.refuse(&reply, StanzaError::INTERNAL);
                }
            }
        }
    }

    fn take(&mut self, stanza: &Element) {
        match stanza.name.as_str() {
            "iq" => self.take_iq(stanza),
            "message" if stanza.attribute("type") == Some("error") => self.take_bounce(stanza),
            // Nothing depends on who is there, and nobody is talked to.
            _ => {}
        }
    }

    /// A push came back. Only an address that is gone for good is sent nothing any more (RFC 6120, 8.3.3.5).
    fn take_bounce(&mut self, message: &Element) {
        let Some((condition, _)) = error::read(message) else { return };
        let Some(from) = message.attribute("from").filter(|_| condition == "gone") else { return };
        let gone: Vec<Subscription> = self.fanout.of_account(from).collect();
        for subscription in gone {
            self.ask(Question::Forget(subscription.clone()), Pending::Forget(None, subscription));
        }
    }

    /// RFC 6120, 8.2.3: a request is answered exactly once, an answer never.
    fn take_iq(&mut self, iq: &Element) {
        let kind = iq.attribute("type").unwrap_or_default();
        if matches!(kind, "result" | "error") {
            return;
        }
        let Some(reply) = self.reply(iq) else { return };
        let children: Vec<&Element> = iq.children().collect();
        let done = match (kind, children.as_slice()) {
            ("get" | "set", [payload]) => self.take_request(&reply, payload, kind == "set"),
            ("get" | "set", []) => Err(StanzaError::BAD_REQUEST.because("a request without a payload")),
            ("get" | "set", _) => {
                Err(StanzaError::BAD_REQUEST.because("a request with more than one payload"))
            }
            _ => Err(StanzaError::BAD_REQUEST.because("an iq is of type get, set, result or error")),
        };
        if let Err(error) = done {
            self.refuse(&reply, error);
        }
    }

    /// Whom to answer; `None` where nobody can be.
    fn reply(&self, stanza: &Element) -> Option<Reply> {
        let text = |name: &str| stanza.attribute(name).map(str::to_owned);
        let from = text("to").unwrap_or_else(|| self.settings.jid.clone());
        let reply = Reply { from, to: text("from")?, id: text("id").unwrap_or_default() };
        (reply.weight() <= MAX_ADDRESSING / 2).then_some(reply)
    }

    fn refuse_large(&mut self, stanza: &Element) {
        let is_request = matches!(stanza.attribute("type"), Some("get" | "set"));
        if stanza.name == "iq"
            && is_request
            && let Some(reply) = self.reply(stanza)
        {
            self.refuse(&reply, StanzaError::TOO_LARGE.because("the stanza is too large"));
        }
    }

    fn answer(&mut self, reply: &Reply, payload: &Element) {
        let payload = payload.to_xml();
        self.result(reply, &payload);
    }

    fn result(&mut self, reply: &Reply, payload: &str) {
        reply.write(&mut self.output, "result");
        self.output.push_str(payload);
        self.output.push_str("</iq>");
    }

    fn refuse(&mut self, reply: &Reply, error: StanzaError) {
        reply.write(&mut self.output, "error");
        error.element("").write(&mut self.output, "");
        self.output.push_str("</iq>");
        self.notices.push_back(Notice::Refused(reply.to.clone(), error));
    }
}

fn topic(node: &NodeName) -> Topic {
    Topic { feed: node.feed.clone(), by: node.order.by }
}
