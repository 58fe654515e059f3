//! The simulation: its parties, and the messages between them.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::super::follow::NodeFollower;
use crate::change::{NewChange, Op};
use crate::feed_id::FeedId;
use crate::follow::{
    Event, Exchange as _, FollowError, FollowMode, Followed, Follower as _, Monotonic, Now, StartFrom,
};
use crate::item::{Content, Item};
use crate::push::xmpp::publish::component::{
    Component, ComponentSettings, StoreRequest, StoreRequestError, StoreResponse,
};
use crate::push::xmpp::publish::fanout::PersistedFanout;
use crate::push::xmpp::wire::ns;
use crate::push::xmpp::wire::session::{Authenticate, ConnectionPrivacy, OverXmpp as _};
use crate::push::xmpp::wire::stanza::Element;
use crate::push::xmpp::wire::stream::{Received, StreamLimits, StreamReader};
use crate::push::xmpp::wire::uri::NodeUri;
use crate::smart::cursor::{CursorKind, LogTag};
use crate::smart::memory::MemoryLog;
use crate::smart::pull::{FeedSettings, Pull};
use crate::smart::tests::{settings, time};

pub(super) const ALICE: &str = "alice@example.net/towpath";
pub(super) const SERVICE: &str = "feeds.example.com";

/// Authenticates with a fixed password.
pub(super) struct PlainPassword;

impl Authenticate for PlainPassword {
    fn begin(&mut self, offered: &[String], privacy: ConnectionPrivacy) -> Option<(String, Vec<u8>)> {
        (privacy == ConnectionPrivacy::Private && offered.iter().any(|name| name == "PLAIN"))
            .then(|| ("PLAIN".into(), b"\0alice\0word".to_vec()))
    }

    fn respond(&mut self, _challenge: &[u8]) -> Result<Vec<u8>, String> {
        Err("PLAIN has no challenge".into())
    }

    fn finish(&mut self, _data: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

/// A message in transit between service and follower.
pub(super) enum SimulatedStanza {
    ToService(String),
    ToAlice(Element),
}

/// Both sides, the log, and an unreliable server.
pub(super) struct XmppSimulation {
    pub(super) now: Timestamp,
    log: MemoryLog,
    feed: FeedSettings,
    component: Component,
    pub(super) kept: PersistedFanout,
    from_component: StreamReader,
    pub(super) follower: NodeFollower,
    from_alice: StreamReader,
    /// Progress of Alice's stream at the server: opened, authenticated, bound.
    steps: u8,
    /// Number of streams that the server opened. Each has an id of its own (RFC 6120, 4.7.3).
    streams: u32,
    pub(super) output: Vec<Followed>,
    state: Option<Value>,
    pub(super) network: BTreeMap<(Timestamp, u64), SimulatedStanza>,
    sent: u64,
    pub(super) random: fastrand::Rng,
    pub(super) is_unreliable: bool,
    /// The feed is not served now.
    pub(super) is_removed: bool,
    pub(super) resets: usize,
    /// Warnings and failures of the follower.
    pub(super) warnings: Vec<String>,
    pub(super) pushes: usize,
    pub(super) pulls: usize,
}

fn component(kept: PersistedFanout) -> Component {
    let settings = ComponentSettings {
        jid: SERVICE.into(),
        secret: "s".into(),
        stanza_bytes: 64 << 10,
        subscriptions: 10,
        account_subscriptions: 10,
    };
    Component::new(settings, kept)
}

pub(super) fn follower(state: Option<Value>, mode: FollowMode) -> NodeFollower {
    let uri = NodeUri { service: SERVICE.into(), node: "comments?order=modified".into() };
    NodeFollower::new(&uri, &StartFrom::Beginning, state, mode, ALICE, Box::new(PlainPassword)).unwrap()
}

impl XmppSimulation {
    pub(super) fn new(seed: u64, kind: CursorKind) -> Self {
        Self {
            now: time(1_000_000),
            log: MemoryLog::default(),
            feed: settings(kind),
            component: component(PersistedFanout::default()),
            kept: PersistedFanout::default(),
            from_component: StreamReader::new(StreamLimits::default()),
            follower: follower(None, FollowMode::Continuous),
            from_alice: StreamReader::new(StreamLimits::default()),
            steps: 0,
            streams: 0,
            output: Vec::new(),
            state: None,
            network: BTreeMap::new(),
            sent: 0,
            random: fastrand::Rng::with_seed(seed),
            is_unreliable: true,
            is_removed: false,
            resets: 0,
            warnings: Vec::new(),
            pushes: 0,
            pulls: 0,
        }
    }

    pub(super) fn append(&mut self) {
        let id = format!("i{}", self.random.u8(..20));
        let known = self.log.latest(&id).is_some_and(|change| change.op != Op::Delete);
        let change = if known && self.random.u8(..4) == 0 {
            NewChange::delete(id)
        } else {
            let text = format!("{} <&> \n {}", self.log.changes.len(), self.random.char('a'..='z'));
            NewChange::put(Item { content: Some(Content::new("text/plain", text)), ..Item::new(id) })
        };
        self.log.append(change, self.now);
        self.component.handle_append(&FeedId::new("comments").unwrap());
    }

    /// Has the server deliver a message, reliably or not.
    fn carry(&mut self, message: SimulatedStanza) {
        let is_push = matches!(&message, SimulatedStanza::ToAlice(stanza) if stanza.name == "message");
        if self.is_unreliable && self.random.u8(..if is_push { 4 } else { 20 }) == 0 {
            return;
        }
        if let (true, true, SimulatedStanza::ToAlice(stanza)) = (self.is_unreliable, is_push, &message)
            && self.random.u8(..4) == 0
        {
            let again = SimulatedStanza::ToAlice(stanza.clone());
            self.send(again);
        }
        self.send(message);
    }

    fn send(&mut self, message: SimulatedStanza) {
        let delay = match self.random.u8(..8) {
            0 if self.is_unreliable => self.random.i64(1..90),
            1..=3 if self.is_unreliable => self.random.i64(0..4),
            _ => 0,
        };
        self.sent += 1;
        let at = self.now.saturating_add(SignedDuration::from_secs(delay)).unwrap();
        self.network.insert((at, self.sent), message);
    }

    pub(super) fn run(&mut self, end: Timestamp) {
        for _ in 0..50_000 {
            while self.act() {}
            let next = [
                self.network.keys().next().map(|(at, _)| *at),
                self.follower.poll_timeout().map(Monotonic::simulated_wall),
                Some(self.component.poll_timeout().simulated_wall()),
            ];
            let next = next.into_iter().flatten().min().unwrap_or(Timestamp::MAX);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            self.component.handle_timeout(Now::simulated(self.now));
            self.follower.session().handle_timeout(Now::simulated(self.now));
            self.follower.handle_received(Now::simulated(self.now));
            while let Some(entry) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let message = entry.remove();
                self.arrive(message);
            }
        }
        panic!("it never comes to rest");
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        let end = self.now.saturating_add(SignedDuration::from_secs(seconds)).unwrap();
        self.run(end);
    }

    /// Performs all actions that are due now; returns `true` if there were any.
    fn act(&mut self) -> bool {
        let service = self.act_service();
        let alice = self.act_alice();
        while let Some(event) = self.follower.poll_event() {
            match event {
                Event::Change(change) => self.output.push(*change),
                Event::Checkpoint(state) => self.state = Some(state),
                Event::Warning(text) => self.warnings.push(text),
                Event::Reset(_) => self.resets += 1,
                Event::Failed(FollowError::Transfer { .. }) => {}
                Event::Failed(error) if self.is_removed => self.warnings.push(error.to_string()),
                other => panic!("{other:?}"),
            }
        }
        service || alice
    }

    fn act_service(&mut self) -> bool {
        let mut acted = false;
        if self.component.poll_connect(Now::simulated(self.now)) {
            self.component.handle_connected(Now::simulated(self.now));
            self.from_component = StreamReader::new(StreamLimits::default());
            let hello = "<stream:stream xmlns:stream='http://etherx.jabber.org/streams' \
                xmlns='jabber:component:accept' id='1'><handshake/>";
            self.component.handle_bytes(Now::simulated(self.now), hello.as_bytes());
            acted = true;
        }
        while let Some((id, question)) = self.component.poll_store_request() {
            acted = true;
            let answer = match question {
                StoreRequest::Page(..) if self.is_removed => {
                    StoreResponse::Page(Err(StoreRequestError::NoFeed))
                }
                StoreRequest::Forget(_) => {
                    self.kept.subscriptions.clear();
                    StoreResponse::Written(Ok(()))
                }
                StoreRequest::Page(_, query) => {
                    let page = self.log.run(&mut Pull::new(query, &self.feed, self.now));
                    StoreResponse::Page(page.map(|page| (&self.feed, page)).map_err(StoreRequestError::from))
                }
                StoreRequest::Keep(subscription, first) => {
                    self.kept.subscriptions = vec![subscription];
                    self.kept.places.extend(first);
                    StoreResponse::Written(Ok(()))
                }
                other => panic!("{other:?}"),
            };
            self.component.handle_store_response(Now::simulated(self.now), id, answer);
        }
        while let Some(output) = self.component.poll_output(Now::simulated(self.now)) {
            acted = true;
            self.from_component.push(output.as_bytes());
        }
        while let Ok(Some(received)) = self.from_component.poll() {
            let Some(mut stanza) = received.stanza().filter(|stanza| stanza.name != "handshake") else {
                continue;
            };
            self.pushes += usize::from(stanza.name == "message");
            // Rewritten for the client's stream, as a server does.
            stanza.ns = ns::CLIENT.into();
            self.carry(SimulatedStanza::ToAlice(stanza));
        }
        acted
    }

    /// Opens Alice's stream, and has her send her first requests.
    pub(super) fn log_in(&mut self) {
        self.act_alice();
        while !self.follower.session().is_ready() {
            self.act_alice();
        }
        self.follower.handle_received(Now::simulated(self.now));
        self.act_alice();
    }

    pub(super) fn act_alice(&mut self) -> bool {
        let mut acted = false;
        if self.follower.session().poll_connect(Now::simulated(self.now)) {
            self.follower.session().handle_connected(Now::simulated(self.now), ConnectionPrivacy::Private);
            (self.from_alice, self.steps) = (StreamReader::new(StreamLimits::default()), 0);
            acted = true;
        }
        while let Some(output) = self.follower.session().poll_output() {
            acted = true;
            if output.contains("<stream:stream") {
                self.from_alice = StreamReader::new(StreamLimits::default());
            }
            self.from_alice.push(output.as_bytes());
        }
        while let Ok(Some(received)) = self.from_alice.poll() {
            acted = true;
            match received {
                Received::Opened(_) => self.greet(),
                Received::Stanza(stanza) => self.serve(&stanza),
                Received::TooLarge(_) | Received::Closed => {}
            }
        }
        acted
    }

    pub(super) fn send_to_alice(&mut self, xml: &str) {
        self.follower.session().handle_bytes(Now::simulated(self.now), xml.as_bytes());
        self.follower.handle_received(Now::simulated(self.now));
    }

    fn greet(&mut self) {
        let features = if self.steps == 0 {
            "<mechanisms xmlns='urn:ietf:params:xml:ns:xmpp-sasl'><mechanism>PLAIN</mechanism></mechanisms>"
        } else {
            "<bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'/>\
             <session xmlns='urn:ietf:params:xml:ns:xmpp-session'/>"
        };
        self.streams += 1;
        let id = self.streams;
        self.send_to_alice(&format!(
            "<stream:stream xmlns:stream='http://etherx.jabber.org/streams' xmlns='jabber:client' id='{id}' \
             version='1.0'><stream:features>{features}</stream:features>"
        ));
    }

    /// Handles a client's stanza at its server.
    fn serve(&mut self, stanza: &Element) {
        match stanza.name.as_str() {
            "auth" => {
                self.steps = 1;
                self.send_to_alice("<success xmlns='urn:ietf:params:xml:ns:xmpp-sasl'/>");
            }
            "iq" if stanza.attribute("id") == Some("bind") => {
                let bound =
                    format!("<bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'><jid>{ALICE}</jid></bind>");
                self.send_to_alice(&format!("<iq type='result' id='bind'>{bound}</iq>"));
            }
            "iq" if stanza.attribute("id") == Some("session") => {
                self.send_to_alice("<iq type='result' id='session'/>");
            }
            "iq" if stanza.attribute("to").is_none() => self.send_to_alice("<iq type='result' id='ping'/>"),
            _ => {
                self.pulls += usize::from(stanza.attribute("type") == Some("get"));
                let mut stanza = stanza.clone().with("from", ALICE);
                stanza.ns = ns::COMPONENT.into();
                let mut xml = String::new();
                stanza.write(&mut xml, ns::COMPONENT);
                // The payload keeps its namespaces; the stanza itself is in the stream's.
                self.carry(SimulatedStanza::ToService(xml));
            }
        }
    }

    fn arrive(&mut self, message: SimulatedStanza) {
        match message {
            SimulatedStanza::ToService(xml) => {
                self.component.handle_bytes(Now::simulated(self.now), xml.as_bytes());
            }
            SimulatedStanza::ToAlice(stanza) if self.follower.session().is_ready() => {
                let mut xml = String::new();
                stanza.write(&mut xml, ns::CLIENT);
                self.send_to_alice(&xml);
            }
            // The client is offline: headlines are dropped.
            SimulatedStanza::ToAlice(_) => {}
        }
    }

    pub(super) fn inject_fault(&mut self) {
        match self.random.u8(..12) {
            0 => self.restart_service(),
            4 => self.persist_positions(),
            1 => self.component.handle_disconnected(Now::simulated(self.now), "reset"),
            2 => {
                self.follower.session().handle_disconnected(Now::simulated(self.now), "reset");
                self.follower.handle_received(Now::simulated(self.now));
            }
            3 => {
                // The output up to the last checkpoint is kept; later output comes again.
                self.follower = follower(self.state.clone(), FollowMode::Continuous);
                self.discard_uncovered_output();
            }
            _ => {}
        }
    }

    /// Removes the feed, and runs until that is told.
    pub(super) fn remove_feed(&mut self, reason: &str) {
        self.is_removed = true;
        self.component.handle_removed(&FeedId::new("comments").unwrap(), reason);
        self.pass(5);
    }

    /// Replaces the log by another one at the same address.
    pub(super) fn replace_log(&mut self, name: &str) {
        self.log = MemoryLog::default();
        self.feed.tag = LogTag::new(name);
        self.output.clear();
        // The service was started again with a new data folder.
        self.kept = PersistedFanout::default();
        self.restart_service();
    }

    pub(super) fn persist_positions(&mut self) {
        for (topic, place) in self.component.take_unpersisted() {
            self.kept.places.retain(|(kept, _)| *kept != topic);
            self.kept.places.extend(place.map(|place| (topic, place)));
        }
    }

    pub(super) fn restart_service(&mut self) {
        self.component = component(self.kept.clone());
        self.component.handle_timeout(Now::simulated(self.now));
    }

    /// Discards the output after the last checkpoint.
    fn discard_uncovered_output(&mut self) {
        let since = self.state.as_ref().and_then(|state| state["since"].as_str());
        let covered = since.and_then(|since| since.strip_prefix("cursor:")).map_or(0, |cursor| {
            self.output.iter().rposition(|change| change.position == cursor).map_or(0, |index| index + 1)
        });
        self.output.truncate(covered);
    }

    pub(super) fn check(&self) {
        // Every item has its last version, and each change occurs once and in order.
        let expected: Vec<_> = self.log.items(crate::smart::spec::OrderBy::Modified);
        let mut last: BTreeMap<&str, &Followed> = BTreeMap::new();
        for change in &self.output {
            last.insert(&change.item.id, change);
        }
        assert_eq!(last.len(), expected.len());
        for change in &expected {
            let output = last[change.item.id.as_str()];
            assert_eq!(output.item, change.item);
            assert_eq!(
                (output.op == Op::Delete, output.modified),
                (change.op == Op::Delete, Some(change.modified))
            );
        }
        let mut sequence = 0;
        for output in &self.output {
            let place = self.log.changes.iter().find(|change| {
                change.seq > sequence
                    && change.item == output.item
                    && Some(change.modified) == output.modified
            });
            sequence = place.unwrap_or_else(|| panic!("{output:?} is out of order, or twice")).seq;
        }
    }
}
