//! What a consumer keeps between runs.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Consumer, FeedKey, Settings, Stage};
use crate::follow::FollowError;
use crate::sup::source::Source;

#[derive(Serialize, Deserialize)]
struct State<'a> {
    protocol: Cow<'a, str>,
    feeds: Vec<FeedState<'a>>,
    sources: Cow<'a, [Source]>,
}

#[derive(Serialize, Deserialize)]
struct FeedState<'a> {
    url: Cow<'a, str>,
    links: Cow<'a, [(usize, String)]>,
    due: Timestamp,
    answered: Option<Timestamp>,
}

impl Consumer {
    /// Goes on from what [`Consumer::state`] said. Fails on a state of something else: the user's fault.
    pub fn restore(settings: Settings, state: Value) -> Result<Self, FollowError> {
        let state = serde_json::from_value(state).map_err(|e| foreign(&e))?;
        Self::from_state(settings, state, |_| true)
    }

    /// The same from JSON text, for some of the feeds only; what is known of the others is forgotten.
    pub fn from_json(
        settings: Settings,
        json: &str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, FollowError> {
        let state = serde_json::from_str(json).map_err(|e| foreign(&e))?;
        Self::from_state(settings, state, is_wanted)
    }

    fn from_state(
        settings: Settings,
        state: State<'_>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, FollowError> {
        let known = state.sources.len();
        let sound = state.feeds.iter().flat_map(|feed| feed.links.iter()).all(|(source, _)| *source < known);
        if state.protocol != "sup" || !sound {
            return Err(FollowError::Usage("this is not the state of a SUP consumer".into()));
        }
        let mut consumer = Self::new(settings);
        for source in state.sources.into_owned() {
            consumer.push_source(source);
        }
        for kept in state.feeds.into_iter().filter(|feed| is_wanted(&feed.url)) {
            let FeedKey(index) = consumer.add_feed(kept.url.as_ref(), kept.due);
            consumer.feeds[index].answered = kept.answered;
            // It was being asked: that is repeated.
            consumer.feeds[index].failures = u32::from(kept.due == Timestamp::UNIX_EPOCH);
            for (source, id) in kept.links.into_owned() {
                consumer.join(index, source, id);
            }
        }
        Ok(consumer)
    }

    /// What to keep, so that a later run misses nothing. Feeds that are to be asked now, or are with the
    /// driver, will be asked again.
    pub fn state(&self) -> Value {
        serde_json::to_value(self.snapshot()).unwrap_or_default()
    }

    /// The same as JSON text, for which no tree is built.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&self.snapshot()).unwrap_or_default()
    }

    fn snapshot(&self) -> State<'_> {
        let feeds = self.feeds.iter().map(|feed| FeedState {
            url: feed.url.as_ref().into(),
            links: feed.links.as_slice().into(),
            due: if feed.stage == Stage::Waiting { feed.due } else { Timestamp::UNIX_EPOCH },
            answered: feed.answered,
        });
        State { protocol: "sup".into(), feeds: feeds.collect(), sources: self.sources.as_slice().into() }
    }
}

fn foreign(error: &serde_json::Error) -> FollowError {
    FollowError::Usage(format!("this is not the state of a SUP consumer: {error}"))
}
