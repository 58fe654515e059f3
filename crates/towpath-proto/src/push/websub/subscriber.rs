//! One subscription from the subscriber's side (WebSub 5; PubSubHubbub 0.3 section 6): finds the hub, asks it,
//! answers its question, asks again before the lease ends, and judges what is delivered.
//!
//! It asks as WebSub has it, and a hub that refuses that as PubSubHubbub 0.3 has it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use http::header::CONTENT_TYPE;
use jiff::{SignedDuration, Timestamp};
use url::form_urlencoded::Serializer;

use super::discover::{Discovered, discover};
use super::form::Form;
use super::signature;
use crate::follow::{Call, Reply, Request, RequestId, ResponseHead, TransferError};

/// The first pause after a failure; each further one is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(5);
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(60 * 60);
/// How long a hub may take to ask whether the request was meant.
const QUESTION: SignedDuration = SignedDuration::from_secs(5 * 60);
/// The largest document that links are looked for in.
const MAX_DOCUMENT: u64 = 4 << 20;
/// What is taken for a lease that the hub does not tell.
const UNTOLD_LEASE: i64 = 24 * 60 * 60;
/// The longest lease that is believed.
const LONGEST_LEASE: i64 = 365 * UNTOLD_LEASE;

/// How to subscribe.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address that the hub is to call: unguessable, and nobody's else (WebSub 5.1).
    pub callback: String,
    /// What deliveries must be signed with: random, less than 200 bytes.
    pub secret: String,
    /// How long the subscription should last; as the hub likes where this is absent.
    pub lease: Option<Duration>,
    /// After how long without a push the feed is pulled all the same.
    pub silence: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// To look for the hub at this time.
    Discover(Timestamp),
    /// To ask this one of the hubs.
    Ask(usize),
    /// A request is under way.
    UnderWay,
    /// The hub has the request, and has until then to ask whether it was meant.
    Asked(Timestamp),
    /// Subscribed; to be renewed at this time.
    Subscribed(Timestamp),
}

#[derive(Debug)]
struct Exchanging {
    id: RequestId,
    /// Which hub is asked; none when it is looked for.
    hub: Option<usize>,
    head: Option<ResponseHead>,
    body: BytesMut,
}

/// One subscription.
#[derive(Debug)]
pub struct Subscriber {
    page: String,
    options: Options,
    step: Step,
    found: Option<Discovered>,
    /// Whether the hub is asked as PubSubHubbub 0.3 has it.
    old: bool,
    /// Until when it is subscribed, if it is.
    ends: Option<Timestamp>,
    failures: u32,
    exchange: Option<Exchanging>,
    requests: u64,
    problem: Option<String>,
}

impl Subscriber {
    /// A subscription to the topic that can be found at `page`.
    pub fn new(page: &str, options: Options) -> Self {
        Self {
            page: page.to_owned(),
            options,
            step: Step::Discover(Timestamp::MIN),
            found: None,
            old: false,
            ends: None,
            failures: 0,
            exchange: None,
            requests: 0,
            problem: None,
        }
    }

    /// Whether the hub pushes, as far as is known.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.ends.is_some_and(|ends| now < ends)
    }

    /// Whether no attempt to subscribe has failed since it was last active.
    pub fn is_hopeful(&self) -> bool {
        self.failures == 0
    }

    /// What went wrong since this was last asked.
    pub fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// The next request to send.
    pub fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        self.ends = self.ends.filter(|ends| now < *ends);
        if self.exchange.is_some() {
            return None;
        }
        if let Step::Asked(until) = self.step
            && now >= until
        {
            self.fail(now, "the hub has not asked whether the request was meant".into());
        }
        let (hub, request) = match self.step {
            Step::Discover(at) | Step::Subscribed(at) if now >= at => {
                let request = Request::get(self.next_id(), self.page.clone());
                (None, Request { max_body: MAX_DOCUMENT, ..request })
            }
            Step::Ask(hub) => (Some(hub), self.subscription_request(hub)?),
            _ => return None,
        };
        self.step = Step::UnderWay;
        self.exchange = Some(Exchanging { id: request.id, hub, head: None, body: BytesMut::new() });
        Some(request)
    }

    /// Numbers from the far end, so that they are nobody's else.
    fn next_id(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(u64::MAX - self.requests)
    }

    /// WebSub 5.1: the parameters of a request, as a form.
    fn subscription_request(&mut self, hub: usize) -> Option<Request> {
        let id = self.next_id();
        let found = self.found.as_ref()?;
        let mut form = Serializer::new(String::new());
        form.append_pair("hub.mode", "subscribe");
        form.append_pair("hub.topic", &found.topic);
        form.append_pair("hub.callback", &self.options.callback);
        form.append_pair("hub.secret", &self.options.secret);
        if let Some(lease) = self.options.lease {
            form.append_pair("hub.lease_seconds", &lease.as_secs().to_string());
        }
        if self.old {
            form.append_pair("hub.verify", "async").append_pair("hub.verify", "sync");
        }
        let request = Request::get(id, found.hubs.get(hub)?.clone());
        let request = request.with(CONTENT_TYPE, "application/x-www-form-urlencoded");
        Some(Request { method: Method::POST, body: form.finish().into(), max_body: 64 << 10, ..request })
    }

    /// The answer to a request has begun.
    pub fn handle_head(&mut self, id: RequestId, head: ResponseHead) {
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.id == id) {
            exchange.head = Some(head);
        }
    }

    /// A piece of its body.
    pub fn handle_chunk(&mut self, id: RequestId, chunk: &[u8]) {
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.id == id) {
            exchange.body.extend_from_slice(chunk);
        }
    }

    /// It is complete, or will never be. Returns whether the request was this subscriber's.
    pub fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) -> bool {
        let Some(exchange) = self.exchange.take_if(|exchange| exchange.id == id) else { return false };
        match (exchange.head, exchange.hub, result) {
            (Some(head), None, Ok(())) => self.found(now, &head, &exchange.body),
            (Some(head), Some(hub), Ok(())) => self.asked(now, hub, &head, &exchange.body),
            (_, None, Err(error)) => self.fail(now, format!("cannot look for the hub: {error}")),
            (_, Some(hub), Err(error)) => self.next_hub(now, hub, format!("cannot ask the hub: {error}")),
            (None, _, Ok(())) => self.fail(now, "no answer".into()),
        }
        true
    }

    fn found(&mut self, now: Timestamp, head: &ResponseHead, body: &[u8]) {
        if head.status != 200 {
            return self.fail(now, format!("the topic answers {}", head.status));
        }
        match discover(head, body) {
            Some(found) => {
                (self.found, self.step) = (Some(found), Step::Ask(0));
            }
            None => self.fail(now, "the topic has no hub".into()),
        }
    }

    fn asked(&mut self, now: Timestamp, hub: usize, head: &ResponseHead, body: &[u8]) {
        // The question may have come and been answered before.
        if self.step != Step::UnderWay {
            return;
        }
        match head.status {
            200..=299 => self.step = Step::Asked(now.saturating_add(QUESTION).unwrap_or(now)),
            // 0.3 section 6.1: hub.verify is REQUIRED.
            400..=499 if !self.old => (self.old, self.step) = (true, Step::Ask(hub)),
            status => {
                let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
                self.next_hub(now, hub, format!("the hub answers {status}: {}", text.trim()));
            }
        }
    }

    fn next_hub(&mut self, now: Timestamp, hub: usize, problem: String) {
        self.old = false;
        if self.found.as_ref().is_some_and(|found| hub + 1 < found.hubs.len()) {
            self.step = Step::Ask(hub + 1);
        } else {
            self.fail(now, problem);
        }
    }

    fn fail(&mut self, now: Timestamp, problem: String) {
        let pause = FIRST_PAUSE.checked_mul(1 << self.failures.min(20)).unwrap_or(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.problem = Some(problem);
        self.old = false;
        self.step = Step::Discover(now.saturating_add(pause.min(LONGEST_PAUSE)).unwrap_or(now));
    }

    /// Answers what a hub sends to the callback. With it comes what was delivered, if it can be believed.
    pub fn handle_call(&mut self, now: Timestamp, call: &Call) -> (Reply, Option<Bytes>) {
        match call.method {
            Method::GET => (self.answer(now, &call.query), None),
            Method::POST => self.take(now, call),
            _ => (Reply::status(405), None),
        }
    }

    /// WebSub 5.3.1: "The subscriber MUST confirm that the hub.topic corresponds to a pending subscription … that it
    /// wishes to carry out … If the subscriber does not agree with the action, the subscriber MUST respond with a
    /// 404".
    fn answer(&mut self, now: Timestamp, query: &str) -> Reply {
        let Ok(form) = Form::parse(query.as_bytes()) else { return Reply::status(404) };
        let topic = self.found.as_ref().map(|found| found.topic.as_str());
        let is_wanted = topic.is_some() && form.last("hub.topic") == topic && self.has_asked();
        match (form.last("hub.mode"), form.last("hub.challenge")) {
            (Some("subscribe"), Some(challenge)) if is_wanted => {
                let reply = Reply { status: 200, body: Bytes::from(challenge.to_owned()) };
                self.begin(now, form.last("hub.lease_seconds").and_then(|text| text.parse().ok()));
                reply
            }
            (Some("denied"), _) if is_wanted => {
                let reason: String =
                    form.last("hub.reason").unwrap_or("no reason").chars().take(200).collect();
                self.ends = None;
                self.fail(now, format!("the hub denies the subscription: {reason}"));
                // "The Subscriber SHOULD then consider that the subscription is not possible anymore": only a person
                // or a long time changes that.
                self.step = Step::Discover(now.saturating_add(LONGEST_PAUSE).unwrap_or(now));
                Reply::status(200)
            }
            _ => Reply::status(404),
        }
    }

    /// Whether a hub was asked for this subscription.
    fn has_asked(&self) -> bool {
        self.ends.is_some()
            || matches!(self.step, Step::Asked(_) | Step::Subscribed(_))
            || self.exchange.as_ref().is_some_and(|exchange| exchange.hub.is_some())
    }

    fn begin(&mut self, now: Timestamp, lease: Option<i64>) {
        let lease = lease.unwrap_or(UNTOLD_LEASE).clamp(1, LONGEST_LEASE);
        let after = |seconds| now.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(now);
        self.ends = Some(after(lease));
        self.step = Step::Subscribed(after(lease - lease / 4 - 1));
        self.failures = 0;
    }

    /// WebSub 7 and 7.1.2, 0.3 section 7.4: what is not signed is refused, what is signed wrongly is acknowledged and
    /// ignored.
    fn take(&mut self, now: Timestamp, call: &Call) -> (Reply, Option<Bytes>) {
        if !self.has_asked() && !self.is_active(now) {
            // "MAY return an HTTP 410 code to indicate that the subscription has been deleted".
            return (Reply::status(410), None);
        }
        let mut values = call.headers.get_all(signature::HEADER).iter();
        let header = values.next().and_then(|value| value.to_str().ok());
        match signature::check(header, self.options.secret.as_bytes(), &call.body) {
            Ok(()) => (Reply::status(202), Some(call.body.clone())),
            Err(error @ signature::SignatureError::Missing) => {
                self.problem = Some(format!("a delivery was refused: {error}"));
                (Reply::status(403), None)
            }
            Err(error) => {
                self.problem = Some(format!("a delivery was ignored: {error}"));
                (Reply::status(202), None)
            }
        }
    }

    /// When to call [`Self::poll_request`] again although nothing is under way.
    pub fn poll_timeout(&self) -> Option<Timestamp> {
        let step = match self.step {
            Step::Discover(at) | Step::Subscribed(at) | Step::Asked(at) => Some(at),
            Step::Ask(_) => Some(Timestamp::MIN),
            Step::UnderWay => None,
        };
        [step, self.ends].into_iter().flatten().min()
    }
}
