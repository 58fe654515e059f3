//! What a follower keeps between runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::follow::{FollowError, StartFrom};
use crate::replication::snapshot::floor_to_second;

/// How far a feed was followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Where to begin as long as there is no position.
    pub(super) start: Start,
    /// The last entity that was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<Position>,
    /// The snapshot that comes before the feed, until it was told whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<SnapshotPlace>,
    /// The feed's address, where a snapshot's index told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) feed: Option<String>,
    /// Since when the feed has ended before the position: of several servers at one address one may be behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) behind_since: Option<Timestamp>,
}

/// [`StartFrom`], with the time cut to the second, as entities have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Start {
    Beginning,
    Now,
    Time(Timestamp),
    /// After this Content-ID, of which the time is not known.
    Id(String),
    /// From this time on, as a snapshot's index says. As long as this page is left, nothing is missing, whether or
    /// not anything is older than the time.
    Snapshot {
        time: Timestamp,
        page: String,
    },
}

/// The last entity that was told, and its page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// The page's own address.
    pub(super) page: String,
    /// How many entities of the page were read.
    pub(super) entities: u64,
    /// CRC-32 over these entities: published entities never change ("Immutability of pages").
    pub(super) crc: u32,
    /// "Resume consumption": the Content-ID of the last entity.
    pub(super) content_id: String,
    /// "Resume consumption": the Last-Modified of the last entity.
    pub(super) modified: Timestamp,
    /// The page's validator, where all of the page was read and nothing followed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) etag: Option<String>,
}

/// How much of a snapshot was told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotPlace {
    /// The index's address.
    pub(super) index: String,
    /// The snapshot's id; empty before the index was read.
    pub(super) id: String,
    /// The pages that were told, counted from 0: ranges of first and last, ascending.
    pub(super) done: Vec<(u64, u64)>,
}

impl Place {
    pub(super) fn new(start: StartFrom, snapshot: Option<String>) -> Self {
        let start = match start {
            StartFrom::Beginning => Start::Beginning,
            StartFrom::Now => Start::Now,
            StartFrom::Time(time) => Start::Time(floor_to_second(time)),
            StartFrom::Position(id) => Start::Id(id),
        };
        let snapshot = snapshot.map(|index| SnapshotPlace { index, ..SnapshotPlace::default() });
        Self { start, position: None, snapshot, feed: None, behind_since: None }
    }

    pub(super) fn parse(state: Value) -> Result<Self, FollowError> {
        let error = |e| FollowError::Usage(format!("the state is not one of Data Replication: {e}"));
        serde_json::from_value(state).map_err(error)
    }

    pub(super) fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl SnapshotPlace {
    pub(super) fn is_done(&self, page: u64) -> bool {
        self.done.iter().any(|&(first, last)| (first..=last).contains(&page))
    }

    pub(super) fn set_done(&mut self, page: u64) {
        self.done.push((page, page));
        self.done.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for &(first, last) in &self.done {
            match merged.last_mut() {
                Some(range) if first <= range.1 + 1 => range.1 = range.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        self.done = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_told_are_kept_as_ranges() {
        let mut place = SnapshotPlace::default();
        for page in [5, 0, 2, 1, 4, 0] {
            place.set_done(page);
        }
        assert_eq!(place.done, [(0, 2), (4, 5)]);
        assert!(place.is_done(1) && !place.is_done(3) && !place.is_done(6));
    }

    #[test]
    fn a_foreign_state_is_the_users_fault() {
        assert!(matches!(Place::parse(serde_json::json!({"cursor": 1})), Err(FollowError::Usage(_))));
        let place = Place::new(StartFrom::Time("2024-01-01T00:00:00.9Z".parse().unwrap()), Some("i".into()));
        assert_eq!(Place::parse(place.to_json()).unwrap(), place);
    }
}
