//! The simulated world: who is in it, and what is on its way between them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::change::{NewChange, Op, Seq};
use crate::follow::{
    Call, Event, Exchange as _, Followed, Follower as _, Request, RequestId, ResponseHead, StartFrom,
    TransferError,
};
use crate::push::websub::delivery::{Carried, Outcome, Patience};
use crate::push::websub::dispatch::{Dispatcher, Id, Limits};
use crate::push::websub::follow::PushFollower;
use crate::push::websub::follow_tests::options;
use crate::push::websub::request::{HubRequest, Leases};
use crate::push::websub::signature::{Algorithm, HEADER, sign};
use crate::push::websub::subscription::Subscription;
use crate::push::websub::verify::{Answer, Verdict, Verification};
use crate::push::websub::{Dialect, Mode};
use crate::smart::accept::{PageFormat, negotiate};
use crate::smart::cursor::CursorKind;
use crate::smart::memory::MemoryLog;
use crate::smart::publish;
use crate::smart::pull::{FeedSettings, Pull};
use crate::smart::query::PullQuery;
use crate::smart::spec::Spec;
use crate::smart::tests::settings;

const TOPIC: &str = "http://example.com/feeds/a/items?order=modified";
/// How long a sender waits for an answer, in seconds.
const PATIENCE: i64 = 10;

/// What is on its way.
enum Message {
    Ask(Request),
    Answered(Request, Result<http::Response<Bytes>, ()>),
    /// The hub's question, with how often it was asked.
    Question(Box<Verification>, String),
    Echo(Box<Verification>, Option<(u16, Bytes)>),
    AskAgain(Box<Verification>),
    Push(Id, u64, Carried, Call),
    Taken(Id, u64, Carried, Outcome),
}

pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) log: MemoryLog,
    feed: FeedSettings,
    hub: Dispatcher<Subscription>,
    /// What the hub has kept: subscriptions, and where they stood some time ago.
    kept: BTreeMap<Id, (Subscription, Seq)>,
    /// How often the hub was started: what an earlier one sent is nobody's.
    starts: u64,
    follower: PushFollower,
    pub(super) told: Vec<Followed>,
    state: Option<Value>,
    network: BTreeMap<(Timestamp, u64), Message>,
    sent: u64,
    random: fastrand::Rng,
    pub(super) is_bad: bool,
    pub(super) pushes_taken: usize,
    pub(super) pulls: usize,
}

fn dispatcher() -> Dispatcher<Subscription> {
    let patience = Patience { give_up: Duration::from_secs(60), ..Patience::default() };
    Dispatcher::new(Limits::default(), patience)
}

fn follower(state: Option<Value>) -> PushFollower {
    PushFollower::new("http://example.com/feeds/a/items", &StartFrom::Beginning, state, options()).unwrap()
}

impl World {
    pub(super) fn new(seed: u64, kind: CursorKind) -> Self {
        let hub_url = Some("http://example.com/feeds/a/hub".to_owned());
        Self {
            now: Timestamp::from_second(1_000_000).unwrap(),
            log: MemoryLog::default(),
            feed: FeedSettings { hub: hub_url, ..settings(kind) },
            hub: dispatcher(),
            kept: BTreeMap::new(),
            starts: 0,
            follower: follower(None),
            told: Vec::new(),
            state: None,
            network: BTreeMap::new(),
            sent: 0,
            random: fastrand::Rng::with_seed(seed),
            is_bad: true,
            pushes_taken: 0,
            pulls: 0,
        }
    }

    /// Sends a message that arrives after so many seconds.
    fn send_after(&mut self, seconds: i64, message: Message) {
        self.sent += 1;
        let at = self.now.saturating_add(SignedDuration::from_secs(seconds)).unwrap();
        self.network.insert((at, self.sent), message);
    }

    fn delay(&mut self) -> i64 {
        match self.random.u8(..10) {
            0 if self.is_bad => self.random.i64(PATIENCE..4 * PATIENCE),
            1..=3 if self.is_bad => self.random.i64(0..PATIENCE),
            _ => 0,
        }
    }

    fn is_lost(&mut self) -> bool {
        self.is_bad && self.random.u8(..6) == 0
    }

    /// Until nothing more is to happen by `end`.
    pub(super) fn run(&mut self, end: Timestamp) {
        for _ in 0..20_000 {
            self.act();
            let network = self.network.keys().next().map(|(time, _)| *time);
            let timeouts = [network, self.follower.poll_timeout(), self.hub.poll_timeout()];
            let next = timeouts.into_iter().flatten().min().unwrap_or(Timestamp::MAX);
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            while let Some(first) = self.network.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let message = first.remove();
                self.arrive(message);
                self.drain();
            }
        }
        panic!("it does not come to rest");
    }

    fn drain(&mut self) {
        while let Some(event) = self.follower.poll_event() {
            match event {
                Event::Change(change) => self.told.push(*change),
                Event::Checkpoint(state) => self.state = Some(state),
                _ => {}
            }
        }
    }

    /// Whatever is to be done now by anybody.
    fn act(&mut self) {
        self.drain();
        while let Some(request) = self.follower.poll_request(self.now) {
            let (lost, delay) = (self.is_lost(), self.delay());
            match lost {
                true => self.send_after(PATIENCE, Message::Answered(request, Err(()))),
                false => self.send_after(delay, Message::Ask(request)),
            }
        }
        while let Some(id) = self.hub.poll_lease(self.now) {
            self.hub.remove(id);
            self.kept.remove(&id);
        }
        while let Some(send) = self.hub.poll_send(self.now) {
            self.deliver(send.id, send.after);
        }
        self.drain();
    }

    /// A delivery as a hub makes it: what the log has after a position.
    fn deliver(&mut self, id: Id, after: Seq) {
        let Some(subscription) = self.hub.get(id).cloned() else { return };
        let query = PullQuery::parse("order=modified", &self.feed.limits).unwrap();
        let by = query.order.by;
        let since = (after > 0).then(|| Spec::Cursor(self.feed.tag.cursor(by, after)));
        let query = PullQuery { since, timeout: Duration::ZERO, max: 3, ..query };
        let mut pull = Pull::new(query.clone(), &self.feed, self.now);
        let page = self.log.run(&mut pull).unwrap();
        let head = self.log.head().seq;
        let Some(last) = page.changes.last() else {
            let carried = Carried { through: after, looked: head };
            self.hub.handle_end(self.now, id, carried, Outcome::Nothing);
            return;
        };
        let through = last.seq;
        let carried = Carried { through, looked: if page.more { through } else { head } };
        let previous = (after > 0).then(|| self.feed.tag.cursor(by, after));
        let format = if self.random.bool() { PageFormat::Json } else { PageFormat::Atom };
        let (body, content_type) = publish::push(&self.feed, &query, &page, previous.as_deref(), format);
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(content_type));
        let secret = subscription.secret.unwrap_or_default();
        let signature = sign(Algorithm::of(subscription.dialect), secret.as_bytes(), &body);
        headers.insert(HEADER, HeaderValue::from_str(&signature).unwrap());
        let call = Call { method: Method::POST, query: String::new(), headers, body: body.into() };
        let (lost, doubled, delay) = (self.is_lost(), self.is_bad && self.random.u8(..5) == 0, self.delay());
        if doubled {
            let delay = self.random.i64(0..120);
            self.send_after(delay, Message::Push(id, u64::MAX, carried, call.clone()));
        }
        if lost || delay >= PATIENCE {
            self.send_after(PATIENCE, Message::Taken(id, self.starts, carried, Outcome::Unreachable));
        }
        if !lost {
            // One that comes too late is answered to nobody.
            let start = if delay >= PATIENCE { u64::MAX } else { self.starts };
            self.send_after(delay, Message::Push(id, start, carried, call));
        }
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Ask(request) => {
                let answer = if self.is_lost() { Err(()) } else { Ok(self.answer(&request)) };
                let delay = self.delay();
                self.send_after(delay, Message::Answered(request, answer));
            }
            Message::Answered(Request { id, url, .. }, Ok(response)) => {
                let (parts, body) = response.into_parts();
                let head = ResponseHead { status: parts.status.as_u16(), url, headers: parts.headers };
                self.follower.handle_head(self.now, id, head);
                self.follower.handle_chunk(self.now, id, body);
                self.follower.handle_end(self.now, id, Ok(()));
            }
            Message::Answered(Request { id, .. }, Err(())) => {
                let error = TransferError::Timeout("lost".into());
                self.follower.handle_end(self.now, id, Err(error));
            }
            Message::Question(asking, url) => {
                let query = url.split_once('?').map_or("", |(_, query)| query).to_owned();
                let call = Call { method: Method::GET, query, headers: HeaderMap::new(), body: Bytes::new() };
                let reply = self.follower.handle_call(self.now, &call);
                let (lost, delay) = (self.is_lost(), self.delay());
                let echo = (!lost).then_some((reply.status, reply.body));
                self.send_after(delay, Message::Echo(asking, echo));
            }
            Message::Echo(asking, echo) => self.echo(asking, echo.as_ref()),
            Message::AskAgain(asking) => self.question(asking),
            Message::Push(id, start, carried, call) => {
                let before = self.follower.is_subscribed(self.now);
                let reply = self.follower.handle_call(self.now, &call);
                self.pushes_taken += usize::from(before);
                let outcome = match reply.status {
                    200..=299 => Outcome::Accepted,
                    410 => Outcome::Gone,
                    _ => Outcome::Refused(None),
                };
                let outcome = if self.is_lost() { Outcome::Unreachable } else { outcome };
                self.send_after(0, Message::Taken(id, start, carried, outcome));
            }
            Message::Taken(id, start, carried, outcome) => {
                if start != self.starts {
                    return;
                }
                self.hub.handle_end(self.now, id, carried, outcome);
                if outcome == Outcome::Gone {
                    self.hub.remove(id);
                    self.kept.remove(&id);
                }
                // Positions are kept now and then.
                if self.random.bool()
                    && let (Some(kept), Some(position)) = (self.kept.get_mut(&id), self.hub.position(id))
                {
                    kept.1 = position;
                }
            }
        }
    }

    /// The publisher's answer to a request.
    fn answer(&mut self, request: &Request) -> http::Response<Bytes> {
        if request.method == Method::POST {
            let content_type = request.headers.get("content-type").map(|value| value.to_str().unwrap());
            let Ok(HubRequest::Subscription(asked)) = HubRequest::parse(content_type, &request.body) else {
                panic!("not a subscription");
            };
            assert_eq!((asked.topic.as_str(), asked.mode), (TOPIC, Mode::Subscribe));
            let lease = Leases::default().grant(asked.lease_seconds);
            let challenge = format!("{:x}", self.random.u128(..));
            self.question(Box::new(Verification::new(*asked, lease, challenge)));
            return http::Response::builder().status(202).body(Bytes::new()).unwrap();
        }
        self.pulls += 1;
        let query = request.url.split_once('?').map_or("", |(_, query)| query);
        let query = PullQuery::parse(query, &self.feed.limits).unwrap();
        let accept = request.headers.get("accept").map(|value| value.to_str().unwrap());
        let mut pull = Pull::new(query, &self.feed, self.now);
        let page = self.log.run(&mut pull).unwrap();
        publish::respond(&self.feed, pull.query(), &page, negotiate(accept, false).unwrap())
    }

    fn question(&mut self, mut asking: Box<Verification>) {
        let url = asking.ask(self.now);
        let (lost, delay) = (self.is_lost(), self.delay());
        match lost {
            true => self.send_after(PATIENCE, Message::Echo(asking, None)),
            false => self.send_after(delay, Message::Question(asking, url)),
        }
    }

    fn echo(&mut self, asking: Box<Verification>, echo: Option<&(u16, Bytes)>) {
        let answer = match echo {
            Some((status, body)) => Answer::Response { status: *status, body },
            None => Answer::Nothing,
        };
        match asking.handle_answer(self.now, answer) {
            Verdict::Confirmed(ends) => {
                let request = &asking.request;
                let lease = Duration::from_secs(request.lease_seconds.unwrap_or(3600));
                let made = Subscription::new(request, "a", lease, ends, None).unwrap();
                assert_eq!(made.dialect, Dialect::WebSub);
                let (id, head) = (Subscription::id("a", &made.callback), self.log.head().seq);
                self.hub.add(id, "a", &made.host(), head, ends, made.clone());
                let position = self.hub.position(id).unwrap();
                self.kept.insert(id, (made, position));
                self.hub.moved("a", head);
            }
            Verdict::Again(at) => {
                let seconds = at.duration_since(self.now).as_secs();
                self.send_after(seconds, Message::AskAgain(asking));
            }
            Verdict::Refused(_) => {}
        }
    }

    /// The hub dies and starts with what it has kept.
    pub(super) fn restart_hub(&mut self) {
        self.starts += 1;
        self.hub = dispatcher();
        for (id, (subscription, position)) in &self.kept {
            self.hub.add(*id, "a", &subscription.host(), *position, subscription.end(), subscription.clone());
        }
        self.hub.moved("a", self.log.head().seq);
    }

    /// The subscriber dies and starts where its output ends.
    pub(super) fn restart_follower(&mut self) {
        self.drain();
        let is_answer = |message: &Message| matches!(message, Message::Answered(..));
        self.network.retain(|_, message| !is_answer(message));
        // What it had asked is answered to nobody: the next one numbers its own questions from the beginning.
        for message in self.network.values_mut() {
            if let Message::Ask(request) = message {
                request.id = RequestId(u64::MAX);
            }
        }
        self.follower = follower(self.state.clone());
    }

    pub(super) fn append(&mut self, change: NewChange) {
        self.log.append(change, self.now);
        self.hub.moved("a", self.log.head().seq);
    }

    /// What was told is the log: in order, nothing twice, and nothing that was not replaced is missing.
    pub(super) fn judge(&self) {
        let mut last = 0;
        let mut latest: BTreeMap<&str, Seq> = BTreeMap::new();
        for followed in &self.told {
            let change = self.log.changes.iter().find(|change| {
                change.item.id == followed.item.id && Some(change.modified) == followed.modified
            });
            let change = change.unwrap_or_else(|| panic!("never in the log: {followed:?}"));
            // "This fallback query may return items that the client has already seen" ("Cursors"): with T+O+C cursors
            // pulling repeats, too.
            let is_next = change.seq > last || self.feed.kind == CursorKind::Toc;
            assert!(is_next, "{} after {last}: {:?}", change.seq, self.told);
            assert_eq!(change.op == Op::Delete, followed.op == Op::Delete);
            if change.op != Op::Delete {
                assert_eq!(change.item.title, followed.item.title);
            }
            last = change.seq;
            latest.insert(&followed.item.id, change.seq);
        }
        let expected: BTreeMap<&str, Seq> =
            self.log.changes.iter().map(|change| (change.item.id.as_str(), change.seq)).collect();
        assert_eq!(latest, expected);
    }
}
