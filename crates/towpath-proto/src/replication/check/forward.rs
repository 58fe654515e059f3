//! Finds the newest page along `next`, for a check that starts at another page.

use http::Method;

use super::{CheckRequest, ReplicationChecker, rules};
use crate::follow::ResponseHead;
use crate::replication::wire::FeedPageHead;

/// Most pages to pass.
const MAX_PAGES: usize = 1000;

impl ReplicationChecker {
    /// Continues from the page `own` to the next one.
    pub(super) fn go_forward(&mut self, own: String, next: String) {
        let Some(passed) = &mut self.forward else { return };
        let count = passed.len();
        if !passed.insert(own.clone()) {
            self.judge(rules::NO_LOOP, Some(format!("{own} was visited before")));
            return self.go_back(own);
        }
        // A check must end, also for a publisher that generates pages without end.
        if count == MAX_PAGES {
            let reason = format!("{own} has as many pages after it");
            self.report.pass_over(&[rules::NO_LOOP], &reason);
            return self.go_back(own);
        }
        self.jobs.push_front(CheckRequest::Forward { url: next, from: own, method: Method::HEAD });
    }

    /// Handles the response for the page after `from`, or its `failure`.
    pub(super) fn check_next_page(
        &mut self,
        url: String,
        from: String,
        method: &Method,
        head: Option<ResponseHead>,
        failure: Option<String>,
    ) {
        if *method == Method::HEAD && head.as_ref().is_some_and(|h| matches!(h.status, 405 | 501)) {
            return self.jobs.push_front(CheckRequest::Forward { url, from, method: Method::GET });
        }
        let problem = failure.map(|failure| format!("{from} has this next: {failure}"));
        let is_there = problem.is_none();
        self.judge(rules::NEXT, problem);
        let Some(head) = head.filter(|_| is_there) else { return self.go_back(from) };
        let page = match FeedPageHead::parse(&head.url, &head.headers) {
            Ok(page) => page,
            Err(error) => {
                let problem = format!("{url}, the next of {from}: {error}");
                self.judge(rules::FEED_HEADERS, Some(problem));
                return self.go_back(from);
            }
        };
        // "A prev link may be removed from an older page as part of a gradual cleanup process."
        // Only a different prev is a contradiction, a missing one is not:
        let astray = page.prev.as_ref().filter(|prev| **prev != from);
        let problem = astray.map(|prev| format!("{from} has the next {url}, whose prev is {prev}"));
        self.judge(rules::ADJACENT, problem);
        match page.next {
            Some(next) => self.go_forward(page.own, next),
            None => self.go_back(page.own),
        }
    }

    /// Starts the check at the newest page that could be reached.
    fn go_back(&mut self, newest: String) {
        self.forward = None;
        self.jobs.push_front(CheckRequest::Head { url: newest });
    }
}
