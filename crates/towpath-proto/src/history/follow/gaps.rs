//! Documents that failed, requested again after a pass.

use http::Method;

use super::document::DocumentContents;
use super::pass::{DocumentLink, HistoryPass, WalkEnd};
use super::response::{DocumentRequest, RequestOutcome};
use super::{HistoryFollower, HistoryPhase, MAX_WAIT};
use crate::diff::Listing;
use crate::follow::{Event, FollowError, Now};

impl HistoryFollower {
    /// Requests the next gap that is due, or ends the pass.
    pub(super) fn fill(&mut self, now: Now) {
        let due = self.state.gaps.iter().position(|gap| gap.due.is_none_or(|due| due <= now.monotonic));
        let Some(index) = due else {
            self.checkpoint();
            let wait = self.rest();
            return self.end_pass(now, wait);
        };
        // The gap in progress is always the last.
        let gap = self.state.gaps.remove(index);
        self.phase = HistoryPhase::Fill;
        // A pass of its own: the visited URLs and bytes of the walk back do not count here.
        self.pass = HistoryPass::new(&gap.url);
        self.queue_request(Method::GET, gap.url.clone());
        self.state.gaps.push(gap);
    }

    pub(super) fn handle_gap(&mut self, now: Now, request: &DocumentRequest, outcome: RequestOutcome) {
        let (error, retry_after) = match outcome {
            RequestOutcome::Document(fetched, _) => {
                self.pass.bytes += fetched.body.len() as u64;
                match self.read(&fetched) {
                    Ok(document) => return self.process_gap(now, &request.url, document),
                    Err(e) => {
                        let url = request.url.clone();
                        (FollowError::Protocol { url, reason: e.to_string() }, None)
                    }
                }
            }
            // The request had no validators, so a 304 promises no document either.
            RequestOutcome::Gone | RequestOutcome::NotModified => {
                self.state.gaps.pop();
                self.record_removed(&request.url);
                return self.fill(now);
            }
            RequestOutcome::Failed { error, retry_after } => (error, retry_after),
        };
        let Some(gap) = self.state.gaps.last_mut() else { return self.fill(now) };
        gap.attempts += 1;
        // Continues the backoff after the wait of `add_gap`, which was the fourth.
        let wait = self.options.backoff().wait_or_longer(gap.attempts + 4, retry_after, MAX_WAIT);
        gap.due = Some(now.after(wait));
        if !std::mem::replace(&mut gap.is_reported, true) {
            self.incomplete(format!("{error}: still missing; it will be requested again"));
        }
        self.fill(now);
    }

    fn process_gap(&mut self, now: Now, url: &str, document: DocumentContents) {
        let Some(gap) = self.state.gaps.last().cloned() else { return self.fill(now) };
        let link =
            DocumentLink::of(&document.predecessor).filter(|link| link.is_permanent && !gap.is_isolated);
        // Before the start of a follow that began within a log, nothing is missing.
        let link = link.filter(|_| !self.reaches_start(&document));
        self.apply(document, url, gap.seq, Listing::Window);
        // At the old end of the list, because this document is older than those that were read.
        self.state.add_read_older(url);
        self.dirty = true;
        let link = link.filter(|link| !self.state.was_read(&link.url));
        let next = link.filter(|link| match self.pass.visit(&link.url, &self.url, &self.options.limits) {
            Ok(()) => true,
            Err(stop) => {
                self.report_walk_end(&link.url, &stop);
                debug_assert!(stop != WalkEnd::Host || !self.options.limits.other_hosts);
                false
            }
        });
        let Some(link) = next else {
            self.state.gaps.pop();
            self.events.push_back(Event::Warning(format!("{url} answers again: its changes are delivered")));
            return self.fill(now);
        };
        // The gap moves back by one document: the older ones were missing with it.
        if let Some(gap) = self.state.gaps.last_mut() {
            gap.url.clone_from(&link.url);
            // The failures of one document say nothing about the next.
            (gap.attempts, gap.is_reported) = (0, false);
        }
        self.queue_request(Method::GET, link.url);
    }
}
