//! The follower: from the newest document back to what is known, then forward again.
//!
//! Reconstructs the whole feed from whatever speaks -00, its later drafts or RFC 5005, and follows RSS, Atom and
//! JSON Feed without history as far as that goes. Following is at least once.
//!
//! | the newest document says | what is done |
//! |---|---|
//! | flag 0 or `fh:complete` | it replaces all that is known: what is not in it is deleted; its links are ignored |
//! | `prev-archive`, or `prev` beside the flag 1 or `this` | back along archive documents to one that was read |
//! | `next` (RFC 5005, section 3; JSON Feed) | back along pages to one that shows something known |
//! | nothing | no more than what it shows; told once, and whenever it shows nothing that is known |
//!
//! Of an entry's versions the newest counts, a tie goes to the later document; entries are deleted by
//! `at:deleted-entry` (RFC 6721) and by complete documents only.
//!
//! A document that does not answer makes the result incomplete: [`Event::Incomplete`] names it, following goes
//! on with what is newer, and the document is asked for again later, less and less often; what it then tells is
//! handed over. One that is gone (410) is not asked for again. Nothing that is known is dropped for either.
//!
//! On the way back documents are held up to [`Limits::kept`] bytes; the others are fetched again on the way
//! forward. Where the publisher's headers have the links, the way back is made by HEAD. So memory is constant
//! apart from what is kept of every entry (`memory`) and the addresses of the documents on the way.

mod answer;
mod apply;
mod crawl;
mod gaps;
mod memory;
mod place;
mod reading;
mod walk;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use self::answer::{Answer, Outcome};
use self::crawl::Crawl;
pub use self::crawl::Limits;
use self::place::Place;
use crate::follow::{
    Event, Exchange, FollowError, Follower, Request, RequestId, ResponseHead, StartFrom, TransferError,
};

/// What is asked for.
const ACCEPT: &str = "application/atom+xml, application/rss+xml;q=0.9, application/feed+json;q=0.9, \
    application/xml;q=0.8, text/xml;q=0.8, application/json;q=0.7, */*;q=0.1";

/// The longest wait that a publisher can ask for.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The longest wait for one document while others are to be read.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How to follow.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the changes call the feed; its address where this is `None`.
    pub feed: Option<String>,
    /// Finish at the end of one pass, or at the first failure.
    pub once: bool,
    /// How long to wait before asking again, unless the publisher says longer.
    pub poll: Duration,
    /// How long to wait after a failure; doubled with each further one, up to a day.
    pub retry: Duration,
    /// How often one document is asked for in one pass before it counts as not answering; at least 1.
    pub tries: u32,
    /// How far to go.
    pub limits: Limits,
}

impl Default for Options {
    /// For ever, every minute; three tries, a second apart.
    fn default() -> Self {
        Self {
            feed: None,
            once: false,
            poll: Duration::from_secs(60),
            retry: Duration::from_secs(1),
            tries: 3,
            limits: Limits::default(),
        }
    }
}

/// Follows one feed, see the module's text.
#[derive(Debug)]
pub struct HistoryFollower {
    url: String,
    feed: String,
    options: Options,
    place: Place,
    phase: Phase,
    crawl: Crawl,
    /// What is to be asked at `wake`, or as soon as possible.
    pending: Option<Ask>,
    /// What was asked, and its answer so far.
    under_way: Option<(RequestId, Ask, Answer)>,
    events: VecDeque<Event>,
    last_id: u64,
    wake: Option<Timestamp>,
    /// How often the newest document failed in a row.
    failures: u32,
    /// The validators and the politeness of the newest document, as it last came.
    newest: Newest,
    /// Changes since the last checkpoint, and whether there is anything to keep.
    changes: usize,
    dirty: bool,
    /// What was last said of a document's problems.
    last_problem: String,
    finished: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing is under way until `wake`.
    Idle,
    /// The newest document.
    Newest,
    /// The documents before it, back to what is known.
    Back,
    /// The same documents, the oldest first.
    Forward,
    /// A document that did not answer before.
    Fill,
}

#[derive(Debug, Clone)]
struct Ask {
    url: String,
    method: Method,
    tries: u32,
}

#[derive(Debug, Default)]
struct Newest {
    etag: Option<String>,
    last_modified: Option<String>,
    /// How long the document need not be asked for again.
    fresh: Duration,
}

impl HistoryFollower {
    /// A follower of the feed whose newest document is at `url`. `state` is the last checkpoint, where the feed
    /// was followed before; it wins over `start`. A position is the address of a permanent document, with which
    /// following begins.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] where the address or the position is none, or the state is of something else.
    pub fn new(
        url: &str,
        start: StartFrom,
        state: Option<Value>,
        options: Options,
    ) -> Result<Self, FollowError> {
        let position = match &start {
            StartFrom::Position(document) => Some(document.as_str()),
            _ => None,
        };
        for address in [url].into_iter().chain(position) {
            if url::Url::parse(address).is_err() {
                return Err(FollowError::Usage(format!("not an address: {address:?}")));
            }
        }
        let place = match state {
            Some(state) => Place::parse(state)?,
            None => Place::new(start),
        };
        Ok(Self {
            url: url.to_owned(),
            feed: options.feed.clone().unwrap_or_else(|| url.to_owned()),
            options,
            place,
            phase: Phase::Idle,
            crawl: Crawl::default(),
            pending: None,
            under_way: None,
            events: VecDeque::new(),
            last_id: 0,
            wake: None,
            failures: 0,
            newest: Newest::default(),
            changes: 0,
            dirty: false,
            last_problem: String::new(),
            finished: false,
        })
    }

    /// Begins a pass.
    fn begin(&mut self) {
        self.crawl = Crawl::new(&self.url);
        self.phase = Phase::Newest;
        self.ask(Method::GET, self.url.clone());
    }

    fn ask(&mut self, method: Method, url: String) {
        self.wake = None;
        self.pending = Some(Ask { url, method, tries: 0 });
    }

    /// Asks once more after a pause, unless that was done often enough.
    fn ask_again(&mut self, now: Timestamp, ask: &Ask, asked_wait: Option<Duration>) -> bool {
        let tries = ask.tries + 1;
        if tries >= self.options.tries {
            return false;
        }
        let wait = asked_wait.unwrap_or_default().max(doubled(self.options.retry, ask.tries));
        self.wake = Some(later(now, wait.min(LONGEST_PAUSE)));
        self.pending = Some(Ask { tries, ..ask.clone() });
        true
    }

    /// The attempt failed: nothing new is known.
    fn fail(&mut self, now: Timestamp, error: FollowError, asked_wait: Option<Duration>) {
        self.checkpoint();
        self.events.push_back(Event::Failed(error));
        let wait = asked_wait.unwrap_or_default().max(doubled(self.options.retry, self.failures));
        self.failures += 1;
        self.rest(now, wait.min(LONGEST));
    }

    /// Waits, or finishes where only one pass was asked for.
    fn rest(&mut self, now: Timestamp, wait: Duration) {
        self.phase = Phase::Idle;
        self.crawl = Crawl::default();
        self.pending = None;
        self.finished = self.options.once;
        self.wake = Some(later(now, wait));
    }

    /// Everything told so far is to be kept, if that is more than was kept before.
    fn checkpoint(&mut self) {
        if std::mem::take(&mut self.dirty) {
            self.changes = 0;
            self.events.push_back(Event::Checkpoint(self.place.to_json()));
        }
    }

    /// The same amid a long pass: seldom enough that all checkpoints together take no longer than the pass.
    fn checkpoint_amid(&mut self) {
        if self.changes > (self.place.entries.len() / 2).max(1000) {
            self.checkpoint();
        }
    }

    fn incomplete(&mut self, text: String) {
        self.events.push_back(Event::Incomplete(text));
    }

    fn request(&mut self, ask: Ask) -> Request {
        self.last_id += 1;
        let mut request = Request {
            method: ask.method.clone(),
            max_body: self.options.limits.document,
            ..Request::get(RequestId(self.last_id), &ask.url)
        };
        request = request.with(header::ACCEPT, ACCEPT);
        if self.phase == Phase::Newest {
            if let Some(etag) = &self.place.etag {
                request = request.with(header::IF_NONE_MATCH, etag);
            }
            if let Some(date) = &self.place.last_modified {
                request = request.with(header::IF_MODIFIED_SINCE, date);
            }
        }
        self.under_way = Some((request.id, ask, Answer::default()));
        request
    }

    fn answered(&mut self, now: Timestamp, ask: &Ask, outcome: Outcome) {
        match self.phase {
            Phase::Idle => {}
            Phase::Newest => self.newest_answered(now, outcome),
            Phase::Back => self.back_answered(now, ask, outcome),
            Phase::Forward => self.forward_answered(now, ask, outcome),
            Phase::Fill => self.fill_answered(now, ask, outcome),
        }
    }
}

impl Exchange for HistoryFollower {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        if self.finished || self.under_way.is_some() || self.wake.is_some_and(|wake| wake > now) {
            return None;
        }
        if self.phase == Phase::Idle {
            self.begin();
        }
        let ask = self.pending.take()?;
        self.wake = None;
        Some(self.request(ask))
    }

    fn handle_head(&mut self, now: Timestamp, id: RequestId, head: ResponseHead) {
        if let Some((_, _, answer)) = self.under_way.as_mut().filter(|(asked, ..)| *asked == id) {
            answer.begin(now, head);
        }
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        let limit = self.options.limits.document;
        if let Some((_, _, answer)) = self.under_way.as_mut().filter(|(asked, ..)| *asked == id) {
            answer.push(&chunk, limit);
        }
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        if self.under_way.as_ref().is_none_or(|(asked, ..)| *asked != id) {
            return;
        }
        let Some((_, ask, answer)) = self.under_way.take() else { return };
        let outcome = answer.end(&ask, result, self.options.limits.document);
        self.answered(now, &ask, outcome);
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        if self.finished || self.under_way.is_some() { None } else { self.wake }
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
        let left = self.crawl.chain.len();
        match self.phase {
            Phase::Back => Some(format!("going back: {left} documents so far")),
            Phase::Forward => {
                Some(format!("{left} documents to read, {} entries known", self.place.entries.len()))
            }
            Phase::Idle | Phase::Newest | Phase::Fill => None,
        }
    }
}

fn doubled(base: Duration, times: u32) -> Duration {
    base.saturating_mul(1 << times.min(20)).min(LONGEST)
}

fn later(now: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}
