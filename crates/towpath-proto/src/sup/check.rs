//! A conformance check of a SUP document, or of a feed and the SUP document that it announces.
//!
//! It fetches what it is pointed at; where that is a feed, once more and the document that it announces; and
//! the documents of a few other periods.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, DATE};
use jiff::Timestamp;
use serde_json::Value;
use url::Url;

use super::check_rules::{self as rules, Rule};
use super::discovery::{Discovery, MEDIA_TYPE, REL, SupLink, X_SUP_ID, discover};
use super::tolerant::without_trailing_commas;
use super::wire::shown;
use crate::follow::{Checker, Exchange, Request, RequestId, ResponseHead, TransferError};
use crate::format::{self, FeedLink, ReadOptions, http_date};
use crate::report::Report;

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

#[derive(Debug)]
struct Exchanging {
    id: RequestId,
    probe: Probe,
    url: String,
    head: Option<ResponseHead>,
    body: BytesMut,
}

/// A check of one publisher.
#[derive(Debug)]
pub struct SupChecker {
    report: Report,
    start: String,
    probes: VecDeque<(Probe, String)>,
    exchange: Option<Exchanging>,
    requests: u64,
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
            exchange: None,
            requests: 0,
            announced: Vec::new(),
        }
    }

    fn note(&mut self, rule: Rule, problem: Option<String>) {
        self.report.check(rule.section, rule.level, rule.text, problem);
    }

    fn judge(&mut self, now: Timestamp, probe: Probe, head: &ResponseHead, body: &[u8]) {
        let json = body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
        match probe {
            Probe::Start if json && !is_json_feed(body) => {
                let why = "this is a SUP document; a feed shows it";
                rules::FEED_RULES.iter().for_each(|r| self.report.skip(r.section, r.level, r.text, why));
                self.judge_document(now, head, body, None);
            }
            Probe::Start => self.judge_feed(head, body),
            Probe::Again => {
                let (found, _) = announced(head, body);
                let problem = (found.links != self.announced)
                    .then(|| format!("{} at first, then {}", list(&self.announced), list(&found.links)));
                self.note(rules::STABLE_ID, problem);
            }
            Probe::Document => self.judge_document(now, head, body, None),
            Probe::Period(seconds) => self.judge_document(now, head, body, Some(seconds)),
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
            let rule = rules::HEADER_FORM;
            return self.report.skip(rule.section, rule.level, rule.text, "there is no such header");
        };
        self.note(rules::HEADER, None);
        // The grammar has an absolute URL only (`scheme ":" hier-part`), so nothing to resolve against.
        let parsed = SupLink::parse(&String::from_utf8_lossy(value.as_bytes()), None);
        self.note(rules::HEADER_FORM, parsed.err().map(|e| e.to_string()));
    }

    fn judge_link(&mut self, head: &ResponseHead, links: &[FeedLink]) {
        let rule = rules::LINK_FORM;
        let Some(link) = links.iter().find(|link| link.rel.eq_ignore_ascii_case(REL)) else {
            return self.report.skip(rule.section, rule.level, rule.text, "there is no such link");
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
            let rule = rules::SAME_PERIOD;
            self.report.skip(rule.section, rule.level, rule.text, "there are no other periods");
        }
        self.probes.extend(probes);
    }

    fn end(&mut self, now: Timestamp, exchange: Exchanging, result: Result<(), TransferError>) {
        let problem = match (&exchange.head, result) {
            (_, Err(error)) => Some(error.to_string()),
            (None, Ok(())) => Some("no answer".to_owned()),
            (Some(head), Ok(())) => {
                (head.status != 200).then(|| format!("the server answers {}", head.status))
            }
        };
        let failed = problem.is_some();
        self.note(rules::REACHED, problem.map(|problem| format!("{}: {problem}", exchange.url)));
        if let Some(head) = exchange.head.filter(|_| !failed) {
            self.judge(now, exchange.probe, &head, &exchange.body);
        }
    }
}

/// Whether a JSON document is a feed.
fn is_json_feed(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body)
        .is_ok_and(|json| json["version"].is_string() && json["items"].is_array())
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
    fn poll_request(&mut self, _now: Timestamp) -> Option<Request> {
        if self.exchange.is_some() {
            return None;
        }
        let (probe, url) = self.probes.pop_front()?;
        self.requests += 1;
        let id = RequestId(self.requests);
        let mut request = Request::get(id, url.clone());
        if matches!(probe, Probe::Document | Probe::Period(_)) {
            request = request.with(ACCEPT, MEDIA_TYPE);
        }
        request.max_body = 32 << 20;
        self.exchange = Some(Exchanging { id, probe, url, head: None, body: BytesMut::new() });
        Some(request)
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.id == id) {
            exchange.head = Some(head);
        }
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        if let Some(exchange) = self.exchange.as_mut().filter(|exchange| exchange.id == id) {
            exchange.body.extend_from_slice(&chunk);
        }
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if let Some(exchange) = self.exchange.take_if(|exchange| exchange.id == id) {
            self.end(now, exchange, result);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn is_finished(&self) -> bool {
        self.exchange.is_none() && self.probes.is_empty()
    }
}

impl Checker for SupChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::report::{Level, Outcome};
    use crate::sup::publish::RecentMoves;

    const FEED: &str = "https://a.example/feeds/x/atom";
    const SUP: &str = "https://a.example/sup.json";

    /// What each address answers: headers and body. An address that is not there answers 404.
    #[derive(Clone, Default)]
    struct Site(HashMap<String, (Vec<(&'static str, String)>, String)>);

    impl Site {
        fn put(&mut self, url: &str, headers: &[(&'static str, &str)], body: &str) {
            let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            self.0.insert(url.into(), (headers, body.to_owned()));
        }

        fn check(&self, url: &str) -> Report {
            let (mut checker, now) = (SupChecker::new(url), "2024-01-01T00:00:00Z".parse().unwrap());
            while let Some(request) = checker.poll_request(now) {
                let mut headers = HeaderMap::new();
                let answer = self.0.get(&request.url);
                for (name, value) in answer.iter().flat_map(|(headers, _)| headers) {
                    headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
                }
                let status = if answer.is_some() { 200 } else { 404 };
                checker.handle_head(now, request.id, ResponseHead { status, url: request.url, headers });
                let body = answer.map_or(String::new(), |(_, body)| body.clone());
                checker.handle_chunk(now, request.id, Bytes::from(body));
                checker.handle_end(now, request.id, Ok(()));
            }
            assert!(checker.is_finished());
            checker.report().clone()
        }
    }

    /// Our own publisher's site.
    fn ours() -> Site {
        let (mut site, now) = (Site::default(), "2024-01-01T00:00:00Z".parse().unwrap());
        let mut moves = RecentMoves::default();
        moves.record(crate::sup::id::SupId::of(FEED), 7, now);
        for seconds in [60, 300, 3600, 86400] {
            let body = moves.document(now, seconds, SUP).body;
            site.put(&format!("{SUP}?seconds={seconds}"), &[("content-type", "application/json")], &body);
            if seconds == 60 {
                site.put(SUP, &[("content-type", "application/json")], &body);
            }
        }
        let link = SupLink::new(SUP, FEED);
        let feed = format!(
            "<feed xmlns='http://www.w3.org/2005/Atom'><id>x</id><title>x</title><updated>2024-01-01T00:00:00Z\
             </updated><link rel='{REL}' type='application/json' href='{}'/></feed>",
            link.href()
        );
        site.put(FEED, &[("content-type", "application/atom+xml"), ("x-sup-id", &link.href())], &feed);
        site
    }

    fn failed(report: &Report) -> Vec<&str> {
        let failed = report.findings.iter().filter(|finding| finding.outcome == Outcome::Fail);
        failed.map(|finding| finding.rule.as_str()).collect()
    }

    #[test]
    fn our_own_feeds_pass_everything() {
        let report = ours().check(FEED);
        assert!(report.findings.iter().all(|f| f.outcome == Outcome::Pass), "{report:#?}");
        assert_eq!(report.findings.len(), 22, "every rule is looked at");
        assert!(ours().check(SUP).conforms());
        assert_eq!(ours().check(SUP).count(Level::Must, Outcome::Skipped), 3);
    }

    /// Sections 3 to 5: each way to break a document is found, in the place where it is.
    #[test]
    fn sections_3_to_5_what_a_document_lacks_is_found() {
        for (from, to, rules) in [
            ("\"updates\"", "\"changes\"", vec![rules::UPDATES]),
            ("],\"period\"", ",],\"period\"", vec![rules::JSON]),
            ("\"period\":60", "\"period\":\"60\"", vec![rules::PERIOD]),
            ("\"period\":60", "\"period\":0", vec![rules::PERIOD]),
            ("\"period\":60", "\"period\":130", vec![rules::OVERLAP, rules::USUAL_PERIOD]),
            ("\"period\":60", "\"period\":131", vec![rules::WINDOW, rules::OVERLAP, rules::USUAL_PERIOD]),
            ("\"since_time\":\"2023-12-31T", "\"since_time\":\"2023-12-31 ", vec![rules::SINCE_TIME]),
            (
                "\"updated_time\":\"2024-01-01T00:00:00Z\"",
                "\"updated_time\":1704067200",
                vec![rules::UPDATED_TIME],
            ),
            ("\"2024-01-01T00:00:00Z\"", "\"2025-01-01T00:00:00Z\"", vec![rules::RECENT]),
            ("{\"300\"", "{\"5 minutes\"", vec![rules::PERIODS]),
            ("\"https://a.example/sup.json?seconds=300\"", "300", vec![rules::PERIODS]),
            (".json?seconds=300", ".json?seconds=3600", vec![rules::SAME_PERIOD]),
            (".json?seconds=300", ".json?seconds=301", vec![rules::REACHED]),
            (",\"7\"]", ",7]", vec![rules::UPDATES]),
            (",\"7\"]", ",\"7/8\"]", vec![rules::UPDATE_ID]),
            (",\"7\"]", ",\"\"]", vec![rules::UPDATE_ID]),
            ("[[\"", "[[\"a/b", vec![rules::SUP_ID]),
        ] {
            let mut site = ours();
            let (_, body) = &site.0[SUP];
            let body = body.replacen(from, to, 1);
            assert_ne!(body, site.0[SUP].1, "{from}");
            site.put(SUP, &[("content-type", "application/json")], &body);
            let report = site.check(SUP);
            let wanted: Vec<&str> = rules.iter().map(|rule| rule.text).collect();
            assert_eq!(failed(&report), wanted, "{from} → {to}: {report:#?}");
        }
    }

    #[test]
    fn section_3_other_media_types_and_other_json_fail() {
        let mut site = ours();
        let (_, body) = site.0[SUP].clone();
        site.put(SUP, &[("content-type", "text/html")], &body);
        assert_eq!(failed(&site.check(SUP)), [rules::MEDIA_TYPE.text]);
        site.put(SUP, &[("content-type", "application/json")], "{\"updates\"");
        assert_eq!(failed(&site.check(SUP)), [rules::JSON.text]);
        assert_eq!(failed(&site.check("https://a.example/none")), [rules::REACHED.text]);
    }

    /// Sections 4 and 6: what a feed lacks.
    #[test]
    fn sections_4_and_6_what_a_feed_lacks_is_found() {
        let mut site = ours();
        let (_, body) = site.0[FEED].clone();
        let bare = body.split_once("<link").map(|(start, _)| format!("{start}</feed>")).unwrap();
        let atom = ("content-type", "application/atom+xml");
        let good = SupLink::new(SUP, FEED).href();
        for (headers, body, wanted) in [
            (vec![atom], &bare, vec![rules::ANNOUNCED, rules::HEADER]),
            (vec![atom], &body, vec![rules::HEADER]),
            (vec![atom, ("x-sup-id", &good)], &bare, vec![]),
            (vec![atom, ("x-sup-id", "/sup.json#ab")], &bare, vec![rules::HEADER_FORM]),
            (
                vec![atom, ("x-sup-id", &good)],
                &body.replace("application/json", "text/json"),
                vec![rules::LINK_FORM],
            ),
            (vec![atom, ("x-sup-id", "https://a.example/sup.json#ab")], &body, vec![rules::AGREE]),
        ] {
            site.put(FEED, &headers, body);
            let wanted: Vec<&str> = wanted.iter().map(|rule| rule.text).collect();
            assert_eq!(failed(&site.check(FEED)), wanted, "{headers:?} {body}");
        }
    }

    /// Section 4: "A single feed MUST always map to a single, stable SUP ID".
    #[test]
    fn section_4_an_id_that_changes_is_found() {
        let now = "2024-01-01T00:00:00Z".parse().unwrap();
        let mut checker = SupChecker::new(FEED);
        for id in ["a", "b"] {
            let request = checker.poll_request(now).unwrap();
            let value = HeaderValue::from_str(&format!("{SUP}#{id}")).unwrap();
            let head = ResponseHead {
                status: 200,
                url: FEED.into(),
                headers: HeaderMap::from_iter([(X_SUP_ID, value)]),
            };
            checker.handle_head(now, request.id, head);
            checker.handle_end(now, request.id, Ok(()));
        }
        assert_eq!(failed(checker.report()), [rules::STABLE_ID.text]);
    }
}
