//! What a follower keeps between runs.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::memory::{Memory, Slot};
use crate::follow::{FollowError, StartFrom};

/// How many addresses of documents that were read are remembered. Whoever goes back meets the last of them
/// first, so a few would do.
const MAX_READ: usize = 1000;

/// How many documents that did not answer are asked for again.
const MAX_GAPS: usize = 1000;

/// How far a feed was followed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Place {
    /// Where to begin, until that was done once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) start: Option<Start>,
    /// The newest document's validators, once all before it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_modified: Option<String>,
    /// Permanent documents that need not be read again, the oldest first.
    pub(super) read: VecDeque<String>,
    /// Documents that did not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) gaps: Vec<Gap>,
    /// The place of the last document that was read in its turn.
    pub(super) slot: Slot,
    /// A person was told what this feed cannot promise.
    #[serde(default)]
    pub(super) told: bool,
    /// Every entry that was seen.
    pub(super) entries: Memory,
}

/// [`StartFrom`], as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Start {
    Beginning,
    Now,
    Time(Timestamp),
    /// With the document at this address.
    Document(String),
}

/// A document that did not answer, and is asked for again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gap {
    pub(super) url: String,
    /// What is before it was read; otherwise that is missing too.
    pub(super) alone: bool,
    /// Its place among the documents, and that of those before it.
    pub(super) slot: Slot,
    /// How often it was asked for since it was noticed.
    #[serde(skip)]
    pub(super) attempts: u32,
    /// When to ask again; at once after a restart.
    #[serde(skip)]
    pub(super) due: Option<Timestamp>,
    /// A person was told in this run.
    #[serde(skip)]
    pub(super) told: bool,
}

impl Place {
    pub(super) fn new(start: StartFrom) -> Self {
        let start = match start {
            StartFrom::Beginning => Start::Beginning,
            StartFrom::Now => Start::Now,
            StartFrom::Time(time) => Start::Time(time),
            StartFrom::Position(url) => Start::Document(url),
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

    /// The place of the next document.
    pub(super) fn next_slot(&mut self) -> Slot {
        self.slot += 1;
        self.slot
    }

    /// Whether a permanent document was read.
    pub(super) fn was_read(&self, url: &str) -> bool {
        self.read.iter().any(|read| read == url)
    }

    /// Notes that a permanent document was read, the newest so far.
    pub(super) fn note_read(&mut self, url: &str) {
        if self.was_read(url) {
            return;
        }
        self.read.push_back(url.to_owned());
        if self.read.len() > MAX_READ {
            self.read.pop_front();
        }
    }

    /// Notes that a document was read that is older than those read before.
    pub(super) fn note_read_late(&mut self, url: &str) {
        if self.read.len() < MAX_READ && !self.was_read(url) {
            self.read.push_front(url.to_owned());
        }
    }

    /// Notes a document that did not answer; says whether it will be asked for again.
    pub(super) fn note_gap(&mut self, url: &str, slot: Slot, alone: bool, due: Timestamp) -> bool {
        if self.gaps.iter().any(|gap| gap.url == url) {
            return true;
        }
        if self.gaps.len() >= MAX_GAPS {
            return false;
        }
        self.gaps.push(Gap { url: url.to_owned(), alone, slot, attempts: 0, due: Some(due), told: true });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_state_is_the_users_fault() {
        assert!(matches!(Place::parse(serde_json::json!({"cursor": 1})), Err(FollowError::Usage(_))));
        let mut place = Place::new(StartFrom::Time(Timestamp::UNIX_EPOCH));
        place.note_read("http://a.example/1");
        place.note_gap("http://a.example/0", 1, false, Timestamp::UNIX_EPOCH);
        let again = Place::parse(place.to_json()).unwrap();
        assert_eq!((again.start, again.read), (place.start, place.read));
        assert_eq!((again.gaps[0].url.as_str(), again.gaps[0].due), ("http://a.example/0", None));
    }

    #[test]
    fn few_addresses_are_remembered() {
        let mut place = Place::default();
        for number in 0..3000 {
            place.note_read(&number.to_string());
        }
        assert_eq!(place.read.len(), MAX_READ);
        assert!(place.was_read("2999") && !place.was_read("1"));
    }
}
