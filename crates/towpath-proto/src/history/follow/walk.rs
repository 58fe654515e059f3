//! The newest document, the way back, and the way forward.

use std::time::Duration;

use http::{HeaderMap, Method, header};
use jiff::Timestamp;

use super::answer::{Outcome, max_age, way_in_headers};
use super::crawl::{Link, Stop};
use super::memory::Slot;
use super::place::Start;
use super::reading::{Fetched, Reading};
use super::{Ask, HistoryFollower, LONGEST, Newest, Phase, doubled, later};
use crate::follow::{Event, FollowError};
use crate::history::wire::Way;

/// After so many documents in a row that do not answer, the way forward is given up for now.
const MAX_SILENT: usize = 3;

impl HistoryFollower {
    pub(super) fn newest_answered(&mut self, now: Timestamp, outcome: Outcome) {
        let url = self.url.clone();
        match outcome {
            Outcome::Document(fetched, headers) => match Reading::of(&fetched) {
                Ok(reading) => {
                    self.newest = newest(&headers, &reading);
                    self.newest_read(now, *fetched, &headers, &reading);
                }
                Err(e) => {
                    let error = FollowError::Protocol { url, reason: e.to_string() };
                    self.fail(now, error, None);
                }
            },
            Outcome::NotModified => {
                self.failures = 0;
                self.fill(now);
            }
            Outcome::Gone => self.fail(now, FollowError::Status { url, status: 410 }, None),
            Outcome::Failed { error, retry_after } => self.fail(now, error, retry_after),
        }
    }

    /// Decides how far to go back.
    fn newest_read(&mut self, now: Timestamp, fetched: Fetched, headers: &HeaderMap, reading: &Reading) {
        self.say_what_to_expect(reading);
        self.crawl.bytes += fetched.body.len() as u64;
        self.crawl.by_head = !matches!(self.place.start, Some(Start::Time(_)))
            && matches!(&reading.way, Way::Archive(to) if way_in_headers(headers, &fetched.url).as_ref() == Some(to));
        let goes_back = match &self.place.start {
            Some(Start::Now) => {
                // What is before this document is not wanted.
                self.crawl.passed_over = Link::of(&reading.way).filter(|l| l.is_permanent).map(|l| l.url);
                false
            }
            Some(Start::Time(time)) => !reading.is_before(*time),
            _ => true,
        };
        self.crawl.newest = Some(fetched);
        match Link::of(&reading.way)
            .filter(|link| goes_back && (link.is_permanent || !self.overlaps(reading)))
        {
            Some(link) => self.back_to(now, link),
            None => self.forward(now),
        }
    }

    /// Whether a document shows something that is known.
    pub(super) fn overlaps(&self, reading: &Reading) -> bool {
        reading.versions.iter().any(|version| self.place.entries.has(version))
    }

    /// Goes one document back, or turns round.
    fn back_to(&mut self, now: Timestamp, link: Link) {
        if link.is_permanent && self.place.was_read(&link.url) {
            return self.forward(now);
        }
        if let Err(stop) = self.crawl.visit(&link.url, &self.url, &self.options.limits) {
            self.stopped(&link.url, &stop);
            self.crawl.by_head = false;
            if stop != Stop::Loop && link.is_permanent {
                self.crawl.passed_over = Some(link.url);
            }
            return self.forward(now);
        }
        self.phase = Phase::Back;
        let method = if self.crawl.by_head && link.is_permanent { Method::HEAD } else { Method::GET };
        self.ask(method, link.url.clone());
        self.crawl.chain.push(link);
    }

    /// Tells why the way back ends where it should not.
    pub(super) fn stopped(&mut self, url: &str, stop: &Stop) {
        let older = "older entries are missing";
        self.incomplete(match stop {
            Stop::Loop => format!("{url} was visited before: the documents form a loop, so {older}"),
            Stop::Scheme => format!("{url:?} is no address of http or https, so {older}"),
            Stop::Host => format!("{url} is at another host, so {older}"),
            Stop::Limit(limit) => format!("{url} is beyond the limit of {limit}, so {older}"),
        });
    }

    pub(super) fn back_answered(&mut self, now: Timestamp, ask: &Ask, outcome: Outcome) {
        let is_head = ask.method == Method::HEAD;
        let (fetched, headers) = match outcome {
            Outcome::Document(fetched, headers) => (*fetched, headers),
            Outcome::Failed { error: FollowError::Status { status: 400..=499, .. }, .. } if is_head => {
                // Perhaps it is HEAD that is not understood.
                self.crawl.by_head = false;
                return self.ask(Method::GET, ask.url.clone());
            }
            Outcome::Failed { error, retry_after } => {
                if !self.ask_again(now, ask, retry_after) {
                    self.crawl.chain.pop();
                    self.silent(now, &ask.url, &error);
                    self.forward(now);
                }
                return;
            }
            Outcome::Gone | Outcome::NotModified => {
                self.crawl.chain.pop();
                self.gone(&ask.url);
                return self.forward(now);
            }
        };
        if is_head {
            let link = way_in_headers(&headers, &fetched.url);
            return match link {
                Some(url) => self.back_to(now, Link { url, is_permanent: true }),
                None => self.forward(now),
            };
        }
        self.crawl.bytes += fetched.body.len() as u64;
        match Reading::of(&fetched) {
            Ok(reading) => self.back_read(now, fetched, &reading),
            Err(e) => {
                let error = FollowError::Protocol { url: ask.url.clone(), reason: e.to_string() };
                if !self.ask_again(now, ask, None) {
                    self.crawl.chain.pop();
                    self.silent(now, &ask.url, &error);
                    self.forward(now);
                }
            }
        }
    }

    fn back_read(&mut self, now: Timestamp, fetched: Fetched, reading: &Reading) {
        let Some(here) = self.crawl.chain.last().cloned() else { return self.forward(now) };
        let is_last = match &self.place.start {
            Some(Start::Time(time)) if reading.is_before(*time) => {
                self.crawl.chain.pop();
                self.crawl.passed_over = Some(here.url).filter(|_| here.is_permanent);
                return self.forward(now);
            }
            Some(Start::Document(url)) => *url == here.url,
            _ => !here.is_permanent && self.overlaps(reading),
        };
        self.crawl.keep(fetched, self.options.limits.kept);
        match Link::of(&reading.way).filter(|_| !is_last) {
            Some(link) => self.back_to(now, link),
            None => self.forward(now),
        }
    }

    /// Reads the oldest document that is left, and in the end the newest.
    pub(super) fn forward(&mut self, now: Timestamp) {
        self.phase = Phase::Forward;
        while let Some(link) = self.crawl.chain.last().cloned() {
            let Some(fetched) = self.crawl.take_kept() else {
                return self.ask(Method::GET, link.url);
            };
            match Reading::of(&fetched) {
                Ok(reading) => self.read_forward(now, &link, reading),
                // It was read once already, on the way back.
                Err(_) => drop(self.crawl.chain.pop()),
            }
        }
        let read = self.crawl.newest.take().and_then(|fetched| Reading::of(&fetched).ok());
        if let Some(reading) = read {
            self.finish_pass(now, reading);
        }
    }

    pub(super) fn forward_answered(&mut self, now: Timestamp, ask: &Ask, outcome: Outcome) {
        let Some(link) = self.crawl.chain.last().cloned() else { return self.forward(now) };
        let (error, retry_after) = match outcome {
            Outcome::Document(fetched, _) => {
                self.crawl.bytes += fetched.body.len() as u64;
                match Reading::of(&fetched) {
                    Ok(reading) => return self.forward_read(now, &link, *fetched, reading),
                    Err(e) => {
                        let url = ask.url.clone();
                        (FollowError::Protocol { url, reason: e.to_string() }, None)
                    }
                }
            }
            Outcome::Gone | Outcome::NotModified => {
                self.crawl.chain.pop();
                self.gone(&link.url);
                return self.forward(now);
            }
            Outcome::Failed { error, retry_after } => (error, retry_after),
        };
        if self.ask_again(now, ask, retry_after) {
            return;
        }
        self.crawl.chain.pop();
        let slot = self.place.next_slot();
        self.crawl.silent.push((link.url, slot));
        if self.crawl.silent.len() >= MAX_SILENT {
            // Nothing answers: what was not read is found again by the next pass.
            return self.fail(now, error, retry_after);
        }
        self.forward(now);
    }

    fn forward_read(&mut self, now: Timestamp, link: &Link, fetched: Fetched, reading: Reading) {
        self.note_silent(now);
        // Headers may have ended the way back too early: the document itself decides.
        let earlier = Link::of(&reading.way).filter(|earlier| self.crawl.by_head && earlier.is_permanent);
        let is_start = matches!(&self.place.start, Some(Start::Document(url)) if *url == link.url);
        if let Some(earlier) = earlier.filter(|l| !is_start && !self.place.was_read(&l.url)) {
            self.crawl.by_head = false;
            self.crawl.keep(fetched, self.options.limits.kept);
            return self.back_to(now, earlier);
        }
        self.read_forward(now, link, reading);
        self.forward(now);
    }

    /// Takes the document at the end of the chain.
    fn read_forward(&mut self, now: Timestamp, link: &Link, reading: Reading) {
        self.note_silent(now);
        self.crawl.chain.pop();
        let slot = self.place.next_slot();
        self.apply(reading, &link.url, slot, false);
        if link.is_permanent {
            self.place.note_read(&link.url);
        }
        self.checkpoint_amid();
    }

    fn finish_pass(&mut self, now: Timestamp, reading: Reading) {
        self.note_silent(now);
        let is_whole = reading.way == Way::Complete;
        if is_whole {
            self.place.gaps.clear();
        }
        if let Some(Start::Document(url)) = &self.place.start
            && !self.place.was_read(url)
            && reading.this.as_ref() != Some(url)
        {
            let text = format!("{url} is not among the documents of {}: all of them were read", self.url);
            self.events.push_back(Event::Warning(text));
        }
        let permanent: Vec<String> =
            self.crawl.passed_over.take().into_iter().chain(reading.this.clone()).collect();
        let position = reading.this.clone().unwrap_or_else(|| self.url.clone());
        let slot = self.place.next_slot();
        self.apply(reading, &position, slot, is_whole);
        for url in &permanent {
            self.dirty |= !self.place.was_read(url);
            self.place.note_read(url);
        }
        let Newest { etag, last_modified, .. } = &self.newest;
        if self.place.start.take().is_some()
            || (&self.place.etag, &self.place.last_modified) != (etag, last_modified)
        {
            (self.place.etag, self.place.last_modified) = (etag.clone(), last_modified.clone());
            self.dirty = true;
        }
        self.failures = 0;
        self.fill(now);
    }

    /// Notes a document that does not answer on the way back.
    fn silent(&mut self, now: Timestamp, url: &str, error: &FollowError) {
        self.incomplete(format!("{error}: what it and older documents tell is missing for now"));
        let slot = self.place.next_slot();
        self.note_gap(now, url, slot, false);
    }

    /// Notes the documents that did not answer on the way forward.
    fn note_silent(&mut self, now: Timestamp) {
        for (url, slot) in std::mem::take(&mut self.crawl.silent) {
            self.incomplete(format!("{url} does not answer: what it tells is missing for now"));
            self.note_gap(now, &url, slot, true);
        }
    }

    fn note_gap(&mut self, now: Timestamp, url: &str, slot: Slot, alone: bool) {
        let due = later(now, doubled(self.options.retry, 3));
        if !self.place.note_gap(url, slot, alone, due) {
            self.incomplete(format!("{url} will not be asked again: too many documents do not answer"));
        }
        // Whoever goes back from newer documents need not try: the gap is asked for apart.
        self.place.note_read(url);
        self.dirty = true;
    }

    /// Notes a document that is gone for good.
    pub(super) fn gone(&mut self, url: &str) {
        self.incomplete(format!("{url} is gone: what it and older documents told cannot be had any more"));
        self.place.note_read(url);
        self.dirty = true;
    }
}

fn newest(headers: &HeaderMap, reading: &Reading) -> Newest {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let ttl = Duration::from_secs(reading.ttl.unwrap_or_default());
    let fresh = max_age(headers).unwrap_or_default().max(ttl).min(LONGEST);
    Newest { etag: text(header::ETAG), last_modified: text(header::LAST_MODIFIED), fresh }
}
