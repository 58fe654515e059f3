//! A consumer's own requests: for SUP documents.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::ACCEPT;
use jiff::Timestamp;

use super::{Consumer, Why};
use crate::follow::{
    Event, Exchange, FollowError, Follower, Request, RequestId, ResponseHead, TransferError,
};
use crate::sup::source::{Source, Verdict};
use crate::sup::wire::SupDocument;

/// The largest SUP document that is read, in bytes.
const MAX_DOCUMENT: u64 = 32 << 20;

/// A SUP document on its way.
#[derive(Debug)]
pub(super) struct Fetch {
    source: usize,
    period: Option<u64>,
    url: String,
    head: Option<ResponseHead>,
    body: BytesMut,
}

impl Consumer {
    fn source_failed(
        &mut self,
        now: Timestamp,
        source: usize,
        error: FollowError,
        retry_after: Option<Duration>,
    ) {
        self.events.push_back(Event::Failed(error));
        if self.sources[source].failed(now, retry_after) {
            let url = &self.sources[source].url;
            self.events.push_back(Event::Warning(format!("{url}: fails; its feeds are polled plainly")));
            self.change_pace(source);
        }
    }

    fn document_arrived(
        &mut self,
        now: Timestamp,
        fetch: &Fetch,
        document: &SupDocument,
    ) -> Result<(), String> {
        let source = fetch.source;
        let was_healthy = self.sources[source].is_healthy();
        let verdict = self.sources[source].judge(now, fetch.period, &fetch.url, document)?;
        if !was_healthy && self.sources[source].is_healthy() {
            self.change_pace(source);
        }
        for update in &document.updates {
            let Some(feeds) = self.members[source].get(&update.id) else { continue };
            if self.sources[source].is_new(update, document.updated_time) {
                let feeds = feeds.clone();
                self.suspects[source].retain(|(feed, _)| !feeds.contains(feed));
                feeds.into_iter().for_each(|feed| self.make_ready(feed, Why::Moved));
            }
        }
        self.sources[source].forget(document.updated_time);
        match verdict {
            Verdict::Covered => self.convict(source, document.updated_time),
            Verdict::AskLonger(period) => self.fetch(source, Some(period)),
            Verdict::Gap(reason) => {
                self.suspects[source].clear();
                let url = &self.sources[source].url;
                let text = format!("{url}: {reason}; every feed announced there is asked");
                self.events.push_back(Event::Warning(text));
                self.close_gap(source, now);
            }
        }
        Ok(())
    }

    /// Feeds that had moved before the window's end, and were in no document: updates were left out.
    fn convict(&mut self, source: usize, updated: Timestamp) {
        let suspects = std::mem::take(&mut self.suspects[source]);
        let (past, open): (Vec<_>, Vec<_>) =
            suspects.into_iter().partition(|(_, at)| self.sources[source].is_past(*at, updated));
        self.suspects[source] = open;
        for (feed, _) in past {
            let (url, feed) = (&self.sources[source].url, &self.feeds[feed].url);
            self.events.push_back(Event::Warning(format!("{url}: did not announce an update of {feed}")));
            if self.sources[source].missed() {
                let url = &self.sources[source].url;
                let text = format!("{url}: leaves updates out; its feeds are polled plainly");
                self.events.push_back(Event::Warning(text));
                self.change_pace(source);
            }
        }
    }

    /// Asks for the source's document for a period, or as feeds announce it.
    fn fetch(&mut self, source: usize, period: Option<u64>) {
        let url = period.and_then(|period| self.sources[source].period_url(period));
        let url = url.unwrap_or(&self.sources[source].url).to_owned();
        self.sources[source].under_way = true;
        self.requests += 1;
        let id = RequestId(self.requests);
        self.fetches.insert(id, Fetch { source, period, url, head: None, body: BytesMut::new() });
        self.outbox.push_back(id);
    }

    /// The document of a complete answer.
    fn read(&mut self, fetch: &Fetch, result: Result<(), TransferError>) -> Result<SupDocument, FollowError> {
        let url = || fetch.url.clone();
        result.map_err(|source| FollowError::Transfer { url: url(), source })?;
        let status = fetch.head.as_ref().map_or(0, |head| head.status);
        if status == 304
            && let Some(document) = self.sources[fetch.source].unchanged(&fetch.url)
        {
            return Ok(document);
        }
        if status != 200 {
            return Err(FollowError::Status { url: url(), status });
        }
        let parsed = SupDocument::parse(&fetch.body);
        let parsed = parsed.map_err(|e| FollowError::Protocol { url: url(), reason: e.to_string() })?;
        let source = &mut self.sources[fetch.source];
        if let Some(problem) = parsed.problems.first().filter(|_| !source.told) {
            source.told = true;
            self.events.push_back(Event::Warning(format!("{}: {problem}", fetch.url)));
        }
        Ok(parsed.document)
    }
}

impl Exchange for Consumer {
    fn poll_request(&mut self, now: Timestamp) -> Option<Request> {
        if self.outbox.is_empty() {
            let due = |(index, source): &(usize, &Source)| {
                !source.under_way && source.due <= now && !self.members[*index].is_empty()
            };
            let source = self.sources.iter().enumerate().find(due)?.0;
            let period = self.sources[source].choose(now);
            self.fetch(source, period);
        }
        let id = self.outbox.pop_front()?;
        let fetch = self.fetches.get(&id)?;
        let request = Request::get(id, fetch.url.clone()).with(ACCEPT, "application/json");
        let mut request = self.sources[fetch.source].condition(request);
        request.max_body = MAX_DOCUMENT;
        Some(request)
    }

    fn handle_head(&mut self, _now: Timestamp, id: RequestId, head: ResponseHead) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.head = Some(head);
        }
    }

    fn handle_chunk(&mut self, _now: Timestamp, id: RequestId, chunk: Bytes) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.body.extend_from_slice(&chunk);
        }
    }

    fn handle_end(&mut self, now: Timestamp, id: RequestId, result: Result<(), TransferError>) {
        let Some(fetch) = self.fetches.remove(&id) else { return };
        self.sources[fetch.source].under_way = false;
        let outcome = self.read(&fetch, result).and_then(|document| {
            let judged = self.document_arrived(now, &fetch, &document);
            judged.map_err(|reason| FollowError::Protocol { url: fetch.url.clone(), reason })?;
            if let Some(head) = fetch.head.as_ref().filter(|head| head.status == 200) {
                self.sources[fetch.source].remember(&fetch.url, head, &document);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            let retry_after = fetch.head.as_ref().and_then(|head| head.retry_after(now));
            self.source_failed(now, fetch.source, error, retry_after);
        }
    }

    fn poll_timeout(&self) -> Option<Timestamp> {
        let sources = self.sources.iter().zip(&self.members);
        let waiting = sources.filter(|(source, members)| !source.under_way && !members.is_empty());
        let sources = waiting.map(|(source, _)| source.due);
        sources.chain(self.timers.first().map(|(due, _)| *due)).min()
    }

    /// Never: feeds go on moving.
    fn is_finished(&self) -> bool {
        false
    }
}

impl Follower for Consumer {
    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
