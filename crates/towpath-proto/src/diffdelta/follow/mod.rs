//! The follower of a DiffDelta feed (sections 2.2, 2.3 and 6), of any publisher.
//!
//! Polls `head.json` at most every `ttl_sec`, with `If-None-Match`. New content is signalled by a cursor other
//! than the stored one, never by `changed` alone.
//!
//! A latest document that directly follows the stored cursor is delivered as it is. Otherwise the archive index
//! lists the snapshots between, which are delivered in its order. A cursor may come back (A, B, A), so
//! `prev_cursor` alone does not identify the previous document. The head's `prev_generated_at` does, our own
//! addition; without it the index is requested, if there is one.
//!
//! Times do not decide, because a clock may go back. An older document that follows by no cursor may be an old copy: so
//! say the index, the chain's first cursor, or several passes.
//!
//! With an archive, a carried document (`changed: false`) is replaced by the snapshot of its cursor, unless that
//! is gone.
//!
//! # Verification
//!
//! The cursor of every delivered document is recomputed, in RFC 8785's form or Python's (with a single warning).
//! A snapshot's SHA-256 is checked if the index states it. A document that fails is not delivered, but requested
//! again later.
//!
//! # Other publishers
//!
//! Accepted: an index in any order whose entries lack members, a bucket `items`, buckets beside `buckets`, a cursor
//! `null` for a source that was never fetched, and a byte order mark. Unknown buckets are named in a warning.
//!
//! Many public feeds state `canonical_v1` and have cursors that cannot be recomputed. A publisher without an
//! archive index and without any proved document is followed nevertheless, with a single warning. After a first
//! proof, or with an index, every document must be proved.
//!
//! # Order
//!
//! The changes of a document are delivered by time (`fetched_at`), then in bucket order. A checkpoint follows
//! every change. The position of a change is its document's cursor and its number (`sha256:…/3`), that of the last
//! one the cursor alone. Following can start after any of them. An item that cannot be read is left out, which is
//! [`Event::Incomplete`].

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, IF_NONE_MATCH};
use jiff::Timestamp;
use serde_json::Value;
use url::Url;

use super::wire::{DeltaDocument, HeadDocument, SnapshotEntry};
use crate::follow::single_request::{CollectedResponse, SingleRequest, SingleRequestExchange};
use crate::follow::{
    Backoff, Event, FollowError, FollowMode, Follower, MAX_DOCUMENT, Monotonic, Now, ReadLimits, Request,
    StartFrom, no_start,
};

mod archive_index;
mod archive_plan;
mod archive_walk;
mod delivery;
mod responses;
mod state;

use super::wire::locate::{DocumentLocation, FeedUrls, archive_index, locate};
use delivery::DocumentDelivery;
use state::DiffDeltaFollowState;

/// Start positions of a DiffDelta feed, for errors.
const POSITIONS: &str =
    "a cursor (sha256: and 64 lower-case hex digits), or one with the number of a change, CURSOR/NUMBER";
/// Poll interval if the publisher states none, in seconds.
const DEFAULT_TTL: u64 = 300;
/// Bounds for a publisher's `ttl_sec`, in seconds.
// At least 15 seconds, so that no publisher can make its followers poll without pause.
// More than the schema's hour is granted, but not years: the follower would fall silent.
const TTL_BOUNDS: std::ops::RangeInclusive<u64> = 15..=86_400;
/// Backoff after the first failure of a publisher that never responded, in seconds. Doubles with each failure.
const FIRST_BACKOFF: u64 = 2;
/// Longest backoff, unless the publisher's `ttl_sec` is longer.
const MAX_BACKOFF: Duration = Duration::from_secs(3600);
/// Longest accepted `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(86_400);

/// Options of a [`DiffDeltaFollower`].
#[derive(Debug, Clone, Default)]
pub struct FollowOptions {
    /// Start position, if there is no state.
    pub from: StartFrom,
    /// State from the last checkpoint of an earlier follower.
    pub state: Option<Value>,
    /// [`FollowMode::CatchUp`] finishes after delivering everything that is published now.
    pub mode: FollowMode,
    /// Poll interval, instead of the publisher's `ttl_sec`.
    pub every: Option<Duration>,
    /// Random number that spreads the polls of many followers over time.
    pub jitter: u64,
}

/// The document that a request is for.
#[derive(Debug, Clone)]
pub(crate) enum DocumentRequest {
    Manifest,
    Head(Url),
    Latest,
    Index,
    Snapshot(SnapshotEntry),
}

/// The next action, taken with no request in flight.
#[derive(Debug)]
enum NextAction {
    /// Poll at `poll_at`.
    Poll,
    /// Send this request.
    Send(DocumentRequest),
    /// Request the next snapshot; after the last, deliver the latest document.
    Walk,
    /// End this pass and wait for the next poll.
    Rest,
    /// The follower has finished.
    Finished,
}

/// The latest document, held while earlier snapshots are delivered.
#[derive(Debug)]
struct HeldLatest {
    document: DeltaDocument,
    body: Bytes,
    url: String,
}

/// Follower of a source or of the global feed.
pub struct DiffDeltaFollower {
    location: DocumentLocation,
    from: StartFrom,
    mode: FollowMode,
    every: Option<Duration>,
    jitter: u64,
    state: DiffDeltaFollowState,
    next: NextAction,
    request: SingleRequest<DocumentRequest>,
    outbox: VecDeque<Event>,
    delivery: Option<DocumentDelivery>,
    /// True if the last delivered change still needs its checkpoint.
    checkpoint_due: bool,
    walk: VecDeque<SnapshotEntry>,
    latest: Option<HeldLatest>,
    /// The last received head.
    head: Option<HeadDocument>,
    /// True if the last request for an archive index found none.
    has_no_index: bool,
    /// False if the entries of the archive index lack cursors, so that only their documents tell what is missing.
    is_index_chained: bool,
    poll_at: Monotonic,
    /// Time of the last call that passed it in.
    now: Now,
    ttl: u64,
    /// Backoff after a first failure, in seconds. Once the publisher has responded, it is at least its `ttl_sec`.
    retry_base: u64,
    failures: u32,
    warned_unproved: bool,
    warned_python: bool,
    warned_unfetched: bool,
    limits: ReadLimits,
}

impl DiffDeltaFollower {
    /// Creates a follower of the feed at a URL.
    ///
    /// The URL is a site's root or manifest (for its global feed), a feed's folder, `head.json` or
    /// `latest.json`. Fails on an invalid URL, state or position, which is the user's fault.
    pub fn new(address: &str, options: FollowOptions) -> Result<Self, FollowError> {
        let usage = FollowError::Usage;
        let location = locate(address).map_err(usage)?;
        let mut state = match options.state {
            Some(value) => serde_json::from_value::<DiffDeltaFollowState>(value)
                .map_err(|e| usage(format!("the state is not one of a DiffDelta feed: {e}")))?,
            None => DiffDeltaFollowState::default(),
        };
        if state == DiffDeltaFollowState::default() {
            match &options.from {
                StartFrom::Position(position) => {
                    let after = DiffDeltaFollowState::after(position);
                    state = after.ok_or_else(|| no_start(position, POSITIONS))?;
                }
                StartFrom::Time(time) => state.since = Some(*time),
                StartFrom::Beginning | StartFrom::Now => {}
            }
        }
        Ok(Self {
            location,
            from: options.from,
            mode: options.mode,
            every: options.every,
            jitter: options.jitter,
            state,
            next: NextAction::Poll,
            request: SingleRequest::default(),
            outbox: VecDeque::new(),
            delivery: None,
            checkpoint_due: false,
            walk: VecDeque::new(),
            latest: None,
            head: None,
            has_no_index: false,
            is_index_chained: true,
            poll_at: Monotonic::ORIGIN,
            now: Now { monotonic: Monotonic::ORIGIN, wall: Timestamp::MIN },
            ttl: DEFAULT_TTL,
            retry_base: FIRST_BACKOFF,
            failures: 0,
            warned_unproved: false,
            warned_python: false,
            warned_unfetched: false,
            limits: ReadLimits::default(),
        })
    }

    /// Sets the limits of what is read.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the first request of a pass.
    fn first_request(&self) -> DocumentRequest {
        match &self.location {
            DocumentLocation::Manifest(_) => DocumentRequest::Manifest,
            DocumentLocation::Feed(FeedUrls { head: Some(head), .. }) => DocumentRequest::Head(head.clone()),
            DocumentLocation::Feed(FeedUrls { head: None, .. }) => DocumentRequest::Latest,
        }
    }

    fn url_of(&self, ask: &DocumentRequest) -> Result<Url, String> {
        match (ask, &self.location) {
            (DocumentRequest::Head(url), _)
            | (DocumentRequest::Manifest, DocumentLocation::Manifest(url)) => Ok(url.clone()),
            (DocumentRequest::Latest, DocumentLocation::Feed(feed)) => Ok(feed.latest.clone()),
            (DocumentRequest::Index, DocumentLocation::Feed(feed)) => Ok(self.index_url(feed)),
            (DocumentRequest::Snapshot(snapshot), DocumentLocation::Feed(feed)) => {
                let joined = self.index_url(feed).join(&snapshot.url);
                joined.map_err(|e| format!("the archive lists {:?}: {e}", snapshot.url))
            }
            (DocumentRequest::Manifest, _) | (_, DocumentLocation::Manifest(_)) => {
                Err("the manifest was not read yet".into())
            }
        }
    }

    fn index_url(&self, feed: &FeedUrls) -> Url {
        // Only the latest document states the source; an unknown publisher's paths need not.
        let source = self.latest.as_ref().and_then(|l| l.document.source_id.as_deref());
        archive_index(&feed.latest, source)
    }

    fn send(&mut self, ask: DocumentRequest) -> Result<Request, FollowError> {
        let url = self.url_of(&ask).map_err(FollowError::Usage)?;
        let mut request = self.request.get(url).with(ACCEPT, "application/json");
        request.max_body = self.limits.largest_document(MAX_DOCUMENT);
        // Only a poll may be answered with 304; a latest document that is needed for its items must come
        // whole.
        let polls =
            matches!(ask, DocumentRequest::Head(_) | DocumentRequest::Latest) && self.latest.is_none();
        if let Some(validator) = self.state.validator.as_ref().filter(|_| polls)
            // After a failed pass the validator is newer than the delivered state, and a 304 would hide the
            // rest.
            && self.state.cursor.as_ref() == Some(&validator.cursor)
        {
            request = request.with(IF_NONE_MATCH, &validator.etag);
        }
        Ok(self.request.send(self.now, ask, request))
    }

    fn checkpoint(&mut self) {
        if let Ok(state) = serde_json::to_value(&self.state) {
            self.outbox.push_back(Event::Checkpoint(state));
        }
    }

    /// Takes the next action while no request is in flight and no document is being delivered.
    fn advance(&mut self) {
        while !self.request.is_in_flight() && self.delivery.is_none() {
            match self.next {
                NextAction::Walk if self.walk.is_empty() => {
                    if let Err(error) = self.end_walk() {
                        self.fail(error, None);
                    }
                }
                NextAction::Rest => self.rest(),
                _ => return,
            }
        }
    }

    /// Ends a successful pass: everything published was delivered.
    fn rest(&mut self) {
        self.failures = 0;
        // The publisher has responded: from now on failures wait at least its interval.
        let interval = self.every.map_or(self.ttl, |every| every.as_secs().max(1));
        self.retry_base = interval;
        self.latest = None;
        // Hashing the time too gives a follower a new delay for each poll. Up to a tenth of the interval is
        // added, so that followers started together do not poll together.
        let spread = self
            .jitter
            .wrapping_add(self.now.wall.as_second().unsigned_abs())
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let late = (spread >> 32) % (interval * 100 + 1);
        self.wait(Duration::from_secs(interval) + Duration::from_millis(late));
    }

    /// Ends a failed pass. The next attempt starts from the last checkpoint.
    fn fail(&mut self, error: FollowError, retry_after: Option<Duration>) {
        self.outbox.push_back(Event::Failed(error));
        // Undelivered snapshots are requested again from the last checkpoint.
        self.walk.clear();
        self.latest = None;
        self.failures += 1;
        let retry_base = Duration::from_secs(self.retry_base);
        let backoff = Backoff::doubling(retry_base, MAX_BACKOFF.max(retry_base));
        self.wait(backoff.wait_or_longer(self.failures, retry_after, MAX_RETRY_AFTER));
    }

    fn wait(&mut self, wait: Duration) {
        self.next = if self.mode == FollowMode::CatchUp { NextAction::Finished } else { NextAction::Poll };
        self.poll_at = self.now.after(wait);
    }
}

impl SingleRequestExchange for DiffDeltaFollower {
    type Purpose = DocumentRequest;

    fn single_request(&self) -> &SingleRequest<DocumentRequest> {
        &self.request
    }

    fn single_request_mut(&mut self) -> &mut SingleRequest<DocumentRequest> {
        &mut self.request
    }

    fn next_request(&mut self, now: Now) -> Option<Request> {
        self.now = now;
        // Events first: a request may depend on the state that they advance.
        if self.request.is_in_flight() || self.delivery.is_some() || !self.outbox.is_empty() {
            return None;
        }
        let ask = match std::mem::replace(&mut self.next, NextAction::Rest) {
            NextAction::Poll if now.monotonic >= self.poll_at => self.first_request(),
            NextAction::Send(ask) => ask,
            NextAction::Walk if !self.walk.is_empty() => DocumentRequest::Snapshot(self.walk.pop_front()?),
            idle => {
                self.next = idle;
                return None;
            }
        };
        match self.send(ask) {
            Ok(request) => Some(request),
            Err(error) => {
                self.fail(error, None);
                None
            }
        }
    }

    fn handle_response(&mut self, now: Now, answer: CollectedResponse<DocumentRequest>) {
        self.now = now;
        let wait = answer.head.as_ref().filter(|h| h.status >= 400).and_then(|h| h.retry_after(now.wall));
        let (sent, whole) = answer.whole();
        let outcome = match whole {
            Ok((head, body)) => self.apply_response(sent, &head, &body),
            Err(source) => Err(FollowError::Transfer { url: sent.url, source }),
        };
        if let Err(error) = outcome {
            self.fail(error, wait);
        }
        self.advance();
    }

    fn next_timeout(&self) -> Option<Monotonic> {
        // A request in flight has the driver's own timeout.
        let idle = !self.request.is_in_flight() && self.delivery.is_none();
        (idle && matches!(self.next, NextAction::Poll)).then_some(self.poll_at)
    }

    fn is_over(&self) -> bool {
        let delivered = self.outbox.is_empty() && self.delivery.is_none();
        delivered && !self.request.is_in_flight() && matches!(self.next, NextAction::Finished)
    }
}

impl Follower for DiffDeltaFollower {
    fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.outbox.pop_front() {
            return Some(event);
        }
        let delivery = self.delivery.as_mut()?;
        // Change and checkpoint alternate, so that a program killed at any time repeats at most one change.
        if !std::mem::take(&mut self.checkpoint_due)
            && let Some(change) = delivery.next_change()
        {
            self.checkpoint_due = true;
            return Some(Event::Change(change));
        }
        delivery.record_progress(&mut self.state);
        let is_done = delivery.is_done();
        self.checkpoint();
        if is_done {
            self.delivery = None;
            // A follower that advances waits as after a first failure.
            self.failures = 0;
            self.advance();
        }
        self.outbox.pop_front()
    }
}

#[cfg(test)]
mod tests;
