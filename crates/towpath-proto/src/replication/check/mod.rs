//! The conformance check: looks at the newest pages of a feed, and at a snapshot, twice.
//!
//! First the newest page is looked for along `next`; then every page is asked for by HEAD and by GET, from there
//! back along `prev`; then every page is read again, which shows whether published pages stay as they were. A snapshot's
//! index and its first pages are read in the same way. Sections are named by their headings, because the text has no
//! numbers.

mod forward;
mod page;

use std::collections::{HashSet, VecDeque};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, header};
use jiff::Timestamp;

use self::page::{Kind, Visit};
use super::publish;
use super::snapshot::SnapshotIndex;
use super::wire::FeedPageHead;
use crate::follow::{Checker, Exchange, Request, RequestId, ResponseHead, TransferError};
use crate::report::{Level, Report};

/// How much to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOptions {
    /// How many pages of the feed, the newest first.
    pub pages: usize,
    /// How many pages of the snapshot.
    pub snapshot_pages: usize,
    /// A snapshot's index, where there is one.
    pub snapshot: Option<String>,
    /// The largest body of an entity, in bytes.
    pub max_entity: usize,
}

impl Default for CheckOptions {
    /// 20 pages of the feed and 5 of the snapshot, entities up to 72 MiB.
    fn default() -> Self {
        Self { pages: 20, snapshot_pages: 5, snapshot: None, max_entity: 72 << 20 }
    }
}

/// Checks one feed, or one snapshot, see the module's text.
#[derive(Debug)]
pub struct ReplicationChecker {
    options: CheckOptions,
    report: Report,
    jobs: VecDeque<Job>,
    current: Option<(RequestId, Job)>,
    last_id: u64,
    answer: Answer,
    /// The pages that were read, each with what the first visit found.
    feed_pages: Vec<Visit>,
    snapshot_pages: Vec<Visit>,
    index: Option<Vec<u8>>,
    visited: HashSet<String>,
    /// The pages that were gone past on the way to the newest one; `None` once that is found.
    forward: Option<HashSet<String>>,
    content_ids: HashSet<String>,
}

/// One request, and what its answer is for.
#[derive(Debug, Clone)]
enum Job {
    Head {
        url: String,
    },
    /// A page to which the `next` of `from` leads. By GET where HEAD is not answered.
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

/// The answer that is coming in.
#[derive(Debug, Default)]
struct Answer {
    head: Option<ResponseHead>,
    body: Vec<u8>,
    visit: Option<Visit>,
}

const CONCEPTS: &str = "Concepts";
const FEED: &str = "Feed";
const PAGINATION: &str = "Pagination";
const IMMUTABILITY: &str = "Immutability of pages";
const INDEX: &str = "Snapshot Index Format";

/// How much of an error's document is looked at, about, in bytes.
const MAX_PROBLEM: usize = 64 << 10;

/// The largest snapshot index that is looked at, in bytes.
const MAX_INDEX: u64 = 64 << 20;

impl ReplicationChecker {
    /// A check of the feed whose newest page is at `url`, or of the snapshot whose index is there.
    pub fn new(url: &str, options: CheckOptions) -> Self {
        let mut jobs = VecDeque::from([Job::Head { url: url.to_owned() }]);
        jobs.extend(options.snapshot.clone().map(|url| Job::Index { url, again: false }));
        Self {
            options,
            report: Report::default(),
            jobs,
            current: None,
            last_id: 0,
            answer: Answer::default(),
            feed_pages: Vec::new(),
            snapshot_pages: Vec::new(),
            index: None,
            visited: HashSet::new(),
            forward: Some(HashSet::new()),
            content_ids: HashSet::new(),
        }
    }

    fn url(&self, job: &Job) -> String {
        match job {
            Job::Head { url }
            | Job::Forward { url, .. }
            | Job::FeedPage { url, .. }
            | Job::Index { url, .. }
            | Job::SnapshotPage { url } => url.clone(),
            Job::FeedPageAgain { number } => self.feed_pages[*number].url.clone(),
            Job::SnapshotPageAgain { number } => self.snapshot_pages[*number].url.clone(),
        }
    }

    fn must(&mut self, section: &str, rule: &str, problem: Option<String>) {
        self.report.must(section, rule, problem);
    }

    fn end(&mut self, job: Job, result: &Result<(), TransferError>) {
        let url = self.url(&job);
        let answer = std::mem::take(&mut self.answer);
        let status = answer.head.as_ref().map(|head| head.status);
        let failure = match (result, status) {
            (Err(error), _) => Some(format!("{url}: {error}")),
            (Ok(()), Some(200)) => None,
            (Ok(()), status) => Some(format!("{url} answers {}", status.unwrap_or_default())),
        };
        let is_whole = failure.is_none();
        if let Job::Forward { url, from, method } = job {
            return self.page_ahead(url, from, &method, answer.head, failure);
        }
        let rule = "A request results in status 200 and a whole answer";
        match (&job, status) {
            // What HEAD does not answer, GET may.
            (Job::Head { .. }, Some(_)) => {}
            (Job::FeedPage { .. }, Some(404)) if publish::says_empty(&answer.body) => {
                self.report.skip(CONCEPTS, Level::Must, rule, "the feed is empty");
            }
            _ => self.must(CONCEPTS, rule, failure),
        }
        let Some(head) = answer.head else { return };
        match job {
            Job::Head { url } if is_json(&head) && self.feed_pages.is_empty() => {
                self.jobs.push_front(Job::Index { url, again: false });
            }
            Job::Head { url } => {
                let headers = if is_whole { head.headers } else { HeaderMap::new() };
                self.jobs.push_front(Job::FeedPage { url, head: headers });
            }
            Job::FeedPage { url, head: by_head } if is_whole => {
                self.feed_page(&url, &by_head, &head, answer.visit);
            }
            Job::Index { url, again } if is_whole => self.snapshot_index(&url, &head, answer.body, again),
            Job::SnapshotPage { .. } if is_whole => {
                let Some(mut visit) = answer.visit else { return };
                visit.finish(&mut self.report);
                self.jobs.push_back(Job::SnapshotPageAgain { number: self.snapshot_pages.len() });
                self.snapshot_pages.push(visit);
            }
            Job::FeedPageAgain { number } if is_whole => {
                let is_sealed = self.feed_pages[number].head.as_ref().is_some_and(|h| h.next.is_some());
                let problem = answer.visit.and_then(|again| self.feed_pages[number].changed(&again));
                let rule = if is_sealed {
                    "A page with a next link does not change"
                } else {
                    "The newest page only gains entities"
                };
                self.must(IMMUTABILITY, rule, problem);
            }
            Job::SnapshotPageAgain { number } if is_whole => {
                let problem = answer.visit.and_then(|again| self.snapshot_pages[number].changed(&again));
                self.must(IMMUTABILITY, "A snapshot's page does not change", problem);
            }
            _ => {}
        }
    }

    /// A page of the feed was read for the first time.
    fn feed_page(&mut self, url: &str, by_head: &HeaderMap, head: &ResponseHead, visit: Option<Visit>) {
        let Some(mut visit) = visit else { return };
        visit.finish(&mut self.report);
        let problem = by_head.is_empty().then(|| url.to_owned());
        self.must(PAGINATION, "Pages answer HEAD requests", problem);
        if !by_head.is_empty() {
            self.compare_head(url, by_head, head);
        }
        let page = match FeedPageHead::parse(&head.url, &head.headers) {
            Ok(page) => page,
            Err(error) => {
                self.must("Required headers", "A feed page has its headers", Some(format!("{url}: {error}")));
                return self.read_again();
            }
        };
        self.must("Required headers", "A feed page has its headers", None);
        if let Some(next) = page.next.clone().filter(|_| self.forward.is_some()) {
            return self.go_forward(page.own, next);
        }
        self.forward = None;
        for id in visit.content_ids.drain(..) {
            let problem = self.content_ids.contains(&id).then(|| format!("{url}: {id} is there twice"));
            self.must("Content-ID", "A Content-ID is unique within the feed", problem);
            self.content_ids.insert(id);
        }
        if let Some(newer) = self.feed_pages.last() {
            let problem = neighbours(&page, newer);
            self.must(PAGINATION, "The links of adjacent pages match", problem);
            let problem = match (visit.last, self.feed_pages.last().and_then(|newer| newer.first)) {
                (Some(last), Some(first)) if last > first => {
                    Some(format!("{url} ends at {last}, and the page after it begins at {first}"))
                }
                _ => None,
            };
            self.must("Last-Modified", "Timestamps never decrease across pages", problem);
        }
        let is_known = !self.visited.insert(page.own.clone());
        let problem = is_known.then(|| format!("{url} was visited before"));
        self.must(PAGINATION, "The feed forms no loop", problem);
        let to_itself = [&page.prev, &page.next].into_iter().flatten().any(|link| *link == page.own);
        self.must(PAGINATION, "No page links to itself", to_itself.then(|| url.to_owned()));
        let prev = page.prev.clone().filter(|_| !is_known && !to_itself);
        visit.head = Some(page);
        self.feed_pages.push(visit);
        match prev {
            Some(url) if self.feed_pages.len() < self.options.pages => {
                self.jobs.push_front(Job::Head { url });
            }
            Some(_) => self.read_again(),
            None => {
                self.must(FEED, "The initial page has no prev link", None);
                self.read_again();
            }
        }
    }

    /// Every page of the feed was read: once more, from the oldest to the newest.
    fn read_again(&mut self) {
        if self.feed_pages.len() < 2 {
            let rule = "The links of adjacent pages match";
            self.report.skip(PAGINATION, Level::Must, rule, "the feed has one page only");
        }
        self.jobs.extend((0..self.feed_pages.len()).rev().map(|number| Job::FeedPageAgain { number }));
    }

    /// "This process involves crawling the feed through both HEAD requests and GET requests."
    fn compare_head(&mut self, url: &str, by_head: &HeaderMap, by_get: &ResponseHead) {
        let rule = "HEAD and GET have the same headers";
        let names = [header::CONTENT_TYPE, header::LAST_MODIFIED, header::ETAG, header::LINK];
        let lines = |headers: &HeaderMap, name: &HeaderName| {
            let mut lines: Vec<_> = headers.get_all(name).iter().cloned().collect();
            lines.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
            lines
        };
        let differs = names.into_iter().find(|n| lines(by_head, n) != lines(&by_get.headers, n));
        let grew = by_head.get(header::LAST_MODIFIED) != by_get.headers.get(header::LAST_MODIFIED);
        match differs {
            // The newest page may have grown between the two requests.
            Some(_) if grew && self.feed_pages.is_empty() => {
                self.report.skip(PAGINATION, Level::Must, rule, &format!("{url} grew meanwhile"));
            }
            Some(name) => self.must(PAGINATION, rule, Some(format!("{url}: {name} differs"))),
            None => self.must(PAGINATION, rule, None),
        }
    }

    fn snapshot_index(&mut self, url: &str, head: &ResponseHead, body: Vec<u8>, again: bool) {
        if again {
            let same = self.index.as_ref() == Some(&body);
            let id = |body: &[u8]| SnapshotIndex::parse(body).ok().map(|index| index.id);
            // An address of the latest snapshot may show another one by now.
            let is_other = self.index.as_deref().and_then(id) != id(&body);
            let problem = (!same && !is_other).then(|| url.to_owned());
            return self.must(IMMUTABILITY, "A snapshot's index does not change", problem);
        }
        let problem = (!is_json(head)).then(|| format!("{url}: {:?}", head.header("content-type")));
        self.must(INDEX, "The index has the content type application/json", problem);
        let index = match SnapshotIndex::parse(&body) {
            Ok(index) => index,
            Err(error) => {
                return self.must(INDEX, "The index fits its schema", Some(format!("{url}: {error}")));
            }
        };
        self.must(INDEX, "The index fits its schema", None);
        let relative = index.pages.iter().find(|page| url::Url::parse(page).is_err());
        self.must(INDEX, "Page addresses are absolute", relative.cloned());
        let pages = index.pages.into_iter().take(self.options.snapshot_pages);
        self.jobs.extend(pages.map(|url| Job::SnapshotPage { url }));
        self.jobs.push_back(Job::Index { url: url.to_owned(), again: true });
        self.index = Some(body);
    }
}

/// Whether an older page's links match those of the newer one from which it was reached.
fn neighbours(older: &FeedPageHead, newer: &Visit) -> Option<String> {
    let newer = newer.head.as_ref()?;
    let next = older.next.as_deref();
    (next != Some(&newer.own))
        .then(|| format!("{} has the prev {}, whose next is {next:?}", newer.own, older.own))
}

fn is_json(head: &ResponseHead) -> bool {
    let media_type = head.header("content-type").and_then(|t| t.split(';').next()).unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("application/json")
}

impl Exchange for ReplicationChecker {
    fn poll_request(&mut self, _now: Timestamp) -> Option<Request> {
        if self.current.is_some() {
            return None;
        }
        let job = self.jobs.pop_front()?;
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let mut request = Request::get(id, self.url(&job));
        match job {
            Job::Head { .. } => request.method = Method::HEAD,
            Job::Forward { ref method, .. } => request.method = method.clone(),
            Job::Index { .. } => request.max_body = MAX_INDEX,
            _ => request.max_body = u64::MAX,
        }
        self.current = Some((id, job));
        Some(request)
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        let Some((current, job)) = &self.current else { return };
        if *current != id {
            return;
        }
        let kind = match job {
            Job::FeedPage { .. } | Job::FeedPageAgain { .. } => Some(Kind::Feed),
            Job::SnapshotPage { .. } | Job::SnapshotPageAgain { .. } => Some(Kind::Snapshot),
            Job::Head { .. } | Job::Forward { .. } | Job::Index { .. } => None,
        };
        let again = matches!(job, Job::FeedPageAgain { .. } | Job::SnapshotPageAgain { .. });
        let url = self.url(job);
        if let Some(kind) = kind.filter(|_| head.status == 200) {
            // What the second visit finds is compared with the first one, not reported again.
            let mut aside = Report::default();
            let report = if again { &mut aside } else { &mut self.report };
            self.answer.visit =
                Some(Visit::begin(&url, kind, &head.headers, self.options.max_entity, report));
        }
        self.answer.head = Some(head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        let Some((current, job)) = &self.current else { return };
        if *current != id {
            return;
        }
        if let Some(visit) = &mut self.answer.visit {
            let again = matches!(job, Job::FeedPageAgain { .. } | Job::SnapshotPageAgain { .. });
            let mut aside = Report::default();
            visit.read(chunk, if again { &mut aside } else { &mut self.report });
        } else if matches!(job, Job::Index { .. }) || self.answer.body.len() < MAX_PROBLEM {
            self.answer.body.extend_from_slice(&chunk);
        }
    }

    fn handle_end(&mut self, _now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if let Some((_, job)) = self.current.take_if(|(current, _)| *current == id) {
            self.end(job, &result);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
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
