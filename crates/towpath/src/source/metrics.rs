//! State of a source in memory, for `/metrics`: a scrape of ten thousand feeds reads nothing from the store.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::state::{SourceFailure, SourceState};
use crate::engine::Feed;

/// Attempts to read a source, since this process started.
#[derive(Debug, Default)]
pub(crate) struct SourceMetrics(Mutex<SourceCounts>);

/// Present state of a source, with numbers of attempts.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SourceCounts {
    /// Start of the last success, also of one before this process started.
    pub(crate) last_success: Option<Timestamp>,
    /// The last attempt succeeded; `None` before the first one.
    pub(crate) is_up: Option<bool>,
    /// Begin of the failures in a row, as far as it is known, and the last error.
    pub(crate) failing_since: Option<Timestamp>,
    pub(crate) error: Option<SourceFailure>,
    /// Failures by the code that `towpath status` shows.
    pub(crate) failures: BTreeMap<String, u64>,
    /// Polls, and the time that they took. A mirror has none: its connection stays.
    pub(crate) polls: u64,
    pub(crate) poll_time: Duration,
}

/// Part of the counts that a scrape shows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScrapedSource {
    pub(crate) last_success: Option<Timestamp>,
    pub(crate) is_up: Option<bool>,
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) polls: u64,
    pub(crate) poll_time: Duration,
}

impl SourceMetrics {
    /// Returns what a scrape shows, without the texts of errors.
    pub(crate) fn scraped(feed: &Feed) -> Option<ScrapedSource> {
        let counts = feed.extensions.get::<Self>()?.0.lock();
        Some(ScrapedSource {
            last_success: counts.last_success,
            is_up: counts.is_up,
            failures: counts.failures.clone(),
            polls: counts.polls,
            poll_time: counts.poll_time,
        })
    }

    /// Returns the counts of a feed's source; `None` before its state was read.
    pub(crate) fn get(feed: &Feed) -> Option<SourceCounts> {
        feed.extensions.get::<Self>().map(|metrics| metrics.0.lock().clone())
    }

    /// Returns true if the last attempt succeeded; `None` before the first one.
    pub(crate) fn is_up(feed: &Feed) -> Option<bool> {
        feed.extensions.get::<Self>().and_then(|metrics| metrics.0.lock().is_up)
    }

    /// Returns true if the last attempt failed.
    pub(crate) fn is_failing(feed: &Feed) -> bool {
        Self::is_up(feed) == Some(false)
    }

    /// Takes over what was saved before this process started.
    pub(crate) fn load(feed: &Feed, state: &SourceState) {
        let mut counts = Self::of(feed).0.lock();
        counts.last_success = counts.last_success.max(state.last_ok);
        let was_up = state.last_attempt.or(state.last_ok).map(|_| state.error.is_none());
        if counts.is_up.is_none() {
            counts.is_up = was_up;
            counts.failing_since = state.error.as_ref().and(state.last_ok.or(state.last_attempt));
            counts.error.clone_from(&state.error);
        }
    }

    /// Records an attempt by the state after it.
    pub(crate) fn record(feed: &Feed, state: &SourceState) {
        let mut counts = Self::of(feed).0.lock();
        counts.last_success = state.last_ok;
        counts.is_up = Some(state.error.is_none());
        counts.failing_since = match &state.error {
            Some(_) => counts.failing_since.or(state.last_attempt).or(state.last_ok),
            None => None,
        };
        counts.error.clone_from(&state.error);
        if let Some(error) = &state.error {
            // Codes are few: names of ours, and statuses of HTTP.
            *counts.failures.entry(error.code.clone()).or_default() += 1;
        }
    }

    /// Records the time of a poll.
    pub(crate) fn record_time(feed: &Feed, took: Duration) {
        let mut counts = Self::of(feed).0.lock();
        counts.polls += 1;
        counts.poll_time += took;
    }

    fn of(feed: &Feed) -> &Self {
        feed.extensions.get_or_insert_with(Self::default)
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::FeedId;

    use super::*;
    use crate::config::FeedConfig;

    #[test]
    fn a_saved_state_is_older_than_an_attempt() {
        let feed = Feed::new(FeedConfig::unnamed(FeedId::new("news").unwrap()));
        assert_eq!(SourceMetrics::get(&feed), None);
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        let saved = SourceState { last_ok: at(1), last_attempt: at(1), ..SourceState::default() };
        SourceMetrics::load(&feed, &saved);
        let counts = SourceMetrics::get(&feed).unwrap();
        assert_eq!((counts.last_success, counts.is_up), (at(1), Some(true)));
        let error = Some(SourceFailure::new("TIMEOUT", "slow".into()));
        let failed = SourceState { error, ..saved.clone() };
        SourceMetrics::record(&feed, &failed);
        SourceMetrics::load(&feed, &saved);
        SourceMetrics::record_time(&feed, Duration::from_secs(2));
        let counts = SourceMetrics::get(&feed).unwrap();
        assert_eq!((counts.is_up, counts.polls, counts.poll_time.as_secs()), (Some(false), 1, 2));
        assert_eq!(counts.failures["TIMEOUT"], 1);
        assert_eq!((counts.failing_since, counts.error.unwrap().code.as_str()), (at(1), "TIMEOUT"));
    }
}
