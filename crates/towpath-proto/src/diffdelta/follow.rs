//! Following a DiffDelta feed (sections 2.2, 2.3 and 6), any publisher's.
//!
//! Polls `head.json` no more often than its `ttl_sec`, with `If-None-Match`. There is something new when its
//! cursor is not the one kept (never by `changed` alone). A latest document that follows on the one that was
//! handed over is handed over as it is; otherwise the archive index tells which snapshots lie between, and they
//! are handed over in its order. A cursor may come back (A, B, A), so that `prev_cursor` alone does not show
//! what a document follows on: the head also says when that was made (`prev_generated_at`, as ours do), or the
//! index is asked, where there is one. A carried document (`changed: false`) is not handed over where there is an
//! archive: the snapshot that minted its cursor is, unless that is gone.
//!
//! # What is verified
//!
//! Every document handed over: its cursor by canonical_v1 in RFC 8785's form or Python's (with a warning,
//! once), and a snapshot's SHA-256 where the index states it. A document that fails is not handed over, and
//! asked for again later. Many public feeds state `canonical_v1` and have cursors that nobody can recompute;
//! so a publisher without an archive index, none of whose documents was ever proved, is followed all the
//! same, with a warning, once. What was proved once, or has an index, must be proved always.
//!
//! # Order
//!
//! Changes of one document come in the order in which they were made as far as the document tells
//! (`fetched_at`, then the bucket's order). A checkpoint follows every change.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, IF_NONE_MATCH};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use url::Url;

use super::cursor::Cursor;
use super::wire::{Head, Latest, Snapshot};
use crate::asking::Asking;
use crate::follow::{
    Event, Exchange, FollowError, Follower, Request, RequestId, ResponseHead, StartFrom, TransferError,
};

mod delivery;
pub(super) mod locate;
mod plan;
mod state;
mod take;

use delivery::{Delivery, Step};
use locate::{Feed, Place, archive_index, locate};
use state::State;

/// The largest document that is accepted, in bytes.
const MAX_DOCUMENT: u64 = 128 << 20;
/// How often to poll where the publisher does not say, in seconds.
const USUAL_TTL: u64 = 300;
/// The bounds of a publisher's `ttl_sec`, in seconds.
const TTL_BOUNDS: std::ops::RangeInclusive<u64> = 15..=86_400;
/// The wait after the first failure of a publisher that has not answered yet, in seconds; doubled with each
/// further one.
const FIRST_WAIT: u64 = 2;
/// The longest wait after failures, in seconds.
const LONGEST_WAIT: u64 = 3600;

/// How to follow.
#[derive(Debug, Clone, Default)]
pub struct FollowOptions {
    /// Where to begin without a state.
    pub from: StartFrom,
    /// What an earlier follower's last checkpoint held.
    pub state: Option<Value>,
    /// Finish once everything that is there now was handed over.
    pub once: bool,
    /// Any number: followers with different ones do not ask all at the same time.
    pub jitter: u64,
}

/// What a request asks for.
#[derive(Debug, Clone)]
enum Ask {
    Manifest,
    Head(Url),
    Latest,
    Index,
    Snapshot(Snapshot),
}

/// What to do next, with nothing under way.
#[derive(Debug)]
enum Next {
    /// Poll when it is time.
    Poll,
    /// Ask for this.
    Ask(Ask),
    /// Fetch the next snapshot, then see to the latest document.
    Walk,
    /// This pass is over.
    Rest,
    /// Nothing, ever.
    Finished,
}

/// The latest document, kept while an archive is walked.
#[derive(Debug)]
struct Kept {
    document: Latest,
    body: Bytes,
    url: String,
}

/// Follows one source or the global feed.
pub struct DiffDeltaFollower {
    place: Place,
    from: StartFrom,
    once: bool,
    jitter: u64,
    state: State,
    next: Next,
    asking: Asking<Ask>,
    outbox: VecDeque<Event>,
    delivery: Option<Delivery>,
    /// Whether the last change still needs its checkpoint.
    checkpoint_due: bool,
    walk: VecDeque<Snapshot>,
    latest: Option<Kept>,
    /// The last head that came.
    head: Option<Head>,
    /// Whether the last question for an archive index showed that there is none.
    has_no_index: bool,
    /// The head's validator, and the cursor it came with.
    validator: Option<(String, String)>,
    poll_at: Timestamp,
    /// The time of the last call that told it.
    now: Timestamp,
    ttl: u64,
    /// How long to wait after a first failure, in seconds: a publisher that answered once is asked no more
    /// often than it wants to be.
    patience: u64,
    failures: u32,
    lags: u32,
    warned_unproved: bool,
    warned_python: bool,
}

impl DiffDeltaFollower {
    /// Follows the feed at `address`: a site's root or manifest (its global feed), a feed's folder, its
    /// `head.json` or `latest.json`. Fails on an address, a state or a position that is none: the user's fault.
    pub fn new(address: &str, options: FollowOptions) -> Result<Self, FollowError> {
        let usage = FollowError::Usage;
        let place = locate(address).map_err(usage)?;
        let mut state = match options.state {
            Some(value) => serde_json::from_value::<State>(value)
                .map_err(|e| usage(format!("the kept state is none of a DiffDelta feed: {e}")))?,
            None => State::default(),
        };
        if state == State::default() {
            match &options.from {
                StartFrom::Position(cursor) => {
                    cursor.parse::<Cursor>().map_err(|e| usage(format!("no place to begin: {e}")))?;
                    state.cursor = Some(cursor.clone());
                }
                StartFrom::Time(time) => state.since = Some(*time),
                StartFrom::Beginning | StartFrom::Now => {}
            }
        }
        Ok(Self {
            place,
            from: options.from,
            once: options.once,
            jitter: options.jitter,
            state,
            next: Next::Poll,
            asking: Asking::default(),
            outbox: VecDeque::new(),
            delivery: None,
            checkpoint_due: false,
            walk: VecDeque::new(),
            latest: None,
            head: None,
            has_no_index: false,
            validator: None,
            poll_at: Timestamp::MIN,
            now: Timestamp::MIN,
            ttl: USUAL_TTL,
            patience: FIRST_WAIT,
            failures: 0,
            lags: 0,
            warned_unproved: false,
            warned_python: false,
        })
    }

    /// What to ask first in a pass.
    fn first(&self) -> Ask {
        match &self.place {
            Place::Manifest(_) => Ask::Manifest,
            Place::Feed(Feed { head: Some(head), .. }) => Ask::Head(head.clone()),
            Place::Feed(Feed { head: None, .. }) => Ask::Latest,
        }
    }

    fn url_of(&self, ask: &Ask) -> Result<Url, String> {
        match (ask, &self.place) {
            (Ask::Head(url), _) | (Ask::Manifest, Place::Manifest(url)) => Ok(url.clone()),
            (Ask::Latest, Place::Feed(feed)) => Ok(feed.latest.clone()),
            (Ask::Index, Place::Feed(feed)) => Ok(self.index_url(feed)),
            (Ask::Snapshot(snapshot), Place::Feed(feed)) => {
                let joined = self.index_url(feed).join(&snapshot.url);
                joined.map_err(|e| format!("the archive lists {:?}: {e}", snapshot.url))
            }
            (Ask::Manifest, _) | (_, Place::Manifest(_)) => Err("nothing is known of the feed yet".into()),
        }
    }

    fn index_url(&self, feed: &Feed) -> Url {
        let source = self.latest.as_ref().and_then(|l| l.document.source_id.as_deref());
        archive_index(&feed.latest, source)
    }

    fn request(&mut self, ask: Ask) -> Result<Request, FollowError> {
        let url = self.url_of(&ask).map_err(FollowError::Usage)?;
        let mut request = self.asking.get(url).with(ACCEPT, "application/json");
        request.max_body = MAX_DOCUMENT;
        let polls = matches!(ask, Ask::Head(_) | Ask::Latest) && self.latest.is_none();
        if let Some((etag, cursor)) = self.validator.as_ref().filter(|_| polls)
            && self.state.cursor.as_ref() == Some(cursor)
        {
            request = request.with(IF_NONE_MATCH, etag);
        }
        Ok(self.asking.ask(self.now, ask, request))
    }

    fn checkpoint(&mut self) {
        if let Ok(state) = serde_json::to_value(&self.state) {
            self.outbox.push_back(Event::Checkpoint(state));
        }
    }

    /// With nothing under way and nothing to hand over: sees to what comes after that.
    fn settle(&mut self) {
        while !self.asking.is_busy() && self.delivery.is_none() {
            match self.next {
                Next::Walk if self.walk.is_empty() => {
                    if let Err(error) = self.end_walk() {
                        self.fail(error, None);
                    }
                }
                Next::Rest => self.rest(),
                _ => return,
            }
        }
    }

    /// Ends a pass well: everything there is was handed over.
    fn rest(&mut self) {
        self.failures = 0;
        self.patience = self.ttl;
        self.latest = None;
        let spread =
            self.jitter.wrapping_add(self.now.as_second().unsigned_abs()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let late = (spread >> 32) % (self.ttl * 100 + 1);
        self.wait(Duration::from_secs(self.ttl) + Duration::from_millis(late));
    }

    /// Ends a pass badly: to be tried again later, from the last checkpoint.
    fn fail(&mut self, error: FollowError, asked: Option<Duration>) {
        self.outbox.push_back(Event::Failed(error));
        self.walk.clear();
        self.latest = None;
        let longest = LONGEST_WAIT.max(self.patience);
        let wait = self.patience.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures += 1;
        let wait = asked.unwrap_or_default().min(Duration::from_secs(86_400)).max(Duration::from_secs(wait));
        self.wait(wait);
    }

    fn wait(&mut self, wait: Duration) {
        self.next = if self.once { Next::Finished } else { Next::Poll };
        let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::from_hours(1));
        self.poll_at = self.now.checked_add(wait).unwrap_or(Timestamp::MAX);
    }
}

impl Exchange for DiffDeltaFollower {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        self.now = now;
        if self.asking.is_busy() || self.delivery.is_some() || !self.outbox.is_empty() {
            return None;
        }
        let ask = match std::mem::replace(&mut self.next, Next::Rest) {
            Next::Poll if now >= self.poll_at => self.first(),
            Next::Ask(ask) => ask,
            Next::Walk if !self.walk.is_empty() => Ask::Snapshot(self.walk.pop_front()?),
            idle => {
                self.next = idle;
                return None;
            }
        };
        match self.request(ask) {
            Ok(request) => Some(request),
            Err(error) => {
                self.fail(error, None);
                None
            }
        }
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        self.asking.handle_head(id, head);
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        self.asking.handle_chunk(id, &chunk);
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        let Some(answer) = self.asking.handle_end(id, result) else { return };
        self.now = now;
        let wait = answer.head.as_ref().filter(|h| h.status >= 400).and_then(|h| h.retry_after(now));
        let (asked, whole) = answer.whole();
        let taken = match whole {
            Ok((head, body)) => self.take_response(asked, &head, &body),
            Err(source) => Err(FollowError::Transfer { url: asked.url, source }),
        };
        if let Err(error) = taken {
            self.fail(error, wait);
        }
        self.settle();
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let idle = !self.asking.is_busy() && self.delivery.is_none();
        (idle && matches!(self.next, Next::Poll)).then_some(self.poll_at)
    }

    fn is_finished(&self) -> bool {
        let told = self.outbox.is_empty() && self.delivery.is_none();
        told && !self.asking.is_busy() && matches!(self.next, Next::Finished)
    }
}

impl Follower for DiffDeltaFollower {
    fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.outbox.pop_front() {
            return Some(event);
        }
        let delivery = self.delivery.as_mut()?;
        if !std::mem::take(&mut self.checkpoint_due)
            && let Step::Change(change) = delivery.step()
        {
            self.checkpoint_due = true;
            return Some(Event::Change(change));
        }
        delivery.note(&mut self.state);
        let spent = delivery.is_spent();
        self.checkpoint();
        if spent {
            self.delivery = None;
            self.settle();
        }
        self.outbox.pop_front()
    }
}

#[cfg(test)]
mod tests;
