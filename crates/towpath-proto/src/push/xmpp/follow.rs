//! A follower of a node ("XMPP Pull/Push", "Updates/Synchronization via Push"): subscribed, pulled by result set
//! management, pushed to. What it tells is what a follower over HTTP tells.
//!
//! The synchronisation is [`SmartFollower`]'s; here its questions become stanzas, and stanzas its pages. The shell
//! carries the stream as [`OverXmpp`] has it, and polls events.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::connection::Incoming;
use super::link::after;
use super::rsm::{Bounds, Range};
use super::session::{Authenticate, OverXmpp, Session};
use super::shim::PushHeaders;
use super::stanza::{Element, Node};
use super::uri::NodeUri;
use super::{error, jid, ns};
use crate::follow::{
    Event, Exchange, FollowError, Follower, Request, RequestId, ResponseHead, StartFrom, TransferError,
};
use crate::format::xml::{ATOM, FANOUT, TOWPATH};
use crate::smart::follow::SmartFollower;
use crate::smart::push::Wanted;
use crate::smart::wire::Collection;

/// After how long without a push the node is pulled all the same.
const SILENCE: Duration = Duration::from_secs(300);
/// How often it is pulled while there is no subscription.
const UNSUBSCRIBED: Duration = Duration::from_secs(30);
/// How long an answer may take: a service that is stopped takes questions with it.
const PATIENCE: SignedDuration = SignedDuration::from_secs(20);
/// How long after a refusal it is subscribed to again.
const REFUSED: SignedDuration = SignedDuration::from_secs(60);

/// How far the subscription is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subscribed {
    /// To be asked for at this time.
    No(Timestamp),
    /// Asked for; again at this time, if nobody answers.
    Asked(Timestamp),
    Yes,
}

/// A follower of one node.
#[derive(Debug)]
pub struct NodeFollower {
    smart: SmartFollower,
    session: Session,
    uri: NodeUri,
    once: bool,
    /// The pull that is under way, and until when it may be.
    asked: Option<(RequestId, Timestamp)>,
    subscribed: Subscribed,
    /// When the stream was opened, in nanoseconds: a late answer to an earlier stream's question is not one to ours.
    epoch: i128,
    events: VecDeque<Event>,
    is_over: bool,
}

impl NodeFollower {
    /// Follows a node as [`SmartFollower`] does a feed, its states included. `jid` is the account to log in with; its
    /// resource, if it has one, should stay the same, so that a subscription does.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] for a state of another node.
    pub fn new(
        uri: &NodeUri,
        from: &StartFrom,
        state: Option<Value>,
        once: bool,
        jid: &str,
        authenticate: Box<dyn Authenticate>,
    ) -> Result<Self, FollowError> {
        let mut smart = SmartFollower::over(uri.to_string(), from, state, once)?;
        smart.set_pace(Some(UNSUBSCRIBED));
        let resource = jid::resource(jid).unwrap_or("towpath");
        Ok(Self {
            smart,
            session: Session::new(jid, resource, authenticate),
            uri: uri.clone(),
            once,
            asked: None,
            subscribed: Subscribed::No(Timestamp::MIN),
            epoch: 0,
            events: VecDeque::new(),
            is_over: false,
        })
    }

    /// Whether it is pushed to, as far as is known.
    pub fn is_subscribed(&self) -> bool {
        self.subscribed == Subscribed::Yes
    }

    fn begin(&mut self, now: Timestamp) {
        self.epoch = now.as_nanosecond();
        self.subscribed = Subscribed::No(Timestamp::MIN);
        self.smart.set_pace(Some(UNSUBSCRIBED));
        // What was pushed meanwhile has reached nobody.
        self.smart.pull_now();
    }

    fn look_at_stream(&mut self, now: Timestamp) {
        if !self.session.is_down() {
            return;
        }
        let problem = self.session.take_problem();
        let had_asked = self.asked.is_some();
        self.fail_pull(now, TransferError::Connect("the stream broke".into()));
        self.subscribed = Subscribed::No(Timestamp::MIN);
        let Some(problem) = problem else { return };
        let refused = self.session.is_refused();
        if refused || (self.once && !had_asked) {
            self.is_over = true;
            let error = if refused {
                FollowError::Usage(problem)
            } else {
                FollowError::Transfer { url: self.uri.to_string(), source: TransferError::Connect(problem) }
            };
            return self.events.push_back(Event::Failed(error));
        }
        self.warn(&problem);
    }

    fn warn(&mut self, text: &str) {
        self.events.push_back(Event::Warning(format!("{}: {text}", self.uri)));
    }

    fn fail_pull(&mut self, now: Timestamp, source: TransferError) {
        if let Some((id, _)) = self.asked.take() {
            let error = FollowError::Transfer { url: self.uri.to_string(), source };
            self.smart.handle_page(now, id, Err(error));
        }
    }

    fn subscribe(&mut self, now: Timestamp) {
        let own = match (self.subscribed, self.session.own()) {
            (Subscribed::No(at) | Subscribed::Asked(at), Some(own)) if now >= at && !self.once => {
                own.to_owned()
            }
            _ => return,
        };
        let subscribe =
            Element::new("subscribe", ns::PUBSUB).with("node", self.uri.node.as_str()).with("jid", own);
        self.subscribed = Subscribed::Asked(after(now, PATIENCE));
        self.send("set", &self.subscribe_id(), &super::pubsub::pubsub(subscribe));
    }

    fn subscribe_id(&self) -> String {
        format!("subscribe-{}", self.epoch)
    }

    fn pull_id(&self, number: RequestId) -> String {
        format!("pull-{}-{}", self.epoch, number.0)
    }

    fn send(&mut self, kind: &str, id: &str, payload: &Element) {
        let iq = Element::new("iq", ns::CLIENT).with("type", kind).with("id", id);
        let iq = iq.with("to", self.uri.service.as_str());
        self.session.send(&iq.with_child(payload.clone()));
    }

    /// Turns what the synchronisation wants next into a stanza.
    fn pull(&mut self, now: Timestamp) {
        let Some(request) = self.smart.poll_request(now) else { return };
        let Some(wanted) = self.smart.wanted() else { return };
        let range = match wanted {
            Wanted::Latest => Range { max: Some(1), before: Some(String::new()), after: None },
            Wanted::After { since, max } => {
                Range { max: Some(max), after: since.map(str::to_owned), before: None }
            }
        };
        let items = Element::new("items", ns::PUBSUB).with("node", self.uri.node.as_str());
        let payload = super::pubsub::pubsub(items).with_child(range.element());
        self.asked = Some((request.id, after(now, PATIENCE)));
        self.send("get", &self.pull_id(request.id), &payload);
    }

    fn take(&mut self, now: Timestamp, stanza: &Element) {
        // Servers say whom a stanza is from: nobody else can answer or push for the service.
        if stanza.attribute("from") != Some(self.uri.service.as_str()) {
            return;
        }
        match stanza.name.as_str() {
            "iq" => self.take_answer(now, stanza),
            "message" => self.take_push(now, stanza),
            _ => {}
        }
    }

    fn take_answer(&mut self, now: Timestamp, iq: &Element) {
        let failed = match iq.attribute("type") {
            Some("result") => None,
            Some("error") => error::read(iq),
            _ => return,
        };
        let id = iq.attribute("id").unwrap_or_default();
        if id == self.subscribe_id() && matches!(self.subscribed, Subscribed::Asked(_)) {
            return self.take_subscribed(now, failed);
        }
        let Some((number, _)) = self.asked.filter(|(number, _)| id == self.pull_id(*number)) else { return };
        self.asked = None;
        let page = match failed {
            None => self.page(iq),
            Some((condition, text)) => {
                Err(format!("the service answers {condition} {text}").trim().to_owned())
            }
        };
        let url = self.uri.to_string();
        self.smart.handle_page(now, number, page.map_err(|reason| FollowError::Protocol { url, reason }));
    }

    fn take_subscribed(&mut self, now: Timestamp, failed: Option<(String, String)>) {
        if let Some((condition, text)) = failed {
            self.subscribed = Subscribed::No(after(now, REFUSED));
            self.warn(format!("cannot subscribe: {condition} {text}").trim());
            return self.smart.set_pace(Some(UNSUBSCRIBED));
        }
        self.subscribed = Subscribed::Yes;
        self.smart.set_pace(Some(SILENCE));
        // What was appended before it began is pushed to nobody.
        self.smart.pull_now();
    }

    /// The page that an answer holds.
    fn page(&self, iq: &Element) -> Result<Collection, String> {
        let pubsub = iq.child("pubsub", ns::PUBSUB).ok_or("an answer without a pubsub element")?;
        // XEP-0059, 2.1: an empty whole may be an empty wrapper.
        let items = pubsub.child("items", ns::PUBSUB);
        let mut page = collection(items, ns::PUBSUB, &self.uri)?;
        let bounds = pubsub.child("set", ns::RSM).map(Bounds::read).unwrap_or_default();
        page.total = bounds.count;
        // "The server always replies with UIDs using the cursor type."
        let cursor = bounds.last.map(|last| match last.strip_prefix("cursor:") {
            Some(cursor) => Ok(cursor.to_owned()),
            None => Err(format!("the last item's UID {last:.80?} is no cursor")),
        });
        page.last_cursor = cursor.transpose()?;
        Ok(page)
    }

    fn take_push(&mut self, now: Timestamp, message: &Element) {
        let Some(event) = message.child("event", ns::PUBSUB_EVENT) else { return };
        let items = event.child("items", ns::PUBSUB_EVENT);
        let is_ours = |items: &&Element| items.attribute("node") == Some(self.uri.node.as_str());
        let Some(items) = items.filter(is_ours) else { return };
        let headers = PushHeaders::read(message);
        match collection(Some(items), ns::PUBSUB_EVENT, &self.uri) {
            Ok(page) => {
                let PushHeaders { total, previous, last } = headers;
                let page = Collection { total, prev_cursor: previous, last_cursor: last, ..page };
                let _ = self.smart.handle_push(now, page);
            }
            Err(reason) => {
                self.warn(&format!("a push cannot be read: {reason}"));
                self.smart.pull_now();
            }
        }
    }
}

/// The items of an answer or a push, read as the entries of one document.
fn collection(items: Option<&Element>, space: &str, uri: &NodeUri) -> Result<Collection, String> {
    let mut document = format!("<feed xmlns=\"{ATOM}\">");
    let items = items.into_iter().flat_map(Element::children).filter(|item| item.is("item", space));
    for item in items {
        let entry = item.child("entry", ATOM).ok_or("an item without an Atom entry")?;
        let is_id = |child: &Element| child.is("id", FANOUT) || child.is("id", TOWPATH);
        if entry.children().any(is_id) {
            entry.write(&mut document, ATOM);
            continue;
        }
        // "The Atom entry id MAY match the item id or be derived from it": the item's own is what counts.
        let id = item.attribute("id").filter(|id| !id.is_empty()).ok_or("an item without an id")?;
        let mut named = entry.clone();
        named.nodes.push(Node::Element(Element::new("id", FANOUT).with_text(id)));
        named.write(&mut document, ATOM);
    }
    document.push_str("</feed>");
    Collection::from_atom(document.as_bytes(), &uri.to_string()).map_err(|error| error.to_string())
}

impl OverXmpp for NodeFollower {
    fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    fn handle_received(&mut self, now: Timestamp) {
        while let Some(incoming) = self.session.poll_received(now) {
            match incoming {
                Incoming::Ready => self.begin(now),
                Incoming::Stanza(stanza) => self.take(now, &stanza),
                Incoming::TooLarge(_) => {
                    self.warn("a stanza was too large to be read");
                    self.fail_pull(now, TransferError::TooLarge { limit: 4 << 20 });
                }
            }
        }
        self.look_at_stream(now);
        if self.asked.is_some_and(|(_, until)| now >= until) {
            self.fail_pull(now, TransferError::Timeout("no answer".into()));
        }
        if self.session.is_ready() {
            self.subscribe(now);
            self.pull(now);
        }
    }
}

/// Nothing goes over HTTP; this is for drivers that know followers.
impl Exchange for NodeFollower {
    fn poll_request(&mut self, _now: Timestamp) -> Option<Request> {
        None
    }

    fn handle_head(&mut self, _now: Timestamp, _id: RequestId, _head: ResponseHead) {}

    fn handle_chunk(&mut self, _now: Timestamp, _id: RequestId, _chunk: Bytes) {}

    fn handle_end(&mut self, _now: Timestamp, _id: RequestId, _result: Result<(), TransferError>) {}

    fn poll_timeout(&self) -> Option<Timestamp> {
        let stream = Some(self.session.poll_timeout());
        if !self.session.is_ready() {
            return stream;
        }
        let again = match self.subscribed {
            Subscribed::No(at) | Subscribed::Asked(at) => Some(at).filter(|_| !self.once),
            Subscribed::Yes => None,
        };
        let answer = self.asked.map(|(_, until)| until);
        [stream, self.smart.poll_timeout(), again, answer].into_iter().flatten().min()
    }

    fn is_finished(&self) -> bool {
        self.events.is_empty() && (self.is_over || self.smart.is_finished())
    }
}

impl Follower for NodeFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.smart.poll_event().or_else(|| self.events.pop_front())
    }
}
