//! The conformance check of a DiffDelta publisher: the rules of sections 1 to 9 that are visible from outside.
//!
//! Requests the manifest, the feed's head and latest document (twice, the second time conditionally), and the
//! archive index. Then up to [`MAX_SNAPSHOTS`] of its snapshots, and the newest of them again. For a site, the
//! check covers its global feed and its first source, and whether the other sources exist.
//!
//! Requests are sequential and bounded in number. Rules without evidence are reported as skipped.

use std::collections::VecDeque;

use bytes::Bytes;
use http::Method;
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use serde_json::Value;
use url::Url;

use super::wire::SnapshotEntry;
use super::wire::cursor::Cursor;
use super::wire::locate::{DocumentLocation, FeedUrls, archive_index, locate, with_path};
use crate::follow::single_request::{CollectedResponse, SingleRequest, SingleRequestExchange};
use crate::follow::{
    Checker, FollowError, MAX_DOCUMENT, Monotonic, Now, ReadLimits, Request, ResponseHead, TransferError,
};
use crate::format::FormatError;
use crate::format::budget::Budget;
use crate::format::json_value::read_value;
use crate::report::{Report, Rule};

mod archive;
mod document;
mod responses;
mod rules;
mod schema;

use document::{BucketItems, CheckedDocument};
use schema::Schema;

/// Returns the rules of the check, in the order of the text.
pub fn diffdelta_rules() -> &'static [Rule] {
    rules::ALL
}

/// Number of snapshots that are checked: the newest of the archive.
pub const MAX_SNAPSHOTS: usize = 20;
/// Number of a site's sources whose existence is checked.
const MAX_SOURCES: usize = 100;

/// A step of the check. All but `Begin` send a request.
#[derive(Debug, Clone)]
pub(crate) enum CheckStep {
    Manifest(Url),
    /// The schema that the manifest names.
    SchemaText(Url),
    /// The global feed, to see that it exists.
    Global(Url),
    /// A source that the manifest lists, to see that it exists.
    Available(Url),
    /// Starts the check of a feed, without a request.
    Begin(FeedUrls),
    Head,
    Latest,
    /// The head again, conditional on its ETag.
    HeadAgain(String),
    LatestAgain(String),
    /// The latest document again, unconditional.
    LatestLater,
    Index,
    Snapshot(SnapshotEntry),
    /// A snapshot again, with the hash of the first response.
    SnapshotLater(SnapshotEntry, Cursor),
}

/// A complete response, or the error of its transfer.
#[derive(Debug)]
struct FetchedResponse {
    url: String,
    head: Option<ResponseHead>,
    body: Bytes,
    error: Option<TransferError>,
}

impl FetchedResponse {
    fn status(&self) -> u16 {
        self.head.as_ref().map_or(0, |h| h.status)
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.as_ref()?.header(name)
    }

    fn etag(&self) -> Option<&str> {
        self.header(ETAG.as_str())
    }

    /// Fails with a description of the transfer or status.
    fn succeeded(&self) -> Result<(), String> {
        if let Some(error) = &self.error {
            return Err(format!("{}: {error}", self.url));
        }
        match self.status() {
            200 => Ok(()),
            status => Err(format!("{}: the server answers {status}", self.url)),
        }
    }

    /// Parses the body as JSON. Fails with a description of the transfer, status or syntax error.
    fn json(&self, limits: &ReadLimits) -> Result<Value, String> {
        self.succeeded()?;
        self.read(limits, read_value)
    }

    /// Parses the body as a feed document. Fails as [`Self::json`] does.
    fn document(&self, limits: &ReadLimits, schema: &Schema) -> Result<CheckedDocument, String> {
        self.succeeded()?;
        self.read(limits, |text, budget| CheckedDocument::read(text, schema, budget))
    }

    fn read<T>(
        &self,
        limits: &ReadLimits,
        read: impl FnOnce(&str, &mut Budget) -> Result<T, FormatError>,
    ) -> Result<T, String> {
        let read = std::str::from_utf8(&self.body).map_err(|e| e.to_string()).and_then(|text| {
            // Small values take many times their text as a tree.
            let mut budget = Budget::new(text.len(), limits.document);
            read(text, &mut budget).map_err(|e| e.to_string())
        });
        read.map_err(|e| format!("{}: {e}", self.url))
    }
}

/// A fetched document.
#[derive(Debug)]
struct FetchedDocument {
    /// The document, with empty buckets.
    value: Value,
    items: BucketItems,
    body: Bytes,
    url: String,
}

impl FetchedDocument {
    /// Returns true if another document has other buckets, or other items in them.
    fn has_other_buckets(&self, other: &CheckedDocument) -> bool {
        self.value.get("buckets") != other.value.get("buckets") || self.items != other.items
    }
}

/// The feed under check, and its documents so far.
#[derive(Debug)]
struct CheckedFeed {
    feed: FeedUrls,
    head: Option<Value>,
    latest: Option<FetchedDocument>,
    /// True if the index lists the snapshot of the latest document.
    has_snapshot: bool,
}

/// A conformance check of one feed or site.
pub struct DiffDeltaChecker {
    report: Report,
    steps: VecDeque<CheckStep>,
    subject: Option<CheckedFeed>,
    schema: Schema,
    request: SingleRequest<CheckStep>,
    limits: ReadLimits,
    finished: bool,
}

impl DiffDeltaChecker {
    /// Creates a check of a URL: a site's root or manifest, a feed's folder, `head.json` or `latest.json`.
    ///
    /// Fails if the URL is invalid.
    pub fn new(address: &str) -> Result<Self, FollowError> {
        let steps = match locate(address).map_err(FollowError::Usage)? {
            DocumentLocation::Manifest(url) => vec![CheckStep::Manifest(url)],
            DocumentLocation::Feed(feed) => {
                let beside = |path: &str| {
                    let above = feed.latest.path().rfind("/diff/").map_or("", |at| &feed.latest.path()[..at]);
                    with_path(&feed.latest, &format!("{above}{path}"))
                };
                // The manifest belongs to the site, so it is found above `/diff/`.
                let manifest = CheckStep::Manifest(beside("/.well-known/diffdelta.json"));
                vec![manifest, CheckStep::Global(beside("/diff/latest.json")), CheckStep::Begin(feed.clone())]
            }
        };
        Ok(Self {
            report: Report::default(),
            steps: steps.into(),
            subject: None,
            schema: Schema::of_feeds(),
            request: SingleRequest::default(),
            limits: ReadLimits::default(),
            finished: false,
        })
    }

    /// Sets the limits of what is read.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    fn record(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn skip(&mut self, rule: Rule, why: &str) {
        self.report.pass_over(&[rule], why);
    }

    /// Returns the URL of a step; `None` if the step has no request.
    fn url_of(&self, step: &CheckStep) -> Option<Url> {
        let feed = self.subject.as_ref().map(|s| &s.feed);
        match step {
            CheckStep::Manifest(url)
            | CheckStep::SchemaText(url)
            | CheckStep::Global(url)
            | CheckStep::Available(url) => Some(url.clone()),
            CheckStep::Begin(_) => None,
            CheckStep::Head | CheckStep::HeadAgain(_) => feed?.head.clone(),
            CheckStep::Latest | CheckStep::LatestAgain(_) | CheckStep::LatestLater => {
                Some(feed?.latest.clone())
            }
            CheckStep::Index => self.index_url(),
            CheckStep::Snapshot(snapshot) | CheckStep::SnapshotLater(snapshot, _) => {
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

    fn begin(&mut self, feed: FeedUrls) {
        let steps = match feed.head {
            // Further steps are added as responses show what the publisher has.
            Some(_) => vec![CheckStep::Head, CheckStep::Latest],
            None => vec![CheckStep::Latest],
        };
        self.subject = Some(CheckedFeed { feed, head: None, latest: None, has_snapshot: false });
        self.prepend(steps);
    }

    /// Inserts steps before the pending ones.
    fn prepend(&mut self, steps: Vec<CheckStep>) {
        for step in steps.into_iter().rev() {
            self.steps.push_front(step);
        }
    }

    /// Ends the check: reports rules without evidence as skipped, and sorts findings in the order of the text.
    fn finish(&mut self) {
        for rule in rules::ALL {
            // A rule may have been recorded by several documents; the report keeps its worst outcome.
            let known = self.report.findings.iter().any(|f| f.section == rule.section && f.rule == rule.text);
            if !known {
                self.skip(*rule, "no evidence");
            }
        }
        // Responses come in the order of the requests, and the report in that of the text.
        let place = |rule: &str| rules::ALL.iter().position(|r| r.text == rule);
        self.report.findings.sort_by_key(|f| place(&f.rule));
        self.finished = true;
    }
}

impl SingleRequestExchange for DiffDeltaChecker {
    type Purpose = CheckStep;

    fn single_request(&self) -> &SingleRequest<CheckStep> {
        &self.request
    }

    fn single_request_mut(&mut self) -> &mut SingleRequest<CheckStep> {
        &mut self.request
    }

    fn next_request(&mut self, now: Now) -> Option<Request> {
        if self.request.is_in_flight() || self.finished {
            return None;
        }
        while let Some(step) = self.steps.pop_front() {
            if let CheckStep::Begin(feed) = step {
                self.begin(feed);
                continue;
            }
            let Some(url) = self.url_of(&step) else { continue };
            let mut request = self.request.get(url).with(ACCEPT, "application/json");
            // A hostile server must not fill the memory.
            request.max_body = self.limits.largest_document(MAX_DOCUMENT);
            if matches!(step, CheckStep::Available(_)) {
                request.method = Method::HEAD;
            }
            if let CheckStep::HeadAgain(etag) | CheckStep::LatestAgain(etag) = &step {
                request = request.with(IF_NONE_MATCH, etag);
            }
            return Some(self.request.send(now, step, request));
        }
        self.finish();
        None
    }

    fn handle_response(&mut self, _now: Now, response: CollectedResponse<CheckStep>) {
        let CollectedResponse { request: asked, head, body } = response;
        let (body, error) = body.map_or_else(|error| (Bytes::new(), Some(error)), |body| (body, None));
        self.evaluate(asked.purpose, FetchedResponse { url: asked.url, head, body, error });
    }

    fn next_timeout(&self) -> Option<Monotonic> {
        None
    }

    fn is_over(&self) -> bool {
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
