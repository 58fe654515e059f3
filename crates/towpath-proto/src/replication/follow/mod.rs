//! The follower: reads a snapshot if there is one, crawls back along the pages, then walks forward.
//!
//! Delivery is exactly once if the driver stores its effects together with [`Event::Checkpoint`]. The checkpoint
//! names the last entity by its Content-ID, and its page is read again up to that entity. A start from a time
//! or a snapshot is at least once for the entities of the first second.
//!
//! A feed whose oldest page names a snapshot (`rel=snapshot`, our own addition) has lost the pages before it. From the
//! beginning, such a feed is followed from that snapshot. If there is none, [`Event::Incomplete`] says so.
//!
//! Errors, as the text classifies them:
//!
//! - "Timestamps not old enough", "missing content ID", a changed page and a `prev` that leads to a missing page are
//!   [`Event::Incomplete`]. Following continues with the available pages.
//! - A snapshot that was replaced while it was read is [`Event::Reset`]: deletions between the two are unknown.
//! - If the position's page never was, and the feed has nothing as old as the position, the publisher began anew:
//!   [`Event::Reset`]. So it did if another entity is at the position, and nothing is older. Everything is delivered.
//! - Timestamps that go backwards are an [`Event::Warning`].
//! - Any other violation is a [`FollowError::Protocol`] with the page's URL and the entity's number. Complete
//!   entities before it are delivered, and the next attempt continues after them.

mod crawl;
mod exchange;
mod feed_responses;
mod large;
mod options;
mod snapshot_reader;
mod snapshot_responses;
mod state;
mod sup_hints;
mod tail;
mod walk;

use std::collections::VecDeque;
use std::time::Duration;

use http::{Method, header};
use serde_json::Value;

use self::crawl::{BackwardCrawl, CrawlGoal};
pub use self::options::ReplicationOptions;
pub use self::snapshot_reader::SnapshotProgress;
use self::snapshot_reader::SnapshotReader;
use self::state::{FollowStart, ReplicationFollowState};
use self::tail::TailHints;
use self::walk::{ForwardWalk, SkipRule};
use crate::follow::html_answer::{ADVICE, is_html};
use crate::follow::{
    Backoff, Event, FollowError, FollowMode, Follower, Monotonic, Now, Request, RequestId, StartFrom,
};
use crate::format::multipart::ContentTypeError;
use crate::replication::wire::ReplicationError;

/// Follower of a feed; see the module's documentation.
#[derive(Debug)]
pub struct ReplicationFollower {
    url: String,
    feed: String,
    options: ReplicationOptions,
    state: ReplicationFollowState,
    phase: FollowPhase,
    /// The request of a crawl or a walk.
    request: Option<RequestId>,
    /// The request for the page after the current one.
    ahead: Option<RequestId>,
    events: VecDeque<Event>,
    requests: VecDeque<Request>,
    last_id: u64,
    wake: Option<Monotonic>,
    /// Failures since the last delivered change or the end of the feed.
    failures: u32,
    /// The publisher's `Retry-After`.
    retry_after: Option<Duration>,
    /// True if the crawl was restarted since then, because a page was gone.
    restarted: bool,
    /// True if the publisher does not support HEAD; headers are then requested by GET.
    without_head: bool,
    /// True if the last response stated that its replica lags (`Towpath-Replica-Age`).
    is_stale: bool,
    /// True if the publisher is known to have changed entities that were read before.
    is_changed: bool,
    /// True if another entity was read at the position.
    is_replaced: bool,
    /// True if the publisher never had the page of the position, as it says itself (`Towpath-Reset`).
    says_reset: bool,
    /// True if the snapshot that the oldest page names does not exist.
    without_snapshot: bool,
    tail: TailHints,
    /// Interval between polls at the end of the feed, instead of the options' and the publisher's.
    pace: Option<Duration>,
    finished: bool,
}

#[derive(Debug)]
enum FollowPhase {
    /// No request in flight until `wake`.
    Idle,
    Snapshot(Box<SnapshotReader>),
    /// HEAD requests back along the pages, and the rule for skipping in the walk after it.
    Crawl {
        crawl: Box<BackwardCrawl>,
        skip: SkipRule,
        url: String,
        answered: bool,
    },
    /// GET of the entry page, to tell an empty feed from a missing one.
    Probe {
        status: u16,
        body: Vec<u8>,
    },
    /// GET requests forward along the pages.
    Walk {
        walk: Box<ForwardWalk>,
        url: String,
        is_resumed: bool,
    },
}

/// Longest accepted `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// Largest index of a snapshot, in bytes.
const MAX_INDEX: u64 = 256 << 20;

impl ReplicationFollower {
    /// Creates a follower of the feed whose newest page is at `url`.
    ///
    /// `url` may also be the index of a snapshot that names its feed. `state` is the last checkpoint of an
    /// earlier follower; it takes precedence over `start` and the snapshot of the options.
    pub fn new(
        url: &str,
        start: StartFrom,
        state: Option<Value>,
        options: ReplicationOptions,
    ) -> Result<Self, FollowError> {
        if url::Url::parse(url).is_err() {
            return Err(FollowError::Usage(format!("not a URL: {url:?}")));
        }
        // A snapshot would be waited for without a request, for ever.
        if options.parallel == 0 {
            return Err(FollowError::Usage("the number of concurrent requests is 0".into()));
        }
        let state = match state {
            Some(state) => ReplicationFollowState::parse(state)?,
            None => ReplicationFollowState::new(start, options.snapshot.clone()),
        };
        Ok(Self {
            url: url.to_owned(),
            feed: options.feed.clone().unwrap_or_else(|| url.to_owned()),
            options,
            state,
            phase: FollowPhase::Idle,
            request: None,
            ahead: None,
            events: VecDeque::new(),
            requests: VecDeque::new(),
            last_id: 0,
            wake: None,
            failures: 0,
            retry_after: None,
            restarted: false,
            without_head: false,
            is_stale: false,
            is_changed: false,
            is_replaced: false,
            says_reset: false,
            without_snapshot: false,
            tail: TailHints::default(),
            pace: None,
            finished: false,
        })
    }

    /// Returns the progress of the snapshot that is being read, if any.
    pub fn snapshot_progress(&self) -> Option<SnapshotProgress> {
        match &self.phase {
            FollowPhase::Snapshot(walk) => Some(walk.progress()),
            _ => None,
        }
    }

    /// Returns the URL of the feed.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns true while the follower waits between two polls.
    fn is_idle(&self) -> bool {
        matches!(self.phase, FollowPhase::Idle) && !self.finished
    }

    /// Returns the URL of the newest page.
    pub(crate) fn entry(&self) -> String {
        self.state.feed.clone().unwrap_or_else(|| self.url.clone())
    }

    fn send(&mut self, method: Method, url: &str, etag: Option<&str>) -> RequestId {
        self.last_id += 1;
        let id = RequestId(self.last_id);
        let max_body = self.options.max_page;
        let mut request = Request { method, max_body, is_streamed: true, ..Request::get(id, url) };
        // Only the resumed page is conditional: an unchanged newest page is the usual answer of a poll.
        if let Some(etag) = etag {
            request = request.with(header::IF_NONE_MATCH, etag);
        }
        self.requests.push_back(request);
        id
    }

    /// Limits the body of the last request's response, which is collected.
    fn limit_body(&mut self, max_body: u64) {
        if let Some(request) = self.requests.back_mut() {
            (request.max_body, request.is_streamed) = (max_body, false);
        }
    }

    /// Starts an attempt from the current state.
    fn begin(&mut self) {
        self.wake = None;
        self.retry_after = None;
        (self.is_changed, self.is_replaced, self.says_reset) = (false, false, false);
        if let Some(checkpoint) = self.state.snapshot.clone() {
            let mut walk = SnapshotReader::new(checkpoint);
            let id = self.send(Method::GET, &walk.checkpoint.index, None);
            self.limit_body(MAX_INDEX);
            walk.index_request = Some((id, Vec::new()));
            self.phase = FollowPhase::Snapshot(Box::new(walk));
        } else if let Some(position) = self.state.position.clone() {
            let walk = ForwardWalk::new(&self.feed, &self.options, SkipRule::To(position.clone()), true);
            self.walk(walk, position.page, position.etag.as_deref(), true);
        } else {
            self.crawl();
        }
    }

    /// Crawls back to the page at which following starts or continues.
    fn crawl(&mut self) {
        let (goal, skip) = match (&self.state.position, &self.state.start) {
            (Some(position), _) => {
                let (content_id, modified) = (position.content_id.clone(), Some(position.modified));
                // A page that is gone, rather than changed, says nothing against the entity.
                let crc = position.last_crc.filter(|_| self.is_changed);
                (CrawlGoal::Time(position.modified), SkipRule::Through { content_id, modified, crc })
            }
            (None, FollowStart::Beginning) => (CrawlGoal::Beginning, SkipRule::Nothing),
            // Without a crawl: everything up to the end of the newest page is old.
            (None, FollowStart::Now) => (CrawlGoal::Newest, SkipRule::All),
            (None, FollowStart::Time(time) | FollowStart::Snapshot { time, .. }) => {
                (CrawlGoal::Time(*time), SkipRule::Older(*time))
            }
            (None, FollowStart::Id(id)) => (
                CrawlGoal::Beginning,
                SkipRule::Through { content_id: id.clone(), modified: None, crc: None },
            ),
        };
        self.crawl_to(goal, skip);
    }

    fn crawl_to(&mut self, goal: CrawlGoal, skip: SkipRule) {
        self.ahead = None;
        let url = self.entry();
        self.head(&url);
        self.phase =
            FollowPhase::Crawl { crawl: Box::new(BackwardCrawl::new(goal)), skip, url, answered: false };
    }

    fn head(&mut self, url: &str) {
        let method = if self.without_head { Method::GET } else { Method::HEAD };
        self.request = Some(self.send(method, url, None));
    }

    fn walk(&mut self, walk: ForwardWalk, url: String, etag: Option<&str>, is_resumed: bool) {
        self.request = Some(self.send(Method::GET, &url, etag));
        self.phase = FollowPhase::Walk { walk: Box::new(walk), url, is_resumed };
    }

    fn fail(&mut self, now: Now, error: FollowError) {
        self.events.push_back(Event::Failed(error));
        self.back_off(now);
    }

    /// Backs off exponentially, but at least for the publisher's `Retry-After`.
    fn back_off(&mut self, now: Now) {
        self.failures = self.failures.saturating_add(1);
        let backoff = Backoff::doubling(self.options.retry, self.options.retry.saturating_mul(64));
        let wait = backoff.wait_or_longer(self.failures, self.retry_after.take(), MAX_RETRY_AFTER);
        self.wait(now, wait);
    }

    fn fail_protocol(&mut self, now: Now, url: &str, error: &ReplicationError) {
        self.fail(now, FollowError::Protocol { url: url.to_owned(), reason: violation(error) });
    }

    /// Waits, or finishes after a single pass. Responses still in flight are ignored.
    fn wait(&mut self, now: Now, wait: Duration) {
        self.phase = FollowPhase::Idle;
        (self.request, self.ahead) = (None, None);
        // Requests that were not handed out yet belong to the failed attempt.
        self.requests.clear();
        self.finished = self.options.mode == FollowMode::CatchUp;
        self.wake = Some(now.after(wait));
    }

    /// Resets the failure count after a delivered change or the end of the feed.
    ///
    /// Reading known entities again is not progress: a page may link to a missing one on every attempt.
    fn record_progress(&mut self) {
        self.failures = 0;
        self.restarted = false;
    }

    /// Waits at the end of the feed.
    fn wait_at_end(&mut self, now: Now) {
        self.record_progress();
        let wait = self.tail_wait();
        self.wait(now, wait);
        self.open_events(now);
        self.follow_sup(now, wait);
    }

    fn checkpoint(&mut self) {
        self.events.push_back(Event::Checkpoint(self.state.to_json()));
    }

    fn handle_empty_feed(&mut self, now: Now) {
        if self.says_reset && self.state.position.is_some() {
            let url = self.entry();
            self.begin_anew(&url);
        }
        if self.state.start == FollowStart::Now {
            // Everything that is published from now on is new.
            self.state.start = FollowStart::Beginning;
        }
        self.checkpoint();
        self.wait_at_end(now);
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

/// Returns the reason for a violation, with advice where the address answers an HTML page. Its body is not read.
fn violation(error: &ReplicationError) -> String {
    match error {
        ReplicationError::ContentType(ContentTypeError::Invalid(media_type)) if is_html(media_type) => {
            format!("the address answers an HTML page: {error}; {ADVICE}")
        }
        error => error.to_string(),
    }
}
