//! Conformance check of -00, its later drafts and RFC 5005, as far as a client can observe them, and of RSS, Atom and
//! JSON Feed.
//!
//! The check reads the newest document, then the document at its `this`, then up to
//! [`HistoryCheckOptions::documents`] older ones. It requests every permanent document twice and compares the bytes.
//! Section references name their text.

mod chain;
mod document;
mod rules;

use std::collections::HashSet;

use http::header;

use self::chain::CheckedDocument;
use super::wire::Predecessor;
use crate::follow::probes::{ProbeCheck, ProbeQueue};
use crate::follow::single_request::{CollectedResponse, SentRequest};
use crate::follow::{Checker, MAX_DOCUMENT, Now, ReadLimits, Request, ResponseHead};
use crate::format::{self, ReadOptions};
use crate::report::{Report, Rule};

/// Returns the rules for single documents: RSS, Atom with deleted entries, JSON Feed and the elements of history.
pub fn document_rules() -> impl Iterator<Item = &'static Rule> {
    document::rules()
}

/// Returns the rules for a document and its neighbours.
pub fn chain_rules() -> &'static [Rule] {
    rules::ALL
}

/// Returns the first violation of a MUST in an Atom document.
pub(crate) fn atom_problem(text: &str) -> Option<String> {
    document::atom_problem(text)
}

/// Extent of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryCheckOptions {
    /// True to check the feed's history, false for the newest document only.
    pub history: bool,
    /// Maximum number of documents before the newest.
    pub documents: usize,
    /// Limits of what is read.
    pub limits: ReadLimits,
}

impl Default for HistoryCheckOptions {
    /// The history, with 20 older documents.
    fn default() -> Self {
        Self { history: true, documents: 20, limits: ReadLimits::default() }
    }
}

/// Conformance check of one feed; see the module's documentation.
#[derive(Debug)]
pub struct HistoryChecker {
    options: HistoryCheckOptions,
    report: Report,
    probes: ProbeQueue<HistoryProbe>,
    /// The newest document, then older ones.
    documents: Vec<CheckedDocument>,
    snapshot: Option<CheckedDocument>,
    visited: HashSet<String>,
}

/// A request of the check, by its purpose.
#[derive(Debug, Clone)]
pub(crate) enum HistoryProbe {
    Newest { url: String },
    Snapshot { url: String },
    Older { url: String },
    SnapshotAgain { url: String },
    OlderAgain { index: usize, url: String },
    Conditional { url: String, headers: Vec<(header::HeaderName, String)> },
}

impl HistoryProbe {
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
    /// Creates a check of the feed whose newest document is at `url`.
    pub fn new(url: &str, options: HistoryCheckOptions) -> Self {
        Self {
            options,
            report: Report::default(),
            probes: ProbeQueue::new([HistoryProbe::Newest { url: url.to_owned() }]),
            documents: Vec::new(),
            snapshot: None,
            // A link back to the newest document is a loop too.
            visited: HashSet::from([url.to_owned()]),
        }
    }

    fn end(&mut self, answer: CollectedResponse<HistoryProbe>) {
        let (SentRequest { purpose: probe, .. }, whole) = answer.whole();
        let probe = &probe;
        // Judged first: only for this request is 304 the right status.
        if let HistoryProbe::Conditional { url, .. } = probe {
            let problem = match whole {
                Ok((head, _)) if head.status == 304 => None,
                Ok((ResponseHead { status, .. }, _)) => Some(format!("{url} responds with status {status}")),
                Err(error) => Some(format!("{url}: {error}")),
            };
            return self.report.judge(rules::NOT_MODIFIED, problem);
        }
        let url = probe.url().to_owned();
        let (head, body) = match whole {
            Ok((head, body)) if head.status == 200 => (head, body),
            Ok((ResponseHead { status, .. }, _)) => {
                return self.report_failure(probe, status, format!("{url} responds with status {status}"));
            }
            Err(error) => return self.report_failure(probe, 0, format!("{url}: {error}")),
        };
        match probe {
            HistoryProbe::SnapshotAgain { .. } => {
                let problem = self.snapshot.as_ref().and_then(|document| document.difference(&body));
                self.report.judge(rules::THIS_STAYS, problem);
            }
            HistoryProbe::OlderAgain { index, .. } => {
                let problem = self.documents.get(*index).and_then(|document| document.difference(&body));
                self.report.judge(rules::ARCHIVES_STAY, problem);
            }
            HistoryProbe::Newest { .. }
            | HistoryProbe::Snapshot { .. }
            | HistoryProbe::Older { .. }
            | HistoryProbe::Conditional { .. } => {
                self.read(probe, &url, &head, &body);
            }
        }
    }

    /// Reports a failed request.
    ///
    /// A missing archive document is not an error: "Publishers are not required to make all archive documents
    /// available" (RFC 5005, section 4.1).
    fn report_failure(&mut self, probe: &HistoryProbe, status: u16, failure: String) {
        // The statuses with which a publisher "may refuse to serve" an archive document.
        let may_refuse = matches!(status, 403 | 404 | 410);
        match probe {
            HistoryProbe::Newest { .. } => {
                self.report.judge(rules::NEWEST, Some(failure));
            }
            HistoryProbe::Snapshot { .. } | HistoryProbe::SnapshotAgain { .. } => {
                self.report.judge(rules::LINKED, Some(failure));
            }
            _ if may_refuse => self.report.pass_over(&[rules::AVAILABLE], &failure),
            _ => self.report.judge(rules::AVAILABLE, Some(failure)),
        }
        // The walk back ends here, so the second requests are due.
        if matches!(probe, HistoryProbe::Older { .. }) {
            self.request_again();
        }
    }

    fn read(&mut self, probe: &HistoryProbe, url: &str, head: &ResponseHead, body: &[u8]) {
        let content_type = head.header("content-type");
        let limits = self.options.limits.document;
        let options =
            ReadOptions { content_type, base_url: Some(&head.url), limits, ..ReadOptions::default() };
        let feed = match format::read(body, &options) {
            Ok(feed) => feed,
            Err(error) => {
                self.report.judge(document::WELL_FORMED, Some(format!("{url}: {error}")));
                if matches!(probe, HistoryProbe::Older { .. }) {
                    self.request_again();
                }
                return;
            }
        };
        self.report.judge(document::WELL_FORMED, None);
        document::test_document(&mut self.report, url, head, body, &feed, limits);
        let document = CheckedDocument::new(url, body, &feed);
        // Only the newest document is polled over and over, so only there do validators matter.
        if matches!(probe, HistoryProbe::Newest { .. }) {
            self.queue_conditional_request(url, head);
        }
        if !self.options.history {
            return;
        }
        document.test_links(&mut self.report);
        match probe {
            HistoryProbe::Snapshot { .. } => {
                if let Some(newest) = self.documents.first() {
                    document.test_snapshot(&mut self.report, newest);
                }
                self.probes.push_back(HistoryProbe::SnapshotAgain { url: url.to_owned() });
                self.snapshot = Some(document);
            }
            _ => self.walk_back(document),
        }
    }

    fn queue_conditional_request(&mut self, url: &str, head: &ResponseHead) {
        let names =
            [(header::ETAG, header::IF_NONE_MATCH), (header::LAST_MODIFIED, header::IF_MODIFIED_SINCE)];
        let validators =
            names.into_iter().filter_map(|(from, to)| Some((to, head.header(from.as_str())?.to_owned())));
        let headers: Vec<_> = validators.collect();
        let problem = headers.is_empty().then(|| url.to_owned());
        self.report.judge(rules::VALIDATORS, problem);
        if !headers.is_empty() {
            self.probes.push_back(HistoryProbe::Conditional { url: url.to_owned(), headers });
        }
    }

    /// Tests a document of the chain, and queues the next request.
    fn walk_back(&mut self, document: CheckedDocument) {
        match (self.documents.first(), self.documents.last()) {
            (Some(newest), Some(newer)) => {
                document.test_older(&mut self.report, newer, &newest.url, self.documents.len() == 1);
            }
            _ => {
                document.test_newest(&mut self.report);
                // A `this` that names the newest document itself is a finding already (`test_newest`).
                let this = document
                    .this
                    .clone()
                    .filter(|this| *this != document.url && document.predecessor != Predecessor::Complete);
                self.probes.extend(this.map(|url| HistoryProbe::Snapshot { url }));
                if matches!(document.predecessor, Predecessor::Unknown) {
                    let why = format!("{} has neither the flag nor the links of a history", document.url);
                    self.report.judge(rules::HISTORY, Some(why));
                }
            }
        }
        let older = match &document.predecessor {
            Predecessor::Archive(url) | Predecessor::Page(url) => Some(url.clone()),
            Predecessor::Complete | Predecessor::Beginning | Predecessor::LastPage | Predecessor::Unknown => {
                None
            }
        };
        self.documents.push(document);
        let Some(url) = older else { return self.request_again() };
        // A loop would keep a follower busy for ever.
        let is_repeated = !self.visited.insert(url.clone());
        let problem =
            is_repeated.then(|| format!("{url} is linked to again after {} documents", self.documents.len()));
        self.report.judge(rules::NO_LOOP, problem);
        match url::Url::parse(&url) {
            Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && !is_repeated => {}
            _ => return self.request_again(),
        }
        // The first document is the newest, which the option does not count.
        if self.documents.len() > self.options.documents {
            return self.request_again();
        }
        // In front: the whole chain is read before the conditional and the second requests.
        self.probes.push_front(HistoryProbe::Older { url });
    }

    /// Queues a second request for each permanent document, the oldest first.
    fn request_again(&mut self) {
        let archives = self.documents.windows(2).enumerate().filter_map(|(index, pair)| {
            let [newer, older] = pair else { return None };
            // Pages of RFC 5005, section 3, may change, so only archive documents are compared.
            let is_permanent = matches!(&newer.predecessor, Predecessor::Archive(url) if *url == older.url);
            is_permanent.then(|| HistoryProbe::OlderAgain { index: index + 1, url: older.url.clone() })
        });
        let archives: Vec<HistoryProbe> = archives.collect();
        if archives.is_empty() {
            self.report.pass_over(&[rules::ARCHIVES_STAY], "the check read no archive document");
        }
        self.probes.extend(archives.into_iter().rev());
    }
}

impl ProbeCheck for HistoryChecker {
    type Probe = HistoryProbe;

    fn probes(&self) -> &ProbeQueue<Self::Probe> {
        &self.probes
    }

    fn probes_mut(&mut self) -> &mut ProbeQueue<Self::Probe> {
        &mut self.probes
    }

    fn url(&self, probe: &HistoryProbe) -> String {
        probe.url().to_owned()
    }

    fn prepare(&self, probe: &HistoryProbe, request: Request) -> Request {
        // A feed that responds in time but without end must not fill the checker's memory.
        let mut request = Request { max_body: self.options.limits.largest_document(MAX_DOCUMENT), ..request };
        if let HistoryProbe::Conditional { headers, .. } = probe {
            for (name, value) in headers {
                request = request.with(name.clone(), value);
            }
        }
        request
    }

    fn judge_response(&mut self, _now: Now, response: CollectedResponse<Self::Probe>) {
        self.end(response);
    }
}

impl Checker for HistoryChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
