//! The follower: a snapshot where there is one, then back along the pages, then forward and on.
//!
//! Following is exactly once where the driver keeps effect and [`Event::Checkpoint`] together: the checkpoint
//! names the last entity by its Content-ID, and the page where it stands is read again up to it. A start from
//! a time or from a snapshot is at least once for the entities of the first second.
//!
//! What the text calls errors that consumers should report, "timestamps not old enough" and "missing content
//! ID", and a published page that was changed, are told as [`Event::Incomplete`]; following goes on with what
//! there is. Timestamps that go backwards are a [`Event::Warning`]. Everything else that breaks the text is a
//! [`FollowError::Protocol`] with the page's address and the entity's number; what was whole before it has
//! been told, and the next attempt goes on after it.

mod crawl;
mod feed;
mod place;
mod snapshot;
mod walk;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use self::crawl::{Crawl, Goal};
use self::place::{Place, Start};
pub use self::snapshot::SnapshotProgress;
use self::snapshot::SnapshotWalk;
use self::walk::{Skip, Walk};
use crate::follow::{
    Event, Exchange, FollowError, Follower, Request, RequestId, ResponseHead, StartFrom, TransferError,
};

/// How to follow.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the changes call the feed; its address where this is `None`.
    pub feed: Option<String>,
    /// Finish at the end of the feed, or at the first failure.
    pub once: bool,
    /// How long to wait at the end of the feed before asking again.
    pub poll: Duration,
    /// How long to wait after a failure; doubled with each further one, up to 64 times as long.
    pub retry: Duration,
    /// The largest body of an entity, in bytes: what is held in memory at the most for each page under way.
    pub max_entity: usize,
    /// The largest page, in bytes. Pages are never held in memory.
    pub max_page: u64,
    /// A snapshot's index to read first, where there is no state yet.
    pub snapshot: Option<String>,
    /// How many pages of a snapshot to ask for at once; at least 1.
    pub parallel: usize,
}

impl Default for Options {
    /// For ever, every 30 seconds; entities up to 72 MiB, pages up to 64 GiB, two snapshot pages at once.
    fn default() -> Self {
        Self {
            feed: None,
            once: false,
            poll: Duration::from_secs(30),
            retry: Duration::from_secs(5),
            max_entity: 72 << 20,
            max_page: 64 << 30,
            snapshot: None,
            parallel: 2,
        }
    }
}

/// Follows one feed, see the module's text.
#[derive(Debug)]
pub struct ReplicationFollower {
    url: String,
    feed: String,
    options: Options,
    place: Place,
    phase: Phase,
    /// The request of a crawl or a walk.
    request: Option<RequestId>,
    /// The request for the page after the one that is being read.
    ahead: Option<RequestId>,
    events: VecDeque<Event>,
    requests: VecDeque<Request>,
    last_id: u64,
    wake: Option<Timestamp>,
    /// Failures since a change was told or the end of the feed was reached.
    failures: u32,
    /// How long the publisher wants to be left alone (`Retry-After`).
    asked: Option<Duration>,
    /// The crawl was begun again since then, because a page was gone.
    restarted: bool,
    /// The publisher does not answer HEAD; GET is asked for headers too.
    without_head: bool,
    /// The last answer is of a server that says that it is behind.
    is_stale: bool,
    /// What was read before is known to be there no more: the publisher has changed it.
    is_changed: bool,
    finished: bool,
}

#[derive(Debug)]
enum Phase {
    /// Nothing is under way until `wake`.
    Idle,
    Snapshot(Box<SnapshotWalk>),
    /// HEAD along the pages, and what to skip once the walk begins.
    Crawl {
        crawl: Box<Crawl>,
        skip: Skip,
        url: String,
        answered: bool,
    },
    /// GET of the entry page, to see whether its 404 means that the feed is empty.
    Probe {
        status: u16,
        body: Vec<u8>,
    },
    /// GET along the pages.
    Walk {
        walk: Box<Walk>,
        url: String,
        is_resumed: bool,
    },
}

/// The longest wait that a publisher may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(86_400);

/// The largest index of a snapshot, in bytes.
const MAX_INDEX: u64 = 256 << 20;

/// How much of a problem document is read.
const MAX_PROBLEM: usize = 64 << 10;

impl ReplicationFollower {
    /// A follower of the feed whose newest page is at `url`. `state` is the last checkpoint, where the feed
    /// was followed before; it wins over `start` and the options' snapshot. `url` may also be the address of
    /// a snapshot's index that names its feed.
    pub fn new(
        url: &str,
        start: StartFrom,
        state: Option<Value>,
        options: Options,
    ) -> Result<Self, FollowError> {
        if url::Url::parse(url).is_err() {
            return Err(FollowError::Usage(format!("not an address: {url:?}")));
        }
        if options.parallel == 0 {
            return Err(FollowError::Usage("the number of pages to ask for at once is 0".into()));
        }
        let place = match state {
            Some(state) => Place::parse(state)?,
            None => Place::new(start, options.snapshot.clone()),
        };
        Ok(Self {
            url: url.to_owned(),
            feed: options.feed.clone().unwrap_or_else(|| url.to_owned()),
            options,
            place,
            phase: Phase::Idle,
            request: None,
            ahead: None,
            events: VecDeque::new(),
            requests: VecDeque::new(),
            last_id: 0,
            wake: None,
            failures: 0,
            asked: None,
            restarted: false,
            without_head: false,
            is_stale: false,
            is_changed: false,
            finished: false,
        })
    }

    /// How far the snapshot has come, while one is being read.
    pub fn snapshot_progress(&self) -> Option<SnapshotProgress> {
        match &self.phase {
            Phase::Snapshot(walk) => Some(walk.progress()),
            _ => None,
        }
    }

    /// The address of the newest page.
    fn entry(&self) -> String {
        self.place.feed.clone().unwrap_or_else(|| self.url.clone())
    }

    fn ask(&mut self, method: Method, url: &str, etag: Option<&str>) -> RequestId {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let mut request = Request { method, max_body: self.options.max_page, ..Request::get(id, url) };
        if let Some(etag) = etag {
            request = request.with(header::IF_NONE_MATCH, etag);
        }
        self.requests.push_back(request);
        id
    }

    /// Limits the answer to the last request.
    fn limit_body(&mut self, max_body: u64) {
        if let Some(request) = self.requests.back_mut() {
            request.max_body = max_body;
        }
    }

    /// Begins an attempt.
    fn begin(&mut self) {
        self.wake = None;
        self.asked = None;
        self.is_changed = false;
        if let Some(place) = self.place.snapshot.clone() {
            let mut walk = SnapshotWalk::new(place);
            let id = self.ask(Method::GET, &walk.place.index, None);
            self.limit_body(MAX_INDEX);
            walk.index_request = Some((id, Vec::new()));
            self.phase = Phase::Snapshot(Box::new(walk));
        } else if let Some(position) = self.place.position.clone() {
            let walk = Walk::new(&self.feed, self.options.max_entity, Skip::To(position.clone()), true);
            self.walk(walk, position.page, position.etag.as_deref(), true);
        } else {
            self.crawl();
        }
    }

    /// Goes back to where following begins or goes on.
    fn crawl(&mut self) {
        let (goal, skip) = match (&self.place.position, &self.place.start) {
            (Some(position), _) => {
                let (content_id, modified) = (position.content_id.clone(), Some(position.modified));
                (Goal::Time(position.modified), Skip::Through { content_id, modified })
            }
            (None, Start::Beginning) => (Goal::Beginning, Skip::Nothing),
            (None, Start::Now) => (Goal::Newest, Skip::All),
            (None, Start::Time(time) | Start::Snapshot { time, .. }) => {
                (Goal::Time(*time), Skip::Older(*time))
            }
            (None, Start::Id(id)) => {
                (Goal::Beginning, Skip::Through { content_id: id.clone(), modified: None })
            }
        };
        self.crawl_to(goal, skip);
    }

    fn crawl_to(&mut self, goal: Goal, skip: Skip) {
        self.ahead = None;
        let url = self.entry();
        self.head(&url);
        self.phase = Phase::Crawl { crawl: Box::new(Crawl::new(goal)), skip, url, answered: false };
    }

    fn head(&mut self, url: &str) {
        let method = if self.without_head { Method::GET } else { Method::HEAD };
        self.request = Some(self.ask(method, url, None));
    }

    fn walk(&mut self, walk: Walk, url: String, etag: Option<&str>, is_resumed: bool) {
        self.request = Some(self.ask(Method::GET, &url, etag));
        self.phase = Phase::Walk { walk: Box::new(walk), url, is_resumed };
    }

    fn fail(&mut self, now: Timestamp, error: FollowError) {
        self.events.push_back(Event::Failed(error));
        self.rest_after_failure(now);
    }

    /// Waits longer with every failure, and no shorter than the publisher asks for.
    fn rest_after_failure(&mut self, now: Timestamp) {
        let wait = self.options.retry * (1 << self.failures.min(6));
        self.failures = self.failures.saturating_add(1);
        let asked = self.asked.take().unwrap_or_default();
        self.rest(now, wait.max(asked.min(LONGEST_ASKED)));
    }

    fn fail_protocol(&mut self, now: Timestamp, url: &str, error: &super::ReplicationError) {
        self.fail(now, FollowError::Protocol { url: url.to_owned(), reason: error.to_string() });
    }

    /// Waits, or finishes where only one pass was asked for. Answers that still come are passed over.
    fn rest(&mut self, now: Timestamp, wait: Duration) {
        self.phase = Phase::Idle;
        (self.request, self.ahead) = (None, None);
        self.requests.clear();
        self.finished = self.options.once;
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
        self.wake = Some(now.checked_add(wait).unwrap_or(Timestamp::MAX));
    }

    /// Something was told, or the end of the feed is reached. To read again what was known is no progress: a page
    /// may lead to another that is not there.
    fn got_on(&mut self) {
        self.failures = 0;
        self.restarted = false;
    }

    /// The end of the feed is reached.
    fn rest_at_end(&mut self, now: Timestamp) {
        self.got_on();
        self.rest(now, self.options.poll);
    }

    fn checkpoint(&mut self) {
        self.events.push_back(Event::Checkpoint(self.place.to_json()));
    }

    fn handle_empty(&mut self, now: Timestamp) {
        if self.place.start == Start::Now {
            // What comes now is all new.
            self.place.start = Start::Beginning;
        }
        self.checkpoint();
        self.rest_at_end(now);
    }
}

impl Exchange for ReplicationFollower {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        let is_idle = matches!(self.phase, Phase::Idle) && !self.finished;
        if is_idle && self.wake.is_none_or(|wake| wake <= now) {
            self.begin();
        }
        self.requests.pop_front()
    }

    fn handle_head(&mut self, now: Timestamp, id: RequestId, head: ResponseHead) {
        if head.status >= 400 {
            self.asked = head.retry_after(now).or(self.asked);
        }
        if self.request == Some(id) {
            self.is_stale = head.is_stale();
        }
        match &mut self.phase {
            Phase::Snapshot(_) => self.snapshot_head(now, id, &head),
            _ if self.request != Some(id) => {}
            Phase::Crawl { .. } => self.crawl_head(now, &head),
            Phase::Walk { .. } => self.walk_head(now, &head),
            Phase::Probe { status, .. } => *status = head.status,
            Phase::Idle => {}
        }
    }

    fn handle_chunk(&mut self, now: Timestamp, id: RequestId, chunk: Bytes) {
        match &mut self.phase {
            Phase::Snapshot(_) => self.snapshot_piece(now, id, Some(chunk)),
            _ if self.request != Some(id) => {}
            Phase::Walk { .. } => self.walk_piece(now, Some(chunk)),
            Phase::Probe { body, .. } => {
                let room = MAX_PROBLEM.saturating_sub(body.len());
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            }
            Phase::Crawl { .. } | Phase::Idle => {}
        }
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if let Phase::Snapshot(walk) = &self.phase {
            let url = walk.page_url(id).unwrap_or(&walk.place.index).to_owned();
            return match result {
                Ok(()) => self.snapshot_piece(now, id, None),
                Err(source) => self.snapshot_failed(now, id, FollowError::Transfer { url, source }),
            };
        }
        if self.request != Some(id) {
            return;
        }
        let (url, ended_early) = match &self.phase {
            Phase::Crawl { url, answered, .. } => (url.clone(), !answered),
            Phase::Walk { walk, url, .. } => (walk.page_url().unwrap_or(url).to_owned(), true),
            Phase::Probe { .. } => (self.entry(), true),
            Phase::Snapshot(_) | Phase::Idle => return,
        };
        match result {
            Err(source) if ended_early => self.fail(now, FollowError::Transfer { url, source }),
            Ok(()) if matches!(self.phase, Phase::Walk { .. }) => self.walk_piece(now, None),
            Ok(()) if matches!(self.phase, Phase::Probe { .. }) => self.probe_end(now),
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        if self.finished { None } else { self.wake }
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

impl Follower for ReplicationFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn progress(&self) -> Option<String> {
        let SnapshotProgress { pages_done, pages, entities } = self.snapshot_progress()?;
        Some(format!("snapshot: {pages_done} of {pages} pages, {entities} items"))
    }
}
