//! Tests of the component between a server and a log: examples of the specification, ranges against a model,
//! refusals, pushes.

mod examples;
mod pushes;
mod ranges;
mod refusals;

use std::collections::HashMap;

use jiff::Timestamp;

use crate::change::NewChange;
use crate::feed_id::FeedId;
use crate::follow::Now;
use crate::item::{Content, Item};
use crate::push::xmpp::publish::component::{
    Component, ComponentEvent, ComponentSettings, StoreRequest, StoreRequestError, StoreRequestId,
    StoreResponse,
};
use crate::push::xmpp::publish::fanout::{FanoutTopic, NodeSubscription, PersistedFanout, PushPosition};
use crate::push::xmpp::wire::ns;
use crate::push::xmpp::wire::stanza::Element;
use crate::push::xmpp::wire::stream::{Received, StreamLimits, StreamReader};
use crate::smart::cursor::CursorKind;
use crate::smart::memory::MemoryLog;
use crate::smart::pull::{FeedSettings, Pull};
use crate::smart::tests::{settings, time};

const SERVER: &str = "<stream:stream xmlns:stream='http://etherx.jabber.org/streams' \
    xmlns='jabber:component:accept' from='example.com' id='1'><handshake/>";

/// A component with a feed, `comments`, and the server's end of its stream.
struct ComponentHarness {
    now: Timestamp,
    component: Component,
    log: MemoryLog,
    feed: FeedSettings,
    kept: Vec<NodeSubscription>,
    /// Output of the component since the stream was opened, as parsed by the server.
    server: StreamReader,
    /// Store requests are answered at once, unless this is set.
    holds_answers: bool,
    cannot_write: bool,
}

fn component_settings() -> ComponentSettings {
    ComponentSettings {
        jid: "example.com".into(),
        secret: "secret".into(),
        stanza_bytes: 64 << 10,
        subscriptions: 1000,
        account_subscriptions: 3,
    }
}

impl ComponentHarness {
    fn new(kind: CursorKind) -> Self {
        Self::with(component_settings(), kind)
    }

    fn with(settings_of: ComponentSettings, kind: CursorKind) -> Self {
        let mut harness = Self {
            now: time(1_000_000),
            component: Component::new(settings_of, PersistedFanout::default()),
            log: MemoryLog::default(),
            feed: settings(kind),
            kept: Vec::new(),
            server: StreamReader::new(StreamLimits::default()),
            holds_answers: false,
            cannot_write: false,
        };
        harness.connect();
        harness
    }

    fn connect(&mut self) {
        self.now = self.now.max(self.component.poll_timeout().simulated_wall());
        assert!(self.component.poll_connect(Now::simulated(self.now)));
        self.component.handle_connected(Now::simulated(self.now));
        self.server = StreamReader::new(StreamLimits::default());
        self.component.handle_bytes(Now::simulated(self.now), SERVER.as_bytes());
        assert!(self.component.is_ready());
        let received = self.work();
        assert!(received.is_empty() || received[0].name == "message", "{received:?}");
    }

    /// Creates the component from the persisted state.
    fn start_again(&mut self, places: Vec<(FanoutTopic, PushPosition)>, seen: Option<Timestamp>) {
        let kept = self.kept.iter().map(|kept| {
            let bytes = serde_json::to_vec(kept).unwrap();
            serde_json::from_slice::<NodeSubscription>(&bytes).unwrap()
        });
        let kept = PersistedFanout { subscriptions: kept.collect(), places, seen };
        self.component = Component::new(component_settings(), kept);
    }

    fn put(&mut self, id: &str, text: &str) {
        let item = Item { content: Some(Content::new("text/plain", text.to_owned())), ..Item::new(id) };
        self.append(NewChange::put(item));
    }

    fn append(&mut self, change: NewChange) {
        self.now = self.now.saturating_add(jiff::SignedDuration::from_secs(1)).unwrap();
        self.log.append(change, self.now);
        self.component.handle_append(&FeedId::new("comments").unwrap());
    }

    /// Executes the component's store requests.
    fn answer_all(&mut self) {
        while let Some((id, question)) = self.component.poll_store_request() {
            self.answer(id, question);
        }
    }

    fn answer(&mut self, id: StoreRequestId, question: StoreRequest) {
        let written = if self.cannot_write { Err(StoreRequestError::Store("full".into())) } else { Ok(()) };
        let answer = match question {
            StoreRequest::Page(feed, query) => StoreResponse::Page(match feed.as_str() {
                "comments" => {
                    let mut pull = Pull::new(query, &self.feed, self.now);
                    let page = self.log.run(&mut pull);
                    page.map(|page| (&self.feed, page)).map_err(StoreRequestError::from)
                }
                "private" => Err(StoreRequestError::Forbidden),
                _ => Err(StoreRequestError::NoFeed),
            }),
            StoreRequest::Items(feed, count, ids) => {
                assert_eq!(feed.as_str(), "comments");
                let mut page = self.log.run(&mut Pull::new(count, &self.feed, self.now)).unwrap();
                page.changes = ids.iter().filter_map(|id| self.log.latest(id).cloned()).collect();
                StoreResponse::Page(Ok((&self.feed, page)))
            }
            StoreRequest::Feeds(after, max) => {
                let all = ["comments", "likes", "shares"].map(|name| FeedId::new(name).unwrap());
                let later = all.into_iter().filter(|feed| after.as_ref().is_none_or(|after| feed > after));
                StoreResponse::Feeds(
                    later.take(max).map(|feed| (feed.clone(), feed.to_string())).collect(),
                    3,
                )
            }
            StoreRequest::Keep(subscription, _) => {
                self.kept.push(subscription);
                StoreResponse::Written(written)
            }
            StoreRequest::Forget(gone) => {
                self.kept.retain(|kept| (&kept.jid, &kept.node) != (&gone.jid, &gone.node));
                StoreResponse::Written(written)
            }
        };
        self.component.handle_store_response(Now::simulated(self.now), id, answer);
    }

    /// Runs the component until it is idle; returns the stanzas that the server received.
    fn work(&mut self) -> Vec<Element> {
        let mut received = Vec::new();
        loop {
            if !self.holds_answers {
                self.answer_all();
            }
            let Some(output) = self.component.poll_output(Now::simulated(self.now)) else { return received };
            self.server.push(output.as_bytes());
            while let Some(read) = self.server.poll().unwrap() {
                match read {
                    Received::Opened(_) => {}
                    Received::Stanza(stanza) if stanza.name == "handshake" => {}
                    Received::Stanza(stanza) => received.push(stanza),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Sends stanzas to the component; returns the responses.
    fn send(&mut self, xml: &str) -> Vec<Element> {
        self.component.handle_bytes(Now::simulated(self.now), xml.as_bytes());
        self.work()
    }

    /// Sends a request; returns its response.
    fn ask(&mut self, kind: &str, payload: &str) -> Element {
        let from = "alice@example.net/1";
        let iq = format!("<iq type='{kind}' from='{from}' to='example.com' id='q'>{payload}</iq>");
        let mut answers = self.send(&iq);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let answer = answers.remove(0);
        assert_eq!((answer.attribute("id"), answer.attribute("to")), (Some("q"), Some(from)));
        answer
    }

    fn pubsub(&mut self, kind: &str, inner: &str) -> Element {
        self.ask(kind, &format!("<pubsub xmlns='http://jabber.org/protocol/pubsub'>{inner}</pubsub>"))
    }

    fn subscribe(&mut self, jid: &str, node: &str) -> Element {
        let inner = format!("<subscribe node='{node}' jid='{jid}'/>");
        let xml = format!(
            "<iq type='set' from='{jid}' to='example.com' id='s'><pubsub \
             xmlns='http://jabber.org/protocol/pubsub'>{inner}</pubsub></iq>"
        );
        self.send(&xml).remove(0)
    }

    fn notices(&mut self) -> Vec<ComponentEvent> {
        std::iter::from_fn(|| self.component.poll_event()).collect()
    }
}

/// Returns the ids of the items in a response or message.
fn item_ids(stanza: &Element) -> Vec<String> {
    let of = |name, space| stanza.child(name, space).and_then(|e| e.child("items", space));
    let items = of("pubsub", ns::PUBSUB).or_else(|| of("event", ns::PUBSUB_EVENT));
    let items = items.unwrap_or_else(|| panic!("{}", stanza.to_xml()));
    items.children().map(|item| item.attribute("id").unwrap().to_owned()).collect()
}

/// Returns the conditions of an error response: RFC 6120's and XEP-0060's.
fn error_of(stanza: &Element) -> (String, Option<String>) {
    assert_eq!(stanza.attribute("type"), Some("error"), "{}", stanza.to_xml());
    let error = stanza.children().find(|child| child.name == "error").unwrap();
    let named = |space: &str| {
        let found = error.children().find(|child| *child.ns == *space && child.name != "text");
        found.map(|child| child.name.clone())
    };
    (named(ns::STANZA_ERRORS).unwrap(), named(ns::PUBSUB_ERRORS))
}

/// Counts the occurrences of each name.
fn counted(names: impl IntoIterator<Item = String>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}
