//! What a consumer keeps between runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Consumer, FeedKey, Settings, Stage};
use crate::follow::FollowError;
use crate::sup::source::Source;

#[derive(Serialize, Deserialize)]
struct State {
    protocol: String,
    feeds: Vec<FeedState>,
    sources: Vec<Source>,
}

#[derive(Serialize, Deserialize)]
struct FeedState {
    url: String,
    links: Vec<(usize, String)>,
    due: Timestamp,
    answered: Option<Timestamp>,
}

impl Consumer {
    /// Goes on from what [`Consumer::state`] said. Fails on a state of something else: the user's fault.
    pub fn restore(settings: Settings, state: Value) -> Result<Self, FollowError> {
        Self::restore_some(settings, state, |_| true)
    }

    /// The same for some of the feeds only; what is known of the others is forgotten.
    pub fn restore_some(
        settings: Settings,
        state: Value,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, FollowError> {
        let state: State = serde_json::from_value(state)
            .map_err(|e| FollowError::Usage(format!("this is not the state of a SUP consumer: {e}")))?;
        let known = state.sources.len();
        let sound = state.feeds.iter().flat_map(|feed| &feed.links).all(|(source, _)| *source < known);
        if state.protocol != "sup" || !sound {
            return Err(FollowError::Usage("this is not the state of a SUP consumer".into()));
        }
        let mut consumer = Self::new(settings);
        for source in state.sources {
            consumer.push_source(source);
        }
        for kept in state.feeds.into_iter().filter(|feed| is_wanted(&feed.url)) {
            let FeedKey(index) = consumer.add_feed(kept.url, kept.due);
            consumer.feeds[index].answered = kept.answered;
            // It was being asked: that is repeated.
            consumer.feeds[index].failures = u32::from(kept.due == Timestamp::UNIX_EPOCH);
            for (source, id) in kept.links {
                consumer.join(index, source, id);
            }
        }
        Ok(consumer)
    }

    /// What to keep, so that a later run misses nothing. Feeds that are to be asked now, or are with the
    /// driver, will be asked again.
    pub fn state(&self) -> Value {
        let feeds = self.feeds.iter().map(|feed| FeedState {
            url: feed.url.as_ref().to_owned(),
            links: feed.links.clone(),
            due: if feed.stage == Stage::Waiting { feed.due } else { Timestamp::UNIX_EPOCH },
            answered: feed.answered,
        });
        let state = State { protocol: "sup".into(), feeds: feeds.collect(), sources: self.sources.clone() };
        serde_json::to_value(state).unwrap_or_default()
    }
}
