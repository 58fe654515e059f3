//! The steps of a pass: the newest document, the walk back, and reading forward.

use std::time::Duration;

use http::{HeaderMap, Method, header};

use super::document::{DocumentContents, FetchedDocument};
use super::entries::DocumentSeq;
use super::pass::{DocumentLink, WalkEnd};
use super::response::{DocumentRequest, RequestOutcome, max_age, predecessor_in_headers};
use super::state::PendingStart;
use super::{HistoryFollower, HistoryPhase, MAX_WAIT, NewestHeaders};
use crate::diff::Listing;
use crate::follow::{Event, FollowError, Now};
use crate::history::wire::Predecessor;

// One failed document is a gap. Three in a row are a broken server.
/// Consecutive failed documents after which reading forward ends with a failure.
const MAX_FAILED: usize = 3;

impl HistoryFollower {
    pub(super) fn handle_newest(&mut self, now: Now, outcome: RequestOutcome) {
        let url = self.url.clone();
        match outcome {
            RequestOutcome::Document(fetched, headers) => match self.read(&fetched) {
                Ok(document) => {
                    self.newest = newest(&headers, &document);
                    self.process_newest(now, *fetched, &headers, &document);
                }
                Err(e) => {
                    let error = FollowError::Protocol { url, reason: e.to_string() };
                    self.fail(now, error, None);
                }
            },
            // Without a condition, a 304 has no document that it could mean (RFC 9110, section 15.4.5).
            RequestOutcome::NotModified
                if self.state.etag.is_none() && self.state.last_modified.is_none() =>
            {
                self.fail(now, FollowError::status(url, 304), None);
            }
            RequestOutcome::NotModified => {
                // Nothing new; a good moment for documents that failed before.
                self.failures = 0;
                self.fill(now);
            }
            RequestOutcome::Gone => self.fail(now, FollowError::status(url, 410), None),
            RequestOutcome::Failed { error, retry_after } => self.fail(now, error, retry_after),
        }
    }

    /// Processes the newest document, and decides to walk back or to read forward.
    fn process_newest(
        &mut self,
        now: Now,
        fetched: FetchedDocument,
        headers: &HeaderMap,
        document: &DocumentContents,
    ) {
        self.warn_about_limits_of_feed(document);
        self.pass.bytes += fetched.body.len() as u64;
        // A start within the history needs the entries of the documents, which HEAD does not show.
        self.pass.by_head = !matches!(self.state.start, Some(PendingStart::Time(_) | PendingStart::After(_)))
            && self.state.log_start.is_none()
            // Headers are trusted only if they name the same predecessor as the document.
            && matches!(&document.predecessor, Predecessor::Archive(to) if predecessor_in_headers(headers, &fetched.url).as_ref() == Some(to));
        // An older document that links to this one under its permanent URL closes a loop.
        if let Some(this) = &document.this {
            self.pass.mark_visited(this);
        }
        self.pass.newest = Some(fetched);
        match self.document_of_position(document) {
            Some(url) => {
                self.phase = HistoryPhase::Position;
                self.queue_request(Method::GET, url);
            }
            None => self.walk_back_from_newest(now, document),
        }
    }

    /// Decides to walk back from the newest document or to read forward.
    pub(super) fn walk_back_from_newest(&mut self, now: Now, document: &DocumentContents) {
        let is_start = match &self.state.start {
            Some(PendingStart::Now) => true,
            // The newest document is permanent, too (-00, section 4), and may be the one to begin with.
            Some(PendingStart::Document(url)) => document.this.as_ref() == Some(url),
            Some(PendingStart::After(position)) => {
                let is_there = document.this.as_ref().is_some_and(|this| position.is_in(this));
                is_there || position.find(document).is_some()
            }
            Some(PendingStart::Time(_) | PendingStart::Beginning) | None => self.meets_known(document),
        };
        if is_start {
            self.pass.has_met_known = Some(true);
            // Older documents are not in range. Recorded as read, they are not walked back to later.
            self.pass.skipped =
                DocumentLink::of(&document.predecessor).filter(|l| l.is_permanent).map(|l| l.url);
        }
        let is_early =
            matches!(&self.state.start, Some(PendingStart::Time(time)) if document.is_before(*time));
        let goes_back = !is_start && !is_early;
        // Pages move while they are read, so only a known entry proves that they overlap.
        match DocumentLink::of(&document.predecessor)
            .filter(|link| goes_back && (link.is_permanent || !self.overlaps(document)))
        {
            Some(link) => self.walk_back_to(now, link),
            None => self.forward(now),
        }
    }

    /// Returns true if a document has a known version.
    pub(super) fn overlaps(&self, document: &DocumentContents) -> bool {
        document.versions.iter().any(|version| self.state.entries.has(version))
    }

    /// Walks back by one document, or starts to read forward.
    fn walk_back_to(&mut self, now: Now, link: DocumentLink) {
        if link.is_permanent && self.state.was_read(&link.url) {
            self.pass.has_met_known = Some(true);
            return self.forward(now);
        }
        if let Err(stop) = self.pass.visit(&link.url, &self.url, &self.options.limits) {
            self.report_walk_end(&link.url, &stop);
            // Without this, reading forward would take up the walk again (`process_forward`).
            self.pass.by_head = false;
            // Recorded as read at the end, so that later passes do not stop here again.
            if stop != WalkEnd::Loop && link.is_permanent {
                self.pass.skipped = Some(link.url);
            }
            return self.forward(now);
        }
        self.phase = HistoryPhase::Back;
        let method = if self.pass.by_head && link.is_permanent { Method::HEAD } else { Method::GET };
        self.queue_request(method, link.url.clone());
        self.pass.chain.push(link);
    }

    /// Reports the reason for which the walk back ended early.
    pub(super) fn report_walk_end(&mut self, url: &str, stop: &WalkEnd) {
        let older = "older entries are missing";
        self.incomplete(match stop {
            WalkEnd::Loop => format!("{url} was visited before: the documents form a loop, so {older}"),
            WalkEnd::Scheme => format!("{url:?} is not an http or https URL, so {older}"),
            WalkEnd::Host => format!("{url} is at another host, so {older}"),
            WalkEnd::Limit(limit) => format!("{url} is beyond the limit of {limit}, so {older}"),
        });
    }

    pub(super) fn handle_back(&mut self, now: Now, request: &DocumentRequest, outcome: RequestOutcome) {
        let is_head = request.method == Method::HEAD;
        let (fetched, headers) = match outcome {
            RequestOutcome::Document(fetched, headers) => (*fetched, headers),
            RequestOutcome::Failed { error: FollowError::Status { status: 400..=499, .. }, .. }
                if is_head =>
            {
                // Some servers reject HEAD only.
                self.pass.by_head = false;
                return self.queue_request(Method::GET, request.url.clone());
            }
            RequestOutcome::Failed { error, retry_after } => {
                if !self.retry(now, request, retry_after) {
                    self.pass.chain.pop();
                    self.record_failed_walk(now, &request.url, &error);
                    self.forward(now);
                }
                return;
            }
            RequestOutcome::Gone | RequestOutcome::NotModified => {
                self.pass.chain.pop();
                self.record_removed(&request.url);
                return self.forward(now);
            }
        };
        if is_head {
            if matches!(&self.state.start, Some(PendingStart::Document(url)) if *url == request.url) {
                return self.forward(now);
            }
            let link = predecessor_in_headers(&headers, &fetched.url);
            return match link {
                Some(url) => self.walk_back_to(now, DocumentLink { url, is_permanent: true }),
                // Headers may lack the link. `process_forward` looks for it in the document.
                None => self.forward(now),
            };
        }
        self.pass.bytes += fetched.body.len() as u64;
        match self.read(&fetched) {
            Ok(document) => self.process_back(now, fetched, &document),
            Err(e) => {
                let error = FollowError::Protocol { url: request.url.clone(), reason: e.to_string() };
                if !self.retry(now, request, None) {
                    self.pass.chain.pop();
                    self.record_failed_walk(now, &request.url, &error);
                    self.forward(now);
                }
            }
        }
    }

    fn process_back(&mut self, now: Now, fetched: FetchedDocument, document: &DocumentContents) {
        let Some(here) = self.pass.chain.last().cloned() else { return self.forward(now) };
        let is_last = match &self.state.start {
            Some(PendingStart::Time(time)) if document.is_before(*time) => {
                self.pass.chain.pop();
                self.pass.skipped = Some(here.url).filter(|_| here.is_permanent);
                return self.forward(now);
            }
            Some(PendingStart::Document(url)) => *url == here.url,
            Some(PendingStart::After(position)) => {
                position.is_in(&here.url) || position.find(document).is_some()
            }
            _ => !here.is_permanent && self.overlaps(document) || self.meets_known(document),
        };
        self.pass.cache(fetched, self.options.limits.cached);
        match DocumentLink::of(&document.predecessor).filter(|_| !is_last) {
            Some(link) => self.walk_back_to(now, link),
            None => self.forward(now),
        }
    }

    /// Reads the oldest remaining document, and at the end the newest.
    pub(super) fn forward(&mut self, now: Now) {
        self.phase = HistoryPhase::Forward;
        while let Some(link) = self.pass.chain.last().cloned() {
            let Some(fetched) = self.pass.take_cached() else {
                return self.queue_request(Method::GET, link.url);
            };
            match self.read(&fetched) {
                Ok(document) => self.apply_chain_end(now, &link, document),
                // Unreachable: it parsed during the walk back.
                Err(_) => drop(self.pass.chain.pop()),
            }
        }
        let read = self.pass.newest.take().and_then(|fetched| self.read(&fetched).ok());
        if let Some(document) = read {
            self.finish_pass(now, document);
        }
    }

    pub(super) fn handle_forward(&mut self, now: Now, request: &DocumentRequest, outcome: RequestOutcome) {
        let Some(link) = self.pass.chain.last().cloned() else { return self.forward(now) };
        let (error, retry_after) = match outcome {
            RequestOutcome::Document(fetched, _) => {
                self.pass.bytes += fetched.body.len() as u64;
                match self.read(&fetched) {
                    Ok(document) => return self.process_forward(now, &link, *fetched, document),
                    Err(e) => {
                        let url = request.url.clone();
                        (FollowError::Protocol { url, reason: e.to_string() }, None)
                    }
                }
            }
            RequestOutcome::Gone | RequestOutcome::NotModified => {
                self.pass.chain.pop();
                self.record_removed(&link.url);
                return self.forward(now);
            }
            RequestOutcome::Failed { error, retry_after } => (error, retry_after),
        };
        if self.retry(now, request, retry_after) {
            return;
        }
        self.pass.chain.pop();
        // Numbered in its place in the chain, so that its versions rank before those of later documents.
        let seq = self.state.next_seq();
        self.pass.failed.push((link.url, seq));
        if self.pass.failed.len() >= MAX_FAILED {
            // Probably the whole server fails. The next pass finds the unread documents again.
            return self.fail(now, error, retry_after);
        }
        self.forward(now);
    }

    fn process_forward(
        &mut self,
        now: Now,
        link: &DocumentLink,
        fetched: FetchedDocument,
        document: DocumentContents,
    ) {
        self.record_failed_documents(now);
        // Headers may have ended the walk back too early: the document itself decides.
        let earlier = DocumentLink::of(&document.predecessor)
            .filter(|earlier| self.pass.by_head && earlier.is_permanent);
        let is_start = matches!(&self.state.start, Some(PendingStart::Document(url)) if *url == link.url);
        if let Some(earlier) = earlier.filter(|l| !is_start && !self.state.was_read(&l.url)) {
            self.pass.by_head = false;
            self.pass.cache(fetched, self.options.limits.cached);
            return self.walk_back_to(now, earlier);
        }
        self.apply_chain_end(now, link, document);
        self.forward(now);
    }

    /// Applies the document at the end of the chain.
    fn apply_chain_end(&mut self, now: Now, link: &DocumentLink, document: DocumentContents) {
        self.record_failed_documents(now);
        self.record_known_entries(&document);
        self.pass.chain.pop();
        let seq = self.state.next_seq();
        self.apply(document, &link.url, seq, Listing::Window);
        if link.is_permanent {
            self.state.add_read(&link.url);
        }
        self.checkpoint_during_pass();
    }

    /// Notes if a document that is about to be applied has an entry of the passes before.
    fn record_known_entries(&mut self, document: &DocumentContents) {
        let is_last = DocumentLink::of(&document.predecessor).is_none();
        self.pass.has_beginning.get_or_insert(is_last);
        let Some(known) = self.pass.known.filter(|_| !document.versions.is_empty()) else { return };
        let has_known = document.versions.iter().any(|v| self.state.entries.has_id_until(v, known));
        *self.pass.has_met_known.get_or_insert(false) |= has_known;
    }

    /// Reports a history that was read to its beginning without a known document or entry: the publisher began anew, or
    /// removed what was between, together with the link to it.
    fn report_lost_beginning(&mut self, document: &DocumentContents) {
        // A document without history has a report of its own, and a complete one misses nothing.
        let has_history = !matches!(document.predecessor, Predecessor::Unknown | Predecessor::Complete);
        let is_lost = self.pass.has_met_known == Some(false) && self.pass.has_beginning == Some(true);
        if has_history && is_lost && self.pass.known.is_some() {
            self.incomplete(format!(
                "{}: its documents begin with entries that are all unknown: changes before them are missing",
                self.url
            ));
        }
    }

    fn finish_pass(&mut self, now: Now, document: DocumentContents) {
        self.record_failed_documents(now);
        self.record_known_entries(&document);
        self.report_lost_beginning(&document);
        // A complete document supersedes history: gaps in it no longer matter.
        let listing = match document.predecessor {
            Predecessor::Complete => Listing::Complete,
            _ => Listing::Window,
        };
        if listing == Listing::Complete {
            self.state.gaps.clear();
        }
        if let Some(PendingStart::Document(url)) = &self.state.start
            && !self.state.was_read(url)
            && document.this.as_ref() != Some(url)
        {
            let text = format!("{url} is not among the documents of {}: all documents were read", self.url);
            self.events.push_back(Event::Warning(text));
        }
        let permanent: Vec<String> =
            self.pass.skipped.take().into_iter().chain(document.this.clone()).collect();
        let position = document.this.clone().unwrap_or_else(|| self.url.clone());
        let seq = self.state.next_seq();
        self.apply(document, &position, seq, listing);
        for url in &permanent {
            self.dirty |= !self.state.was_read(url);
            self.state.add_read(url);
        }
        // Only now: after a failed pass a 304 would hide the documents that it did not read.
        let NewestHeaders { etag, last_modified, .. } = &self.newest;
        if self.state.start.take().is_some()
            || (&self.state.etag, &self.state.last_modified) != (etag, last_modified)
        {
            (self.state.etag, self.state.last_modified) = (etag.clone(), last_modified.clone());
            self.dirty = true;
        }
        self.failures = 0;
        self.fill(now);
    }

    /// Records a document that failed during the walk back.
    fn record_failed_walk(&mut self, now: Now, url: &str, error: &FollowError) {
        self.incomplete(format!("{error}: its entries and older ones are missing for now"));
        let seq = self.state.next_seq();
        self.add_gap(now, url, seq, false);
    }

    /// Records the documents that failed while reading forward.
    fn record_failed_documents(&mut self, now: Now) {
        for (url, seq) in std::mem::take(&mut self.pass.failed) {
            self.incomplete(format!("{url} fails: its entries are missing for now"));
            self.add_gap(now, &url, seq, true);
        }
    }

    fn add_gap(&mut self, now: Now, url: &str, seq: DocumentSeq, is_isolated: bool) {
        // The pass has tried it in vain, so the backoff does not start with its shortest wait.
        let due = now.after(self.options.backoff().wait(4));
        if !self.state.add_gap(url, seq, is_isolated, due) {
            self.incomplete(format!("{url} will not be requested again: too many documents fail"));
        }
        // Recorded as read, so that later walks back do not request it: the gap has its own schedule.
        self.state.add_read(url);
        self.dirty = true;
    }

    /// Records a document that was removed permanently.
    pub(super) fn record_removed(&mut self, url: &str) {
        self.incomplete(format!("{url} is gone: its entries and older ones are no longer available"));
        self.state.add_read(url);
        self.dirty = true;
    }
}

fn newest(headers: &HeaderMap, document: &DocumentContents) -> NewestHeaders {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let ttl = Duration::from_secs(document.ttl.unwrap_or_default());
    // A hostile `max-age` or `ttl` of years must not end polling.
    let fresh = max_age(headers).unwrap_or_default().max(ttl).min(MAX_WAIT);
    NewestHeaders { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED), fresh }
}
