//! State of a follower, persisted between runs.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::entries::{DocumentSeq, EntryIndex};
use super::position::EntryPosition;
use crate::follow::{FollowError, Monotonic, StartFrom};

/// Maximum number of URLs of read documents in the state. A walk back meets the last of them first, so a few suffice.
const MAX_READ: usize = 1000;

// A hostile feed may list a million documents that fail; the state must stay small.
/// Maximum number of failed documents that are requested again.
const MAX_GAPS: usize = 1000;

/// State of following a feed. The names of the fields in JSON are a stored format.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct HistoryFollowState {
    /// The start position, until the first pass is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<PendingStart>,
    /// Validators of the newest document, once all documents before it were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_modified: Option<String>,
    /// Permanent documents that were read, the oldest first.
    pub(super) read: VecDeque<String>,
    /// Documents that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gaps: Vec<Gap>,
    /// Number of the last document in the chain.
    #[serde(rename = "slot")]
    pub(super) last_seq: DocumentSeq,
    /// True after the warning about the limits of this feed.
    #[serde(default, rename = "told")]
    pub(super) is_warned: bool,
    /// Date of a log at which following began, unless it began with the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) log_start: Option<Timestamp>,
    /// Index of all entries.
    pub(super) entries: EntryIndex,
}

/// [`StartFrom`] in its stored form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PendingStart {
    Beginning,
    Now,
    Time(Timestamp),
    /// The document at this URL.
    Document(String),
    /// After this version of an entry.
    After(EntryPosition),
}

/// A document that failed, and is requested again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gap {
    pub(super) url: String,
    /// True if older documents were read; otherwise they are missing too.
    #[serde(rename = "alone")]
    pub(super) is_isolated: bool,
    /// Number of the document, and of the older ones that are missing.
    #[serde(rename = "slot")]
    pub(super) seq: DocumentSeq,
    /// Number of requests since the failure.
    #[serde(skip)]
    pub(super) attempts: u32,
    /// Time of the next request; `None` for at once, after a restart.
    // A monotonic time means nothing to another run.
    #[serde(skip)]
    pub(super) due: Option<Monotonic>,
    /// True if the gap was reported in this run.
    #[serde(skip)]
    pub(super) is_reported: bool,
}

impl HistoryFollowState {
    pub(super) fn new(start: StartFrom) -> Self {
        let start = match start {
            StartFrom::Beginning => PendingStart::Beginning,
            StartFrom::Now => PendingStart::Now,
            StartFrom::Time(time) => PendingStart::Time(time),
            StartFrom::Position(position) => {
                position.parse().map_or(PendingStart::Document(position), PendingStart::After)
            }
        };
        Self { start: Some(start), ..Self::default() }
    }

    pub(super) fn parse(state: Value) -> Result<Self, FollowError> {
        let error = |e| FollowError::Usage(format!("the state is not one of Feed History: {e}"));
        serde_json::from_value(state).map_err(error)
    }

    pub(super) fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Returns the number of the next document.
    pub(super) fn next_seq(&mut self) -> DocumentSeq {
        self.last_seq += 1;
        self.last_seq
    }

    /// Returns true if a permanent document was read.
    pub(super) fn was_read(&self, url: &str) -> bool {
        self.read.iter().any(|read| read == url)
    }

    /// Records a permanent document as read, the newest so far.
    pub(super) fn add_read(&mut self, url: &str) {
        if self.was_read(url) {
            return;
        }
        self.read.push_back(url.to_owned());
        if self.read.len() > MAX_READ {
            self.read.pop_front();
        }
    }

    /// Records a document as read that is older than all others.
    pub(super) fn add_read_older(&mut self, url: &str) {
        // A full list drops nothing for an older URL: a walk back meets the newer ones first.
        if self.read.len() < MAX_READ && !self.was_read(url) {
            self.read.push_front(url.to_owned());
        }
    }

    /// Records a failed document. Returns false if there are too many to request it again.
    pub(super) fn add_gap(&mut self, url: &str, seq: DocumentSeq, is_isolated: bool, due: Monotonic) -> bool {
        // Known already: its backoff goes on, instead of starting again with each pass.
        if self.gaps.iter().any(|gap| gap.url == url) {
            return true;
        }
        if self.gaps.len() >= MAX_GAPS {
            return false;
        }
        self.gaps.push(Gap {
            url: url.to_owned(),
            is_isolated,
            seq,
            attempts: 0,
            due: Some(due),
            // The caller reports the gap when it records it.
            is_reported: true,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_state_is_a_usage_error() {
        assert!(matches!(
            HistoryFollowState::parse(serde_json::json!({"cursor": 1})),
            Err(FollowError::Usage(_))
        ));
        let mut state = HistoryFollowState::new(StartFrom::Time(Timestamp::UNIX_EPOCH));
        state.add_read("http://a.example/1");
        state.add_gap("http://a.example/0", 1, false, Monotonic::ORIGIN);
        let again = HistoryFollowState::parse(state.to_json()).unwrap();
        assert_eq!((again.start, again.read), (state.start, state.read));
        assert_eq!((again.gaps[0].url.as_str(), again.gaps[0].due), ("http://a.example/0", None));
    }

    #[test]
    fn the_number_of_urls_is_limited() {
        let mut state = HistoryFollowState::default();
        for number in 0..3000 {
            state.add_read(&number.to_string());
        }
        assert_eq!(state.read.len(), MAX_READ);
        assert!(state.was_read("2999") && !state.was_read("1"));
    }
}
