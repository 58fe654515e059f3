//! Names of feeds: changes carry the feed's own name instead of its URL, where the publisher tells one.
//!
//! A name is never guessed from a URL. It comes from the header [`TOWPATH_FEED`], or from the feed's description that
//! discovery read. It is settled before the first change and kept in the state, so it never changes along a follow. A
//! state without a name keeps the URL: copies of earlier versions have it as the name of the feed.

use serde_json::Value;

use super::exchange::{Event, Follower, ResponseHead, TOWPATH_FEED};
use super::filter::{FilteredFollower, FollowFilter};
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

    /// Returns the follower of the feed with this name on its changes.
    pub fn of(self, follower: impl Follower + 'static) -> Box<dyn Follower> {
        Box::new(FilteredFollower::new(self, Box::new(follower)))
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

impl FollowFilter for FeedName {
    fn see_head(&mut self, head: &ResponseHead) {
        if self.is_settled || self.name.is_some() {
            return;
        }
        // Anything but a feed's name, such as a URL, could pass for the name of another feed.
        self.name = head.header(TOWPATH_FEED).and_then(|name| FeedId::new(name).ok());
    }

    fn filter(&mut self, mut event: Event) -> Option<Event> {
        self.put_on(&mut event);
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::json;

    use super::*;
    use crate::follow::{FeedReset, Followed};
    use crate::{Item, Op};

    const URL: &str = "http://a.example/feeds/orders/items";

    fn answered(feed: &mut FeedName, name: &str) {
        let headers = HeaderMap::from_iter([(TOWPATH_FEED.parse().unwrap(), name.parse().unwrap())]);
        feed.see_head(&ResponseHead { status: 200, url: URL.into(), headers });
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
    fn passed(feed: &mut FeedName) -> (String, String, Value) {
        let reset = Event::Reset(FeedReset { feed: URL.into(), reason: "anew".into() });
        let events = [change(), reset, Event::Checkpoint(json!({ "since": 1 }))];
        let events: Vec<Event> = events.into_iter().filter_map(|event| feed.filter(event)).collect();
        let [Event::Change(change), Event::Reset(reset), Event::Checkpoint(state)] = &events[..] else {
            panic!("{events:?}")
        };
        (change.feed.clone(), reset.feed.clone(), state.clone())
    }

    #[test]
    fn a_publishers_name_is_put_on_changes_and_outlasts_restarts() {
        let mut feed = FeedName::take(None, None);
        answered(&mut feed, "orders");
        let (change, reset, mut state) = passed(&mut feed);
        assert_eq!((&*change, &*reset), ("orders", "orders"));
        // Another name later, such as after a move, would make the items those of another feed.
        let mut resumed = FeedName::take(Some(&mut state), None);
        assert_eq!(state, json!({ "since": 1 }), "the follower sees its own state");
        answered(&mut resumed, "renamed");
        assert_eq!(passed(&mut resumed).0, "orders");
    }

    #[test]
    fn a_described_name_needs_no_header() {
        let mut feed = FeedName::take(None, FeedId::new("orders").ok());
        assert_eq!(passed(&mut feed).0, "orders");
    }

    #[test]
    fn without_a_name_the_url_stays() {
        let mut feed = FeedName::take(None, None);
        for no_name in ["", "https://b.example/feeds/x", "Orders", "_global"] {
            answered(&mut feed, no_name);
        }
        let (change, reset, mut state) = passed(&mut feed);
        assert_eq!((&*change, &*reset, &state), (URL, URL, &json!({ "since": 1 })));
        // Told too late, and to a follow of an earlier version.
        answered(&mut feed, "orders");
        assert_eq!(passed(&mut feed).0, URL);
        let mut resumed = FeedName::take(Some(&mut state), FeedId::new("orders").ok());
        answered(&mut resumed, "orders");
        assert_eq!(passed(&mut resumed).0, URL);
    }
}
