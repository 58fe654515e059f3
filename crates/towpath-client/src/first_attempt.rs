//! The first attempt to follow a URL, whose failure may show that the URL is only a page that names the feed.

use towpath_proto::follow::{Event, FilteredFollower, FollowError, FollowFilter, Follower};

use super::discover::{DiscoverError, locate};
use super::fetch::Fetcher;
use super::protocol::Protocol;

/// Statuses of a protocol's request to a page.
const STATUSES_OF_PAGES: [u16; 5] = [400, 404, 405, 406, 410];

/// Treatment of a failure before anything was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstFailure {
    /// Hold it back: the URL may be a page that names the feed.
    Hold,
    /// Report it, as every later one.
    Report,
}

/// Filter that ends a follow at its first failure if nothing was delivered, and holds the failure back. Requests that are
/// under way then end first: the follower goes on from there if the URL was right.
///
/// A URL that is right so costs no request more than usual, and a wrong one is looked at before its failure is told.
pub(crate) struct FirstAttempt {
    failure: Option<FollowError>,
    /// True once something was delivered, or the failure is to be told.
    is_decided: bool,
    /// The failure, to be told.
    pending: Option<Event>,
    /// Number of requests under way.
    running: usize,
}

impl FirstAttempt {
    /// Puts the filter on a follower.
    pub(crate) fn of(follower: Box<dyn Follower>, first_failure: FirstFailure) -> FilteredFollower<Self> {
        let is_decided = first_failure == FirstFailure::Report;
        let filter = Self { failure: None, is_decided, pending: None, running: 0 };
        FilteredFollower::new(filter, follower)
    }

    /// Finds the URL of the protocol that the page at `url` names, after a failure that was held back.
    ///
    /// Without one the failure is told when the follower is driven on. `None` too if nothing was held back.
    pub(crate) async fn find_feed(
        &mut self,
        fetcher: &Fetcher,
        url: &str,
        protocol: Protocol,
    ) -> Option<String> {
        let mut failure = self.failure.take()?;
        self.is_decided = true;
        let found = match locate(fetcher, url, protocol).await {
            Ok(found) => found.filter(|found| found != url),
            Err(error) => {
                explain(&mut failure, error);
                None
            }
        };
        if found.is_none() {
            self.pending = Some(Event::Failed(failure));
        }
        found
    }

    /// Returns true if a failure is held back, or is to be told.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some() || self.pending.is_some()
    }
}

/// Adds the server's reason, which discovery got with the same status.
fn explain(failure: &mut FollowError, found: DiscoverError) {
    if let FollowError::Status { status, detail: detail @ None, .. } = failure
        && let DiscoverError::Status { status: again, detail: reason, .. } = found
        && again == *status
    {
        *detail = reason;
    }
}

fn may_be_a_page(error: &FollowError) -> bool {
    match error {
        FollowError::Protocol { .. } => true,
        FollowError::Status { status, .. } => STATUSES_OF_PAGES.contains(status),
        _ => false,
    }
}

impl FollowFilter for FirstAttempt {
    fn filter(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Failed(error) if !self.is_decided && may_be_a_page(&error) => {
                // One is enough to look at the page.
                self.failure.get_or_insert(error);
                return None;
            }
            Event::Warning(_) => {}
            _ => {
                self.is_decided = true;
                // What another request brought shows that the URL is right.
                self.pending = self.failure.take().map(Event::Failed).or(self.pending.take());
            }
        }
        Some(event)
    }

    fn see_request(&mut self) {
        self.running += 1;
    }

    fn see_end(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    fn is_stopped(&self) -> bool {
        self.failure.is_some() && self.running == 0
    }

    fn own_event(&mut self) -> Option<Event> {
        self.pending.take()
    }

    fn has_own_event(&self) -> bool {
        self.pending.is_some()
    }
}
