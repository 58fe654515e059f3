//! Names of feeds: changes carry the feed's own name instead of its URL, where the publisher tells one.
//!
//! A name is never guessed from a URL. It comes from the header [`TOWPATH_FEED`], or from the feed's description that
//! discovery read. It is settled before the first change and kept in the state, so it never changes along a follow. A
//! state without a name keeps the URL: copies of earlier versions have it as the name of the feed.

use bytes::Bytes;
use serde_json::Value;

use super::exchange::{
    Call, Event, Exchange, Follower, Reply, Request, RequestId, ResponseHead, TOWPATH_FEED, TransferError,
};
use super::time::{Monotonic, Now};
use crate::FeedId;

/// Member of a state with the name. The followers' own states have no such member.
const MEMBER: &str = "feed_name";

/// Name of a followed feed, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct FeedName {
    name: Option<FeedId>,
    is_settled: bool,
}

impl FeedName {
    /// Takes the name out of a state. `described` is the name for a follow without a state.
    pub fn take(state: Option<&mut Value>, described: Option<FeedId>) -> Self {
        let Some(state) = state else { return Self { name: described, is_settled: false } };
        let member = state.as_object_mut().and_then(|members| members.remove(MEMBER));
        let name = member.as_ref().and_then(Value::as_str).and_then(|name| FeedId::new(name).ok());
        Self { name, is_settled: true }
    }

    /// Wraps the follower of the feed.
    pub fn of<F: Follower>(self, follower: F) -> NamedFollower<F> {
        NamedFollower { follower, name: self }
    }

    fn learn(&mut self, head: &ResponseHead) {
        if self.is_settled || self.name.is_some() {
            return;
        }
        // Anything but a feed's name, such as a URL, could pass for the name of another feed.
        self.name = head.header(TOWPATH_FEED).and_then(|name| FeedId::new(name).ok());
    }

    fn put_on(&mut self, event: &mut Event) {
        match event {
            Event::Change(change) => self.replace(&mut change.feed),
            Event::File(file) => self.replace(&mut file.change.feed),
            Event::Reset(reset) => self.replace(&mut reset.feed),
            Event::Checkpoint(Value::Object(state)) => {
                self.is_settled = true;
                if let Some(name) = &self.name {
                    state.insert(MEMBER.into(), name.to_string().into());
                }
            }
            Event::Checkpoint(_)
            | Event::Large(_)
            | Event::Warning(_)
            | Event::Incomplete(_)
            | Event::Failed(_) => {}
        }
    }

    fn replace(&mut self, feed: &mut String) {
        self.is_settled = true;
        if let Some(name) = &self.name {
            name.as_str().clone_into(feed);
        }
    }
}

/// Follower that puts the feed's own name on its changes.
#[derive(Debug)]
pub struct NamedFollower<F> {
    follower: F,
    name: FeedName,
}

impl<F: Follower> Exchange for NamedFollower<F> {
    fn poll_request(&mut self, now: Now) -> Option<Request> {
        self.follower.poll_request(now)
    }

    fn handle_head(&mut self, now: Now, id: RequestId, head: ResponseHead) {
        self.name.learn(&head);
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
        self.follower.is_finished()
    }
}

impl<F: Follower> Follower for NamedFollower<F> {
    fn poll_event(&mut self) -> Option<Event> {
        let mut event = self.follower.poll_event()?;
        self.name.put_on(&mut event);
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use http::HeaderMap;
    use serde_json::json;

    use super::*;
    use crate::follow::{FeedReset, Followed};
    use crate::{Item, Op};

    const URL: &str = "http://a.example/feeds/orders/items";

    /// Follower that outputs what it is given.
    #[derive(Debug, Default)]
    struct Scripted(VecDeque<Event>);

    impl Exchange for Scripted {
        fn poll_request(&mut self, _: Now) -> Option<Request> {
            None
        }
        fn handle_head(&mut self, _: Now, _: RequestId, _: ResponseHead) {}
        fn handle_chunk(&mut self, _: Now, _: RequestId, _: Bytes) {}
        fn handle_end(&mut self, _: Now, _: RequestId, _: Result<(), TransferError>) {}
        fn poll_timeout(&self) -> Option<Monotonic> {
            None
        }
        fn is_finished(&self) -> bool {
            false
        }
    }

    impl Follower for Scripted {
        fn poll_event(&mut self) -> Option<Event> {
            self.0.pop_front()
        }
    }

    fn answered(follower: &mut NamedFollower<Scripted>, name: &str) {
        let headers = HeaderMap::from_iter([(TOWPATH_FEED.parse().unwrap(), name.parse().unwrap())]);
        let head = ResponseHead { status: 200, url: URL.into(), headers };
        let now = Now { monotonic: Monotonic::ORIGIN, wall: jiff::Timestamp::UNIX_EPOCH };
        follower.handle_head(now, RequestId(1), head);
    }

    fn change() -> Event {
        Event::Change(Box::new(Followed {
            feed: URL.into(),
            op: Op::Put,
            item: Item::new("1"),
            patch: None,
            modified: None,
            position: "m1".into(),
            entry_id: None,
        }))
    }

    /// Passes a change, a reset and a checkpoint through; returns the two names and the state.
    fn passed(follower: &mut NamedFollower<Scripted>) -> (String, String, Value) {
        let reset = Event::Reset(FeedReset { feed: URL.into(), reason: "anew".into() });
        follower.follower.0.extend([change(), reset, Event::Checkpoint(json!({ "since": 1 }))]);
        let events: Vec<Event> = std::iter::from_fn(|| follower.poll_event()).collect();
        let [Event::Change(change), Event::Reset(reset), Event::Checkpoint(state)] = &events[..] else {
            panic!("{events:?}")
        };
        (change.feed.clone(), reset.feed.clone(), state.clone())
    }

    #[test]
    fn a_publishers_name_is_put_on_changes_and_outlasts_restarts() {
        let mut follower = FeedName::take(None, None).of(Scripted::default());
        answered(&mut follower, "orders");
        let (change, reset, mut state) = passed(&mut follower);
        assert_eq!((&*change, &*reset), ("orders", "orders"));
        // Another name later, such as after a move, would make the items those of another feed.
        let mut resumed = FeedName::take(Some(&mut state), None).of(Scripted::default());
        assert_eq!(state, json!({ "since": 1 }), "the follower sees its own state");
        answered(&mut resumed, "renamed");
        assert_eq!(passed(&mut resumed).0, "orders");
    }

    #[test]
    fn a_described_name_needs_no_header() {
        let mut follower = FeedName::take(None, FeedId::new("orders").ok()).of(Scripted::default());
        assert_eq!(passed(&mut follower).0, "orders");
    }

    #[test]
    fn without_a_name_the_url_stays() {
        let mut follower = FeedName::take(None, None).of(Scripted::default());
        for no_name in ["", "https://b.example/feeds/x", "Orders", "_global"] {
            answered(&mut follower, no_name);
        }
        let (change, reset, mut state) = passed(&mut follower);
        assert_eq!((&*change, &*reset, &state), (URL, URL, &json!({ "since": 1 })));
        // Told too late, and to a follow of an earlier version.
        answered(&mut follower, "orders");
        assert_eq!(passed(&mut follower).0, URL);
        let mut resumed =
            FeedName::take(Some(&mut state), FeedId::new("orders").ok()).of(Scripted::default());
        answered(&mut resumed, "orders");
        assert_eq!(passed(&mut resumed).0, URL);
    }
}
