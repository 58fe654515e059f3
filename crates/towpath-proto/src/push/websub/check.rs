//! A conformance check of a topic and its hub, from a subscriber's place: WebSub 4, 5 and 7.
//!
//! It subscribes with a callback of its own, answers the hub's questions, waits a while for something to be delivered,
//! and unsubscribes. What nobody delivers in that time is skipped: publish something to see it.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LINK};
use http::{HeaderMap, Method};
use jiff::{SignedDuration, Timestamp};
use url::form_urlencoded::Serializer;

use super::Mode;
use super::discover::{Discovered, discover};
use super::form::Form;
use super::signature;
use crate::asking::Asking;
use crate::follow::{Call, Checker, Exchange, Reply, Request, RequestId, ResponseHead, TransferError};
use crate::format::link;
use crate::report::{Report, Rule};

/// How long a hub may take to ask its question.
const QUESTION: SignedDuration = SignedDuration::from_secs(30);
/// How long a delivery is waited for.
const DELIVERY: SignedDuration = SignedDuration::from_secs(20);
/// The lease that is asked for, in seconds.
const LEASE: &str = "3600";

const ADVERTISED: Rule = Rule::must("WebSub 4", "the topic names at least one hub");
const ONE_SELF: Rule = Rule::should("WebSub 4", "the topic has exactly one Link header with rel=self");
const NO_CALLBACK: Rule = Rule::must("WebSub 5.1.2", "a request without hub.callback is answered 4xx or 5xx");
const ACCEPTED: Rule = Rule::must("WebSub 5.1.2", "a request to subscribe is answered 202");
const ASKS: Rule = Rule::must("WebSub 5.3", "the hub asks the callback whether the request was meant");
const ASKS_TOPIC: Rule = Rule::must("WebSub 5.3", "the question has the request's hub.topic");
const ASKS_CHALLENGE: Rule = Rule::must("WebSub 5.3", "the question has a hub.challenge");
const ASKS_LEASE: Rule = Rule::must("WebSub 5.3", "the question to subscribe has a finite hub.lease_seconds");
const KEEPS_QUERY: Rule = Rule::must("WebSub 5.1.1", "the callback's own query comes first in the question");
const SIGNED: Rule = Rule::must("WebSub 7.1", "what is delivered is signed with the secret");
const TYPED: Rule = Rule::must("WebSub 7", "what is delivered is of the topic's type");
const LINKED: Rule = Rule::must("WebSub 7", "what is delivered has Link headers with rel=hub and rel=self");
const FILLED: Rule = Rule::must("WebSub 7", "what is delivered has a body");
const UNSUBSCRIBES: Rule = Rule::must("WebSub 3.1", "a request to unsubscribe is answered 202 and verified");

const OF_QUESTION: [Rule; 5] = [ASKS, ASKS_TOPIC, ASKS_CHALLENGE, ASKS_LEASE, KEEPS_QUERY];
const OF_DELIVERY: [Rule; 4] = [SIGNED, TYPED, LINKED, FILLED];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Topic,
    NoCallback,
    Subscribe,
    Question(Timestamp),
    Delivery(Timestamp),
    Unsubscribe,
    LastQuestion(Timestamp),
    Done,
}

/// A check of one topic and its hub.
#[derive(Debug)]
pub struct HubChecker {
    page: String,
    callback: String,
    secret: String,
    report: Report,
    step: Step,
    found: Option<Discovered>,
    topic_type: String,
    asking: Asking<()>,
    /// Whether the question for this request has come: it may do so before the request is answered.
    asked: bool,
}

impl HubChecker {
    /// A check of the topic that can be found at `page`. `callback` leads to [`Checker::handle_call`]; `secret` is
    /// random.
    pub fn new(page: &str, callback: String, secret: String) -> Self {
        Self {
            page: page.to_owned(),
            callback,
            secret,
            report: Report::default(),
            step: Step::Topic,
            found: None,
            topic_type: String::new(),
            asking: Asking::default(),
            asked: false,
        }
    }

    fn note(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn form(&self, mode: Mode, with_callback: bool) -> Bytes {
        let topic = self.found.as_ref().map_or("", |found| found.topic.as_str());
        let mut form = Serializer::new(String::new());
        form.append_pair("hub.mode", mode.name()).append_pair("hub.topic", topic);
        if with_callback {
            form.append_pair("hub.callback", &self.callback).append_pair("hub.secret", &self.secret);
            form.append_pair("hub.lease_seconds", LEASE).append_pair("foo", "bar");
        }
        form.finish().into()
    }

    fn judge_topic(&mut self, head: &ResponseHead, body: &[u8]) {
        self.found = discover(head, body);
        let has_hub = self.found.is_some() && head.status == 200;
        self.note(
            ADVERTISED,
            (!has_hub).then(|| format!("{} answers {} without one", head.url, head.status)),
        );
        if !has_hub {
            return self.end("the topic names no hub");
        }
        let links = link::from_headers(&head.headers, None);
        let count = links.iter().filter(|link| link.has_rel("self")).count();
        self.note(ONE_SELF, (count != 1).then(|| format!("it has {count}")));
        self.topic_type = media_type(&head.headers);
        self.step = Step::NoCallback;
    }

    /// Nothing more can be seen.
    fn end(&mut self, why: &str) {
        let rules = [NO_CALLBACK, ACCEPTED].into_iter().chain(OF_QUESTION).chain(OF_DELIVERY);
        let rules: Vec<Rule> = rules.chain([UNSUBSCRIBES]).collect();
        self.report.pass_over(&rules, why);
        self.step = Step::Done;
    }

    fn judge_answer(&mut self, now: Timestamp, status: u16) {
        let after = |wait| now.saturating_add(wait).unwrap_or(now);
        match self.step {
            Step::NoCallback => {
                self.note(NO_CALLBACK, (status < 400).then(|| format!("it is answered {status}")));
                (self.step, self.asked) = (Step::Subscribe, false);
            }
            Step::Subscribe => {
                self.note(ACCEPTED, (status != 202).then(|| format!("it is answered {status}")));
                if !(200..300).contains(&status) {
                    return self.end("the hub takes no subscription");
                }
                let step = if self.asked {
                    Step::Delivery(after(DELIVERY))
                } else {
                    Step::Question(after(QUESTION))
                };
                self.step = step;
            }
            Step::Unsubscribe => {
                self.note(UNSUBSCRIBES, (status != 202).then(|| format!("it is answered {status}")));
                let is_over = self.asked || status != 202;
                self.step = if is_over { Step::Done } else { Step::LastQuestion(after(QUESTION)) };
            }
            _ => {}
        }
    }

    fn judge_timeout(&mut self, now: Timestamp) {
        match self.step {
            Step::Question(until) if now >= until => {
                self.note(ASKS, Some(format!("nothing came within {QUESTION:#}")));
                self.end("the hub asks nothing");
            }
            Step::Delivery(until) if now >= until => {
                self.report.pass_over(&OF_DELIVERY, "nothing was delivered while it was waited for");
                (self.step, self.asked) = (Step::Unsubscribe, false);
            }
            Step::LastQuestion(until) if now >= until => {
                self.note(UNSUBSCRIBES, Some(format!("no question came within {QUESTION:#}")));
                self.step = Step::Done;
            }
            _ => {}
        }
    }

    fn answer(&mut self, now: Timestamp, query: &str) -> Reply {
        let mode = match self.step {
            Step::Subscribe | Step::Question(_) => Mode::Subscribe,
            Step::Unsubscribe | Step::LastQuestion(_) => Mode::Unsubscribe,
            _ => return Reply::status(404),
        };
        let Ok(form) = Form::parse(query.as_bytes()) else { return Reply::status(404) };
        let challenge = form.last("hub.challenge").unwrap_or_default().to_owned();
        if form.last("hub.mode") != Some(mode.name()) {
            return Reply::status(404);
        }
        self.asked = true;
        if mode == Mode::Subscribe {
            self.judge_question(query, &form);
            if let Step::Question(_) = self.step {
                self.step = Step::Delivery(now.saturating_add(DELIVERY).unwrap_or(now));
            }
        } else if let Step::LastQuestion(_) = self.step {
            self.step = Step::Done;
        }
        Reply { status: 200, body: challenge.into() }
    }

    fn judge_question(&mut self, query: &str, form: &Form) {
        self.note(ASKS, None);
        let topic = self.found.as_ref().map(|found| found.topic.clone());
        let given = form.last("hub.topic").map(str::to_owned);
        self.note(ASKS_TOPIC, (given != topic).then(|| format!("it has {given:?}, not {topic:?}")));
        let challenge = form.last("hub.challenge").unwrap_or_default();
        self.note(ASKS_CHALLENGE, challenge.is_empty().then(|| "it has none".into()));
        let lease = form.last("hub.lease_seconds").unwrap_or_default().to_owned();
        let is_finite = lease.parse::<u64>().is_ok_and(|seconds| seconds > 0);
        self.note(ASKS_LEASE, (!is_finite).then(|| format!("it has {lease:?}")));
        let own = self.callback.split_once('?').map_or("", |(_, own)| own);
        self.note(KEEPS_QUERY, (!query.starts_with(own)).then(|| format!("{query:?}")));
    }

    fn judge_delivery(&mut self, call: &Call) -> Reply {
        let Step::Delivery(_) = self.step else { return Reply::status(410) };
        let header = call.headers.get(signature::HEADER).and_then(|value| value.to_str().ok());
        let signed = signature::check(header, self.secret.as_bytes(), &call.body);
        self.note(SIGNED, signed.err().map(|error| error.to_string()));
        let (given, wanted) = (media_type(&call.headers), self.topic_type.clone());
        self.note(TYPED, (given != wanted).then(|| format!("it is {given:?}, the topic {wanted:?}")));
        let links = link::from_headers(&call.headers, None);
        let has = |rel: &str| links.iter().any(|link| link.has_rel(rel));
        let linked = has("hub") && has("self");
        self.note(LINKED, (!linked).then(|| format!("{:?}", call.headers.get(LINK))));
        self.note(FILLED, call.body.is_empty().then(|| "it is empty".into()));
        (self.step, self.asked) = (Step::Unsubscribe, false);
        Reply::status(202)
    }
}

fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

impl Exchange for HubChecker {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        self.judge_timeout(now);
        if self.asking.is_busy() {
            return None;
        }
        let body = match self.step {
            Step::Topic => None,
            Step::NoCallback => Some(self.form(Mode::Subscribe, false)),
            Step::Subscribe => Some(self.form(Mode::Subscribe, true)),
            Step::Unsubscribe => Some(self.form(Mode::Unsubscribe, true)),
            _ => return None,
        };
        let request = match body {
            None => Request { max_body: 4 << 20, ..self.asking.get(self.page.clone()) },
            Some(body) => {
                let hub = self.found.as_ref()?.hubs.first()?.clone();
                let request = self.asking.get(hub).with(CONTENT_TYPE, "application/x-www-form-urlencoded");
                Request { method: Method::POST, body, max_body: 64 << 10, ..request }
            }
        };
        Some(self.asking.ask(now, (), request))
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        self.asking.handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        self.asking.handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        let Some(answer) = self.asking.handle_end(id, result) else { return };
        match answer.whole().1 {
            Ok((head, body)) if self.step == Step::Topic => self.judge_topic(&head, &body),
            Ok((head, _)) => self.judge_answer(now, head.status),
            Err(error) => {
                let rule = if self.step == Step::Topic { ADVERTISED } else { ACCEPTED };
                self.note(rule, Some(error.to_string()));
                self.end("there is no answer");
            }
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        match self.step {
            Step::Question(at) | Step::Delivery(at) | Step::LastQuestion(at) => Some(at),
            // What came to the callback may have led to a request.
            Step::Unsubscribe if !self.asking.is_busy() => Some(Timestamp::MIN),
            _ => None,
        }
    }

    fn is_finished(&self) -> bool {
        self.step == Step::Done
    }
}

impl Checker for HubChecker {
    fn report(&self) -> &Report {
        &self.report
    }

    fn handle_call(&mut self, now: Timestamp, call: &Call) -> Reply {
        match call.method {
            Method::GET => self.answer(now, &call.query),
            Method::POST => self.judge_delivery(call),
            _ => Reply::status(405),
        }
    }
}
