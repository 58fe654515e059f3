//! Conformance check of a SUP document, or of a feed and the SUP document that it announces.
//!
//! The check fetches the given URL. A feed is fetched a second time, and then the document that it announces. The
//! documents of a few other periods follow.

mod rules;
#[cfg(test)]
mod tests;

use http::header::{ACCEPT, CONTENT_TYPE, DATE};
use serde_json::Value;
use url::Url;

use crate::follow::probes::{ProbeCheck, ProbeQueue};
use crate::follow::single_request::{CollectedResponse, SentRequest};
use crate::follow::{Checker, Now, ReadLimits, Request, ResponseHead};
use crate::format::budget::Budget;
use crate::format::json_value::read_value;
use crate::format::media_type::essence;
use crate::format::{self, DocumentLimits, FeedLink, ReadOptions, http_date};
use crate::report::{Report, Rule};
use crate::sup::wire::discovery::{Discovery, MEDIA_TYPE, REL, SupLink, X_SUP_ID, discover};
use crate::sup::wire::document::truncated;
use crate::sup::wire::tolerant::without_trailing_commas;

/// Returns the rules of the check, in the order of the text.
pub fn sup_rules() -> &'static [Rule] {
    rules::ALL
}

// A hostile list of a million periods must not become a million requests.
/// Maximum number of documents of other periods that are checked.
const MAX_PERIODS: usize = 4;

/// Purpose of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SupProbe {
    /// The given URL: a SUP document or a feed.
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
    probes: ProbeQueue<(SupProbe, String)>,
    /// Links in the feed's first response.
    announced: Vec<SupLink>,
    limits: ReadLimits,
}

impl SupChecker {
    /// Creates a check of the SUP document or the feed at this URL.
    pub fn new(url: &str) -> Self {
        Self {
            report: Report::default(),
            start: url.to_owned(),
            probes: ProbeQueue::new([(SupProbe::Start, url.to_owned())]),
            announced: Vec::new(),
            limits: ReadLimits::default(),
        }
    }

    /// Sets the limits of what is read.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    fn report_rule(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn judge(&mut self, now: Now, probe: &SupProbe, head: &ResponseHead, body: &[u8]) {
        // By content, because a wrong media type is a finding of its own.
        let json = body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
        match probe {
            // A JSON object that is no feed is meant as a SUP document, unless it tells where one is, as a feed's page does.
            SupProbe::Start
                if json
                    && !is_json_feed(body, self.limits.document)
                    && !leads_to_document(head, body, self.limits.document) =>
            {
                let why = "the URL is that of a SUP document; only a feed shows this";
                self.report.pass_over(&rules::FEED_RULES, why);
                self.judge_document(now, head, body, None);
            }
            SupProbe::Start if is_feed(head, body, self.limits.document) => self.judge_feed(head, body),
            SupProbe::Start => self.judge_document(now, head, body, None),
            SupProbe::Again => {
                let (found, _) = discover_links(head, body, self.limits.document);
                // Compared with the first response: the id must be stable (section 4).
                let problem = (found.links != self.announced)
                    .then(|| format!("{} at first, then {}", list(&self.announced), list(&found.links)));
                self.report_rule(rules::STABLE_ID, problem);
            }
            SupProbe::Document => self.judge_document(now, head, body, None),
            SupProbe::Period(seconds) => self.judge_document(now, head, body, Some(*seconds)),
        }
    }

    fn judge_feed(&mut self, head: &ResponseHead, body: &[u8]) {
        let (found, links) = discover_links(head, body, self.limits.document);
        let none = found.links.is_empty();
        let missing = || "there is no X-SUP-ID, no Link and no atom:link".to_owned();
        // An announcement of a wrong form is a finding of its form only.
        let is_tried = head.headers.contains_key(X_SUP_ID)
            || links.iter().any(|link| link.rel.eq_ignore_ascii_case(REL));
        self.report_rule(rules::ANNOUNCED, (none && !is_tried).then(missing));
        self.judge_header(head);
        self.judge_link(head, &links);
        if none {
            return;
        }
        let disagreement = (found.links.len() > 1).then(|| list(&found.links));
        self.report_rule(rules::AGREE, disagreement);
        self.probes.push_back((SupProbe::Again, self.start.clone()));
        self.probes.push_back((SupProbe::Document, found.links[0].url.clone()));
        self.announced = found.links;
    }

    fn judge_header(&mut self, head: &ResponseHead) {
        let Some(value) = head.headers.get(X_SUP_ID) else {
            self.report_rule(rules::HEADER, Some("the header is missing".into()));
            return self.report.pass_over(&[rules::HEADER_FORM], "there is no such header");
        };
        self.report_rule(rules::HEADER, None);
        // The grammar allows absolute URLs only (`scheme ":" hier-part`), so there is no base to resolve against.
        let parsed = SupLink::parse(&String::from_utf8_lossy(value.as_bytes()), None);
        self.report_rule(rules::HEADER_FORM, parsed.err().map(|e| e.to_string()));
    }

    fn judge_link(&mut self, head: &ResponseHead, links: &[FeedLink]) {
        let rule = rules::LINK_FORM;
        let Some(link) = links.iter().find(|link| link.rel.eq_ignore_ascii_case(REL)) else {
            return self.report.pass_over(&[rule], "there is no such link");
        };
        let parsed = SupLink::parse(&link.href, Url::parse(&head.url).ok().as_ref());
        let mistyped = (link.media_type.as_deref() != Some(MEDIA_TYPE))
            .then(|| format!("its type is {:?}", link.media_type.as_deref().unwrap_or_default()));
        self.report_rule(rule, parsed.err().map(|e| e.to_string()).or(mistyped));
    }

    /// Tests a document; `period` is the period for which its URL was offered.
    fn judge_document(&mut self, now: Now, head: &ResponseHead, body: &[u8], period: Option<u64>) {
        let media_type = head.header(CONTENT_TYPE.as_str()).unwrap_or_default();
        let is_json = essence(media_type).eq_ignore_ascii_case(MEDIA_TYPE);
        self.report_rule(
            rules::MEDIA_TYPE,
            (!is_json).then(|| format!("{}: it is {media_type:?}", head.url)),
        );
        let (document, problem) = read(body, self.limits.document);
        self.report_rule(rules::JSON, problem.map(|problem| format!("{}: {problem}", head.url)));
        let Some(document) = document else { return };
        // The server's own date, if given: our clock may be the wrong one.
        let date = head.header(DATE.as_str()).and_then(|date| http_date::parse(date).ok());
        for (rule, problem) in rules::test_document(&document, date.unwrap_or(now.wall)) {
            // Documents for other periods have unusual periods by design, so these rules are tested once.
            let only_first = [rules::USUAL_PERIOD, rules::TWO_PERIODS].contains(&rule);
            if period.is_none() || !only_first {
                self.report_rule(rule, problem.map(|problem| format!("{}: {problem}", head.url)));
            }
        }
        match period {
            Some(seconds) => {
                let found = &document["period"];
                let problem = (found.as_u64() != Some(seconds))
                    .then(|| format!("{}: it is {}, not {seconds}", head.url, truncated(&found.to_string())));
                self.report_rule(rules::SAME_PERIOD, problem);
            }
            None => self.probe_periods(&document),
        }
    }

    fn probe_periods(&mut self, document: &Value) {
        let entries = document["available_periods"].as_object();
        let entries =
            entries.into_iter().flatten().filter_map(|(key, url)| Some((key.parse().ok()?, url.as_str()?)));
        let probes: Vec<_> =
            entries.take(MAX_PERIODS).map(|(p, url)| (SupProbe::Period(p), url.to_owned())).collect();
        if probes.is_empty() {
            self.report.pass_over(&[rules::SAME_PERIOD], "there are no other periods");
        }
        self.probes.extend(probes);
    }

    fn end(&mut self, now: Now, answer: CollectedResponse<(SupProbe, String)>) {
        let (SentRequest { purpose: (probe, _), url, .. }, whole) = answer.whole();
        match whole {
            Ok((head, body)) if head.status == 200 => {
                self.report_rule(rules::REACHED, None);
                self.judge(now, &probe, &head, &body);
            }
            Ok((head, _)) => {
                let problem = format!("{url}: the server responds with status {}", head.status);
                self.report_rule(rules::REACHED, Some(problem));
            }
            Err(error) => self.report_rule(rules::REACHED, Some(format!("{url}: {error}"))),
        }
    }
}

/// Returns true if a JSON document is a JSON Feed.
fn is_json_feed(body: &[u8], limits: DocumentLimits) -> bool {
    json(body, limits).is_ok_and(|json| json["version"].is_string() && json["items"].is_array())
}

/// Returns true if a response has a SUP link and is no SUP document itself.
fn leads_to_document(head: &ResponseHead, body: &[u8], limits: DocumentLimits) -> bool {
    !discover_links(head, body, limits).0.links.is_empty()
        && json(body, limits).is_ok_and(|json| json.get("updates").is_none())
}

/// Returns true if a response is a feed, or has a SUP link.
fn is_feed(head: &ResponseHead, body: &[u8], limits: DocumentLimits) -> bool {
    let content_type = head.header(CONTENT_TYPE.as_str());
    let options = ReadOptions { content_type, limits, ..ReadOptions::default() };
    format::read(body, &options).is_ok() || !discover_links(head, body, limits).0.links.is_empty()
}

/// Returns the SUP links of a feed's response, and all links of the feed document.
fn discover_links(head: &ResponseHead, body: &[u8], limits: DocumentLimits) -> (Discovery, Vec<FeedLink>) {
    let content_type = head.header(CONTENT_TYPE.as_str());
    let options = ReadOptions { content_type, base_url: Some(&head.url), limits, ..ReadOptions::default() };
    let links = format::read(body, &options).map(|feed| feed.links).unwrap_or_default();
    (discover(&head.headers, &links, Url::parse(&head.url).ok().as_ref()), links)
}

fn list(links: &[SupLink]) -> String {
    let all: Vec<String> = links.iter().map(SupLink::href).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

/// Parses the document as far as possible, with its JSON error.
fn read(body: &[u8], limits: DocumentLimits) -> (Option<Value>, Option<String>) {
    let error = match json(body, limits) {
        Ok(value @ Value::Object(_)) => return (Some(value), None),
        Ok(other) => return (None, Some(format!("it is {}", truncated(&other.to_string())))),
        Err(error) => error,
    };
    let (cleaned, _) = without_trailing_commas(body);
    (json(&cleaned, limits).ok().filter(Value::is_object), Some(error))
}

/// Reads JSON within the limits, or describes the error.
fn json(body: &[u8], limits: DocumentLimits) -> Result<Value, String> {
    let text = std::str::from_utf8(body).map_err(|e| e.to_string())?;
    read_value(text, &mut Budget::new(text.len(), limits)).map_err(|e| e.to_string())
}

impl ProbeCheck for SupChecker {
    type Probe = (SupProbe, String);

    fn probes(&self) -> &ProbeQueue<Self::Probe> {
        &self.probes
    }

    fn probes_mut(&mut self) -> &mut ProbeQueue<Self::Probe> {
        &mut self.probes
    }

    fn url(&self, (_, url): &Self::Probe) -> String {
        url.clone()
    }

    fn prepare(&self, (probe, _): &Self::Probe, request: Request) -> Request {
        let request = Request { max_body: self.limits.largest_document(32 << 20), ..request };
        if matches!(probe, SupProbe::Document | SupProbe::Period(_)) {
            return request.with(ACCEPT, MEDIA_TYPE);
        }
        request
    }

    fn judge_response(&mut self, now: Now, response: CollectedResponse<Self::Probe>) {
        self.end(now, response);
    }
}

impl Checker for SupChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
