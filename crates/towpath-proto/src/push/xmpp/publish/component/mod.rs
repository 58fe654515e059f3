//! The publisher: a component beside any XMPP server (XEP-0114). It serves the nodes of all feeds and pushes
//! to their subscribers.
//!
//! A state machine without I/O. Connect when [`Component::poll_connect`] returns `true`, then repeat:
//!
//! 1. Pass received bytes to [`Component::handle_bytes`] while [`Component::wants_bytes`].
//! 2. Call [`Component::poll_store_request`] until it returns `None`. Execute each request, and pass the result to
//!    [`Component::handle_store_response`], in any order.
//! 3. Send the output of [`Component::poll_output`] before polling again. Close when [`Component::is_down`].
//! 4. Call [`Component::handle_append`] after appends to a feed in [`Component::feeds`], and
//!    [`Component::handle_removed`] once one of them is not served any more.
//! 5. Call [`Component::handle_timeout`] at [`Component::poll_timeout`].
//! 6. Persist [`Component::take_unpersisted`] now and then, and at the end.

mod index_walk;
mod pending;
mod removal;
mod requests;
mod store_request;

use std::collections::{HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::component_stream::ComponentStream;
use super::disco;
use super::fanout::{Fanout, FanoutTopic, NodeSubscription, PersistedFanout, PushPosition};
use crate::feed_id::FeedId;
use crate::follow::{Monotonic, Now};
use crate::push::xmpp::publish::fanout::Downtime;
use crate::push::xmpp::wire::error::{self, StanzaError};
use crate::push::xmpp::wire::lifecycle::Incoming;
use crate::push::xmpp::wire::node::NodeName;
use crate::push::xmpp::wire::pubsub;
use crate::push::xmpp::wire::pubsub::IqType;
use crate::push::xmpp::wire::stanza::Element;
use crate::push::xmpp::wire::stream::StreamLimits;
use pending::{PendingReply, ReplyAddress};
use store_request::MAX_ADDRESSING;
pub use store_request::{
    ComponentEvent, ComponentSettings, MIN_STANZA_BYTES, StoreRequest, StoreRequestError, StoreRequestId,
    StoreResponse,
};

/// Maximum requests in progress; no input is read beyond that.
const MAX_PENDING: usize = 64;
/// Maximum bytes of unsent responses; no input is read beyond that.
const MAX_UNSENT: usize = 1 << 20;
/// Page size without an explicit maximum, and the largest page.
const DEFAULT_ITEMS: usize = 50;
const MAX_ITEMS: usize = 1000;
/// Maximum feeds in a list of nodes.
const MAX_LISTED: usize = 100;
/// Downtime after which missed pushes are not sent any more; subscribers pull instead.
const LONG_DOWNTIME: SignedDuration = SignedDuration::from_secs(30 * 60);

/// State of the component.
#[derive(Debug)]
pub struct Component {
    settings: ComponentSettings,
    connection: ComponentStream,
    fanout: Fanout,
    numbers: u64,
    requests: VecDeque<(StoreRequestId, StoreRequest)>,
    pending: HashMap<StoreRequestId, PendingReply>,
    answering: usize,
    output: String,
    notices: VecDeque<ComponentEvent>,
    down_since: Option<Timestamp>,
}

impl Component {
    /// Creates a disconnected component from its persisted state.
    pub fn new(settings: ComponentSettings, kept: PersistedFanout) -> Self {
        let mut fanout = Fanout::new(settings.stanza_bytes);
        let places: HashMap<FanoutTopic, PushPosition> = kept.places.into_iter().collect();
        for subscription in kept.subscriptions {
            // A stored node name may be invalid in a newer version; it has nothing to push.
            if let Ok(node) = NodeName::parse(&subscription.node) {
                // The stored position wins; without one the topic starts at its end.
                let topic = topic(&node);
                let place = places.get(&topic).cloned().unwrap_or(PushPosition::Unknown(None));
                fanout.add(subscription, &topic, place);
            }
        }
        Self {
            connection: ComponentStream::new(&settings.jid, &settings.secret, StreamLimits::default()),
            settings,
            fanout,
            numbers: 0,
            requests: VecDeque::new(),
            pending: HashMap::new(),
            answering: 0,
            output: String::new(),
            notices: VecDeque::new(),
            down_since: kept.seen,
        }
    }

    /// Returns `true` when it is time to connect.
    pub fn poll_connect(&mut self, now: Now) -> bool {
        self.connection.poll_connect(now)
    }

    /// Records that the connection is established.
    pub fn handle_connected(&mut self, now: Now) {
        self.connection.handle_connected(now);
    }

    /// Records that the connection failed or broke.
    pub fn handle_disconnected(&mut self, now: Now, reason: &str) {
        self.connection.handle_disconnected(now, reason);
        self.update_connection_state(now);
    }

    /// Returns `true` without a stream. Close the connection after the last output.
    pub fn is_down(&self) -> bool {
        self.connection.is_down()
    }

    /// Returns `true` once the server has accepted the component.
    pub fn is_ready(&self) -> bool {
        self.connection.is_ready()
    }

    /// Returns `true` if more input may be read: backpressure while too many responses are pending.
    pub fn wants_bytes(&self) -> bool {
        !self.connection.is_ready() || (self.answering < MAX_PENDING && self.output.len() < MAX_UNSENT)
    }

    /// Processes received bytes.
    pub fn handle_bytes(&mut self, now: Now, bytes: &[u8]) {
        self.connection.handle_bytes(now, bytes);
        self.process_input(now);
    }

    /// Processes buffered input while there is room for the responses.
    fn process_input(&mut self, now: Now) {
        while self.wants_bytes() {
            match self.connection.poll_received(now) {
                Some(Incoming::Ready) => self.handle_ready(now),
                Some(Incoming::Stanza(stanza)) => self.handle_stanza(&stanza),
                Some(Incoming::TooLarge(stanza)) => self.refuse_large(&stanza),
                None => break,
            }
        }
        self.update_connection_state(now);
    }

    fn handle_ready(&mut self, now: Now) {
        let was_long =
            self.down_since.take().is_some_and(|since| now.wall.duration_since(since) >= LONG_DOWNTIME);
        let downtime = if was_long { Downtime::Long } else { Downtime::Short };
        // The server has already returned an error for requests of the old stream, so their responses are
        // dropped.
        self.output.clear();
        self.fanout.handle_reconnected(downtime);
        // Logged once per connection.
        self.notices.push_back(ComponentEvent::Connected);
    }

    fn update_connection_state(&mut self, now: Now) {
        if self.connection.is_down() {
            // The first failure counts: later attempts must not restart the downtime.
            self.down_since.get_or_insert(now.wall);
        }
        self.notices.extend(self.connection.take_problem().map(ComponentEvent::Down));
    }

    /// Returns the next event for the operator's log.
    pub fn poll_event(&mut self) -> Option<ComponentEvent> {
        self.notices.pop_front()
    }

    /// Iterates over the feeds with subscribers; a feed may occur twice.
    pub fn feeds(&self) -> impl Iterator<Item = &FeedId> {
        self.fanout.feeds()
    }

    /// Returns the number of subscriptions.
    pub fn subscriptions(&self) -> usize {
        self.fanout.len()
    }

    /// Returns the number of pushes sent.
    pub fn pushes(&self) -> u64 {
        self.fanout.sent()
    }

    /// Records an append to a feed's log.
    pub fn handle_append(&mut self, feed: &FeedId) {
        self.fanout.handle_append(feed);
    }

    /// Returns the time of the next call of [`Self::handle_timeout`] and [`Self::poll_connect`].
    pub fn poll_timeout(&self) -> Monotonic {
        self.connection.poll_timeout()
    }

    /// Handles timers that are due.
    pub fn handle_timeout(&mut self, now: Now) {
        self.connection.handle_timeout(now);
        self.update_connection_state(now);
    }

    /// Returns `true` if [`Self::take_unpersisted`] has changes.
    pub fn has_unpersisted(&self) -> bool {
        self.fanout.has_unpersisted()
    }

    /// Returns changed push positions, to store as [`PersistedFanout::places`]. `None` means to delete the
    /// row.
    pub fn take_unpersisted(&mut self) -> Vec<(FanoutTopic, Option<PushPosition>)> {
        self.fanout.take_unpersisted()
    }

    /// Ends the stream in order: pending requests get an error response.
    pub fn close(&mut self) {
        for (_, pending) in std::mem::take(&mut self.pending) {
            if let Some(reply) = pending.reply() {
                self.refuse(&reply, StanzaError::ENDING.because("the service is being stopped"));
            }
        }
        // Responses already written are sent before the stream ends.
        let last = std::mem::take(&mut self.output);
        self.connection.close(&last);
    }

    /// Returns the next output: whole stanzas.
    pub fn poll_output(&mut self, now: Now) -> Option<String> {
        if let Some(output) = self.connection.poll_output() {
            return Some(output);
        }
        if !self.connection.is_ready() {
            return None;
        }
        if self.output.is_empty() {
            // Responses go before pushes: a requester waits, a subscriber does not.
            return self.fanout.poll_output();
        }
        let output = std::mem::take(&mut self.output);
        // The output was drained, so buffered input may be processed.
        self.process_input(now);
        Some(output)
    }

    /// Returns the next request to the store.
    pub fn poll_store_request(&mut self) -> Option<(StoreRequestId, StoreRequest)> {
        if let Some(request) = self.requests.pop_front() {
            return Some(request);
        }
        if !self.connection.is_ready() {
            return None;
        }
        let (topic, query) = self.fanout.poll_read()?;
        let request = StoreRequest::Page(topic.feed.clone(), query.clone());
        self.numbers += 1;
        let id = StoreRequestId(self.numbers);
        self.pending.insert(id, PendingReply::Read(topic, query));
        Some((id, request))
    }

    fn send_store_request(&mut self, request: StoreRequest, pending: PendingReply) {
        self.numbers += 1;
        let id = StoreRequestId(self.numbers);
        self.answering += 1;
        self.pending.insert(id, pending);
        self.requests.push_back((id, request));
    }

    /// Handles the result of a request to the store.
    pub fn handle_store_response(&mut self, now: Now, id: StoreRequestId, answer: StoreResponse<'_>) {
        let Some(pending) = self.pending.remove(&id) else { return };
        if let PendingReply::Read(topic, query) = &pending {
            let read = if let StoreResponse::Page(read) = answer { read.ok() } else { None };
            // A read for a push is not a request, so it does not count as pending.
            return self.fanout.handle_read(topic, query, read);
        }
        self.answering = self.answering.saturating_sub(1);
        self.answered(pending, answer);
        self.process_input(now);
    }

    fn answered(&mut self, pending: PendingReply, answer: StoreResponse<'_>) {
        match (pending, answer) {
            (PendingReply::Items(reply, node, plan), StoreResponse::Page(Ok((feed, page)))) => {
                self.answer_items(&reply, &node, &plan, feed, page);
            }
            (PendingReply::Index(reply, node, walk), StoreResponse::Page(Ok((feed, page)))) => {
                self.go_to_index(reply, node, walk, feed, &page);
            }
            (PendingReply::Single(reply, node), StoreResponse::Page(Ok((feed, page)))) => {
                self.answer_single(&reply, &node, feed, &page);
            }
            (PendingReply::Info(reply, node), StoreResponse::Page(Ok((feed, _)))) => {
                self.answer(&reply, &disco::node(&node.text, &feed.title));
            }
            (PendingReply::Begin(reply, node, subscription), StoreResponse::Page(Ok((feed, page)))) => {
                let place = PushPosition::of_end(feed, node.order.by, &page);
                let topic = topic(&node);
                // Only the first subscriber of a topic determines where it begins.
                let first = (!self.fanout.knows(&topic)).then(|| (topic, place.clone()));
                let request = StoreRequest::Keep(subscription.clone(), first);
                self.send_store_request(request, PendingReply::Keep(reply, node, subscription, place));
            }
            (PendingReply::Keep(reply, node, subscription, place), StoreResponse::Written(Ok(()))) => {
                let state = pubsub::subscription(&subscription.node, &subscription.jid, "subscribed");
                self.answer(&reply, &pubsub::pubsub(state));
                self.fanout.add(subscription, &topic(&node), place);
            }
            (PendingReply::Forget(reply, subscription), StoreResponse::Written(Ok(()))) => {
                self.fanout.remove(&subscription.jid, &subscription.node);
                if let Some(reply) = reply {
                    let state = pubsub::subscription(&subscription.node, &subscription.jid, "none");
                    self.answer(&reply, &pubsub::pubsub(state));
                }
            }
            (PendingReply::List(reply, after), StoreResponse::Feeds(feeds, total)) => {
                self.answer_list(&reply, after.is_none(), &feeds, total);
            }
            (pending, StoreResponse::Page(Err(reason)) | StoreResponse::Written(Err(reason))) => {
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

    fn handle_stanza(&mut self, stanza: &Element) {
        match stanza.name.as_str() {
            "iq" => self.handle_iq(stanza),
            "message" if stanza.attribute("type") == Some("error") => self.handle_bounce(stanza),
            // Presence has no meaning here, and chat messages have no receiver.
            _ => {}
        }
    }

    /// Handles a bounced push. Only an address that is gone for good ends its subscription (RFC 6120,
    /// 8.3.3.5).
    fn handle_bounce(&mut self, message: &Element) {
        let Some((condition, _)) = error::read(message) else { return };
        let Some(from) = message.attribute("from").filter(|_| condition == "gone") else { return };
        let gone: Vec<NodeSubscription> = self.fanout.of_account(from).collect();
        for subscription in gone {
            self.send_store_request(
                StoreRequest::Forget(subscription.clone()),
                PendingReply::Forget(None, subscription),
            );
        }
    }

    /// Handles an iq stanza. A request gets exactly one response, a response none (RFC 6120, 8.2.3).
    fn handle_iq(&mut self, iq: &Element) {
        let kind = iq.attribute("type").unwrap_or_default();
        if matches!(kind, "result" | "error") {
            return;
        }
        let Some(reply) = self.reply(iq) else { return };
        let children: Vec<&Element> = iq.children().collect();
        let done = match (kind, children.as_slice()) {
            ("get", [payload]) => self.handle_request(&reply, payload, IqType::Get),
            ("set", [payload]) => self.handle_request(&reply, payload, IqType::Set),
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

    /// Returns the addresses of the response; `None` without a sender.
    fn reply(&self, stanza: &Element) -> Option<ReplyAddress> {
        let text = |name: &str| stanza.attribute(name).map(str::to_owned);
        // A stanza without an address is for the component itself.
        let from = text("to").unwrap_or_else(|| self.settings.jid.clone());
        let reply = ReplyAddress { from, to: text("from")?, id: text("id").unwrap_or_default() };
        (reply.weight() <= MAX_ADDRESSING / 2).then_some(reply)
    }

    fn refuse_large(&mut self, stanza: &Element) {
        // RFC 6120, 8.2.3: a result or an error is never answered.
        let is_request = matches!(stanza.attribute("type"), Some("get" | "set"));
        if stanza.name == "iq"
            && is_request
            && let Some(reply) = self.reply(stanza)
        {
            self.refuse(&reply, StanzaError::TOO_LARGE.because("the stanza is too large"));
        }
    }

    fn answer(&mut self, reply: &ReplyAddress, payload: &Element) {
        let payload = payload.to_xml();
        self.result(reply, &payload);
    }

    fn result(&mut self, reply: &ReplyAddress, payload: &str) {
        reply.write(&mut self.output, "result");
        self.output.push_str(payload);
        self.output.push_str("</iq>");
    }

    fn refuse(&mut self, reply: &ReplyAddress, error: StanzaError) {
        reply.write(&mut self.output, "error");
        error.element("").write(&mut self.output, "");
        self.output.push_str("</iq>");
        self.notices.push_back(ComponentEvent::Refused(reply.to.clone(), error));
    }
}

fn topic(node: &NodeName) -> FanoutTopic {
    FanoutTopic { feed: node.feed.clone(), by: node.order.by }
}

#[cfg(test)]
mod tests;
