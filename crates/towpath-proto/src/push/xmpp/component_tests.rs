//! The component between a server and a log: the examples of the text, ranges against a model, refusals, pushes.

mod examples;
mod pushes;
mod ranges;
mod refusals;

use std::collections::HashMap;

use jiff::Timestamp;

use super::component::{Answer, Component, Notice, Question, QuestionId, Settings, Unanswered};
use super::fanout::{Kept, Place, Subscription, Topic};
use super::ns;
use super::stanza::Element;
use super::stream::{Limits, Received, StreamReader};
use crate::change::NewChange;
use crate::feed_id::FeedId;
use crate::item::{Content, Item};
use crate::smart::cursor::CursorKind;
use crate::smart::memory::MemoryLog;
use crate::smart::pull::{FeedSettings, Pull};
use crate::smart::tests::{settings, time};

const SERVER: &str = "<stream:stream xmlns:stream='http://etherx.jabber.org/streams' \
    xmlns='jabber:component:accept' from='example.com' id='1'><handshake/>";

/// A component with one feed, `comments`, and the server's end of its stream.
struct World {
    now: Timestamp,
    component: Component,
    log: MemoryLog,
    feed: FeedSettings,
    kept: Vec<Subscription>,
    /// What the component has sent since the stream was opened, as the server reads it.
    server: StreamReader,
    /// Answers are given when they are asked for, unless this is set.
    holds_answers: bool,
    cannot_write: bool,
}

fn component_settings() -> Settings {
    Settings {
        jid: "example.com".into(),
        secret: "secret".into(),
        stanza_bytes: 64 << 10,
        subscriptions: 1000,
        account_subscriptions: 3,
    }
}

impl World {
    fn new(kind: CursorKind) -> Self {
        Self::with(component_settings(), kind)
    }

    fn with(settings_of: Settings, kind: CursorKind) -> Self {
        let mut world = Self {
            now: time(1_000_000),
            component: Component::new(settings_of, Kept::default()),
            log: MemoryLog::default(),
            feed: settings(kind),
            kept: Vec::new(),
            server: StreamReader::new(Limits::default()),
            holds_answers: false,
            cannot_write: false,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.now = self.now.max(self.component.poll_timeout());
        assert!(self.component.poll_connect(self.now));
        self.component.handle_connected(self.now);
        self.server = StreamReader::new(Limits::default());
        self.component.handle_bytes(self.now, SERVER.as_bytes());
        assert!(self.component.is_ready());
        let received = self.work();
        assert!(received.is_empty() || received[0].name == "message", "{received:?}");
    }

    /// The component as it begins with what is kept.
    fn start_again(&mut self, places: Vec<(Topic, Place)>, seen: Option<Timestamp>) {
        let kept = self.kept.iter().map(|kept| {
            let bytes = serde_json::to_vec(kept).unwrap();
            serde_json::from_slice::<Subscription>(&bytes).unwrap()
        });
        let kept = Kept { subscriptions: kept.collect(), places, seen };
        self.component = Component::new(component_settings(), kept);
    }

    fn put(&mut self, id: &str, text: &str) {
        let item = Item { content: Some(Content::new("text/plain", text.to_owned())), ..Item::new(id) };
        self.append(NewChange::put(item));
    }

    fn append(&mut self, change: NewChange) {
        self.now = self.now.saturating_add(jiff::SignedDuration::from_secs(1)).unwrap();
        self.log.append(change, self.now);
        self.component.handle_move(&FeedId::new("comments").unwrap());
    }

    /// Answers what the component wants to know.
    fn answer_all(&mut self) {
        while let Some((id, question)) = self.component.poll_question() {
            self.answer(id, question);
        }
    }

    fn answer(&mut self, id: QuestionId, question: Question) {
        let written = if self.cannot_write { Err(Unanswered::Store("full".into())) } else { Ok(()) };
        let answer = match question {
            Question::Page(feed, query) => Answer::Page(match feed.as_str() {
                "comments" => {
                    let mut pull = Pull::new(query, &self.feed, self.now);
                    let page = self.log.run(&mut pull);
                    page.map(|page| (&self.feed, page)).map_err(Unanswered::from)
                }
                "private" => Err(Unanswered::Forbidden),
                _ => Err(Unanswered::NoFeed),
            }),
            Question::Feeds(after, max) => {
                let all = ["comments", "likes", "shares"].map(|name| FeedId::new(name).unwrap());
                let later = all.into_iter().filter(|feed| after.as_ref().is_none_or(|after| feed > after));
                Answer::Feeds(later.take(max).map(|feed| (feed.clone(), feed.to_string())).collect(), 3)
            }
            Question::Keep(subscription, _) => {
                self.kept.push(subscription);
                Answer::Written(written)
            }
            Question::Forget(gone) => {
                self.kept.retain(|kept| (&kept.jid, &kept.node) != (&gone.jid, &gone.node));
                Answer::Written(written)
            }
        };
        self.component.handle_answer(self.now, id, answer);
    }

    /// Lets the component work until it has nothing more to do; returns what the server got.
    fn work(&mut self) -> Vec<Element> {
        let mut received = Vec::new();
        loop {
            if !self.holds_answers {
                self.answer_all();
            }
            let Some(output) = self.component.poll_output(self.now) else { return received };
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

    /// Sends stanzas to the component; returns what comes back.
    fn send(&mut self, xml: &str) -> Vec<Element> {
        self.component.handle_bytes(self.now, xml.as_bytes());
        self.work()
    }

    /// Sends one request; returns its answer.
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

    fn notices(&mut self) -> Vec<Notice> {
        std::iter::from_fn(|| self.component.poll_notice()).collect()
    }
}

/// The ids of the items in an answer's or a message's items.
fn item_ids(stanza: &Element) -> Vec<String> {
    let of = |name, space| stanza.child(name, space).and_then(|e| e.child("items", space));
    let items = of("pubsub", ns::PUBSUB).or_else(|| of("event", ns::PUBSUB_EVENT));
    let items = items.unwrap_or_else(|| panic!("{}", stanza.to_xml()));
    items.children().map(|item| item.attribute("id").unwrap().to_owned()).collect()
}

/// Whether an answer is an error, and its conditions: RFC 6120's and XEP-0060's.
fn error_of(stanza: &Element) -> (String, Option<String>) {
    assert_eq!(stanza.attribute("type"), Some("error"), "{}", stanza.to_xml());
    let error = stanza.children().find(|child| child.name == "error").unwrap();
    let named = |space: &str| {
        let found = error.children().find(|child| *child.ns == *space && child.name != "text");
        found.map(|child| child.name.clone())
    };
    (named(ns::STANZA_ERRORS).unwrap(), named(ns::PUBSUB_ERRORS))
}

/// How many times each name comes.
fn counted(names: impl IntoIterator<Item = String>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}
