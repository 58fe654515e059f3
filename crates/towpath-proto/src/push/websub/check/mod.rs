//! Conformance check of a topic and its hub, seen by a subscriber: WebSub 4, 5 and 7.
//!
//! The checker subscribes with its own callback, confirms the hub's verification requests, waits for a
//! delivery, and unsubscribes. Without a delivery in that time the delivery rules are skipped: publish an
//! item to check them.

mod rules;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, LINK};
use http::{HeaderMap, Method};
use url::form_urlencoded::Serializer;

use self::rules::{
    ACCEPTED, ADVERTISED, ASKS, ASKS_CHALLENGE, ASKS_LEASE, ASKS_TOPIC, FILLED, KEEPS_QUERY, LINKED,
    NO_CALLBACK, ONE_SELF, SIGNED, TYPED, UNSUBSCRIBES,
};
use crate::follow::single_request::{CollectedResponse, SingleRequest, SingleRequestExchange};
use crate::follow::{Call, Checker, Monotonic, Now, Reply, Request, ResponseHead};
use crate::format::link;
use crate::format::media_type::essence;
use crate::push::websub::wire::Mode;
use crate::push::websub::wire::discover::{HubLinks, discover};
use crate::push::websub::wire::form::HubForm;
use crate::push::websub::wire::signature;
use crate::report::{Report, Rule};

/// Returns the rules of the check.
pub fn websub_rules() -> &'static [Rule] {
    rules::ALL
}

/// Maximum time until the hub sends its verification request.
const QUESTION: Duration = Duration::from_secs(30);
/// Maximum time to wait for a delivery.
const DELIVERY: Duration = Duration::from_secs(20);
/// Requested lease, in seconds.
const LEASE: &str = "3600";

const OF_QUESTION: [Rule; 5] = [ASKS, ASKS_TOPIC, ASKS_CHALLENGE, ASKS_LEASE, KEEPS_QUERY];
const OF_DELIVERY: [Rule; 4] = [SIGNED, TYPED, LINKED, FILLED];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HubCheckStep {
    Topic,
    NoCallback,
    Subscribe,
    Question(Monotonic),
    Delivery(Monotonic),
    Unsubscribe,
    LastQuestion(Monotonic),
    Done,
}

/// Check of a topic and its hub.
#[derive(Debug)]
pub struct HubChecker {
    page: String,
    callback: String,
    secret: String,
    report: Report,
    step: HubCheckStep,
    found: Option<HubLinks>,
    topic_type: String,
    request: SingleRequest<()>,
    /// `true` once the verification request has arrived: that may happen before the hub responds.
    asked: bool,
}

impl HubChecker {
    /// Creates a check of the topic at the URL `page`. Calls of `callback` must reach
    /// [`Checker::handle_call`]; `secret` must be random.
    pub fn new(page: &str, callback: String, secret: String) -> Self {
        Self {
            page: page.to_owned(),
            callback,
            secret,
            report: Report::default(),
            step: HubCheckStep::Topic,
            found: None,
            topic_type: String::new(),
            request: SingleRequest::default(),
            asked: false,
        }
    }

    fn judge(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn form(&self, mode: Mode, with_callback: bool) -> Bytes {
        let topic = self.found.as_ref().map_or("", |found| found.topic.as_str());
        let mut form = Serializer::new(String::new());
        form.append_pair("hub.mode", mode.name()).append_pair("hub.topic", topic);
        if with_callback {
            form.append_pair("hub.callback", &self.callback).append_pair("hub.secret", &self.secret);
            // "Hubs MUST ignore additional request parameters they do not understand" (WebSub 5.1).
            form.append_pair("hub.lease_seconds", LEASE).append_pair("foo", "bar");
        }
        form.finish().into()
    }

    fn judge_topic(&mut self, head: &ResponseHead, body: &[u8]) {
        self.found = discover(head, body);
        let has_hub = self.found.is_some() && head.status == 200;
        self.judge(
            ADVERTISED,
            (!has_hub).then(|| format!("{} answers {} without one", head.url, head.status)),
        );
        if !has_hub {
            return self.end("the topic names no hub");
        }
        let links = link::from_headers(&head.headers, None);
        // Two self links leave the topic's URL undefined.
        let count = links.iter().filter(|link| link.has_rel("self")).count();
        self.judge(ONE_SELF, (count != 1).then(|| format!("it has {count}")));
        self.topic_type = media_type(&head.headers);
        self.step = HubCheckStep::NoCallback;
    }

    /// Skips all remaining rules.
    fn end(&mut self, why: &str) {
        let rules = [NO_CALLBACK, ACCEPTED].into_iter().chain(OF_QUESTION).chain(OF_DELIVERY);
        let rules: Vec<Rule> = rules.chain([UNSUBSCRIBES]).collect();
        self.report.pass_over(&rules, why);
        self.step = HubCheckStep::Done;
    }

    fn judge_answer(&mut self, now: Now, status: u16) {
        let after = |wait| now.after(wait);
        match self.step {
            HubCheckStep::NoCallback => {
                self.judge(NO_CALLBACK, (status < 400).then(|| format!("it is answered {status}")));
                (self.step, self.asked) = (HubCheckStep::Subscribe, false);
            }
            HubCheckStep::Subscribe => {
                self.judge(ACCEPTED, (status != 202).then(|| format!("it is answered {status}")));
                // Any success counts here, so that the check can go on.
                if !(200..300).contains(&status) {
                    return self.end("the hub accepts no subscription");
                }
                let step = if self.asked {
                    HubCheckStep::Delivery(after(DELIVERY))
                } else {
                    HubCheckStep::Question(after(QUESTION))
                };
                self.step = step;
            }
            HubCheckStep::Unsubscribe => {
                self.judge(UNSUBSCRIBES, (status != 202).then(|| format!("it is answered {status}")));
                // A synchronous hub has verified before it responds.
                let is_over = self.asked || status != 202;
                self.step =
                    if is_over { HubCheckStep::Done } else { HubCheckStep::LastQuestion(after(QUESTION)) };
            }
            _ => {}
        }
    }

    fn judge_timeout(&mut self, now: Now) {
        match self.step {
            HubCheckStep::Question(until) if now.monotonic >= until => {
                // Without verification the subscription does not exist, so the remaining rules are skipped.
                self.judge(ASKS, Some(format!("nothing came within {QUESTION:?}")));
                self.end("the hub did not verify the request");
            }
            HubCheckStep::Delivery(until) if now.monotonic >= until => {
                self.report.pass_over(&OF_DELIVERY, "nothing was delivered while it was waited for");
                (self.step, self.asked) = (HubCheckStep::Unsubscribe, false);
            }
            HubCheckStep::LastQuestion(until) if now.monotonic >= until => {
                self.judge(UNSUBSCRIBES, Some(format!("no question came within {QUESTION:?}")));
                self.step = HubCheckStep::Done;
            }
            _ => {}
        }
    }

    fn answer(&mut self, now: Now, query: &str) -> Reply {
        let mode = match self.step {
            HubCheckStep::Subscribe | HubCheckStep::Question(_) => Mode::Subscribe,
            HubCheckStep::Unsubscribe | HubCheckStep::LastQuestion(_) => Mode::Unsubscribe,
            _ => return Reply::status(404),
        };
        let Ok(form) = HubForm::parse(query.as_bytes()) else { return Reply::status(404) };
        let challenge = form.last("hub.challenge").unwrap_or_default().to_owned();
        // A request for the other mode is not pending, so it must be refused.
        if form.last("hub.mode") != Some(mode.name()) {
            return Reply::status(404);
        }
        self.asked = true;
        if mode == Mode::Subscribe {
            self.judge_question(query, &form);
            if let HubCheckStep::Question(_) = self.step {
                self.step = HubCheckStep::Delivery(now.after(DELIVERY));
            }
        } else if let HubCheckStep::LastQuestion(_) = self.step {
            self.step = HubCheckStep::Done;
        }
        Reply { status: 200, body: challenge.into() }
    }

    fn judge_question(&mut self, query: &str, form: &HubForm) {
        self.judge(ASKS, None);
        let topic = self.found.as_ref().map(|found| found.topic.clone());
        let given = form.last("hub.topic").map(str::to_owned);
        self.judge(ASKS_TOPIC, (given != topic).then(|| format!("it has {given:?}, not {topic:?}")));
        let challenge = form.last("hub.challenge").unwrap_or_default();
        self.judge(ASKS_CHALLENGE, challenge.is_empty().then(|| "it has none".into()));
        let lease = form.last("hub.lease_seconds").unwrap_or_default().to_owned();
        let is_finite = lease.parse::<u64>().is_ok_and(|seconds| seconds > 0);
        self.judge(ASKS_LEASE, (!is_finite).then(|| format!("it has {lease:?}")));
        let own = self.callback.split_once('?').map_or("", |(_, own)| own);
        self.judge(KEEPS_QUERY, (!query.starts_with(own)).then(|| format!("{query:?}")));
    }

    fn judge_delivery(&mut self, call: &Call) -> Reply {
        // 410 tells a hub that delivers after the check to drop the subscription (WebSub 7).
        let HubCheckStep::Delivery(_) = self.step else { return Reply::status(410) };
        // A value with characters beyond ASCII cannot be a signature.
        let header = call.headers.get(signature::HEADER).and_then(|value| value.to_str().ok());
        let signed = signature::check(header, self.secret.as_bytes(), &call.body);
        self.judge(SIGNED, signed.err().map(|error| error.to_string()));
        let (given, wanted) = (media_type(&call.headers), self.topic_type.clone());
        self.judge(TYPED, (given != wanted).then(|| format!("it is {given:?}, the topic {wanted:?}")));
        let links = link::from_headers(&call.headers, None);
        let has = |rel: &str| links.iter().any(|link| link.has_rel(rel));
        let linked = has("hub") && has("self");
        self.judge(LINKED, (!linked).then(|| format!("{:?}", call.headers.get(LINK))));
        self.judge(FILLED, call.body.is_empty().then(|| "it is empty".into()));
        (self.step, self.asked) = (HubCheckStep::Unsubscribe, false);
        Reply::status(202)
    }
}

fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    essence(value).to_ascii_lowercase()
}

impl SingleRequestExchange for HubChecker {
    type Purpose = ();

    fn single_request(&self) -> &SingleRequest<()> {
        &self.request
    }

    fn single_request_mut(&mut self) -> &mut SingleRequest<()> {
        &mut self.request
    }

    fn next_request(&mut self, now: Now) -> Option<Request> {
        self.judge_timeout(now);
        if self.request.is_in_flight() {
            return None;
        }
        let body = match self.step {
            HubCheckStep::Topic => None,
            HubCheckStep::NoCallback => Some(self.form(Mode::Subscribe, false)),
            HubCheckStep::Subscribe => Some(self.form(Mode::Subscribe, true)),
            HubCheckStep::Unsubscribe => Some(self.form(Mode::Unsubscribe, true)),
            _ => return None,
        };
        let request = match body {
            None => Request { max_body: 4 << 20, ..self.request.get(self.page.clone()) },
            Some(body) => {
                let hub = self.found.as_ref()?.hubs.first()?.clone();
                let request = self.request.get(hub).with(CONTENT_TYPE, "application/x-www-form-urlencoded");
                Request { method: Method::POST, body, max_body: 64 << 10, ..request }
            }
        };
        Some(self.request.send(now, (), request))
    }

    fn handle_response(&mut self, now: Now, response: CollectedResponse<()>) {
        match response.whole().1 {
            Ok((head, body)) if self.step == HubCheckStep::Topic => self.judge_topic(&head, &body),
            Ok((head, _)) => self.judge_answer(now, head.status),
            Err(error) => {
                let rule = if self.step == HubCheckStep::Topic { ADVERTISED } else { ACCEPTED };
                self.judge(rule, Some(error.to_string()));
                self.end("there is no answer");
            }
        }
    }

    fn next_timeout(&self) -> Option<Monotonic> {
        match self.step {
            HubCheckStep::Question(at) | HubCheckStep::Delivery(at) | HubCheckStep::LastQuestion(at) => {
                Some(at)
            }
            // A delivery may have ended the wait, so a request is due at once.
            HubCheckStep::Unsubscribe if !self.request.is_in_flight() => Some(Monotonic::ORIGIN),
            _ => None,
        }
    }

    fn is_over(&self) -> bool {
        self.step == HubCheckStep::Done
    }
}

impl Checker for HubChecker {
    fn report(&self) -> &Report {
        &self.report
    }

    fn handle_call(&mut self, now: Now, call: &Call) -> Reply {
        match call.method {
            Method::GET => self.answer(now, &call.query),
            Method::POST => self.judge_delivery(call),
            _ => Reply::status(405),
        }
    }
}

#[cfg(test)]
mod tests;
