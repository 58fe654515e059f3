//! Tests of the hub checker.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use jiff::Timestamp;

use crate::follow::{Call, Checker as _, Exchange as _, Now, ResponseHead};
use crate::planted::PlantedFaults;
use crate::push::websub::check::{HubChecker, websub_rules};
use crate::push::websub::wire::signature::{Algorithm, HEADER, sign};
use crate::report::FindingOutcome;

const LINKS: &str = "<http://h.example/hub>; rel=\"hub\", <http://h.example/t>; rel=\"self\"";

fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

struct Hub {
    checker: HubChecker,
    now: i64,
}

impl Hub {
    fn new() -> Self {
        Self { checker: HubChecker::new("http://h.example/t", "http://me/c?k=1".into(), "s".into()), now: 0 }
    }

    /// Answers the next request; returns its body.
    fn answer(&mut self, status: u16, links: &'static str) -> String {
        let request = self.checker.poll_request(Now::simulated(time(self.now))).expect("a request");
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("text/plain; charset=utf-8"));
        if !links.is_empty() {
            headers.insert("link", HeaderValue::from_static(links));
        }
        let head = ResponseHead { status, url: request.url, headers };
        self.checker.handle_head(Now::simulated(time(self.now)), request.id, head);
        self.checker.handle_end(Now::simulated(time(self.now)), request.id, Ok(()));
        String::from_utf8(request.body.to_vec()).unwrap()
    }

    fn call(&mut self, method: Method, query: &str, headers: HeaderMap, body: &'static [u8]) -> u16 {
        let call = Call { method, query: query.into(), headers, body: Bytes::from_static(body) };
        self.checker.handle_call(Now::simulated(time(self.now)), &call).status
    }

    fn ask(&mut self, query: &str) -> u16 {
        self.call(Method::GET, query, HeaderMap::new(), b"")
    }

    fn failed(&self) -> Vec<&str> {
        let findings = self.checker.report().findings.iter();
        findings.filter(|f| f.outcome == FindingOutcome::Fail).map(|f| f.rule.as_str()).collect()
    }

    fn skipped(&self) -> usize {
        self.checker.report().findings.iter().filter(|f| f.outcome == FindingOutcome::Skipped).count()
    }
}

const QUESTION: &str =
    "k=1&hub.mode=subscribe&hub.topic=http%3A%2F%2Fh.example%2Ft&hub.challenge=c&hub.lease_seconds=60";

#[test]
fn a_good_hub_conforms() {
    let mut hub = Hub::new();
    hub.answer(200, LINKS);
    assert!(!hub.answer(400, "").contains("hub.callback"));
    assert!(hub.answer(202, "").contains("foo=bar"));
    assert_eq!(hub.ask(QUESTION), 200);
    let mut headers = HeaderMap::new();
    headers.insert("content-type", HeaderValue::from_static("text/plain"));
    headers.insert("link", HeaderValue::from_static(LINKS));
    let signature = sign(Algorithm::Sha256, b"s", b"body");
    headers.insert(HEADER, HeaderValue::from_str(&signature).unwrap());
    assert_eq!(hub.call(Method::POST, "k=1", headers, b"body"), 202);
    assert!(hub.answer(202, "").contains("hub.mode=unsubscribe"));
    assert_eq!(hub.ask("k=1&hub.mode=unsubscribe&hub.topic=x&hub.challenge=c"), 200);
    assert!(hub.checker.is_finished() && hub.checker.report().conforms(), "{:?}", hub.failed());
    assert_eq!(hub.skipped(), 0);
}

#[test]
fn a_bad_hub_does_not() {
    let mut hub = Hub::new();
    hub.answer(200, LINKS);
    hub.answer(202, "");
    hub.answer(204, "");
    hub.ask("hub.mode=subscribe&hub.topic=http%3A%2F%2Fother&hub.challenge=c&hub.lease_seconds=-1&k=1");
    assert_eq!(hub.call(Method::POST, "k=1", HeaderMap::new(), b""), 202);
    hub.answer(500, "");
    assert!(hub.checker.is_finished());
    assert_eq!(hub.failed().len(), 10, "{:?}", hub.failed());
}

#[test]
fn what_cannot_be_seen_is_skipped() {
    let mut none = Hub::new();
    none.answer(200, "");
    assert!(none.checker.is_finished());
    assert_eq!(none.failed(), ["the topic names at least one hub"]);
    let mut silent = Hub::new();
    silent.answer(200, LINKS);
    silent.answer(400, "");
    silent.answer(202, "");
    silent.ask(QUESTION);
    silent.now = 21;
    silent.answer(202, "");
    silent.now = 60;
    assert!(silent.checker.poll_request(Now::simulated(time(60))).is_none() && silent.checker.is_finished());
    assert_eq!(silent.skipped(), 4, "what is delivered");
    assert_eq!(silent.failed(), ["a request to unsubscribe is answered 202 and verified"]);
}

/// A hub's part in a check.
struct HubScript {
    links: &'static str,
    no_callback: u16,
    subscribe: u16,
    /// `None` for a hub that does not ask.
    question: Option<String>,
    media_type: &'static str,
    delivery_links: &'static str,
    signature: String,
    body: &'static [u8],
    unsubscribe: u16,
    asks_last: bool,
}

impl HubScript {
    fn good() -> Self {
        Self {
            links: LINKS,
            no_callback: 400,
            subscribe: 202,
            question: Some(QUESTION.into()),
            media_type: "text/plain",
            delivery_links: LINKS,
            signature: sign(Algorithm::Sha256, b"s", b"body"),
            body: b"body",
            unsubscribe: 202,
            asks_last: true,
        }
    }

    /// Plays the script; returns the rules that failed.
    fn play(self) -> Vec<String> {
        let mut hub = Hub::new();
        hub.answer(200, self.links);
        if !hub.checker.is_finished() {
            hub.answer(self.no_callback, "");
            hub.answer(self.subscribe, "");
        }
        if let Some(question) = &self.question
            && !hub.checker.is_finished()
        {
            hub.ask(question);
            let mut headers = HeaderMap::new();
            headers.insert("content-type", HeaderValue::from_static(self.media_type));
            headers.insert("link", HeaderValue::from_static(self.delivery_links));
            headers.insert(HEADER, HeaderValue::from_str(&self.signature).unwrap());
            hub.call(Method::POST, "k=1", headers, self.body);
            hub.answer(self.unsubscribe, "");
            if self.asks_last {
                hub.ask("k=1&hub.mode=unsubscribe&hub.topic=x&hub.challenge=c");
            }
        }
        hub.now = 60;
        while !hub.checker.is_finished() {
            assert!(hub.checker.poll_request(Now::simulated(time(60))).is_none());
        }
        hub.failed().into_iter().map(str::to_owned).collect()
    }
}

#[test]
fn planted_faults_are_named() {
    let good = HubScript::good;
    let asked = |from: &str, to: &str| Some(QUESTION.replace(from, to));
    assert_eq!(good().play(), [""; 0]);
    let own = "<http://h.example/hub>; rel=\"hub\"";
    let faults = [
        (
            "the topic names at least one hub",
            HubScript { links: "<http://h.example/t>; rel=\"self\"", ..good() },
        ),
        ("the topic has exactly one Link header", HubScript { links: own, ..good() }),
        ("a request without hub.callback", HubScript { no_callback: 202, ..good() }),
        ("a request to subscribe is answered 202", HubScript { subscribe: 204, ..good() }),
        ("a request to subscribe is answered 202", HubScript { subscribe: 500, ..good() }),
        ("the hub verifies the request", HubScript { question: None, ..good() }),
        (
            "the question has the request's hub.topic",
            HubScript { question: asked("example%2Ft", "example%2Fu"), ..good() },
        ),
        ("the question has a hub.challenge", HubScript { question: asked("&hub.challenge=c", ""), ..good() }),
        ("a finite hub.lease_seconds", HubScript { question: asked("&hub.lease_seconds=60", ""), ..good() }),
        ("a finite hub.lease_seconds", HubScript { question: asked("=60", "=0"), ..good() }),
        ("a finite hub.lease_seconds", HubScript { question: asked("=60", "=-1"), ..good() }),
        ("the callback's own query", HubScript { question: asked("k=1&", ""), ..good() }),
        ("is signed with the secret", HubScript { signature: "sha256=00".into(), ..good() }),
        (
            "is signed with the secret",
            HubScript { signature: sign(Algorithm::Sha256, b"t", b"body"), ..good() },
        ),
        ("is signed with the secret", HubScript { body: b"other", ..good() }),
        ("is of the topic's type", HubScript { media_type: "text/html", ..good() }),
        ("has Link headers", HubScript { delivery_links: own, ..good() }),
        ("has a body", HubScript { body: b"", signature: sign(Algorithm::Sha256, b"s", b""), ..good() }),
        ("a request to unsubscribe", HubScript { unsubscribe: 500, ..good() }),
        ("a request to unsubscribe", HubScript { asks_last: false, ..good() }),
    ];
    let mut planted = PlantedFaults::new("WebSub");
    for (number, (rule, script)) in faults.into_iter().enumerate() {
        planted.judge(rule, &number.to_string(), script.play().iter().map(String::as_str));
    }
    planted.assert_complete(websub_rules().iter().map(|rule| rule.text));
}
