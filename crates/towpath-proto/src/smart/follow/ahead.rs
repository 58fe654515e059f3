//! The next page, requested while this one arrives.

use url::Url;

use super::start::value;
use super::{PullGoal, SmartFollower, page_url};
use crate::follow::{Now, Request, ResponseHead};
use crate::format::link;

impl SmartFollower {
    /// Returns the request of the page after the one that arrives, if its head names the position.
    ///
    /// The publisher makes that page while this one is read. A position that turns out to be another costs the request.
    pub(super) fn request_ahead(&mut self, now: Now) -> Option<Request> {
        let (sent, head) = self.request.before_ahead()?;
        if sent.purpose != PullGoal::Next || head.status != 200 || head.url != sent.url || head.is_reset() {
            return None;
        }
        let since = next_position(head)?;
        let request = self.get(page_url(&self.base, Some(&since), 0));
        Some(self.request.send_ahead(now, PullGoal::Next, request))
    }

    /// Drops the request that was sent ahead unless it is the next one by what the page said.
    pub(super) fn keep_ahead(&mut self) {
        if self.request.is_in_flight() {
            let is_due = !self.finished && self.not_before.is_none() && self.goal == PullGoal::Next;
            let next = self.next_url();
            self.request.keep_if(|sent| is_due && sent.url == next);
        }
    }
}

/// Returns the position after a page, as its link to the next one has it.
fn next_position(head: &ResponseHead) -> Option<String> {
    let base = Url::parse(&head.url).ok()?;
    let links = link::from_headers(&head.headers, Some(&base));
    value(&Url::parse(link::target(&links, "next")?).ok()?, "since")
}
