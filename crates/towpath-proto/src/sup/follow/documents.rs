//! Requests for SUP documents.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::ACCEPT;
use jiff::Timestamp;

use super::source::{Coverage, SupSource};
use super::{PollReason, SupFollower};
use crate::follow::{
    Event, Exchange, FollowError, Follower, Monotonic, Now, Request, RequestId, ResponseHead, TransferError,
};
use crate::sup::wire::SupDocument;

// Room for a million tuples of about 28 bytes. A hostile body ends here.
/// Maximum size of a SUP document, in bytes.
const MAX_DOCUMENT: u64 = 32 << 20;

/// A request for a SUP document in flight.
#[derive(Debug)]
pub(super) struct DocumentFetch {
    source: usize,
    period: Option<u64>,
    url: String,
    head: Option<ResponseHead>,
    body: BytesMut,
}

impl SupFollower {
    fn handle_source_failure(
        &mut self,
        now: Now,
        source: usize,
        error: FollowError,
        retry_after: Option<Duration>,
    ) {
        self.events.push_back(Event::Failed(error));
        if self.sources[source].handle_failure(now, retry_after) {
            let url = &self.sources[source].url;
            self.events.push_back(Event::Warning(format!("{url}: fails; its feeds are polled plainly")));
            self.reschedule(source, now);
        }
    }

    fn handle_document(
        &mut self,
        now: Now,
        fetch: &DocumentFetch,
        document: &SupDocument,
    ) -> Result<(), String> {
        let source = fetch.source;
        let was_healthy = self.sources[source].is_healthy();
        let coverage = self.sources[source].apply_document(now, fetch.period, &fetch.url, document)?;
        if !was_healthy && self.sources[source].is_healthy() {
            self.reschedule(source, now);
        }
        for update in &document.updates {
            let Some(feeds) = self.members[source].get(&update.id) else { continue };
            // Windows overlap by design, so most updates are listed several times.
            if self.sources[source].is_new(update, document.updated_time) {
                let feeds = feeds.clone();
                // A listed update is not omitted.
                self.suspects[source].retain(|(feed, _)| !feeds.contains(feed));
                feeds.into_iter().for_each(|feed| self.make_ready(feed, PollReason::Updated));
            }
        }
        self.sources[source].drop_old_updates(document.updated_time);
        match coverage {
            // After all updates: an update in this document is not an omission.
            Coverage::Complete => self.report_omissions(source, document.updated_time, now),
            Coverage::LongerPeriod(period) => self.fetch(source, Some(period)),
            Coverage::Gap(reason) => {
                // Every feed of the source is polled now, so no omission can be proved any more.
                self.suspects[source].clear();
                let url = &self.sources[source].url;
                let text = format!("{url}: {reason}; every feed announced there is polled");
                self.events.push_back(Event::Warning(text));
                self.close_gap(source, now);
            }
        }
        Ok(())
    }

    /// Reports updates before the end of the window that no document listed.
    fn report_omissions(&mut self, source: usize, updated: Timestamp, now: Now) {
        let suspects = std::mem::take(&mut self.suspects[source]);
        let (omitted, open): (Vec<_>, Vec<_>) =
            suspects.into_iter().partition(|(_, at)| self.sources[source].covers(*at, updated));
        self.suspects[source] = open;
        for (feed, _) in omitted {
            let (url, feed) = (&self.sources[source].url, &self.feeds[feed].url);
            self.events.push_back(Event::Warning(format!("{url}: did not list an update of {feed}")));
            if self.sources[source].record_omission() {
                let url = &self.sources[source].url;
                let text = format!("{url}: omits updates; its feeds are polled plainly");
                self.events.push_back(Event::Warning(text));
                self.reschedule(source, now);
            }
        }
    }

    /// Queues a request for the source's document: for a period, or at the announced URL.
    fn fetch(&mut self, source: usize, period: Option<u64>) {
        let url = period.and_then(|period| self.sources[source].period_url(period));
        let url = url.unwrap_or(&self.sources[source].url).to_owned();
        self.sources[source].in_flight = true;
        self.requests += 1;
        let id = RequestId(self.requests);
        self.fetches.insert(id, DocumentFetch { source, period, url, head: None, body: BytesMut::new() });
        self.outbox.push_back(id);
    }

    /// Returns the document of a complete response.
    fn read(
        &mut self,
        fetch: &DocumentFetch,
        result: Result<(), TransferError>,
    ) -> Result<SupDocument, FollowError> {
        let url = || fetch.url.clone();
        result.map_err(|source| FollowError::Transfer { url: url(), source })?;
        let status = fetch.head.as_ref().map_or(0, |head| head.status);
        // A 304 to a request without validators falls through, and is an error.
        if status == 304
            && let Some(document) = self.sources[fetch.source].unchanged(&fetch.url)
        {
            return Ok(document);
        }
        if status != 200 {
            return Err(FollowError::status(url(), status));
        }
        let parsed = SupDocument::parse(&fetch.body);
        let parsed = parsed.map_err(|e| FollowError::Protocol { url: url(), reason: e.to_string() })?;
        let source = &mut self.sources[fetch.source];
        if let Some(problem) = parsed.problems.first().filter(|_| !source.is_warned) {
            source.is_warned = true;
            self.events.push_back(Event::Warning(format!("{}: {problem}", fetch.url)));
        }
        Ok(parsed.document)
    }
}

impl SupFollower {
    /// Returns the URL of a feed that links to the SUP document which this request is for: the feed added first.
    pub fn linking_feed(&self, request: RequestId) -> Option<&str> {
        let source = self.fetches.get(&request)?.source;
        let first = self.members[source].values().flatten().min()?;
        Some(&self.feeds[*first].url)
    }
}

impl Exchange for SupFollower {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        // Queued requests go first: they close a gap that a document has just shown.
        if self.outbox.is_empty() {
            let due = |(index, source): &(usize, &SupSource)| {
                !source.in_flight && source.due <= now.monotonic && !self.members[*index].is_empty()
            };
            let source = self.sources.iter().enumerate().find(due)?.0;
            let period = self.sources[source].choose_period(now.wall);
            self.fetch(source, period);
        }
        let id = self.outbox.pop_front()?;
        let fetch = self.fetches.get(&id)?;
        let request = Request::get(id, fetch.url.clone()).with(ACCEPT, "application/json");
        let mut request = self.sources[fetch.source].make_conditional(request);
        request.max_body = MAX_DOCUMENT;
        Some(request)
    }

    fn handle_head(&mut self, _now: Now, id: RequestId, head: ResponseHead) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.head = Some(head);
        }
    }

    fn handle_chunk(&mut self, _now: Now, id: RequestId, chunk: Bytes) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.body.extend_from_slice(&chunk);
        }
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        let Some(fetch) = self.fetches.remove(&id) else { return };
        self.sources[fetch.source].in_flight = false;
        let outcome = self.read(&fetch, result).and_then(|document| {
            let judged = self.handle_document(now, &fetch, &document);
            judged.map_err(|reason| FollowError::Protocol { url: fetch.url.clone(), reason })?;
            // Validators of a rejected document are not stored: a 304 would count as a good one.
            if let Some(head) = fetch.head.as_ref().filter(|head| head.status == 200) {
                self.sources[fetch.source].store_validators(&fetch.url, head, &document);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            let retry_after = fetch.head.as_ref().and_then(|head| head.retry_after(now.wall));
            self.handle_source_failure(now, fetch.source, error, retry_after);
        }
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        let sources = self.sources.iter().zip(&self.members);
        let waiting = sources.filter(|(source, members)| !source.in_flight && !members.is_empty());
        let sources = waiting.map(|(source, _)| source.due);
        sources.chain(self.timers.first().map(|(due, _)| *due)).min()
    }

    /// Returns false always: feeds have no end.
    fn is_finished(&self) -> bool {
        false
    }
}

impl Follower for SupFollower {
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
