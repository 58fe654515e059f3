//! Follower of a node ("XMPP Pull/Push", "Updates/Synchronization via Push"). It subscribes, pulls by result
//! set management, and receives pushes. Its output equals that of a follower over HTTP.
//!
//! Synchronization is done by [`SmartFollower`]: its requests become stanzas, and stanzas become its pages.
//! The caller transports the stream by [`OverXmpp`] and polls events.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::follow::{
    ContentFolder, Event, Exchange, FollowError, FollowMode, Follower, Monotonic, Now, ReadLimits, Request,
    RequestId, ResponseHead, StartFrom, TransferError,
};
use crate::format::xml::{ATOM, FANOUT, TOWPATH};
use crate::push::xmpp::wire::lifecycle::Incoming;
use crate::push::xmpp::wire::log_reset::LogReset;
use crate::push::xmpp::wire::rsm::{RsmBounds, RsmRange};
use crate::push::xmpp::wire::session::{Authenticate, ClientSession, LARGEST_STANZA, OverXmpp};
use crate::push::xmpp::wire::shim::PushHeaders;
use crate::push::xmpp::wire::stanza::{Element, ElementNode};
use crate::push::xmpp::wire::uri::NodeUri;
use crate::push::xmpp::wire::{error, jid, ns};
use crate::smart::follow::SmartFollower;
use crate::smart::push::PullTarget;
use crate::smart::spec::FeedOrder;
use crate::smart::wire::Collection;

/// Time without a push after which the node is pulled anyway.
const SILENCE: Duration = Duration::from_secs(300);
/// Poll interval without a subscription.
const UNSUBSCRIBED: Duration = Duration::from_secs(30);
/// Timeout of a request. A service that stops loses its requests.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause after a refused subscription.
const REFUSED: Duration = Duration::from_secs(60);

/// State of the subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubscribeState {
    /// Subscribe at this time.
    No(Monotonic),
    /// Requested; repeat at this time without a response.
    Asked(Monotonic),
    Yes,
}

/// Follower of a node.
#[derive(Debug)]
pub struct NodeFollower {
    smart: SmartFollower,
    session: ClientSession,
    uri: NodeUri,
    mode: FollowMode,
    /// Pull in progress, with its deadline.
    asked: Option<(RequestId, Monotonic)>,
    subscribed: SubscribeState,
    /// Name of the stream. Part of request ids, so that a late response to an earlier stream's request is ignored.
    stream: String,
    events: VecDeque<Event>,
    folder: Option<ContentFolder>,
    is_over: bool,
}

impl NodeFollower {
    /// Follows a node as [`SmartFollower`] follows a feed, with the same state. `jid` is the account to log
    /// in with. Its resource should stay unchanged, because subscriptions belong to it.
    ///
    /// # Errors
    ///
    /// Returns [`FollowError::Usage`] for the state of another node.
    pub fn new(
        uri: &NodeUri,
        from: &StartFrom,
        state: Option<Value>,
        mode: FollowMode,
        jid: &str,
        authenticate: Box<dyn Authenticate>,
    ) -> Result<Self, FollowError> {
        let order = uri.order().filter(|order| *order != FeedOrder::MODIFIED && state.is_none());
        let warning = order.map(|order| {
            Event::Warning(format!("{uri}: not every change appears in order={order}; follow order=modified"))
        });
        let mut smart = SmartFollower::over(uri.to_string(), from, state, mode)?;
        smart.set_pace(Some(UNSUBSCRIBED));
        let resource = jid::resource(jid).unwrap_or("towpath");
        Ok(Self {
            smart,
            session: ClientSession::new(jid, resource, authenticate),
            uri: uri.clone(),
            mode,
            asked: None,
            subscribed: SubscribeState::No(Monotonic::ORIGIN),
            stream: String::new(),
            events: warning.into_iter().collect(),
            folder: None,
            is_over: false,
        })
    }

    /// Sets the folder to which contents that are files are downloaded.
    #[must_use]
    pub fn with_folder(mut self, folder: Option<ContentFolder>) -> Self {
        self.folder = folder;
        self
    }

    /// Sets the limits of what is read. A document is here a stanza, with a page of items or a push.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        let largest = limits.largest_document(LARGEST_STANZA as u64);
        self.session.set_largest_stanza(usize::try_from(largest).unwrap_or(usize::MAX));
        self.smart = self.smart.within(limits);
        self
    }

    /// Returns `true` while subscribed.
    pub fn is_subscribed(&self) -> bool {
        self.subscribed == SubscribeState::Yes
    }

    fn handle_new_stream(&mut self, now: Now) {
        self.stream = stream_name(now, self.session.stream_id());
        self.subscribed = SubscribeState::No(Monotonic::ORIGIN);
        self.smart.set_pace(Some(UNSUBSCRIBED));
        // Pushes sent while disconnected are lost.
        self.smart.pull_now();
    }

    fn check_stream(&mut self, now: Now) {
        if !self.session.is_down() {
            return;
        }
        let problem = self.session.take_problem();
        let had_asked = self.asked.is_some();
        self.fail_pull(now, TransferError::Connect("the stream broke".into()));
        self.subscribed = SubscribeState::No(Monotonic::ORIGIN);
        let Some(problem) = problem else { return };
        let refused = self.session.is_refused();
        // A failed connection ends a follower that only catches up; otherwise the session reconnects.
        if refused || (self.mode == FollowMode::CatchUp && !had_asked) {
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

    fn fail_pull(&mut self, now: Now, source: TransferError) {
        if let Some((id, _)) = self.asked.take() {
            let error = FollowError::Transfer { url: self.uri.to_string(), source };
            self.smart.handle_page(now, id, Err(error));
        }
    }

    fn subscribe(&mut self, now: Now) {
        let own = match (self.subscribed, self.session.own()) {
            (SubscribeState::No(at) | SubscribeState::Asked(at), Some(own))
                if now.monotonic >= at && self.mode == FollowMode::Continuous =>
            {
                own.to_owned()
            }
            _ => return,
        };
        let subscribe =
            Element::new("subscribe", ns::PUBSUB).with("node", self.uri.node.as_str()).with("jid", own);
        self.subscribed = SubscribeState::Asked(now.after(PATIENCE));
        self.send("set", &self.subscribe_id(), &crate::push::xmpp::wire::pubsub::pubsub(subscribe));
    }

    fn subscribe_id(&self) -> String {
        format!("subscribe-{}", self.stream)
    }

    fn pull_id(&self, number: RequestId) -> String {
        format!("pull-{}-{}", self.stream, number.0)
    }

    fn send(&mut self, kind: &str, id: &str, payload: &Element) {
        let iq = Element::new("iq", ns::CLIENT).with("type", kind).with("id", id);
        let iq = iq.with("to", self.uri.service.as_str());
        self.session.send(&iq.with_child(payload.clone()));
    }

    /// Sends the next pull as a stanza.
    fn pull(&mut self, now: Now) {
        let Some(request) = self.smart.poll_request(now) else { return };
        let Some(target) = self.smart.pull_target() else { return };
        let range = match target {
            // An empty `before` asks for the last page (XEP-0059, 2.5).
            PullTarget::Latest => {
                RsmRange { max: Some(1), before: Some(String::new()), ..RsmRange::default() }
            }
            PullTarget::After { since, max } => {
                RsmRange { max: Some(max), after: since.map(str::to_owned), ..RsmRange::default() }
            }
        };
        let items = Element::new("items", ns::PUBSUB).with("node", self.uri.node.as_str());
        let payload = crate::push::xmpp::wire::pubsub::pubsub(items).with_child(range.element());
        self.asked = Some((request.id, now.after(PATIENCE)));
        self.send("get", &self.pull_id(request.id), &payload);
    }

    fn take(&mut self, now: Now, stanza: &Element) {
        // Servers authenticate the sender's address, so nobody else can respond or push for the service.
        if stanza.attribute("from") != Some(self.uri.service.as_str()) {
            return;
        }
        match stanza.name.as_str() {
            "iq" => self.handle_answer(now, stanza),
            "message" => self.handle_push(now, stanza),
            _ => {}
        }
    }

    fn handle_answer(&mut self, now: Now, iq: &Element) {
        let failed = match iq.attribute("type") {
            Some("result") => None,
            Some("error") => error::read(iq),
            _ => return,
        };
        let id = iq.attribute("id").unwrap_or_default();
        if id == self.subscribe_id() && matches!(self.subscribed, SubscribeState::Asked(_)) {
            return self.handle_subscribe_answer(now, failed);
        }
        let Some((number, _)) = self.asked.filter(|(number, _)| id == self.pull_id(*number)) else { return };
        self.asked = None;
        let page = match failed {
            None => self.page(iq),
            Some(refusal) => Err(format!("the service answers {}", described(&refusal))),
        };
        if page.is_ok()
            && iq.child("pubsub", ns::PUBSUB).is_some_and(|answer| LogReset::read(answer).is_some())
        {
            self.smart.handle_reset();
        }
        let url = self.uri.to_string();
        self.smart.handle_page(now, number, page.map_err(|reason| FollowError::Protocol { url, reason }));
    }

    fn handle_subscribe_answer(&mut self, now: Now, failed: Option<(String, String)>) {
        if let Some(refusal) = failed {
            // A refusal may be temporary, for example by a limit of the service.
            self.subscribed = SubscribeState::No(now.after(REFUSED));
            self.warn(&format!("cannot subscribe: {}", described(&refusal)));
            return self.smart.set_pace(Some(UNSUBSCRIBED));
        }
        self.subscribed = SubscribeState::Yes;
        self.smart.set_pace(Some(SILENCE));
        // Entries appended before the subscription began are not pushed.
        self.smart.pull_now();
    }

    /// Parses the page in a response.
    fn page(&self, iq: &Element) -> Result<Collection, String> {
        let pubsub = iq.child("pubsub", ns::PUBSUB).ok_or("an answer without a pubsub element")?;
        // XEP-0059, 2.1: without items, the wrapper may be missing.
        let items = pubsub.child("items", ns::PUBSUB);
        let mut page = self.collection(items, ns::PUBSUB)?;
        let bounds = pubsub.child("set", ns::RSM).map(RsmBounds::read).unwrap_or_default();
        page.total = bounds.count;
        // "The server always replies with UIDs using the cursor type."
        let cursor = bounds.last.map(|last| match last.strip_prefix("cursor:") {
            Some(cursor) => Ok(cursor.to_owned()),
            None => Err(format!("the last item's UID {last:.80?} is not a cursor")),
        });
        // A log that began anew and is empty has no items that tell a cursor.
        page.last_cursor = cursor.transpose()?.or_else(|| LogReset::read(pubsub)?.cursor);
        Ok(page)
    }

    fn handle_push(&mut self, now: Now, message: &Element) {
        let Some(event) = message.child("event", ns::PUBSUB_EVENT) else { return };
        let is_ours = |part: &&Element| part.attribute("node") == Some(self.uri.node.as_str());
        if event.child("delete", ns::PUBSUB_EVENT).filter(is_ours).is_some() {
            return self.handle_deletion(now, message);
        }
        let items = event.child("items", ns::PUBSUB_EVENT);
        let Some(items) = items.filter(is_ours) else { return };
        let headers = PushHeaders::read(message);
        match self.collection(Some(items), ns::PUBSUB_EVENT) {
            Ok(page) => {
                let PushHeaders { total, previous, last } = headers;
                let page = Collection { total, prev_cursor: previous, last_cursor: last, ..page };
                let _ = self.smart.handle_push(now, page);
            }
            Err(reason) => {
                // The pushed items are lost, so they are pulled.
                self.warn(&format!("a push cannot be read: {reason}"));
                self.smart.pull_now();
            }
        }
    }

    /// Handles the deletion of the node: its subscriptions are gone. The node may be there again later.
    fn handle_deletion(&mut self, now: Now, message: &Element) {
        // Some servers leave the component's namespace on it.
        let reason =
            message.children().find(|child| child.name == "body").map(Element::text).unwrap_or_default();
        self.warn(format!("the service deleted the node: {reason:.500}").trim_end_matches([':', ' ']));
        self.subscribed = SubscribeState::No(now.after(REFUSED));
        self.smart.set_pace(Some(UNSUBSCRIBED));
        // The response says what becomes of a follower that ends here.
        self.smart.pull_now();
    }

    /// Parses the items of a response or push, within the limits.
    fn collection(&self, items: Option<&Element>, space: &str) -> Result<Collection, String> {
        let document = document(items, space)?;
        let read = Collection::from_atom_within(
            document.as_bytes(),
            &self.uri.to_string(),
            self.smart.limits().document,
        );
        read.map_err(|error| error.to_string())
    }
}

/// Makes a name that no other stream has, also of a follower that starts again with the same account.
fn stream_name(now: Now, id: &str) -> String {
    // Both: a clock that is coarse, or was set back, gives a time twice, and a server may give no id. As a digest, so that
    // a long id does not make long requests.
    let digest =
        Sha256::new().chain_update(now.wall.as_nanosecond().to_be_bytes()).chain_update(id).finalize();
    hex::encode(&digest[..8])
}

/// Formats the condition and text of an error.
fn described((condition, text): &(String, String)) -> String {
    if text.is_empty() { condition.clone() } else { format!("{condition}: {text}") }
}

/// Writes the items of a response or push as the entries of a document.
fn document(items: Option<&Element>, space: &str) -> Result<String, String> {
    let mut document = format!("<feed xmlns=\"{ATOM}\">");
    let items = items.into_iter().flat_map(Element::children).filter(|item| item.is("item", space));
    for item in items {
        let entry = item.child("entry", ATOM).ok_or("an item without an Atom entry")?;
        let is_id = |child: &Element| child.is("id", FANOUT) || child.is("id", TOWPATH);
        if entry.children().any(is_id) {
            entry.write(&mut document, ATOM);
            continue;
        }
        // "The Atom entry id MAY match the item id or be derived from it": the item's own id is
        // authoritative.
        let id = item.attribute("id").filter(|id| !id.is_empty()).ok_or("an item without an id")?;
        let mut named = entry.clone();
        named.nodes.push(ElementNode::Element(Element::new("id", FANOUT).with_text(id)));
        named.write(&mut document, ATOM);
    }
    document.push_str("</feed>");
    Ok(document)
}

impl OverXmpp for NodeFollower {
    fn session(&mut self) -> &mut ClientSession {
        &mut self.session
    }

    fn handle_received(&mut self, now: Now) {
        while let Some(incoming) = self.session.poll_received(now) {
            match incoming {
                Incoming::Ready => self.handle_new_stream(now),
                Incoming::Stanza(stanza) => self.take(now, &stanza),
                Incoming::TooLarge(_) => {
                    let limit = self.session.largest_stanza() as u64;
                    self.warn(&format!("a stanza is larger than {limit} bytes (limit: max_mib)"));
                    self.fail_pull(now, TransferError::TooLarge { limit });
                }
            }
        }
        self.check_stream(now);
        if self.asked.is_some_and(|(_, until)| now.monotonic >= until) {
            self.fail_pull(now, TransferError::Timeout("no answer".into()));
        }
        if self.session.is_ready() {
            self.subscribe(now);
            self.pull(now);
        }
    }
}

/// XMPP followers have no HTTP requests; the implementation serves drivers of followers.
impl Exchange for NodeFollower {
    fn poll_request(&mut self, _now: Now) -> Option<Request> {
        None
    }

    fn handle_head(&mut self, _now: Now, _id: RequestId, _head: ResponseHead) {}

    fn handle_chunk(&mut self, _now: Now, _id: RequestId, _chunk: Bytes) {}

    fn handle_end(&mut self, _now: Now, _id: RequestId, _result: Result<(), TransferError>) {}

    fn poll_timeout(&self) -> Option<Monotonic> {
        let stream = Some(self.session.poll_timeout());
        if !self.session.is_ready() {
            return stream;
        }
        let again = match self.subscribed {
            SubscribeState::No(at) | SubscribeState::Asked(at) => {
                Some(at).filter(|_| self.mode == FollowMode::Continuous)
            }
            SubscribeState::Yes => None,
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
        let event = self.smart.poll_event().or_else(|| self.events.pop_front())?;
        Some(match &self.folder {
            Some(folder) => folder.detach(event),
            None => event,
        })
    }
}
