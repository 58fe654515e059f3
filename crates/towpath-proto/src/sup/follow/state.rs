//! State of a follower, persisted between runs.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::source::{MAX_WAIT, SupSource};
use super::{FeedKey, FeedStage, SupFollower, SupPollIntervals};
use crate::follow::{FollowError, Now};

#[derive(Serialize, Deserialize)]
struct SupFollowState<'a> {
    protocol: Cow<'a, str>,
    feeds: Vec<StoredFeed<'a>>,
    sources: Cow<'a, [SupSource]>,
}

#[derive(Serialize, Deserialize)]
struct StoredFeed<'a> {
    url: Cow<'a, str>,
    links: Cow<'a, [(usize, String)]>,
    due: Timestamp,
    #[serde(rename = "answered")]
    polled: Option<Timestamp>,
}

impl SupFollower {
    /// Restores a follower from [`SupFollower::state`]. The state of another protocol is the user's error.
    pub fn restore(settings: SupPollIntervals, state: Value, now: Now) -> Result<Self, FollowError> {
        let state = serde_json::from_value(state).map_err(|e| foreign(&e))?;
        Self::from_state(settings, state, now, |_| true)
    }

    /// Restores a follower from JSON text, with only the feeds for which `is_wanted` returns true.
    pub fn from_json(
        settings: SupPollIntervals,
        json: &str,
        now: Now,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, FollowError> {
        let state = serde_json::from_str(json).map_err(|e| foreign(&e))?;
        Self::from_state(settings, state, now, is_wanted)
    }

    fn from_state(
        settings: SupPollIntervals,
        state: SupFollowState<'_>,
        now: Now,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, FollowError> {
        let count = state.sources.len();
        // An edited state could name a source that does not exist, and every lookup would panic.
        let is_valid =
            state.feeds.iter().flat_map(|feed| feed.links.iter()).all(|(source, _)| *source < count);
        if state.protocol != "sup" || !is_valid {
            return Err(FollowError::Usage("this is not the state of a SUP follower".into()));
        }
        // A publisher may request a day (`handle_failure`). A later date was written by a wrong clock.
        let longest = settings.background.max(settings.plain).max(MAX_WAIT);
        let mut follower = Self::new(settings);
        for source in state.sources.into_owned() {
            follower.push_source(source);
        }
        for stored in state.feeds.into_iter().filter(|feed| is_wanted(&feed.url)) {
            let due = now.restore(stored.due, longest);
            let FeedKey(index) = follower.add_feed_due(stored.url.as_ref().into(), due);
            follower.feeds[index].polled = stored.polled;
            // The poll was in progress: it is repeated.
            follower.feeds[index].failures = u32::from(stored.due == Timestamp::UNIX_EPOCH);
            for (source, id) in stored.links.into_owned() {
                follower.join(index, source, id);
            }
        }
        Ok(follower)
    }

    /// Returns the state to persist, so that a later run misses nothing. Feeds that are due or being polled will be polled
    /// again.
    pub fn state(&self, now: Now) -> Value {
        serde_json::to_value(self.snapshot(now)).unwrap_or_default()
    }

    /// Returns the state as JSON text, without building a tree: a million feeds would double the memory.
    pub fn to_json(&self, now: Now) -> String {
        serde_json::to_string(&self.snapshot(now)).unwrap_or_default()
    }

    fn snapshot(&self, now: Now) -> SupFollowState<'_> {
        let feeds = self.feeds.iter().map(|feed| StoredFeed {
            url: feed.url.as_ref().into(),
            links: feed.links.as_slice().into(),
            // The epoch marks a feed that was due or being polled. After a restart it is due at once.
            due: if feed.stage == FeedStage::Waiting { now.date_of(feed.due) } else { Timestamp::UNIX_EPOCH },
            polled: feed.polled,
        });
        SupFollowState {
            protocol: "sup".into(),
            feeds: feeds.collect(),
            sources: self.sources.as_slice().into(),
        }
    }
}

fn foreign(error: &serde_json::Error) -> FollowError {
    FollowError::Usage(format!("this is not the state of a SUP follower: {error}"))
}
