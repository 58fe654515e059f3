//! Subscription from the subscriber's side (WebSub 5; PubSubHubbub 0.3 section 6). Discovers the hub, sends
//! the request, confirms the verification, renews the lease, and checks signatures of deliveries.
//!
//! Requests follow WebSub first. A hub that refuses with 4xx gets a PubSubHubbub 0.3 request.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Method;
use http::header::CONTENT_TYPE;
use url::form_urlencoded::Serializer;

use crate::follow::{Backoff, Call, Monotonic, Now, Reply, Request, RequestId, ResponseHead, TransferError};
use crate::push::websub::wire::discover::{HubLinks, discover, is_in_headers};
use crate::push::websub::wire::form::HubForm;
use crate::push::websub::wire::{decode_unreserved, signature};

/// Waits after failed attempts to subscribe.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(5), Duration::from_secs(60 * 60));
/// Maximum time until the hub sends its verification request.
const QUESTION: Duration = Duration::from_secs(5 * 60);
/// Assumed lease if the hub gives none, in seconds.
const UNTOLD_LEASE: u64 = 24 * 60 * 60;
/// Maximum lease that is accepted from a hub, in seconds.
const LONGEST_LEASE: u64 = 365 * UNTOLD_LEASE;
/// Minimum time until a renewal, in seconds.
const SHORTEST_RENEWAL: u64 = 10;

/// Options of a subscription.
#[derive(Debug, Clone)]
pub struct SubscribeOptions {
    /// Callback URL: unguessable and unique (WebSub 5.1).
    pub callback: String,
    /// Key that deliveries must be signed with: random, less than 200 bytes.
    pub secret: String,
    /// Requested lease; without it the hub chooses.
    pub lease: Option<Duration>,
    /// Time without a push after which the feed is pulled anyway.
    pub silence: Duration,
    /// Maximum size of a document to search for links, in bytes: that of the feed's documents.
    pub max_document: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum SubscribeStep {
    /// Discover the hub at this time.
    Discover(Monotonic),
    /// Send a request to the hub with this index.
    Ask(usize),
    /// A request is in progress.
    UnderWay,
    /// The hub accepted the request, and must verify it by this time.
    Asked(Monotonic),
    /// Subscribed; renew at this time.
    Subscribed(Monotonic),
}

#[derive(Debug)]
struct PendingExchange {
    id: RequestId,
    /// Index of the hub of a subscription request; `None` during discovery.
    hub: Option<usize>,
    head: Option<ResponseHead>,
    needs_body: bool,
    body: BytesMut,
}

/// State of a subscription.
#[derive(Debug)]
pub struct Subscriber {
    page: String,
    options: SubscribeOptions,
    step: SubscribeStep,
    found: Option<HubLinks>,
    /// `true` if the current hub requires PubSubHubbub 0.3.
    old: bool,
    /// End of the lease, if subscribed.
    ends: Option<Monotonic>,
    failures: u32,
    exchange: Option<PendingExchange>,
    requests: u64,
    problem: Option<String>,
}

impl Subscriber {
    /// Creates a subscription to the topic at the URL `page`.
    pub fn new(page: &str, options: SubscribeOptions) -> Self {
        Self {
            page: page.to_owned(),
            options,
            step: SubscribeStep::Discover(Monotonic::ORIGIN),
            found: None,
            old: false,
            ends: None,
            failures: 0,
            exchange: None,
            requests: 0,
            problem: None,
        }
    }

    /// Returns `true` while the lease lasts.
    pub fn is_active(&self, now: Now) -> bool {
        self.ends.is_some_and(|ends| now.monotonic < ends)
    }

    /// Returns `true` while the subscription is about to begin: no attempt has failed since the last confirmation, and none
    /// is waited for after a lease that was too short.
    pub fn is_hopeful(&self) -> bool {
        self.failures == 0 && !matches!(self.step, SubscribeStep::Subscribed(_))
    }

    /// Returns the last problem, once.
    pub fn take_problem(&mut self) -> Option<String> {
        self.problem.take()
    }

    /// Returns the next request to send.
    pub fn poll_request(&mut self, now: Now) -> Option<Request> {
        self.ends = self.ends.filter(|ends| now.monotonic < *ends);
        // A single request at a time: the steps depend on each other.
        if self.exchange.is_some() {
            return None;
        }
        if let SubscribeStep::Asked(until) = self.step
            && now.monotonic >= until
        {
            self.fail(now, "the hub did not verify the request in time".into());
        }
        let (hub, request) = match self.step {
            SubscribeStep::Discover(at) | SubscribeStep::Subscribed(at) if now.monotonic >= at => {
                let request = Request::get(self.next_id(), self.page.clone());
                (None, Request { max_body: self.options.max_document, ..request })
            }
            SubscribeStep::Ask(hub) => (Some(hub), self.subscription_request(hub)?),
            _ => return None,
        };
        self.step = SubscribeStep::UnderWay;
        self.exchange = Some(PendingExchange {
            id: request.id,
            hub,
            head: None,
            needs_body: true,
            body: BytesMut::new(),
        });
        Some(request)
    }

    /// Returns a request id. They count down from the maximum, because the pulling follower counts up.
    fn next_id(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(u64::MAX - self.requests)
    }

    /// Creates a subscription request as a form (WebSub 5.1).
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
        // The response's body only matters for its error text, so its limit is small.
        Some(Request { method: Method::POST, body: form.finish().into(), max_body: 64 << 10, ..request })
    }

    /// Handles the head of a response.
    pub fn handle_head(&mut self, id: RequestId, head: ResponseHead) {
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.id == id) {
            // A document may be large, and headers come first (WebSub 4).
            exchange.needs_body = exchange.hub.is_some() || !is_in_headers(&head);
            exchange.head = Some(head);
        }
    }

    /// Handles a piece of a response's body.
    pub fn handle_chunk(&mut self, id: RequestId, chunk: &[u8]) {
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.id == id)
            && exchange.needs_body
        {
            exchange.body.extend_from_slice(chunk);
        }
    }

    /// Handles the end of a response. Returns `true` if the request belongs to this subscriber.
    pub fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) -> bool {
        let Some(exchange) = self.exchange.take_if(|exchange| exchange.id == id) else { return false };
        match (exchange.head, exchange.hub, result) {
            (Some(head), None, result) => self.handle_topic(now, &head, &exchange.body, result),
            // The status counts. The body may only say why.
            (Some(head), Some(hub), _) => self.handle_hub_response(now, hub, &head, &exchange.body),
            (None, None, Err(error)) => self.fail(now, format!("cannot look for the hub: {error}")),
            (None, Some(hub), Err(error)) => self.next_hub(now, hub, format!("cannot ask the hub: {error}")),
            (None, _, Ok(())) => self.fail(now, "no answer".into()),
        }
        true
    }

    fn handle_topic(
        &mut self,
        now: Now,
        head: &ResponseHead,
        body: &[u8],
        result: Result<(), TransferError>,
    ) {
        if head.status != 200 {
            return self.fail(now, format!("the topic answers {}", head.status));
        }
        // Links are in the headers or at the begin of a document, so one that did not come to its end may have them.
        match (discover(head, body), result) {
            (Some(found), _) => {
                (self.found, self.step) = (Some(found), SubscribeStep::Ask(0));
            }
            (None, Err(error)) => self.fail(now, format!("cannot look for the hub: {error}")),
            (None, Ok(())) => self.fail(now, "the topic has no hub".into()),
        }
    }

    fn handle_hub_response(&mut self, now: Now, hub: usize, head: &ResponseHead, body: &[u8]) {
        // The verification may have arrived and been confirmed before this response.
        if self.step != SubscribeStep::UnderWay {
            return;
        }
        match head.status {
            200..=299 => self.step = SubscribeStep::Asked(now.after(QUESTION)),
            // 0.3 section 6.1: hub.verify is REQUIRED.
            400..=499 if !self.old => (self.old, self.step) = (true, SubscribeStep::Ask(hub)),
            status => {
                let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
                self.next_hub(now, hub, format!("the hub answers {status}: {}", text.trim()));
            }
        }
    }

    fn next_hub(&mut self, now: Now, hub: usize, problem: String) {
        self.old = false;
        if self.found.as_ref().is_some_and(|found| hub + 1 < found.hubs.len()) {
            self.step = SubscribeStep::Ask(hub + 1);
        } else {
            self.fail(now, problem);
        }
    }

    fn fail(&mut self, now: Now, problem: String) {
        self.failures = self.failures.saturating_add(1);
        self.problem = Some(problem);
        self.old = false;
        self.step = SubscribeStep::Discover(now.after(BACKOFF.wait(self.failures)));
    }

    /// Responds to a call of the callback. Returns a delivery's body with it, if its signature is valid.
    pub fn handle_call(&mut self, now: Now, call: &Call) -> (Reply, Option<Bytes>) {
        match call.method {
            Method::GET => (self.verify_intent(now, &call.query), None),
            Method::POST => self.check_delivery(now, call),
            _ => (Reply::status(405), None),
        }
    }

    /// Responds to a verification request. WebSub 5.3.1: "The subscriber MUST confirm that the hub.topic
    /// corresponds to a pending subscription … that it wishes to carry out … If the subscriber does not agree
    /// with the action, the subscriber MUST respond with a 404".
    fn verify_intent(&mut self, now: Now, query: &str) -> Reply {
        let Ok(form) = HubForm::parse(query.as_bytes()) else { return Reply::status(404) };
        // Hubs decode the topic (5.1.1), and may ask about it so.
        let is_topic = |found: &HubLinks| {
            form.last("hub.topic").map(decode_unreserved) == Some(decode_unreserved(&found.topic))
        };
        let is_wanted = self.found.as_ref().is_some_and(is_topic) && self.has_asked();
        match (form.last("hub.mode"), form.last("hub.challenge")) {
            (Some("subscribe"), Some(challenge)) if is_wanted => {
                let reply = Reply { status: 200, body: Bytes::from(challenge.to_owned()) };
                self.start_lease(now, form.last("hub.lease_seconds").and_then(|text| text.parse().ok()));
                reply
            }
            (Some("denied"), _) if is_wanted => {
                let reason: String =
                    form.last("hub.reason").unwrap_or("no reason").chars().take(200).collect();
                self.ends = None;
                self.fail(now, format!("the hub denies the subscription: {reason}"));
                // "The Subscriber SHOULD then consider that the subscription is not possible anymore": the
                // next attempt waits for the longest pause.
                self.step = SubscribeStep::Discover(now.after(BACKOFF.cap()));
                Reply::status(200)
            }
            _ => Reply::status(404),
        }
    }

    /// Returns `true` if a hub was sent a request for this subscription.
    fn has_asked(&self) -> bool {
        self.ends.is_some()
            || matches!(self.step, SubscribeStep::Asked(_) | SubscribeStep::Subscribed(_))
            || self.exchange.as_ref().is_some_and(|exchange| exchange.hub.is_some())
    }

    fn start_lease(&mut self, now: Now, lease: Option<i64>) {
        // WebSub 5.1: a lease is a positive number, so any other tells nothing.
        let lease = lease.and_then(|lease| u64::try_from(lease).ok()).filter(|lease| *lease > 0);
        let lease = lease.unwrap_or(UNTOLD_LEASE).min(LONGEST_LEASE);
        let after = |seconds| now.after(Duration::from_secs(seconds));
        self.ends = Some(after(lease));
        // Renewal after three quarters of the lease leaves time for retries. A lease of a second must not have the hub and the
        // topic asked without a pause: the feed is pulled in between.
        self.step = SubscribeStep::Subscribed(after((lease - lease / 4 - 1).max(SHORTEST_RENEWAL)));
        self.failures = 0;
    }

    /// Checks the signature of a delivery. WebSub 7 and 7.1.2, 0.3 section 7.4: an unsigned delivery is
    /// refused, a wrong signature is acknowledged and ignored.
    fn check_delivery(&mut self, now: Now, call: &Call) -> (Reply, Option<Bytes>) {
        if !self.has_asked() && !self.is_active(now) {
            // "MAY return an HTTP 410 code to indicate that the subscription has been deleted".
            return (Reply::status(410), None);
        }
        let mut values = call.headers.get_all(signature::HEADER).iter();
        let header = values.next().and_then(|value| value.to_str().ok());
        match signature::check(header, self.options.secret.as_bytes(), &call.body) {
            // 202 and not 200: the delivery is processed after the response (WebSub 7).
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

    /// Returns the time of the next call of [`Self::poll_request`].
    pub fn poll_timeout(&self) -> Option<Monotonic> {
        let step = match self.step {
            SubscribeStep::Discover(at) | SubscribeStep::Subscribed(at) | SubscribeStep::Asked(at) => {
                Some(at)
            }
            SubscribeStep::Ask(_) => Some(Monotonic::ORIGIN),
            SubscribeStep::UnderWay => None,
        };
        [step, self.ends].into_iter().flatten().min()
    }
}
