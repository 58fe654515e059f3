//! Names of feeds: changes carry the feed's own name instead of its URL, where the publisher tells one.
//!
//! A name is never guessed from a URL. It comes from the header [`TOWPATH_FEED`], or from the feed's description that
//! discovery read. It is settled before the first change and kept in the state, so it never changes along a follow. A
//! state without a name keeps the URL: copies of earlier versions have it as the name of the feed.
//!
//! A follow of many feeds knows them by their URLs instead. Either way the state holds the name that the copy has, so that a
//! follow of one feed can go on from one of many, and the other way round.

use serde_json::Value;

use super::exchange::{Event, Follower, ResponseHead, TOWPATH_FEED};
use super::filter::{FilteredFollower, FollowFilter};
use crate::FeedId;

/// Member of a state with the publisher's name. The followers' own states have no such member.
const MEMBER: &str = "feed_name";
/// Member of a state with the name that the copy has, whoever chose it. Null for the names that documents give to their items.
/// States of earlier versions have none.
const COPIED_AS: &str = "copied_as";

/// Name of a followed feed, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct FeedName {
    name: Option<String>,
    is_settled: bool,
    /// True if the follower or the state has fixed the name, whatever the documents say.
    is_fixed: bool,
    /// True if the copy has the names that the documents give to their items.
    is_by_item: bool,
}

impl FeedName {
    /// Takes the name out of a state. `described` is the name for a follow without a state. `fixed` is used instead of
    /// any name of the publisher's, unless the state says what the copy has.
    pub fn take(state: Option<&mut Value>, described: Option<FeedId>, fixed: Option<String>) -> Self {
        let Some(state) = state else {
            let is_fixed = fixed.is_some();
            let name = fixed.or(described.map(|name| name.to_string()));
            return Self { name, is_settled: is_fixed, is_fixed, is_by_item: false };
        };
        // An earlier version takes null for no name, and names the items by their documents, too.
        let is_by_item = state.get(COPIED_AS) == Some(&Value::Null);
        let mut text = |member| match state.as_object_mut()?.remove(member)? {
            Value::String(name) => Some(name),
            _ => None,
        };
        let (copied_as, published) = (text(COPIED_AS), text(MEMBER));
        let published = published.filter(|name| FeedId::new(name).is_ok());
        let fixed = copied_as.or(fixed).filter(|_| !is_by_item);
        let is_fixed = fixed.is_some();
        Self { name: fixed.or(published), is_settled: true, is_fixed, is_by_item }
    }

    /// Returns the follower of documents that name the feed of each item, with this name on its changes if the name is fixed.
    pub fn of_named(self, follower: impl Follower + 'static) -> Box<dyn Follower> {
        let is_by_item = !self.is_fixed;
        Self { is_by_item, ..self }.of(follower)
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
                if self.is_by_item {
                    state.insert(COPIED_AS.into(), Value::Null);
                } else if let Some(name) = &self.name {
                    state.insert(COPIED_AS.into(), name.as_str().into());
                    // Earlier versions know this one only.
                    if FeedId::new(name).is_ok() {
                        state.insert(MEMBER.into(), name.as_str().into());
                    }
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
        if let Some(name) = self.name.as_ref().filter(|_| !self.is_by_item) {
            name.clone_into(feed);
        }
    }
}

impl FollowFilter for FeedName {
    fn see_head(&mut self, head: &ResponseHead) {
        if self.is_settled || self.name.is_some() {
            return;
        }
        // Anything but a feed's name, such as a URL, could pass for the name of another feed.
        let told = head.header(TOWPATH_FEED).filter(|name| FeedId::new(name).is_ok());
        self.name = told.map(str::to_owned);
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
        let mut feed = FeedName::take(None, None, None);
        answered(&mut feed, "orders");
        let (change, reset, mut state) = passed(&mut feed);
        assert_eq!((&*change, &*reset), ("orders", "orders"));
        // Another name later, such as after a move, would make the items those of another feed.
        let mut resumed = FeedName::take(Some(&mut state), None, None);
        assert_eq!(state, json!({ "since": 1 }), "the follower sees its own state");
        answered(&mut resumed, "renamed");
        assert_eq!(passed(&mut resumed).0, "orders");
    }

    /// A copy has one name, whether it is followed alone or with others. Otherwise its deletions would miss their items.
    #[test]
    fn the_name_of_a_copy_outlasts_a_change_of_the_way_it_is_followed() {
        let mut alone = FeedName::take(None, None, None);
        answered(&mut alone, "orders");
        let mut state = passed(&mut alone).2;
        let mut among_others = FeedName::take(Some(&mut state), None, Some(URL.into()));
        let (change, reset, _) = passed(&mut among_others);
        assert_eq!((&*change, &*reset), ("orders", "orders"));
        let mut among_others = FeedName::take(None, None, Some(URL.into()));
        answered(&mut among_others, "orders");
        let (change, _, mut state) = passed(&mut among_others);
        assert_eq!(change, URL);
        let mut alone = FeedName::take(Some(&mut state), None, None);
        answered(&mut alone, "orders");
        assert_eq!(passed(&mut alone).0, URL);
        // Of an earlier version, whose copies among others have the URL although the state has a name.
        let mut earlier = json!({ "since": 1, "feed_name": "orders" });
        assert_eq!(passed(&mut FeedName::take(Some(&mut earlier), None, Some(URL.into()))).0, URL);
    }

    /// A DiffDelta document names the feed of each item. A copy of it keeps these names if it is followed with others later.
    #[test]
    fn names_of_items_outlast_a_change_of_the_way_a_feed_is_followed() {
        let by_item = |name: FeedName| FeedName { is_by_item: !name.is_fixed, ..name };
        let mut alone = by_item(FeedName::take(None, FeedId::new("described").ok(), None));
        answered(&mut alone, "orders");
        let (change, reset, mut state) = passed(&mut alone);
        assert_eq!((&*change, &*reset), (URL, URL));
        let fleet = || Some("http://a.example/diff/".to_owned());
        let mut among_others = by_item(FeedName::take(Some(&mut state), None, fleet()));
        assert_eq!(state, json!({ "since": 1 }), "the follower sees its own state");
        let (change, reset, mut state) = passed(&mut among_others);
        assert_eq!((&*change, &*reset), (URL, URL));
        assert_eq!(passed(&mut by_item(FeedName::take(Some(&mut state), None, None))).0, URL);
        // The other way round, the copy has the fleet's name.
        let mut among_others = by_item(FeedName::take(None, None, fleet()));
        let (change, _, mut state) = passed(&mut among_others);
        assert_eq!(Some(change), fleet());
        assert_eq!(Some(passed(&mut by_item(FeedName::take(Some(&mut state), None, None))).0), fleet());
    }

    #[test]
    fn a_described_name_needs_no_header() {
        let mut feed = FeedName::take(None, FeedId::new("orders").ok(), None);
        assert_eq!(passed(&mut feed).0, "orders");
    }

    #[test]
    fn without_a_name_the_url_stays() {
        let mut feed = FeedName::take(None, None, None);
        for no_name in ["", "https://b.example/feeds/x", "Orders", "_global"] {
            answered(&mut feed, no_name);
        }
        let (change, reset, mut state) = passed(&mut feed);
        assert_eq!((&*change, &*reset, &state), (URL, URL, &json!({ "since": 1 })));
        // Told too late, and to a follow of an earlier version.
        answered(&mut feed, "orders");
        assert_eq!(passed(&mut feed).0, URL);
        let mut resumed = FeedName::take(Some(&mut state), FeedId::new("orders").ok(), None);
        answered(&mut resumed, "orders");
        assert_eq!(passed(&mut resumed).0, URL);
    }
}
