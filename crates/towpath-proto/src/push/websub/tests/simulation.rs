//! The simulation: its parties, and the messages between them.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::change::{NewChange, Op, Seq};
use crate::follow::{
    Call, Event, Exchange as _, Followed, Follower as _, Monotonic, Now, Request, RequestId, ResponseHead,
    StartFrom, TransferError,
};
use crate::push::websub::follow::PushFollower;
use crate::push::websub::follow::tests::options;
use crate::push::websub::publish::delivery::{DeliveredRange, DeliveryOutcome, RetryPolicy};
use crate::push::websub::publish::dispatch::{
    Dispatcher, EndedDelivery, HubLimits, SubscriberPlace, SubscriptionId,
};
use crate::push::websub::publish::subscription::HubSubscription;
use crate::push::websub::publish::verify::{CallbackResponse, IntentVerification, VerificationOutcome};
use crate::push::websub::wire::request::{HubRequest, Leases};
use crate::push::websub::wire::signature::{Algorithm, HEADER, sign};
use crate::push::websub::wire::{Dialect, Mode};
use crate::smart::accept::{PageFormat, negotiate};
use crate::smart::cursor::CursorKind;
use crate::smart::memory::MemoryLog;
use crate::smart::publish;
use crate::smart::pull::{FeedSettings, Pull};
use crate::smart::query::PullQuery;
use crate::smart::spec::PositionSpec;
use crate::smart::tests::settings;

const TOPIC: &str = "http://example.com/feeds/a/items?order=modified";
/// Time that a sender waits for a response, in seconds.
const PATIENCE: i64 = 10;

/// A message in transit.
enum NetworkMessage {
    Request(Request),
    Response(Request, Result<http::Response<Bytes>, ()>),
    /// A verification request of the hub, with its attempt count.
    Verify(Box<IntentVerification>, String),
    Echo(Box<IntentVerification>, Option<(u16, Bytes)>),
    RetryVerification(Box<IntentVerification>),
    Push(SubscriptionId, u64, DeliveredRange, Call),
    PushResult(SubscriptionId, u64, DeliveredRange, DeliveryOutcome),
}

pub(super) struct HubSimulation {
    pub(super) now: Timestamp,
    pub(super) log: MemoryLog,
    feed: FeedSettings,
    hub: Dispatcher<HubSubscription>,
    /// The hub's stored subscriptions, with a position that may be outdated.
    kept: BTreeMap<SubscriptionId, (HubSubscription, Seq)>,
    /// Number of hub starts: results of an earlier instance are ignored.
    starts: u64,
    follower: PushFollower,
    pub(super) output: Vec<Followed>,
    state: Option<Value>,
    network: BTreeMap<(Timestamp, u64), NetworkMessage>,
    sent: u64,
    random: fastrand::Rng,
    pub(super) is_lossy: bool,
    pub(super) pushes_accepted: usize,
    pub(super) pulls: usize,
}

fn dispatcher() -> Dispatcher<HubSubscription> {
    let patience = RetryPolicy { give_up: Duration::from_secs(60), ..RetryPolicy::default() };
    Dispatcher::new(HubLimits::default(), patience)
}

fn follower(state: Option<Value>) -> PushFollower {
    PushFollower::new("http://example.com/feeds/a/items", &StartFrom::Beginning, state, options()).unwrap()
}

impl HubSimulation {
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
            output: Vec::new(),
            state: None,
            network: BTreeMap::new(),
            sent: 0,
            random: fastrand::Rng::with_seed(seed),
            is_lossy: true,
            pushes_accepted: 0,
            pulls: 0,
        }
    }

    fn monotonic(&self) -> Monotonic {
        Now::simulated(self.now).monotonic
    }

    fn end_delivery(&mut self, id: SubscriptionId, range: DeliveredRange, outcome: DeliveryOutcome) {
        let ended = EndedDelivery { id, range, outcome, took: Duration::ZERO };
        self.hub.handle_end(self.monotonic(), ended);
    }

    fn add(&mut self, id: SubscriptionId, position: Seq, subscription: HubSubscription) {
        let ends = Now::simulated(self.now).restore(subscription.end(), Leases::default().max);
        let (host, address) = (subscription.host(), subscription.address());
        let place = SubscriberPlace { topic: "a", host: &host, address: &address };
        self.hub.add(id, place, position, ends, subscription);
    }

    /// Sends a message that arrives after this many seconds.
    fn send_after(&mut self, seconds: i64, message: NetworkMessage) {
        self.sent += 1;
        let at = self.now.saturating_add(SignedDuration::from_secs(seconds)).unwrap();
        self.network.insert((at, self.sent), message);
    }

    fn delay(&mut self) -> i64 {
        match self.random.u8(..10) {
            0 if self.is_lossy => self.random.i64(PATIENCE..4 * PATIENCE),
            1..=3 if self.is_lossy => self.random.i64(0..PATIENCE),
            _ => 0,
        }
    }

    fn is_lost(&mut self) -> bool {
        // A message in six is lost.
        self.is_lossy && self.random.u8(..6) == 0
    }

    /// Runs until no event is left before `end`.
    pub(super) fn run(&mut self, end: Timestamp) {
        for _ in 0..20_000 {
            self.act();
            let network = self.network.keys().next().map(|(time, _)| *time);
            let timeouts = [
                network,
                self.follower.poll_timeout().map(Monotonic::simulated_wall),
                self.hub.poll_timeout().map(Monotonic::simulated_wall),
            ];
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
        // Events that trigger each other at the same time would loop forever.
        panic!("it does not come to rest");
    }

    fn drain(&mut self) {
        while let Some(event) = self.follower.poll_event() {
            match event {
                Event::Change(change) => self.output.push(*change),
                Event::Checkpoint(state) => self.state = Some(state),
                _ => {}
            }
        }
    }

    /// Performs all actions that are due now.
    fn act(&mut self) {
        self.drain();
        while let Some(request) = self.follower.poll_request(Now::simulated(self.now)) {
            let (lost, delay) = (self.is_lost(), self.delay());
            match lost {
                true => self.send_after(PATIENCE, NetworkMessage::Response(request, Err(()))),
                false => self.send_after(delay, NetworkMessage::Request(request)),
            }
        }
        while let Some(id) = self.hub.poll_lease(self.monotonic()) {
            self.hub.remove(id);
            // The simulated hub does not renew: a subscriber must do that in time.
            self.kept.remove(&id);
        }
        while let Some(send) = self.hub.poll_delivery(self.monotonic()) {
            self.deliver(send.id, send.after);
        }
        self.drain();
    }

    /// Makes a delivery as a hub does: the entries of the log after a position.
    fn deliver(&mut self, id: SubscriptionId, after: Seq) {
        let Some(subscription) = self.hub.get(id).cloned() else { return };
        let query = PullQuery::parse("order=modified", &self.feed.limits).unwrap();
        let by = query.order.by;
        let since = (after > 0).then(|| PositionSpec::Cursor(self.feed.tag.cursor(by, after)));
        let query = PullQuery { since, timeout: Duration::ZERO, max: 3, ..query };
        let mut pull = Pull::new(query.clone(), &self.feed, self.now);
        let page = self.log.run(&mut pull).unwrap();
        let head = self.log.head().seq;
        let Some(last) = page.changes.last() else {
            let carried = DeliveredRange { through: after, scanned: head };
            self.end_delivery(id, carried, DeliveryOutcome::Nothing);
            return;
        };
        let through = last.seq;
        let carried = DeliveredRange { through, scanned: if page.more { through } else { head } };
        let previous = (after > 0).then(|| self.feed.tag.cursor(by, after));
        let format = if self.random.bool() { PageFormat::Json } else { PageFormat::Atom };
        let (body, content_type) = publish::push(&self.feed, &query, &page, previous.as_deref(), format);
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static(content_type));
        let secret = subscription.secret.unwrap_or_default();
        let signature = sign(Algorithm::of(subscription.dialect), secret.as_bytes(), &body);
        headers.insert(HEADER, HeaderValue::from_str(&signature).unwrap());
        let call = Call { method: Method::POST, query: String::new(), headers, body: body.into() };
        // A delivery may arrive twice: a proxy can repeat a POST.
        let (lost, doubled, delay) =
            (self.is_lost(), self.is_lossy && self.random.u8(..5) == 0, self.delay());
        if doubled {
            let delay = self.random.i64(0..120);
            // The duplicate's response goes to nobody, so its result is not recorded.
            self.send_after(delay, NetworkMessage::Push(id, u64::MAX, carried, call.clone()));
        }
        if lost || delay >= PATIENCE {
            self.send_after(
                PATIENCE,
                NetworkMessage::PushResult(id, self.starts, carried, DeliveryOutcome::Unreachable),
            );
        }
        if !lost {
            // A late response has no receiver.
            let start = if delay >= PATIENCE { u64::MAX } else { self.starts };
            self.send_after(delay, NetworkMessage::Push(id, start, carried, call));
        }
    }

    fn arrive(&mut self, message: NetworkMessage) {
        match message {
            NetworkMessage::Request(request) => {
                let answer = if self.is_lost() { Err(()) } else { Ok(self.answer(&request)) };
                let delay = self.delay();
                self.send_after(delay, NetworkMessage::Response(request, answer));
            }
            NetworkMessage::Response(Request { id, url, .. }, Ok(response)) => {
                let (parts, body) = response.into_parts();
                let head = ResponseHead { status: parts.status.as_u16(), url, headers: parts.headers };
                self.follower.handle_head(Now::simulated(self.now), id, head);
                self.follower.handle_chunk(Now::simulated(self.now), id, body);
                self.follower.handle_end(Now::simulated(self.now), id, Ok(()));
            }
            NetworkMessage::Response(Request { id, .. }, Err(())) => {
                let error = TransferError::Timeout("lost".into());
                self.follower.handle_end(Now::simulated(self.now), id, Err(error));
            }
            NetworkMessage::Verify(verification, url) => {
                let query = url.split_once('?').map_or("", |(_, query)| query).to_owned();
                let call = Call { method: Method::GET, query, headers: HeaderMap::new(), body: Bytes::new() };
                let reply = self.follower.handle_call(Now::simulated(self.now), &call);
                let (lost, delay) = (self.is_lost(), self.delay());
                let echo = (!lost).then_some((reply.status, reply.body));
                self.send_after(delay, NetworkMessage::Echo(verification, echo));
            }
            NetworkMessage::Echo(verification, echo) => self.echo(verification, echo.as_ref()),
            NetworkMessage::RetryVerification(verification) => self.verify(verification),
            NetworkMessage::Push(id, start, carried, call) => {
                let before = self.follower.is_subscribed(Now::simulated(self.now));
                let reply = self.follower.handle_call(Now::simulated(self.now), &call);
                self.pushes_accepted += usize::from(before);
                let outcome = match reply.status {
                    200..=299 => DeliveryOutcome::Accepted,
                    410 => DeliveryOutcome::Gone,
                    _ => DeliveryOutcome::Refused(None),
                };
                // The response may be lost after the delivery was processed: the hub then repeats it.
                let outcome = if self.is_lost() { DeliveryOutcome::Unreachable } else { outcome };
                self.send_after(0, NetworkMessage::PushResult(id, start, carried, outcome));
            }
            NetworkMessage::PushResult(id, start, carried, outcome) => {
                // The result belongs to an earlier instance of the hub.
                if start != self.starts {
                    return;
                }
                self.end_delivery(id, carried, outcome);
                if outcome == DeliveryOutcome::Gone {
                    self.hub.remove(id);
                    self.kept.remove(&id);
                }
                // Positions are persisted now and then.
                if self.random.bool()
                    && let (Some(kept), Some(position)) = (self.kept.get_mut(&id), self.hub.position(id))
                {
                    kept.1 = position;
                }
            }
        }
    }

    /// Returns the publisher's response to a request.
    fn answer(&mut self, request: &Request) -> http::Response<Bytes> {
        if request.method == Method::POST {
            let content_type = request.headers.get("content-type").map(|value| value.to_str().unwrap());
            let Ok(HubRequest::Subscription(asked)) = HubRequest::parse(content_type, &request.body) else {
                panic!("not a subscription");
            };
            assert_eq!((asked.topic.as_str(), asked.mode), (TOPIC, Mode::Subscribe));
            let lease = Leases::default().grant(asked.lease_seconds);
            let challenge = format!("{:x}", self.random.u128(..));
            self.verify(Box::new(IntentVerification::new(*asked, lease, challenge)));
            return http::Response::builder().status(202).body(Bytes::new()).unwrap();
        }
        self.pulls += 1;
        let query = request.url.split_once('?').map_or("", |(_, query)| query);
        let query = PullQuery::parse(query, &self.feed.limits).unwrap();
        let accept = request.headers.get("accept").map(|value| value.to_str().unwrap());
        let mut pull = Pull::new(query, &self.feed, self.now);
        let page = self.log.run(&mut pull).unwrap();
        publish::respond(&self.feed, pull.query(), &page, negotiate(accept).unwrap())
    }

    fn verify(&mut self, mut verification: Box<IntentVerification>) {
        let url = verification.request_url(self.monotonic());
        let (lost, delay) = (self.is_lost(), self.delay());
        match lost {
            true => self.send_after(PATIENCE, NetworkMessage::Echo(verification, None)),
            false => self.send_after(delay, NetworkMessage::Verify(verification, url)),
        }
    }

    fn echo(&mut self, verification: Box<IntentVerification>, echo: Option<&(u16, Bytes)>) {
        let answer = match echo {
            Some((status, body)) => CallbackResponse::Response { status: *status, body },
            None => CallbackResponse::None,
        };
        match verification.handle_response(self.monotonic(), answer) {
            VerificationOutcome::Confirmed(ends) => {
                let request = &verification.request;
                let lease = Duration::from_secs(request.lease_seconds.unwrap_or(3600));
                let ends = Now::simulated(self.now).date_of(ends);
                let made = HubSubscription::new(request, "a", lease, ends, None).unwrap();
                assert_eq!(made.dialect, Dialect::WebSub);
                let (id, head) = (HubSubscription::id("a", &made.callback), self.log.head().seq);
                // A subscriber begins at the current head; it pulls everything before that.
                self.add(id, head, made.clone());
                let position = self.hub.position(id).unwrap();
                self.kept.insert(id, (made, position));
                self.hub.handle_append("a", head);
            }
            VerificationOutcome::RetryAt(at) => {
                let seconds = at.since(self.monotonic()).as_secs();
                self.send_after(seconds as i64, NetworkMessage::RetryVerification(verification));
            }
            VerificationOutcome::Refused(_) => {}
        }
    }

    /// Crashes the hub and starts it from its stored state.
    pub(super) fn restart_hub(&mut self) {
        self.starts += 1;
        self.hub = dispatcher();
        for (id, (subscription, position)) in self.kept.clone() {
            self.add(id, position, subscription);
        }
        self.hub.handle_append("a", self.log.head().seq);
    }

    /// Crashes the subscriber and starts it at the end of its output.
    pub(super) fn restart_follower(&mut self) {
        self.drain();
        let is_answer = |message: &NetworkMessage| matches!(message, NetworkMessage::Response(..));
        self.network.retain(|_, message| !is_answer(message));
        // Responses to its old requests have no receiver: the new instance numbers its requests from the
        // beginning.
        for message in self.network.values_mut() {
            if let NetworkMessage::Request(request) = message {
                request.id = RequestId(u64::MAX);
            }
        }
        self.follower = follower(self.state.clone());
    }

    pub(super) fn append(&mut self, change: NewChange) {
        self.log.append(change, self.now);
        self.hub.handle_append("a", self.log.head().seq);
    }

    /// Asserts that the output is the log: in order, without duplicates, and complete but for replaced
    /// versions.
    pub(super) fn assert_output_is_log(&self) {
        let mut last = 0;
        let mut latest: BTreeMap<&str, Seq> = BTreeMap::new();
        for followed in &self.output {
            // Times are unique, so they identify the change.
            let change = self.log.changes.iter().find(|change| {
                change.item.id == followed.item.id && Some(change.modified) == followed.modified
            });
            let change = change.unwrap_or_else(|| panic!("never in the log: {followed:?}"));
            // "This fallback query may return items that the client has already seen" ("Cursors"): with T+O+C cursors
            // pulling repeats, too.
            let is_next = change.seq > last || self.feed.kind == CursorKind::Toc;
            assert!(is_next, "{} after {last}: {:?}", change.seq, self.output);
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
