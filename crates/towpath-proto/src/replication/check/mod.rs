//! The conformance check: reads the newest pages of a feed, and a snapshot, twice.
//!
//! 1. Finds the newest page along `next`.
//! 2. Requests every page by HEAD and by GET, from there back along `prev`.
//! 3. Reads every page again, to see that published pages do not change.
//!
//! A snapshot's index and its first pages are read in the same way. Findings name sections by their headings,
//! because the text has no numbers.

mod forward;
mod page;
mod rules;

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, header};

use self::page::{PageKind, PageVisit};
use super::wire::{FeedPageHead, SnapshotIndex, says_empty, says_json};
use crate::follow::{Checker, Exchange, Monotonic, Now, Request, RequestId, ResponseHead, TransferError};
use crate::report::{Report, Rule};

/// Returns the rules of the check, in the order in which they are first tested.
pub fn replication_rules() -> &'static [Rule] {
    rules::ALL
}

/// Limits of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationCheckOptions {
    /// Number of feed pages, from the newest back.
    pub pages: usize,
    /// Number of snapshot pages.
    pub snapshot_pages: usize,
    /// URL of a snapshot's index, if there is one.
    pub snapshot: Option<String>,
    /// Largest body of an entity, in bytes.
    pub max_entity: usize,
}

impl Default for ReplicationCheckOptions {
    /// 20 pages of the feed and 5 of the snapshot, entities up to 72 MiB.
    fn default() -> Self {
        Self { pages: 20, snapshot_pages: 5, snapshot: None, max_entity: 72 << 20 }
    }
}

/// Checker of a feed or a snapshot; see the module's documentation.
#[derive(Debug)]
pub struct ReplicationChecker {
    options: ReplicationCheckOptions,
    report: Report,
    jobs: VecDeque<CheckRequest>,
    current: Option<(RequestId, CheckRequest)>,
    last_id: u64,
    answer: PendingResponse,
    /// The first visits of all pages that were read.
    feed_pages: Vec<PageVisit>,
    snapshot_pages: Vec<PageVisit>,
    index: Option<Vec<u8>>,
    visited: HashSet<String>,
    /// Pages passed on the way to the newest one; `None` once that is found.
    forward: Option<HashSet<String>>,
    content_ids: HashSet<String>,
}

/// A request of the check, by its purpose.
#[derive(Debug, Clone)]
enum CheckRequest {
    Head {
        url: String,
    },
    /// A page to which the `next` of `from` leads. Requested by GET if HEAD is not supported.
    Forward {
        url: String,
        from: String,
        method: Method,
    },
    FeedPage {
        url: String,
        head: HeaderMap,
    },
    FeedPageAgain {
        number: usize,
    },
    Index {
        url: String,
        again: bool,
    },
    SnapshotPage {
        url: String,
    },
    SnapshotPageAgain {
        number: usize,
    },
}

/// The response that is being received.
#[derive(Debug, Default)]
struct PendingResponse {
    head: Option<ResponseHead>,
    body: Vec<u8>,
    visit: Option<PageVisit>,
}

/// Approximate limit of an error's body, in bytes.
const MAX_PROBLEM: usize = 64 << 10;

/// Largest snapshot index, in bytes.
const MAX_INDEX: u64 = 64 << 20;

impl ReplicationChecker {
    /// Creates a check of the feed whose newest page is at `url`, or of the snapshot whose index is there.
    pub fn new(url: &str, options: ReplicationCheckOptions) -> Self {
        let mut jobs = VecDeque::from([CheckRequest::Head { url: url.to_owned() }]);
        jobs.extend(options.snapshot.clone().map(|url| CheckRequest::Index { url, again: false }));
        Self {
            options,
            report: Report::default(),
            jobs,
            current: None,
            last_id: 0,
            answer: PendingResponse::default(),
            feed_pages: Vec::new(),
            snapshot_pages: Vec::new(),
            index: None,
            visited: HashSet::new(),
            forward: Some(HashSet::new()),
            content_ids: HashSet::new(),
        }
    }

    fn url(&self, job: &CheckRequest) -> String {
        match job {
            CheckRequest::Head { url }
            | CheckRequest::Forward { url, .. }
            | CheckRequest::FeedPage { url, .. }
            | CheckRequest::Index { url, .. }
            | CheckRequest::SnapshotPage { url } => url.clone(),
            CheckRequest::FeedPageAgain { number } => self.feed_pages[*number].url.clone(),
            CheckRequest::SnapshotPageAgain { number } => self.snapshot_pages[*number].url.clone(),
        }
    }

    fn judge(&mut self, rule: Rule, problem: Option<String>) {
        self.report.judge(rule, problem);
    }

    fn handle_response(&mut self, job: CheckRequest, result: &Result<(), TransferError>) {
        let url = self.url(&job);
        let answer = std::mem::take(&mut self.answer);
        let status = answer.head.as_ref().map(|head| head.status);
        let failure = match (result, status) {
            (Err(error), _) => Some(format!("{url}: {error}")),
            (Ok(()), Some(200)) => None,
            (Ok(()), status) => Some(format!("{url} answers {}", status.unwrap_or_default())),
        };
        let is_whole = failure.is_none();
        if let CheckRequest::Forward { url, from, method } = job {
            return self.check_next_page(url, from, &method, answer.head, failure);
        }
        let rule = rules::ANSWERED;
        match (&job, status) {
            // A failing HEAD is reported as such later; GET decides about the page.
            (CheckRequest::Head { .. }, Some(_)) => {}
            // An empty feed conforms: a multipart page cannot be empty.
            (CheckRequest::FeedPage { .. }, Some(404)) if says_empty(&answer.body) => {
                self.report.pass_over(&[rule], "the feed is empty");
            }
            _ => self.judge(rule, failure),
        }
        let Some(head) = answer.head else { return };
        match job {
            CheckRequest::Head { url } if says_json(&head) && self.feed_pages.is_empty() => {
                self.jobs.push_front(CheckRequest::Index { url, again: false });
            }
            CheckRequest::Head { url } => {
                let headers = if is_whole { head.headers } else { HeaderMap::new() };
                self.jobs.push_front(CheckRequest::FeedPage { url, head: headers });
            }
            CheckRequest::FeedPage { url, head: by_head } if is_whole => {
                self.feed_page(&url, &by_head, &head, answer.visit);
            }
            CheckRequest::Index { url, again } if is_whole => {
                self.snapshot_index(&url, &head, answer.body, again);
            }
            CheckRequest::SnapshotPage { .. } if is_whole => {
                let Some(mut visit) = answer.visit else { return };
                visit.finish(&mut self.report);
                self.jobs.push_back(CheckRequest::SnapshotPageAgain { number: self.snapshot_pages.len() });
                self.snapshot_pages.push(visit);
            }
            CheckRequest::FeedPageAgain { number } if is_whole => {
                let is_sealed = self.feed_pages[number].head.as_ref().is_some_and(|h| h.next.is_some());
                let problem = answer.visit.and_then(|again| self.feed_pages[number].difference(&again));
                let rule = if is_sealed { rules::SEALED } else { rules::NEWEST_GROWS };
                self.judge(rule, problem);
            }
            CheckRequest::SnapshotPageAgain { number } if is_whole => {
                let problem = answer.visit.and_then(|again| self.snapshot_pages[number].difference(&again));
                self.judge(rules::SNAPSHOT_STAYS, problem);
            }
            _ => {}
        }
    }

    /// Checks a feed page after its first visit.
    fn feed_page(&mut self, url: &str, by_head: &HeaderMap, head: &ResponseHead, visit: Option<PageVisit>) {
        let Some(mut visit) = visit else { return };
        visit.finish(&mut self.report);
        // An empty map stands for a HEAD that failed.
        let problem = by_head.is_empty().then(|| url.to_owned());
        self.judge(rules::HEAD, problem);
        if !by_head.is_empty() {
            self.compare_head(url, by_head, head);
        }
        let page = match FeedPageHead::parse(&head.url, &head.headers) {
            Ok(page) => page,
            Err(error) => {
                self.judge(rules::FEED_HEADERS, Some(format!("{url}: {error}")));
                return self.read_again();
            }
        };
        self.judge(rules::FEED_HEADERS, None);
        if let Some(next) = page.next.clone().filter(|_| self.forward.is_some()) {
            return self.go_forward(page.own, next);
        }
        self.forward = None;
        // Drained to save memory: later visits compare checksums, not ids.
        for id in visit.content_ids.drain(..) {
            let problem = self.content_ids.contains(&id).then(|| format!("{url}: {id} is there twice"));
            self.judge(rules::UNIQUE_ID, problem);
            self.content_ids.insert(id);
        }
        if let Some(newer) = self.feed_pages.last() {
            let problem = neighbours(&page, newer);
            self.judge(rules::ADJACENT, problem);
            let problem = match (visit.last, self.feed_pages.last().and_then(|newer| newer.first)) {
                (Some(last), Some(first)) if last > first => {
                    Some(format!("{url} ends at {last}, and the page after it begins at {first}"))
                }
                _ => None,
            };
            self.judge(rules::TIME_ACROSS, problem);
        }
        // A loop would otherwise be followed up to the limit of pages.
        let is_known = !self.visited.insert(page.own.clone());
        let problem = is_known.then(|| format!("{url} was visited before"));
        self.judge(rules::NO_LOOP, problem);
        let to_itself = [&page.prev, &page.next].into_iter().flatten().any(|link| *link == page.own);
        self.judge(rules::NOT_ITSELF, to_itself.then(|| url.to_owned()));
        let prev = page.prev.clone().filter(|_| !is_known && !to_itself);
        visit.head = Some(page);
        self.feed_pages.push(visit);
        match prev {
            Some(url) if self.feed_pages.len() < self.options.pages => {
                self.jobs.push_front(CheckRequest::Head { url });
            }
            _ => self.read_again(),
        }
    }

    /// Requests every page again, from the oldest to the newest.
    fn read_again(&mut self) {
        if self.feed_pages.len() < 2 {
            let rule = rules::ADJACENT;
            self.report.pass_over(&[rule], "the feed has one page only");
        }
        self.jobs
            .extend((0..self.feed_pages.len()).rev().map(|number| CheckRequest::FeedPageAgain { number }));
    }

    /// Compares the headers of HEAD and GET: "This process involves crawling the feed through both HEAD
    /// requests and GET requests."
    fn compare_head(&mut self, url: &str, by_head: &HeaderMap, by_get: &ResponseHead) {
        let rule = rules::SAME_HEADERS;
        // Date and caching headers may differ between two requests.
        let names = [header::CONTENT_TYPE, header::LAST_MODIFIED, header::ETAG, header::LINK];
        let lines = |headers: &HeaderMap, name: &HeaderName| {
            let mut lines: Vec<_> = headers.get_all(name).iter().cloned().collect();
            lines.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
            lines
        };
        let differs = names.into_iter().find(|n| lines(by_head, n) != lines(&by_get.headers, n));
        // Only the newest page may change between HEAD and GET.
        let grew = by_head.get(header::LAST_MODIFIED) != by_get.headers.get(header::LAST_MODIFIED);
        match differs {
            // The newest page may have grown between the two requests.
            Some(_) if grew && self.feed_pages.is_empty() => {
                self.report.pass_over(&[rule], &format!("{url} grew meanwhile"));
            }
            Some(name) => self.judge(rule, Some(format!("{url}: {name} differs"))),
            None => self.judge(rule, None),
        }
    }

    fn snapshot_index(&mut self, url: &str, head: &ResponseHead, body: Vec<u8>, again: bool) {
        if again {
            let same = self.index.as_ref() == Some(&body);
            let id = |body: &[u8]| SnapshotIndex::parse(body).ok().map(|index| index.id);
            // The URL of the latest snapshot may serve another one by now.
            let is_other = self.index.as_deref().and_then(id) != id(&body);
            let problem = (!same && !is_other).then(|| url.to_owned());
            return self.judge(rules::INDEX_STAYS, problem);
        }
        let problem = (!says_json(head)).then(|| format!("{url}: {:?}", head.header("content-type")));
        self.judge(rules::INDEX_TYPE, problem);
        let index = match SnapshotIndex::parse(&body) {
            Ok(index) => index,
            Err(error) => {
                return self.judge(rules::INDEX_SCHEMA, Some(format!("{url}: {error}")));
            }
        };
        self.judge(rules::INDEX_SCHEMA, None);
        // A relative URL would be resolved differently by consumers that store the index.
        let relative = index.pages.iter().find(|page| url::Url::parse(page).is_err());
        self.judge(rules::INDEX_ADDRESSES, relative.cloned());
        let pages = index.pages.into_iter().take(self.options.snapshot_pages);
        self.jobs.extend(pages.map(|url| CheckRequest::SnapshotPage { url }));
        self.jobs.push_back(CheckRequest::Index { url: url.to_owned(), again: true });
        self.index = Some(body);
    }
}

/// Checks the links of an older page against the newer page from which it was reached.
fn neighbours(older: &FeedPageHead, newer: &PageVisit) -> Option<String> {
    let newer = newer.head.as_ref()?;
    let next = older.next.as_deref();
    let named = next.unwrap_or("missing");
    (next != Some(&newer.own))
        .then(|| format!("{} has the prev {}, whose next is {named}", newer.own, older.own))
}

impl Exchange for ReplicationChecker {
    fn poll_request(&mut self, _now: Now) -> Option<Request> {
        if self.current.is_some() {
            return None;
        }
        let job = self.jobs.pop_front()?;
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let mut request = Request::get(id, self.url(&job));
        match job {
            CheckRequest::Head { .. } => request.method = Method::HEAD,
            CheckRequest::Forward { ref method, .. } => request.method = method.clone(),
            CheckRequest::Index { .. } => request.max_body = MAX_INDEX,
            // Pages are read as a stream, so their size needs no limit.
            _ => (request.max_body, request.is_streamed) = (u64::MAX, true),
        }
        self.current = Some((id, job));
        Some(request)
    }

    fn handle_head(&mut self, _now: Now, id: RequestId, head: ResponseHead) {
        let Some((current, job)) = &self.current else { return };
        if *current != id {
            return;
        }
        let kind = match job {
            CheckRequest::FeedPage { .. } | CheckRequest::FeedPageAgain { .. } => Some(PageKind::Feed),
            CheckRequest::SnapshotPage { .. } | CheckRequest::SnapshotPageAgain { .. } => {
                Some(PageKind::Snapshot)
            }
            CheckRequest::Head { .. } | CheckRequest::Forward { .. } | CheckRequest::Index { .. } => None,
        };
        let again =
            matches!(job, CheckRequest::FeedPageAgain { .. } | CheckRequest::SnapshotPageAgain { .. });
        let url = self.url(job);
        if let Some(kind) = kind.filter(|_| head.status == 200) {
            // The second visit is compared with the first one. Its own findings would only repeat those.
            let mut aside = Report::default();
            let report = if again { &mut aside } else { &mut self.report };
            self.answer.visit =
                Some(PageVisit::begin(&url, kind, &head.headers, self.options.max_entity, report));
        }
        self.answer.head = Some(head);
    }

    fn handle_chunk(&mut self, _now: Now, id: RequestId, chunk: Bytes) {
        let Some((current, job)) = &self.current else { return };
        if *current != id {
            return;
        }
        if let Some(visit) = &mut self.answer.visit {
            let again =
                matches!(job, CheckRequest::FeedPageAgain { .. } | CheckRequest::SnapshotPageAgain { .. });
            let mut aside = Report::default();
            visit.read(chunk, if again { &mut aside } else { &mut self.report });
        } else if matches!(job, CheckRequest::Index { .. }) || self.answer.body.len() < MAX_PROBLEM {
            self.answer.body.extend_from_slice(&chunk);
        }
    }

    fn handle_end(&mut self, _now: Now, id: RequestId, result: Result<(), TransferError>) {
        if let Some((_, job)) = self.current.take_if(|(current, _)| *current == id) {
            self.handle_response(job, &result);
        }
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        None
    }

    fn is_finished(&self) -> bool {
        self.current.is_none() && self.jobs.is_empty()
    }
}

impl Checker for ReplicationChecker {
    fn report(&self) -> &Report {
        &self.report
    }
}
