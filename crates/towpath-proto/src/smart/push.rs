//! What is pushed to a follower of a feed ("Updates/Synchronization via Push").

use std::time::Duration;

use jiff::Timestamp;

use super::follow::{Goal, PAGE, SmartFollower};
use super::spec::Spec;
use super::wire::Collection;
use crate::follow::{FollowError, RequestId};

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// It followed on what was known: its items were told.
    Taken,
    /// Its items were told before: it is discarded.
    Old,
    /// There is something between what is known and it: the follower asks for that, and for what it held.
    Gap,
}

/// What a request asks for, for carriers other than HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// The most recent item.
    Latest,
    /// What comes after a position spec, or from the beginning.
    After {
        /// The spec.
        since: Option<&'a str>,
        /// How many items at the most.
        max: usize,
    },
}

impl SmartFollower {
    /// What the request under way asks for.
    pub fn wanted(&self) -> Option<Wanted<'_>> {
        Some(match self.asking.purpose()? {
            Goal::Latest => Wanted::Latest,
            Goal::Next => Wanted::After { since: self.state.since.as_deref(), max: PAGE },
        })
    }

    /// The answer to the request under way, as a page, from a carrier other than HTTP.
    pub fn handle_page(&mut self, now: Timestamp, id: RequestId, page: Result<Collection, FollowError>) {
        if let Some(asked) = self.asking.give_up(id) {
            self.answered(now, &asked, page);
        }
    }

    /// The base URL that is followed.
    pub fn url(&self) -> &str {
        &self.state.url
    }

    /// Asks the publisher again so long after the end was reached, instead of having it hold requests: for as long as
    /// it pushes. `None` goes back to that.
    pub fn set_pace(&mut self, every: Option<Duration>) {
        if self.every != every {
            self.every = every;
            if self.failures == 0 {
                self.not_before = None;
            }
        }
    }

    /// Asks the publisher at once for what comes next, unless it failed to answer just now.
    pub fn pull_now(&mut self) {
        if self.asking.is_busy() {
            // Its answer may have been made before what there is to see.
            self.again = true;
        } else if self.failures == 0 {
            self.not_before = None;
        }
    }

    /// Whether it knows where it stands and asks for nothing: only then can a push follow on it.
    pub fn is_at_rest(&self) -> bool {
        !self.asking.is_busy() && !self.behind
    }

    /// Takes what was pushed, if it follows on what was told so far.
    ///
    /// The text has a push discarded whose first item is older than what is known. Here all of its items must be: a
    /// delivery that is made again may hold more than it did before.
    pub fn handle_push(&mut self, now: Timestamp, page: Collection) -> Pushed {
        let cursor = |cursor: &Option<String>| cursor.clone().map(|cursor| Spec::Cursor(cursor).to_string());
        let (previous, last) = (cursor(&page.prev_cursor), cursor(&page.last_cursor));
        if last.is_some() && last == self.state.since {
            return Pushed::Old;
        }
        let newest = page.items.iter().filter_map(|object| object.modified).max();
        if newest.is_some_and(|newest| self.latest.is_some_and(|latest| newest < latest)) {
            return Pushed::Old;
        }
        if !self.is_at_rest() || previous != self.state.since || last.is_none() || page.items.is_empty() {
            self.pull_now();
            return Pushed::Gap;
        }
        let url = self.state.url.clone();
        self.tell(&url, page);
        self.state.since = last;
        self.checkpoint();
        // What a long silence is measured from.
        if let Some(every) = self.every {
            self.wait(now, every);
        }
        Pushed::Taken
    }
}
