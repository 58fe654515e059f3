//! A conformance check of a DiffDelta publisher, ours or anybody's: what of the text's sections 1 to 9 can be
//! seen from outside.
//!
//! Asks for the manifest, for the feed's head and latest document (twice, the second time conditionally), the
//! archive index if there is one, up to [`MAX_SNAPSHOTS`] of its snapshots, and for the newest snapshot again.
//! Given a site, checks its global feed and its first source. One request at a time, and a bounded number of
//! them. What could not be seen is reported as skipped.

use std::collections::VecDeque;

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use jiff::Timestamp;
use serde_json::Value;
use url::Url;

use super::cursor::Cursor;
use super::follow::locate::{Feed, Place, archive_index, locate, with_path};
use super::wire::Snapshot;
use crate::asking::{Answer, Asking};
use crate::follow::{Checker, Exchange, FollowError, Request, RequestId, ResponseHead, TransferError};
use crate::report::{Report, Rule};

mod archive;
mod judge;
mod rules;
mod schema;

use schema::Schema;

/// How many snapshots of an archive are looked at: the newest.
pub const MAX_SNAPSHOTS: usize = 20;
/// The largest document that is looked at, in bytes.
const MAX_DOCUMENT: u64 = 128 << 20;

/// What a request is for.
#[derive(Debug, Clone)]
enum Step {
    Manifest(Url),
    /// The schema that the manifest names.
    SchemaText(Url),
    /// Whether there is a global feed.
    Global(Url),
    /// Begins with a feed: nothing is asked.
    Begin(Feed),
    Head,
    Latest,
    /// The head again, with the ETag it came with.
    HeadAgain(String),
    LatestAgain(String),
    /// The latest document again, whole.
    LatestLater,
    Index,
    Snapshot(Snapshot),
    /// The same snapshot again.
    SnapshotLater(Snapshot, Cursor),
}

/// A whole answer.
#[derive(Debug)]
struct Response {
    url: String,
    head: Option<ResponseHead>,
    body: Bytes,
    error: Option<TransferError>,
}

impl Response {
    fn status(&self) -> u16 {
        self.head.as_ref().map_or(0, |h| h.status)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.as_ref()?.header(name)
    }

    fn etag(&self) -> Option<&str> {
        self.header(ETAG.as_str())
    }

    /// The body as JSON, or what is wrong with the answer.
    fn json(&self) -> Result<Value, String> {
        if let Some(error) = &self.error {
            return Err(format!("{}: {error}", self.url));
        }
        if self.status() != 200 {
            return Err(format!("{}: the server answers {}", self.url, self.status()));
        }
        serde_json::from_slice(&self.body).map_err(|e| format!("{}: {e}", self.url))
    }
}

/// A document that was fetched.
#[derive(Debug)]
struct Fetched {
    value: Value,
    body: Bytes,
    url: String,
}

/// What is known of the feed being checked.
#[derive(Debug)]
struct Subject {
    feed: Feed,
    head: Option<Value>,
    latest: Option<Fetched>,
    /// Whether the index lists the snapshot that minted the latest document.
    has_snapshot: bool,
}

/// A conformance check of one feed or site.
pub struct DiffDeltaChecker {
    report: Report,
    steps: VecDeque<Step>,
    subject: Option<Subject>,
    schema: Schema,
    asking: Asking<Step>,
    finished: bool,
}

impl DiffDeltaChecker {
    /// Checks what is at `address`: a site's root or manifest, a feed's folder, `head.json` or `latest.json`.
    /// Fails on an address that is none: the user's fault.
    pub fn new(address: &str) -> Result<Self, FollowError> {
        let steps = match locate(address).map_err(FollowError::Usage)? {
            Place::Manifest(url) => vec![Step::Manifest(url)],
            Place::Feed(feed) => {
                let beside = |path: &str| {
                    let above = feed.latest.path().rfind("/diff/").map_or("", |at| &feed.latest.path()[..at]);
                    with_path(&feed.latest, &format!("{above}{path}"))
                };
                let manifest = Step::Manifest(beside("/.well-known/diffdelta.json"));
                vec![manifest, Step::Global(beside("/diff/latest.json")), Step::Begin(feed.clone())]
            }
        };
        Ok(Self {
            report: Report::default(),
            steps: steps.into(),
            subject: None,
            schema: Schema::of_feeds(),
            asking: Asking::default(),
            finished: false,
        })
    }

    fn note(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn skip(&mut self, rule: Rule, why: &str) {
        self.report.pass_over(&[rule], why);
    }

    /// The address of a step; `None` where it is not for asking.
    fn url_of(&self, step: &Step) -> Option<Url> {
        let feed = self.subject.as_ref().map(|s| &s.feed);
        match step {
            Step::Manifest(url) | Step::SchemaText(url) | Step::Global(url) => Some(url.clone()),
            Step::Begin(_) => None,
            Step::Head | Step::HeadAgain(_) => feed?.head.clone(),
            Step::Latest | Step::LatestAgain(_) | Step::LatestLater => Some(feed?.latest.clone()),
            Step::Index => self.index_url(),
            Step::Snapshot(snapshot) | Step::SnapshotLater(snapshot, _) => {
                self.index_url()?.join(&snapshot.url).ok()
            }
        }
    }

    fn index_url(&self) -> Option<Url> {
        let subject = self.subject.as_ref()?;
        let document = subject.latest.as_ref().map(|l| &l.value);
        let source = document.and_then(|d| d.get("source_id")).and_then(Value::as_str);
        Some(archive_index(&subject.feed.latest, source))
    }

    fn begin(&mut self, feed: Feed) {
        let steps = match feed.head {
            Some(_) => vec![Step::Head, Step::Latest],
            None => vec![Step::Latest],
        };
        self.subject = Some(Subject { feed, head: None, latest: None, has_snapshot: false });
        self.first(steps);
    }

    /// Puts steps before those that are waiting.
    fn first(&mut self, steps: Vec<Step>) {
        for step in steps.into_iter().rev() {
            self.steps.push_front(step);
        }
    }

    /// Nothing is left to ask: names what was never seen, in the text's order.
    fn finish(&mut self) {
        for rule in rules::ALL {
            let known = self.report.findings.iter().any(|f| f.section == rule.section && f.rule == rule.text);
            if !known {
                self.skip(*rule, "there was nothing to see it by");
            }
        }
        let place = |rule: &str| rules::ALL.iter().position(|r| r.text == rule);
        self.report.findings.sort_by_key(|f| place(&f.rule));
        self.finished = true;
    }
}

impl Exchange for DiffDeltaChecker {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        if self.asking.is_busy() || self.finished {
            return None;
        }
        while let Some(step) = self.steps.pop_front() {
            if let Step::Begin(feed) = step {
                self.begin(feed);
                continue;
            }
            let Some(url) = self.url_of(&step) else { continue };
            let mut request = self.asking.get(url).with(ACCEPT, "application/json");
            request.max_body = MAX_DOCUMENT;
            if let Step::HeadAgain(etag) | Step::LatestAgain(etag) = &step {
                request = request.with(IF_NONE_MATCH, etag);
            }
            return Some(self.asking.ask(now, step, request));
        }
        self.finish();
        None
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        self.asking.handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        self.asking.handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, _now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        let Some(Answer { asked, head, body }) = self.asking.handle_end(id, result) else { return };
        let (body, error) = body.map_or_else(|error| (Bytes::new(), Some(error)), |body| (body, None));
        self.judge(asked.purpose, Response { url: asked.url, head, body, error });
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

impl Checker for DiffDeltaChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}

#[cfg(test)]
mod tests;
