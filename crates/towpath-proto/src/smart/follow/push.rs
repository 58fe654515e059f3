//! Pages pushed to a follower ("Updates/Synchronization via Push").

use std::time::Duration;

use super::{PAGE, PullGoal, SmartFollower};
use crate::follow::{FollowError, Now, RequestId};
use crate::smart::wire::Collection;
use crate::smart::wire::spec::PositionSpec;

/// Result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushResult {
    /// The page followed the current position: its items were delivered.
    Delivered,
    /// The items were delivered before: the page is discarded.
    Old,
    /// Items before the page are missing: the follower pulls them, and those of the page.
    Gap,
}

/// Target of a pull request, for transports other than HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullTarget<'a> {
    /// The latest item.
    Latest,
    /// Items after a position spec, or from the beginning.
    After {
        /// The position spec.
        since: Option<&'a str>,
        /// Maximum number of items.
        max: usize,
    },
}

impl SmartFollower {
    /// Returns the target of the request in flight.
    pub fn pull_target(&self) -> Option<PullTarget<'_>> {
        Some(match self.request.purpose()? {
            PullGoal::Latest => PullTarget::Latest,
            PullGoal::Next => PullTarget::After { since: self.state.since.as_deref(), max: PAGE },
        })
    }

    /// Reports that the publisher began anew, as a transport other than HTTP tells with the page that answers the request
    /// in flight. Call it before [`handle_page`](Self::handle_page).
    pub fn handle_reset(&mut self) {
        if self.request.purpose() == Some(&PullGoal::Next) {
            let url = self.state.url.clone();
            self.begin_anew(&url);
        }
    }

    /// Handles the page that answers the request in flight, from a transport other than HTTP.
    pub fn handle_page(&mut self, now: Now, id: RequestId, page: Result<Collection, FollowError>) {
        if let Some(sent) = self.request.cancel(id) {
            self.handle_response(now, &sent, page);
        }
    }

    /// Returns the base URL of the feed.
    pub fn url(&self) -> &str {
        &self.state.url
    }

    /// Sets a poll interval at the end of the feed, for a publisher that pushes. `None` restores long polls.
    pub fn set_pace(&mut self, interval: Option<Duration>) {
        if self.interval != interval {
            self.interval = interval;
            // A failed pull keeps its backoff, whatever the interval.
            if self.failures == 0 {
                self.not_before = None;
            }
        }
    }

    /// Makes the next pull due at once, unless the last one failed.
    pub fn pull_now(&mut self) {
        if self.request.is_in_flight() {
            // The response in flight may be older than the change that this pull is for.
            self.repoll = true;
        } else if self.failures == 0 {
            self.not_before = None;
        }
    }

    /// Returns true if the follower is at the end and has no request in flight. Only then can a push be applied.
    pub fn is_at_rest(&self) -> bool {
        !self.request.is_in_flight() && !self.behind
    }

    /// Handles a pushed page: delivers it if it follows the current position.
    ///
    /// By the text a push is discarded if its first item is older than the last known one. Here all its items must be
    /// older: a repeated delivery may have more items than the first attempt.
    pub fn handle_push(&mut self, now: Now, page: Collection) -> PushResult {
        let cursor =
            |cursor: &Option<String>| cursor.clone().map(|cursor| PositionSpec::Cursor(cursor).to_string());
        let (previous, last) = (cursor(&page.prev_cursor), cursor(&page.last_cursor));
        // The hub repeats a delivery if our response was lost.
        if last.is_some() && last == self.state.since {
            return PushResult::Old;
        }
        let newest = page.items.iter().filter_map(|object| object.modified).max();
        if newest.is_some_and(|newest| self.last_modified.is_some_and(|latest| newest < latest)) {
            return PushResult::Old;
        }
        // Only a page that follows the position directly is safe. Everything else is pulled.
        if !self.is_at_rest() || previous != self.state.since || last.is_none() || page.is_empty() {
            self.pull_now();
            return PushResult::Gap;
        }
        let url = self.state.url.clone();
        self.deliver_page(&url, page);
        self.state.since = last;
        self.checkpoint();
        // A push proves that the connection works, so the next check is a full interval away.
        if let Some(interval) = self.interval {
            self.wait(now, interval);
        }
        PushResult::Delivered
    }
}
