//! Filters of followers: a follower with a filter passes everything on, and its filter sees the answers and the events.

use bytes::Bytes;

use super::exchange::{
    Call, Event, Exchange, Follower, Reply, Request, RequestId, ResponseHead, TransferError,
};
use super::time::{Monotonic, Now};

/// Part of a follow that stands between a follower and its driver.
pub trait FollowFilter: Send {
    /// Passes an event of the follower on, changed or not. `None` keeps it back.
    fn filter(&mut self, event: Event) -> Option<Event>;

    /// Sees a request that is sent.
    fn see_request(&mut self) {}

    /// Sees the head of a response before the follower does.
    fn see_head(&mut self, _head: &ResponseHead) {}

    /// Sees the end of a request, once the follower has handled it.
    fn see_end(&mut self) {}

    /// Returns true if the follow is to end here: nothing is requested, and no event is passed on.
    fn is_stopped(&self) -> bool {
        false
    }

    /// Returns an event of the filter's own, which comes before those of the follower.
    fn own_event(&mut self) -> Option<Event> {
        None
    }

    /// Returns true if the filter has an event of its own.
    fn has_own_event(&self) -> bool {
        false
    }
}

/// Follower with a filter.
pub struct FilteredFollower<F> {
    /// The filter.
    pub filter: F,
    follower: Box<dyn Follower>,
}

impl<F: FollowFilter> FilteredFollower<F> {
    /// Puts a filter on a follower.
    pub fn new(filter: F, follower: Box<dyn Follower>) -> Self {
        Self { filter, follower }
    }
}

impl<F: FollowFilter> Exchange for FilteredFollower<F> {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        if self.filter.is_stopped() {
            return None;
        }
        self.follower.poll_request(now).inspect(|_| self.filter.see_request())
    }

    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead) {
        self.filter.see_head(&head);
        self.follower.handle_head(now, id, head);
    }

    fn handle_chunk(&mut self, now: Now, id: RequestId, chunk: Bytes) {
        self.follower.handle_chunk(now, id, chunk);
    }

    fn handle_end(&mut self, now: Now, id: RequestId, result: Result<(), TransferError>) {
        self.follower.handle_end(now, id, result);
        self.filter.see_end();
    }

    fn poll_timeout(&self) -> Option<Monotonic> {
        self.follower.poll_timeout()
    }

    fn is_finished(&self) -> bool {
        // An event of the filter's own may explain the end, so the follower is not finished before that was
        // taken.
        self.filter.is_stopped() || (!self.filter.has_own_event() && self.follower.is_finished())
    }
}

impl<F: FollowFilter> Follower for FilteredFollower<F> {
    fn poll_event(&mut self) -> Option<Event> {
        if let Some(event) = self.filter.own_event() {
            return Some(event);
        }
        // Asked before each event: the filter may have stopped at the one before, and the rest must stay
        // undelivered.
        while !self.filter.is_stopped() {
            let event = self.follower.poll_event()?;
            if let Some(event) = self.filter.filter(event) {
                return Some(event);
            }
        }
        None
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use jiff::Timestamp;

    use super::*;

    const NOW: Now = Now { monotonic: Monotonic::ORIGIN, wall: Timestamp::UNIX_EPOCH };

    /// Follower that outputs what it is given, and is finished then.
    struct Scripted(VecDeque<Event>);

    impl Exchange for Scripted {
        fn poll_request(&mut self, _: Now) -> Option<Request> {
            Some(Request::get(RequestId(1), "http://a.example/"))
        }
        fn handle_head(&mut self, _: Now, _: RequestId, _: ResponseHead) {}
        fn handle_chunk(&mut self, _: Now, _: RequestId, _: Bytes) {}
        fn handle_end(&mut self, _: Now, _: RequestId, _: Result<(), TransferError>) {}
        fn poll_timeout(&self) -> Option<Monotonic> {
            None
        }
        fn is_finished(&self) -> bool {
            self.0.is_empty()
        }
    }

    impl Follower for Scripted {
        fn poll_event(&mut self) -> Option<Event> {
            self.0.pop_front()
        }
    }

    /// Filter that keeps events back, and stops at one of them.
    #[derive(Default)]
    struct Keeper {
        is_stopped: bool,
        told: Option<Event>,
    }

    impl FollowFilter for Keeper {
        fn filter(&mut self, event: Event) -> Option<Event> {
            self.is_stopped |= event == warning("stop");
            (event == warning("passes")).then_some(event)
        }
        fn is_stopped(&self) -> bool {
            self.is_stopped
        }
        fn own_event(&mut self) -> Option<Event> {
            self.told.take()
        }
        fn has_own_event(&self) -> bool {
            self.told.is_some()
        }
    }

    fn warning(text: &str) -> Event {
        Event::Warning(text.into())
    }

    fn filtered(texts: &[&str]) -> FilteredFollower<Keeper> {
        let events = texts.iter().map(|text| warning(text)).collect();
        FilteredFollower::new(Keeper::default(), Box::new(Scripted(events)))
    }

    #[test]
    fn an_event_that_is_kept_back_hides_none_behind_it() {
        let mut follower = filtered(&["kept", "kept", "passes", "kept"]);
        assert_eq!(follower.poll_event(), Some(warning("passes")));
        assert!(!follower.is_finished());
        assert_eq!(follower.poll_event(), None);
        assert!(follower.is_finished());
    }

    #[test]
    fn a_stop_ends_the_follow_and_keeps_what_comes_after() {
        let mut follower = filtered(&["stop", "passes"]);
        assert_eq!(follower.poll_event(), None);
        assert!(follower.is_finished());
        assert!(follower.poll_request(NOW).is_none());
        follower.filter.is_stopped = false;
        assert!(follower.poll_request(NOW).is_some());
        assert_eq!(follower.poll_event(), Some(warning("passes")));
    }

    #[test]
    fn a_filters_own_event_comes_first_and_before_the_end() {
        let mut follower = filtered(&[]);
        follower.filter.told = Some(warning("own"));
        assert!(!follower.is_finished());
        assert_eq!(follower.poll_event(), Some(warning("own")));
        assert!(follower.is_finished());
    }
}
