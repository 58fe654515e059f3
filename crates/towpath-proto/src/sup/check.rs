//! A conformance check of a SUP document, or of a feed and the SUP document that it announces.
//!
//! It fetches what it is pointed at; where that is a feed, once more and the document that it announces; and
//! the documents of a few other periods.

use std::collections::VecDeque;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, DATE};
use jiff::Timestamp;
use serde_json::Value;
use url::Url;

use super::check_rules as rules;
use super::discovery::{Discovery, MEDIA_TYPE, REL, SupLink, X_SUP_ID, discover};
use super::tolerant::without_trailing_commas;
use super::wire::shown;
use crate::asking::{Answer, Asked, Asking};
use crate::follow::{Checker, Exchange, Request, RequestId, ResponseHead, TransferError};
use crate::format::{self, FeedLink, ReadOptions, http_date};
use crate::report::{Report, Rule};

/// How many other periods' documents are looked at.
const MAX_PERIODS: usize = 4;

/// What a request is to show.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Probe {
    /// A SUP document or a feed.
    Start,
    /// The feed again.
    Again,
    /// The document that the feed announces.
    Document,
    /// The document for a period.
    Period(u64),
}

/// A check of one publisher.
#[derive(Debug)]
pub struct SupChecker {
    report: Report,
    start: String,
    probes: VecDeque<(Probe, String)>,
    asking: Asking<Probe>,
    /// What the feed announced at first.
    announced: Vec<SupLink>,
}

impl SupChecker {
    /// A check of the SUP document or the feed at this address.
    pub fn new(url: &str) -> Self {
        Self {
            report: Report::default(),
            start: url.to_owned(),
            probes: VecDeque::from([(Probe::Start, url.to_owned())]),
            asking: Asking::default(),
            announced: Vec::new(),
        }
    }

    fn note(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn judge(&mut self, now: Timestamp, probe: &Probe, head: &ResponseHead, body: &[u8]) {
        let json = body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
        match probe {
            Probe::Start if json && !is_json_feed(body) => {
                let why = "this is a SUP document; a feed shows it";
                self.report.pass_over(&rules::FEED_RULES, why);
                self.judge_document(now, head, body, None);
            }
            Probe::Start if is_feed(head, body) => self.judge_feed(head, body),
            Probe::Start => self.judge_document(now, head, body, None),
            Probe::Again => {
                let (found, _) = announced(head, body);
                let problem = (found.links != self.announced)
                    .then(|| format!("{} at first, then {}", list(&self.announced), list(&found.links)));
                self.note(rules::STABLE_ID, problem);
            }
            Probe::Document => self.judge_document(now, head, body, None),
            Probe::Period(seconds) => self.judge_document(now, head, body, Some(*seconds)),
        }
    }

    fn judge_feed(&mut self, head: &ResponseHead, body: &[u8]) {
        let (found, links) = announced(head, body);
        let none = found.links.is_empty();
        let missing = || "there is no X-SUP-ID, no Link and no atom:link".to_owned();
        self.note(rules::ANNOUNCED, none.then(missing));
        self.judge_header(head);
        self.judge_link(head, &links);
        if none {
            return;
        }
        let disagreement = (found.links.len() > 1).then(|| list(&found.links));
        self.note(rules::AGREE, disagreement);
        self.probes.push_back((Probe::Again, self.start.clone()));
        self.probes.push_back((Probe::Document, found.links[0].url.clone()));
        self.announced = found.links;
    }

    fn judge_header(&mut self, head: &ResponseHead) {
        let Some(value) = head.headers.get(X_SUP_ID) else {
            self.note(rules::HEADER, Some("it is not there".into()));
            return self.report.pass_over(&[rules::HEADER_FORM], "there is no such header");
        };
        self.note(rules::HEADER, None);
        // The grammar has an absolute URL only (`scheme ":" hier-part`), so nothing to resolve against.
        let parsed = SupLink::parse(&String::from_utf8_lossy(value.as_bytes()), None);
        self.note(rules::HEADER_FORM, parsed.err().map(|e| e.to_string()));
    }

    fn judge_link(&mut self, head: &ResponseHead, links: &[FeedLink]) {
        let rule = rules::LINK_FORM;
        let Some(link) = links.iter().find(|link| link.rel.eq_ignore_ascii_case(REL)) else {
            return self.report.pass_over(&[rule], "there is no such link");
        };
        let parsed = SupLink::parse(&link.href, Url::parse(&head.url).ok().as_ref());
        let mistyped = (link.media_type.as_deref() != Some(MEDIA_TYPE))
            .then(|| format!("its type is {:?}", link.media_type.as_deref().unwrap_or_default()));
        self.note(rule, parsed.err().map(|e| e.to_string()).or(mistyped));
    }

    /// `period` is the one that the document was offered for.
    fn judge_document(&mut self, now: Timestamp, head: &ResponseHead, body: &[u8], period: Option<u64>) {
        let media_type = head.header(CONTENT_TYPE.as_str()).unwrap_or_default();
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        let is_json = essence.eq_ignore_ascii_case(MEDIA_TYPE);
        self.note(rules::MEDIA_TYPE, (!is_json).then(|| format!("{}: it is {media_type:?}", head.url)));
        let (document, problem) = read(body);
        self.note(rules::JSON, problem.map(|problem| format!("{}: {problem}", head.url)));
        let Some(document) = document else { return };
        let date = head.header(DATE.as_str()).and_then(|date| http_date::parse(date).ok());
        for (rule, problem) in rules::look_at(&document, date.unwrap_or(now)) {
            // The longer documents have longer periods: what is usual is said of the first.
            let only_first = [rules::USUAL_PERIOD, rules::TWO_PERIODS].contains(&rule);
            if period.is_none() || !only_first {
                self.note(rule, problem.map(|problem| format!("{}: {problem}", head.url)));
            }
        }
        match period {
            Some(seconds) => {
                let found = &document["period"];
                let problem = (found.as_u64() != Some(seconds))
                    .then(|| format!("{}: it is {}, not {seconds}", head.url, shown(&found.to_string())));
                self.note(rules::SAME_PERIOD, problem);
            }
            None => self.probe_periods(&document),
        }
    }

    fn probe_periods(&mut self, document: &Value) {
        let entries = document["available_periods"].as_object();
        let entries =
            entries.into_iter().flatten().filter_map(|(key, url)| Some((key.parse().ok()?, url.as_str()?)));
        let probes: Vec<_> =
            entries.take(MAX_PERIODS).map(|(p, url)| (Probe::Period(p), url.to_owned())).collect();
        if probes.is_empty() {
            self.report.pass_over(&[rules::SAME_PERIOD], "there are no other periods");
        }
        self.probes.extend(probes);
    }

    fn end(&mut self, now: Timestamp, answer: Answer<Probe>) {
        let (Asked { purpose: probe, url, .. }, whole) = answer.whole();
        match whole {
            Ok((head, body)) if head.status == 200 => {
                self.note(rules::REACHED, None);
                self.judge(now, &probe, &head, &body);
            }
            Ok((head, _)) => {
                let problem = format!("{url}: the server answers {}", head.status);
                self.note(rules::REACHED, Some(problem));
            }
            Err(error) => self.note(rules::REACHED, Some(format!("{url}: {error}"))),
        }
    }
}

/// Whether a JSON document is a feed.
fn is_json_feed(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body)
        .is_ok_and(|json| json["version"].is_string() && json["items"].is_array())
}

/// Whether an answer is a feed, or speaks of a SUP document as one does.
fn is_feed(head: &ResponseHead, body: &[u8]) -> bool {
    let options = ReadOptions { content_type: head.header(CONTENT_TYPE.as_str()), ..ReadOptions::default() };
    format::read(body, &options).is_ok() || !announced(head, body).0.links.is_empty()
}

/// What a feed's response announces, and the links of the feed itself.
fn announced(head: &ResponseHead, body: &[u8]) -> (Discovery, Vec<FeedLink>) {
    let content_type = head.header(CONTENT_TYPE.as_str());
    let options = ReadOptions { content_type, base_url: Some(&head.url), ..ReadOptions::default() };
    let links = format::read(body, &options).map(|feed| feed.links).unwrap_or_default();
    (discover(&head.headers, &links, Url::parse(&head.url).ok().as_ref()), links)
}

fn list(links: &[SupLink]) -> String {
    let all: Vec<String> = links.iter().map(SupLink::href).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// The document as far as it can be read, and what is wrong with it as JSON.
fn read(body: &[u8]) -> (Option<Value>, Option<String>) {
    let error = match serde_json::from_slice::<Value>(body) {
        Ok(value @ Value::Object(_)) => return (Some(value), None),
        Ok(other) => return (None, Some(format!("it is {}", shown(&other.to_string())))),
        Err(error) => error.to_string(),
    };
    let (cleaned, _) = without_trailing_commas(body);
    (serde_json::from_slice(&cleaned).ok().filter(Value::is_object), Some(error))
}

impl Exchange for SupChecker {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        if self.asking.is_busy() {
            return None;
        }
        let (probe, url) = self.probes.pop_front()?;
        let mut request = Request { max_body: 32 << 20, ..self.asking.get(url) };
        if matches!(probe, Probe::Document | Probe::Period(_)) {
            request = request.with(ACCEPT, MEDIA_TYPE);
        }
        Some(self.asking.ask(now, probe, request))
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        self.asking.handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        self.asking.handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if let Some(answer) = self.asking.handle_end(id, result) {
            self.end(now, answer);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn is_finished(&self) -> bool {
        !self.asking.is_busy() && self.probes.is_empty()
    }
}

impl Checker for SupChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
