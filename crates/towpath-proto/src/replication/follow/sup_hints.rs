//! The SUP document that the newest page names, at the end of a feed whose pages may be cached for long.
//!
//! A publisher that wants to be asked once an hour may tell changes sooner by SUP. Its document is then requested as
//! often as its period, and a new update id makes a poll due. [`SupFollower`] decides, for this one feed.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use super::ReplicationFollower;
use crate::follow::{
    Event, Exchange as _, Follower as _, Monotonic, Now, Request, RequestId, ResponseHead, TransferError,
};
use crate::sup::follow::{FeedKey, PolledContent, SupFollower, SupPollIntervals};

/// Interval of polls from which a SUP document is worth its requests.
// A document has a period of 60 seconds as a rule: in less time, a poll is as cheap and tells sooner.
const WORTH: Duration = Duration::from_secs(60);

/// The follower of the SUP documents.
#[derive(Debug)]
pub(super) struct SupHints {
    documents: SupFollower,
    feed: FeedKey,
    wait: Duration,
    /// Requests in flight: its own numbers by ours.
    requests: HashMap<RequestId, RequestId>,
}

impl SupHints {
    fn new(url: &str, now: Now, wait: Duration) -> Self {
        let mut documents = SupFollower::new(SupPollIntervals { background: wait, plain: wait });
        let feed = documents.add_feed(url, now);
        // The newest page was just read.
        documents.poll_feed(now);
        Self { documents, feed, wait, requests: HashMap::new() }
    }
}

impl ReplicationFollower {
    /// Follows the SUP document from now on, or no longer. `wait` is the time until the next poll without it.
    pub(super) fn follow_sup(&mut self, now: Now, wait: Duration) {
        let is_worth_it = self.takes_hints() && !self.has_events() && wait > WORTH;
        if !is_worth_it || self.tail.announced.links.is_empty() {
            self.tail.sup = None;
            return;
        }
        let url = self.entry();
        let sup = self.tail.sup.take().filter(|sup| sup.wait == wait);
        let mut sup = sup.unwrap_or_else(|| SupHints::new(&url, now, wait));
        sup.documents.handle_success(now, sup.feed, self.tail.announced.clone(), PolledContent::Unchanged);
        self.tail.sup = Some(sup);
        self.take_sup_events();
    }

    /// Makes a poll due if a document listed the feed.
    pub(super) fn poll_sup_feed(&mut self, now: Now) {
        let is_listed = self.tail.sup.as_mut().is_some_and(|sup| sup.documents.poll_feed(now).is_some());
        if is_listed {
            self.wake = Some(now.monotonic);
        }
    }

    /// Returns the next request for a document.
    pub(super) fn sup_request(&mut self, now: Now) -> Option<Request> {
        let sup = self.tail.sup.as_mut()?;
        let request = sup.documents.poll_request(now)?;
        self.last_id += 1;
        let id = RequestId(self.last_id);
        sup.requests.insert(id, request.id);
        Some(Request { id, ..request })
    }

    pub(super) fn sup_timeout(&self) -> Option<Monotonic> {
        self.tail.sup.as_ref().and_then(|sup| sup.documents.poll_timeout())
    }

    /// Handles the head of a document; returns false for any other response.
    pub(super) fn sup_head(&mut self, now: Now, id: RequestId, head: &ResponseHead) -> bool {
        let Some(sup) = &mut self.tail.sup else { return false };
        let Some(id) = sup.requests.get(&id) else { return false };
        sup.documents.handle_head(now, *id, head.clone());
        true
    }

    /// Handles a piece of a document; returns false for any other response.
    pub(super) fn sup_piece(&mut self, now: Now, id: RequestId, piece: &Bytes) -> bool {
        let Some(sup) = &mut self.tail.sup else { return false };
        let Some(id) = sup.requests.get(&id) else { return false };
        sup.documents.handle_chunk(now, *id, piece.clone());
        true
    }

    /// Handles the end of a document; returns false for any other response.
    pub(super) fn sup_end(&mut self, now: Now, id: RequestId, result: &Result<(), TransferError>) -> bool {
        let Some(sup) = &mut self.tail.sup else { return false };
        let Some(id) = sup.requests.remove(&id) else { return false };
        sup.documents.handle_end(now, id, result.clone());
        self.take_sup_events();
        true
    }

    /// Passes on what the document's follower has to say. Its failures cost a longer wait, and nothing else.
    fn take_sup_events(&mut self) {
        let Some(sup) = &mut self.tail.sup else { return };
        while let Some(event) = sup.documents.poll_event() {
            match event {
                Event::Warning(text) => self.events.push_back(Event::Warning(text)),
                Event::Failed(error) => {
                    self.events.push_back(Event::Warning(format!("{error} (a SUP document)")));
                }
                Event::Change(_)
                | Event::Large(_)
                | Event::File(_)
                | Event::Checkpoint(_)
                | Event::Incomplete(_)
                | Event::Reset(_) => {}
            }
        }
    }
}
