//! The follower: walks back from the newest document to a known one, then reads forward.
//!
//! It reconstructs the whole feed from any publisher of -00, its later drafts or RFC 5005. RSS, Atom and JSON Feed
//! without history are followed as far as the newest document reaches. Delivery is at least once.
//!
//! | the newest document has | the follower |
//! |---|---|
//! | flag 0 or `fh:complete` | replaces all entries: missing ones are deleted; links are ignored |
//! | `prev-archive`, or `prev` beside the flag 1 or `this` | walks back along archive documents to one that was read |
//! | `next` (RFC 5005, section 3; JSON Feed) | walks back along pages to one with a known entry |
//! | none of these | reads this document only; warns once, and whenever it has no known entry |
//!
//! Each change has a position to resume from: its document's URL, and a digest of the entry's version. A follow that begins within a log, such as one from now, stops
//! at the first document that it knows a part of: our publisher divides the same log into other documents later.
//!
//! Of an entry's versions the newest wins; on a tie the later document wins. Only `at:deleted-entry` (RFC 6721) and
//! complete documents delete entries.
//!
//! A document that fails makes the result incomplete: [`Event::Incomplete`] names it, newer documents are read, and
//! the document is requested again with backoff. Its changes are delivered when it is available. A removed document
//! (410) is not requested again. No known entry is dropped in either case.
//!
//! The walk back caches up to [`CrawlLimits::cached`] bytes of documents; reading forward fetches the others again. If
//! the publisher's headers have the links, the walk back uses HEAD. So memory is constant, apart from a record for each
//! entry (`entries`) and the URLs of the documents to read.

mod apply;
mod document;
mod entries;
mod gaps;
mod pass;
mod position;
mod response;
mod start;
mod state;
mod walk;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use serde_json::Value;

use self::document::{DocumentContents, FetchedDocument};
pub use self::pass::CrawlLimits;
use self::pass::HistoryPass;
use self::response::{DocumentRequest, PartialResponse, RequestOutcome};
use self::state::HistoryFollowState;
use crate::follow::{
    Backoff, Event, Exchange, FollowError, FollowMode, Follower, Monotonic, Now, Request, RequestId,
    ResponseHead, StartFrom, TransferError, no_start,
};
use crate::format::{DocumentLimits, FormatError};

// `*/*` for servers that label their feeds oddly: a 406 would serve nobody.
/// Media types of feed documents, in order of preference.
const ACCEPT: &str = "application/atom+xml, application/rss+xml;q=0.9, application/feed+json;q=0.9, \
    application/xml;q=0.8, text/xml;q=0.8, application/json;q=0.7, */*;q=0.1";

// A hostile or mistaken `Retry-After` of a year must not silence the feed.
/// Maximum wait that a publisher can request.
const MAX_WAIT: Duration = Duration::from_secs(86_400);

// One slow document must not hold up a walk over thousands.
/// Maximum wait for one document while others are to be read.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(60);

/// Options of a follower.
#[derive(Debug, Clone)]
pub struct HistoryFollowOptions {
    /// Name of the feed in its changes; `None` for its URL.
    pub feed: Option<String>,
    /// [`FollowMode::CatchUp`] finishes at the end of one pass, or at the first failure.
    pub mode: FollowMode,
    /// Poll interval, unless the publisher requests a longer one.
    pub poll: Duration,
    /// Wait after a failure; doubled with each further one, up to a day.
    pub retry: Duration,
    /// Maximum requests for one document per pass; at least 1.
    pub tries: u32,
    /// Limits of one pass.
    pub limits: CrawlLimits,
    /// Limits of reading a document.
    pub reading: DocumentLimits,
    /// True for an HTML page, which is one entry: the whole page, told again whenever it changes.
    pub page: bool,
}

impl Default for HistoryFollowOptions {
    /// Polls every minute without end; three tries, a second apart.
    fn default() -> Self {
        Self {
            feed: None,
            mode: FollowMode::Continuous,
            poll: Duration::from_secs(60),
            retry: Duration::from_secs(1),
            tries: 3,
            limits: CrawlLimits::default(),
            reading: DocumentLimits::default(),
            page: false,
        }
    }
}

impl HistoryFollowOptions {
    fn backoff(&self) -> Backoff {
        Backoff::doubling(self.retry, MAX_WAIT)
    }
}

/// Follower of one feed; see the module's documentation.
#[derive(Debug)]
pub struct HistoryFollower {
    url: String,
    feed: String,
    options: HistoryFollowOptions,
    state: HistoryFollowState,
    phase: HistoryPhase,
    pass: HistoryPass,
    /// The request to send at `wake`, or as soon as possible.
    pending: Option<DocumentRequest>,
    /// The request in flight, and its response so far.
    in_flight: Option<(RequestId, DocumentRequest, PartialResponse)>,
    events: VecDeque<Event>,
    last_id: u64,
    wake: Option<Monotonic>,
    /// Poll interval instead of that of the options, and of what the publisher asks for.
    pace: Option<Duration>,
    /// True if the newest document is requested again at the end of the pass.
    pulls_again: bool,
    /// True if the next wait is that of the options: what was pushed may come late to the newest document.
    awaits_pushed: bool,
    /// Consecutive failures of the newest document.
    failures: u32,
    /// Validators and freshness of the newest document.
    newest: NewestHeaders,
    /// Changes since the last checkpoint, and a flag for any change of the state.
    changes: usize,
    dirty: bool,
    /// Last warning about a document's problems, which is not repeated.
    last_problem: String,
    finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HistoryPhase {
    /// No request until `wake`.
    Idle,
    /// Requests the newest document.
    Newest,
    /// Requests the document of the start position.
    Position,
    /// Walks back to a known document.
    Back,
    /// Reads the documents, the oldest first.
    Forward,
    /// Requests a document that failed in an earlier pass.
    Fill,
}

#[derive(Debug, Default)]
struct NewestHeaders {
    etag: Option<String>,
    last_modified: Option<String>,
    /// Time for which the document is fresh.
    fresh: Duration,
}

impl HistoryFollower {
    /// Creates a follower of the feed whose newest document is at `url`.
    ///
    /// `state` is the last checkpoint of an earlier follower, if any; it overrides `start`. A start position is that of a
    /// change, or the URL of the permanent document to begin with.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] if a URL is invalid, or the state is not one of this protocol.
    pub fn new(
        url: &str,
        start: StartFrom,
        state: Option<Value>,
        options: HistoryFollowOptions,
    ) -> Result<Self, FollowError> {
        if url::Url::parse(url).is_err() {
            return Err(FollowError::Usage(format!("not a URL: {url:?}")));
        }
        if let (StartFrom::Position(document), None) = (&start, &state)
            && url::Url::parse(document).is_err()
        {
            let positions = "the position of a change, or the URL of a permanent document";
            return Err(no_start(document, positions));
        }
        let state = match state {
            Some(state) => HistoryFollowState::parse(state)?,
            None => HistoryFollowState::new(start),
        };
        Ok(Self {
            url: url.to_owned(),
            feed: options.feed.clone().unwrap_or_else(|| url.to_owned()),
            options,
            state,
            phase: HistoryPhase::Idle,
            pass: HistoryPass::default(),
            pending: None,
            in_flight: None,
            events: VecDeque::new(),
            last_id: 0,
            wake: None,
            pace: None,
            pulls_again: false,
            awaits_pushed: false,
            failures: 0,
            newest: NewestHeaders::default(),
            changes: 0,
            dirty: false,
            last_problem: String::new(),
            finished: false,
        })
    }

    /// URL of the newest document.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sets the interval between passes; `None` for that of the options or of the publisher, if that is longer.
    pub fn set_pace(&mut self, pace: Option<Duration>) {
        self.pace = pace;
    }

    /// Requests the newest document at once, unless the last pass failed.
    pub fn pull_now(&mut self) {
        if self.phase != HistoryPhase::Idle {
            // The response in flight may be older than what this pull is for.
            self.pulls_again = true;
        } else if self.failures == 0 {
            self.wake = None;
        }
    }

    /// Requests the newest document at once, and once more after the interval of the options: caches between the feed
    /// and here may still have the one from before the push.
    pub fn pull_after_push(&mut self) {
        self.awaits_pushed = true;
        self.pull_now();
    }

    fn read(&self, fetched: &FetchedDocument) -> Result<DocumentContents, FormatError> {
        match self.options.page {
            // Not the address after redirects, which may differ from one request to the next.
            true => DocumentContents::of_page(fetched, &self.url, self.options.reading),
            false => DocumentContents::of(fetched, self.options.reading),
        }
    }

    /// Starts a pass.
    fn start_pass(&mut self) {
        self.pass = HistoryPass::new(&self.url);
        let has_known = self.state.start.is_none() && self.state.entries.len() > 0;
        self.pass.known = has_known.then_some(self.state.last_seq);
        self.phase = HistoryPhase::Newest;
        self.queue_request(Method::GET, self.url.clone());
    }

    fn queue_request(&mut self, method: Method, url: String) {
        self.wake = None;
        self.pending = Some(DocumentRequest { url, method, tries: 0 });
    }

    /// Queues a retry after a pause. Returns false if the tries are used up.
    fn retry(&mut self, now: Now, document: &DocumentRequest, retry_after: Option<Duration>) -> bool {
        let tries = document.tries + 1;
        if tries >= self.options.tries {
            return false;
        }
        let wait = self.options.backoff().wait_or_longer(tries, retry_after, MAX_RETRY_WAIT);
        self.wake = Some(now.after(wait.min(MAX_RETRY_WAIT)));
        self.pending = Some(DocumentRequest { tries, ..document.clone() });
        true
    }

    /// Ends a failed pass.
    fn fail(&mut self, now: Now, error: FollowError, retry_after: Option<Duration>) {
        // Checkpoint first: the documents that this pass did read are not read again.
        self.checkpoint();
        self.events.push_back(Event::Failed(error));
        self.failures += 1;
        self.end_pass(now, self.options.backoff().wait_or_longer(self.failures, retry_after, MAX_WAIT));
    }

    /// Ends a pass: waits for the next one, or finishes after a single pass.
    fn end_pass(&mut self, now: Now, wait: Duration) {
        self.phase = HistoryPhase::Idle;
        self.pass = HistoryPass::default();
        self.pending = None;
        self.finished = self.options.mode == FollowMode::CatchUp;
        // Not after a failure: pushes must not undo the backoff.
        let is_due = std::mem::take(&mut self.pulls_again) && self.failures == 0;
        self.wake = Some(now.after(wait)).filter(|_| !is_due);
    }

    /// Returns the wait after a pass without failures.
    fn rest(&mut self) -> Duration {
        match self.pace {
            Some(_) if std::mem::take(&mut self.awaits_pushed) => self.options.poll,
            Some(pace) => pace,
            None => self.options.poll.max(self.newest.fresh),
        }
    }

    /// Emits a checkpoint if the state has changed since the last one.
    fn checkpoint(&mut self) {
        if std::mem::take(&mut self.dirty) {
            self.changes = 0;
            self.events.push_back(Event::Checkpoint(self.state.to_json()));
        }
    }

    /// Emits a checkpoint during a long pass.
    ///
    /// A checkpoint writes the whole state. Its interval grows with the state, so all checkpoints together take no longer
    /// than the pass.
    fn checkpoint_during_pass(&mut self) {
        if self.changes > (self.state.entries.len() / 2).max(1000) {
            self.checkpoint();
        }
    }

    fn incomplete(&mut self, text: String) {
        self.events.push_back(Event::Incomplete(text));
    }

    fn request(&mut self, document: DocumentRequest) -> Request {
        self.last_id += 1;
        let mut request = Request {
            method: document.method.clone(),
            max_body: self.options.limits.document,
            ..Request::get(RequestId(self.last_id), &document.url)
        };
        request = request.with(header::ACCEPT, ACCEPT);
        // Older documents are requested only to be read, so a 304 would be of no use.
        if self.phase == HistoryPhase::Newest {
            if let Some(etag) = &self.state.etag {
                request = request.with(header::IF_NONE_MATCH, etag);
            }
            if let Some(date) = &self.state.last_modified {
                request = request.with(header::IF_MODIFIED_SINCE, date);
            }
        }
        self.in_flight = Some((request.id, document, PartialResponse::default()));
        request
    }

    fn handle_outcome(&mut self, now: Now, request: &DocumentRequest, outcome: RequestOutcome) {
        match self.phase {
            HistoryPhase::Idle => {}
            HistoryPhase::Newest => self.handle_newest(now, outcome),
            HistoryPhase::Position => self.handle_position(now, request, outcome),
            HistoryPhase::Back => self.handle_back(now, request, outcome),
            HistoryPhase::Forward => self.handle_forward(now, request, outcome),
            HistoryPhase::Fill => self.handle_gap(now, request, outcome),
        }
    }
}

impl Exchange for HistoryFollower {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        // One request at a time: each document names the next.
        if self.finished || self.in_flight.is_some() || self.wake.is_some_and(|wake| wake > now.monotonic) {
            return None;
        }
        if self.phase == HistoryPhase::Idle {
            self.start_pass();
        }
        let document = self.pending.take()?;
        self.wake = None;
        Some(self.request(document))
    }

    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead) {
        if let Some((_, _, response)) = self.in_flight.as_mut().filter(|(sent, ..)| *sent == id) {
            response.handle_head(now, head);
        }
    }

    fn handle_chunk(&mut self, _now: Now, id: RequestId, chunk: Bytes) {
        let limit = self.options.limits.document;
        if let Some((_, _, response)) = self.in_flight.as_mut().filter(|(sent, ..)| *sent == id) {
            response.handle_chunk(&chunk, limit);
        }
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        if self.in_flight.as_ref().is_none_or(|(sent, ..)| *sent != id) {
            return;
        }
        let Some((_, request, response)) = self.in_flight.take() else { return };
        let outcome = response.finish(&request, result, self.options.limits.document);
        self.handle_outcome(now, &request, outcome);
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        if self.finished || self.in_flight.is_some() { None } else { self.wake }
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

impl Follower for HistoryFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn progress(&self) -> Option<String> {
        let left = self.pass.chain.len();
        match self.phase {
            HistoryPhase::Back => Some(format!("walking back: {left} documents so far")),
            HistoryPhase::Forward => {
                Some(format!("{left} documents to read, {} entries known", self.state.entries.len()))
            }
            HistoryPhase::Idle | HistoryPhase::Newest | HistoryPhase::Position | HistoryPhase::Fill => None,
        }
    }
}
