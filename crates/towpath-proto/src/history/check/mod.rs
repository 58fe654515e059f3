//! The conformance check: what can be seen from outside of -00, its later drafts and RFC 5005, and of what any
//! RSS, Atom or JSON Feed owes its readers.
//!
//! The newest document is read, then the one that its `this` names, then those before it as far as
//! [`CheckOptions::documents`] goes; every permanent one is read a second time, to see that it stays the same to
//! the byte. Sections name their text.

mod basics;
mod chain;
mod survey;

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use http::header;
use jiff::Timestamp;

use self::chain::{ARCHIVED, LINKS, Seen};
use super::wire::Way;
use crate::asking::{Answer, Asked, Asking};
use crate::follow::{Checker, Exchange, Request, RequestId, ResponseHead, TransferError};
use crate::format::{self, ReadOptions};
use crate::report::{Level, Report};

/// The largest document that is looked at, in bytes.
const MAX_DOCUMENT: u64 = 64 << 20;

/// How much to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOptions {
    /// Look at the feed's history; otherwise at the newest document alone.
    pub history: bool,
    /// How many documents before the newest.
    pub documents: usize,
}

impl Default for CheckOptions {
    /// The history, 20 documents of it.
    fn default() -> Self {
        Self { history: true, documents: 20 }
    }
}

/// Checks one feed, see the module's text.
#[derive(Debug)]
pub struct HistoryChecker {
    options: CheckOptions,
    report: Report,
    jobs: VecDeque<Job>,
    asking: Asking<Job>,
    /// The newest document, then those before it.
    seen: Vec<Seen>,
    snapshot: Option<Seen>,
    visited: HashSet<String>,
}

/// One request, and what its answer is for.
#[derive(Debug, Clone)]
enum Job {
    Newest { url: String },
    Snapshot { url: String },
    Older { url: String },
    SnapshotAgain { url: String },
    OlderAgain { index: usize, url: String },
    Conditional { url: String, headers: Vec<(header::HeaderName, String)> },
}

impl Job {
    fn url(&self) -> &str {
        match self {
            Self::Newest { url }
            | Self::Snapshot { url }
            | Self::Older { url }
            | Self::SnapshotAgain { url }
            | Self::OlderAgain { url, .. }
            | Self::Conditional { url, .. } => url,
        }
    }
}

impl HistoryChecker {
    /// A check of the feed whose newest document is at `url`.
    pub fn new(url: &str, options: CheckOptions) -> Self {
        Self {
            options,
            report: Report::default(),
            jobs: VecDeque::from([Job::Newest { url: url.to_owned() }]),
            asking: Asking::default(),
            seen: Vec::new(),
            snapshot: None,
            visited: HashSet::from([url.to_owned()]),
        }
    }

    fn end(&mut self, answer: Answer<Job>) {
        let (Asked { purpose: job, .. }, whole) = answer.whole();
        let job = &job;
        if let Job::Conditional { url, .. } = job {
            let problem = match whole {
                Ok((head, _)) if head.status == 304 => None,
                Ok((ResponseHead { status, .. }, _)) => Some(format!("{url} answers {status}")),
                Err(error) => Some(format!("{url}: {error}")),
            };
            let rule = "What has not changed is answered with 304";
            return self.report.should("RFC 9110 §13", rule, problem);
        }
        let url = job.url().to_owned();
        let (head, body) = match whole {
            Ok((head, body)) if head.status == 200 => (head, body),
            Ok((ResponseHead { status, .. }, _)) => {
                return self.unanswered(job, status, format!("{url} answers {status}"));
            }
            Err(error) => return self.unanswered(job, 0, format!("{url}: {error}")),
        };
        match job {
            Job::SnapshotAgain { .. } => {
                let problem = self.snapshot.as_ref().and_then(|seen| seen.changed(&body));
                self.report.should(LINKS, "What 'this' leads to does not change", problem);
            }
            Job::OlderAgain { index, .. } => {
                let problem = self.seen.get(*index).and_then(|seen| seen.changed(&body));
                self.report.should(ARCHIVED, "Archive documents do not change", problem);
            }
            Job::Newest { .. } | Job::Snapshot { .. } | Job::Older { .. } | Job::Conditional { .. } => {
                self.read(job, &url, &head, &body);
            }
        }
    }

    /// "Publishers are not required to make all archive documents available" (RFC 5005, section 4.1).
    fn unanswered(&mut self, job: &Job, status: u16, failure: String) {
        let rule = "Documents that are linked to are there";
        let may_refuse = matches!(status, 403 | 404 | 410);
        match job {
            Job::Newest { .. } => self.report.must(ARCHIVED, "The newest document is there", Some(failure)),
            Job::Snapshot { .. } | Job::SnapshotAgain { .. } => self.report.must(LINKS, rule, Some(failure)),
            _ if may_refuse => self.report.skip("RFC 5005 §4.1", Level::Should, rule, &failure),
            _ => self.report.should("RFC 5005 §4.1", rule, Some(failure)),
        }
        if matches!(job, Job::Older { .. }) {
            self.read_again();
        }
    }

    fn read(&mut self, job: &Job, url: &str, head: &ResponseHead, body: &[u8]) {
        let content_type = head.header("content-type");
        let options = ReadOptions { content_type, base_url: Some(&head.url), ..ReadOptions::default() };
        let rule = "Documents are well-formed RSS, Atom or JSON Feed";
        let feed = match format::read(body, &options) {
            Ok(feed) => feed,
            Err(error) => {
                self.report.must("XML 1.0 §2.1, RFC 8259", rule, Some(format!("{url}: {error}")));
                if matches!(job, Job::Older { .. }) {
                    self.read_again();
                }
                return;
            }
        };
        self.report.must("XML 1.0 §2.1, RFC 8259", rule, None);
        basics::look(&mut self.report, url, head, body, &feed);
        let seen = Seen::new(url, body, &feed);
        if matches!(job, Job::Newest { .. }) {
            self.ask_conditionally(url, head);
        }
        if !self.options.history {
            return;
        }
        seen.look(&mut self.report, &feed.problems);
        match job {
            Job::Snapshot { .. } => {
                if let Some(newest) = self.seen.first() {
                    seen.look_snapshot(&mut self.report, newest);
                }
                self.jobs.push_back(Job::SnapshotAgain { url: url.to_owned() });
                self.snapshot = Some(seen);
            }
            _ => self.go_back(seen),
        }
    }

    fn ask_conditionally(&mut self, url: &str, head: &ResponseHead) {
        let names =
            [(header::ETAG, header::IF_NONE_MATCH), (header::LAST_MODIFIED, header::IF_MODIFIED_SINCE)];
        let validators =
            names.into_iter().filter_map(|(from, to)| Some((to, head.header(from.as_str())?.to_owned())));
        let headers: Vec<_> = validators.collect();
        let problem = headers.is_empty().then(|| url.to_owned());
        self.report.should("RFC 9110 §8.8", "The newest document has an ETag or a Last-Modified", problem);
        if !headers.is_empty() {
            self.jobs.push_back(Job::Conditional { url: url.to_owned(), headers });
        }
    }

    /// Looks at a document of the chain, and decides what is asked for next.
    fn go_back(&mut self, seen: Seen) {
        match (self.seen.first(), self.seen.last()) {
            (Some(newest), Some(newer)) => {
                seen.look_older(&mut self.report, newer, &newest.url, self.seen.len() == 1);
            }
            _ => {
                seen.look_newest(&mut self.report);
                let this = seen.this.clone().filter(|this| *this != seen.url && seen.way != Way::Complete);
                self.jobs.extend(this.map(|url| Job::Snapshot { url }));
                if matches!(seen.way, Way::Unknown) {
                    let rule = "The feed tells its past";
                    let why = format!("{} has neither flag nor links of a history", seen.url);
                    self.report.should(ARCHIVED, rule, Some(why));
                }
            }
        }
        let older = match &seen.way {
            Way::Archive(url) | Way::Page(url) => Some(url.clone()),
            Way::Complete | Way::Beginning | Way::LastPage | Way::Unknown => None,
        };
        self.seen.push(seen);
        let Some(url) = older else { return self.read_again() };
        let is_known = !self.visited.insert(url.clone());
        let problem =
            is_known.then(|| format!("{url} is linked to from {} documents later", self.seen.len()));
        self.report.must(ARCHIVED, "The documents form no loop", problem);
        match url::Url::parse(&url) {
            Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && !is_known => {}
            _ => return self.read_again(),
        }
        if self.seen.len() > self.options.documents {
            return self.read_again();
        }
        self.jobs.push_front(Job::Older { url });
    }

    /// Every document was read: the permanent ones once more, the oldest first.
    fn read_again(&mut self) {
        let archives = self.seen.windows(2).enumerate().filter_map(|(index, pair)| {
            let [newer, older] = pair else { return None };
            let is_permanent = matches!(&newer.way, Way::Archive(url) if *url == older.url);
            is_permanent.then(|| Job::OlderAgain { index: index + 1, url: older.url.clone() })
        });
        let archives: Vec<Job> = archives.collect();
        if archives.is_empty() {
            let rule = "Archive documents do not change";
            self.report.skip(ARCHIVED, Level::Should, rule, "no archive document was seen");
        }
        self.jobs.extend(archives.into_iter().rev());
    }
}

impl Exchange for HistoryChecker {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        if self.asking.is_busy() {
            return None;
        }
        let job = self.jobs.pop_front()?;
        let mut request = Request { max_body: MAX_DOCUMENT, ..self.asking.get(job.url()) };
        if let Job::Conditional { headers, .. } = &job {
            for (name, value) in headers {
                request = request.with(name.clone(), value);
            }
        }
        Some(self.asking.ask(now, job, request))
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        self.asking.handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        self.asking.handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, _now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if let Some(answer) = self.asking.handle_end(id, result) {
            self.end(answer);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        None
    }

    fn is_finished(&self) -> bool {
        !self.asking.is_busy() && self.jobs.is_empty()
    }
}

impl Checker for HistoryChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
