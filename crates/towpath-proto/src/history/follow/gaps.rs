//! Documents that did not answer, asked for again after a pass.

use http::Method;
use jiff::Timestamp;

use super::answer::Outcome;
use super::crawl::{Crawl, Link, Stop};
use super::reading::Reading;
use super::{Ask, HistoryFollower, LONGEST, Phase, doubled, later};
use crate::follow::{Event, FollowError};

impl HistoryFollower {
    /// Asks for the next document that is due, or ends the pass.
    pub(super) fn fill(&mut self, now: Timestamp) {
        let due = self.place.gaps.iter().position(|gap| gap.due.is_none_or(|due| due <= now));
        let Some(index) = due else {
            self.checkpoint();
            let wait = self.options.poll.max(self.newest.fresh);
            return self.rest(now, wait);
        };
        // The gap that is worked on is the last.
        let gap = self.place.gaps.remove(index);
        self.phase = Phase::Fill;
        self.crawl = Crawl::new(&gap.url);
        self.ask(Method::GET, gap.url.clone());
        self.place.gaps.push(gap);
    }

    pub(super) fn fill_answered(&mut self, now: Timestamp, ask: &Ask, outcome: Outcome) {
        let (error, retry_after) = match outcome {
            Outcome::Document(fetched, _) => {
                self.crawl.bytes += fetched.body.len() as u64;
                match Reading::of(&fetched) {
                    Ok(reading) => return self.fill_read(now, &ask.url, reading),
                    Err(e) => {
                        let url = ask.url.clone();
                        (FollowError::Protocol { url, reason: e.to_string() }, None)
                    }
                }
            }
            Outcome::Gone | Outcome::NotModified => {
                self.place.gaps.pop();
                self.gone(&ask.url);
                return self.fill(now);
            }
            Outcome::Failed { error, retry_after } => (error, retry_after),
        };
        let Some(gap) = self.place.gaps.last_mut() else { return self.fill(now) };
        gap.attempts += 1;
        let wait = retry_after.unwrap_or_default().max(doubled(self.options.retry, gap.attempts + 3));
        gap.due = Some(later(now, wait.min(LONGEST)));
        if !std::mem::replace(&mut gap.told, true) {
            self.incomplete(format!("{error}: still missing; it will be asked again"));
        }
        self.fill(now);
    }

    fn fill_read(&mut self, now: Timestamp, url: &str, reading: Reading) {
        let Some(gap) = self.place.gaps.last().cloned() else { return self.fill(now) };
        let link = Link::of(&reading.way).filter(|link| link.is_permanent && !gap.alone);
        self.apply(reading, url, gap.slot, false);
        self.place.note_read_late(url);
        self.dirty = true;
        let link = link.filter(|link| !self.place.was_read(&link.url));
        let next = link.filter(|link| match self.crawl.visit(&link.url, &self.url, &self.options.limits) {
            Ok(()) => true,
            Err(stop) => {
                self.stopped(&link.url, &stop);
                debug_assert!(stop != Stop::Host || !self.options.limits.other_hosts);
                false
            }
        });
        let Some(link) = next else {
            self.place.gaps.pop();
            self.events
                .push_back(Event::Warning(format!("{url} answers again: what was missing there is told")));
            return self.fill(now);
        };
        if let Some(gap) = self.place.gaps.last_mut() {
            gap.url.clone_from(&link.url);
            (gap.attempts, gap.told) = (0, false);
        }
        self.ask(Method::GET, link.url);
    }
}
