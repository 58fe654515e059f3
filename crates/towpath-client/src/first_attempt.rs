//! The first attempt to follow a URL, whose failure may show that the URL is only a page that names the feed.

use bytes::Bytes;
use towpath_proto::follow::{
    Call, Event, Exchange, FollowError, Follower, Monotonic, Now, Reply, Request, RequestId, ResponseHead,
    TransferError,
};

use super::discover::{DiscoverError, locate};
use super::fetch::Fetcher;
use super::protocol::Protocol;

/// Statuses of a protocol's request to a page.
const STATUSES_OF_PAGES: [u16; 5] = [400, 404, 405, 406, 410];

/// Follower that ends at its first failure if nothing was delivered before, and holds the failure back.
///
/// A URL that is right so costs no request more than usual, and a wrong one is looked at before its failure is told.
pub struct FirstAttempt {
    follower: Box<dyn Follower>,
    failure: Option<FollowError>,
    /// True once something was delivered, or the failure is to be told.
    is_decided: bool,
    /// The failure, to be told.
    told: Option<Event>,
}

impl FirstAttempt {
    /// Wraps a follower. Without `is_open` failures are told as usual.
    pub fn new(follower: Box<dyn Follower>, is_open: bool) -> Self {
        Self { follower, failure: None, is_decided: !is_open, told: None }
    }

    /// Finds the URL of the protocol that the page at `url` names, after a failure that was held back.
    ///
    /// Without one the failure is told when the follower is driven on. `None` too if nothing was held back.
    pub async fn find_feed(&mut self, fetcher: &Fetcher, url: &str, protocol: Protocol) -> Option<String> {
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
            self.told = Some(Event::Failed(failure));
        }
        found
    }

    /// Returns true if a failure is held back, or is to be told.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some() || self.told.is_some()
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
        FollowError::Transfer { .. } | FollowError::Usage(_) => false,
    }
}

impl Exchange for FirstAttempt {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        if self.failure.is_some() { None } else { self.follower.poll_request(now) }
    }

    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead) {
        self.follower.handle_head(now, id, head);
    }

    fn handle_chunk(&mut self, now: Now, id: RequestId, chunk: Bytes) {
        self.follower.handle_chunk(now, id, chunk);
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        self.follower.handle_end(now, id, result);
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        self.follower.poll_timeout()
    }

    fn is_finished(&self) -> bool {
        self.failure.is_some() || (self.told.is_none() && self.follower.is_finished())
    }
}

impl Follower for FirstAttempt {
    fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.told.take() {
            return Some(event);
        }
        if self.failure.is_some() {
            return None;
        }
        let event = self.follower.poll_event()?;
        match event {
            Event::Failed(error) if !self.is_decided && may_be_a_page(&error) => {
                self.failure = Some(error);
                return None;
            }
            Event::Warning(_) => {}
            _ => self.is_decided = true,
        }
        Some(event)
    }

    fn handle_call(&mut self, now: Now, call: &Call) -> Reply {
        self.follower.handle_call(now, call)
    }

    fn has_caught_up(&self) -> bool {
        self.follower.has_caught_up()
    }

    fn progress(&self) -> Option<String> {
        self.follower.progress()
    }
}
