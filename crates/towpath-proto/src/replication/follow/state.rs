//! The persistent state of a follower.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::follow::{FollowError, StartFrom};
use crate::replication::wire::floor_to_second;

/// State of a follower, as its checkpoints contain it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ReplicationFollowState {
    /// Start, used while there is no position.
    pub(super) start: FollowStart,
    /// The last delivered entity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) position: Option<EntityPosition>,
    /// The snapshot before the feed, until it is completely delivered. It stays if it names no feed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<SnapshotCheckpoint>,
    /// URL of the feed, if a snapshot's index named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) feed: Option<String>,
    /// Time since which the feed ends before the position. One of several servers at the URL may lag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) behind_since: Option<Timestamp>,
}

/// [`StartFrom`], with its time in whole seconds, as entities have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FollowStart {
    Beginning,
    Now,
    Time(Timestamp),
    /// After this Content-ID, whose time is unknown.
    Id(String),
    /// From the time of a snapshot's index. While this page is the oldest one, nothing is missing, even if no
    /// entity is older than the time.
    Snapshot {
        time: Timestamp,
        page: String,
    },
}

/// The last delivered entity, and its page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EntityPosition {
    /// URL of the page (its self link).
    pub(super) page: String,
    /// Number of entities read from the page.
    pub(super) entities: u64,
    /// CRC-32 of these entities. Published entities never change ("Immutability of pages").
    pub(super) crc: u32,
    /// CRC-32 of the last entity alone; none in states of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_crc: Option<u32>,
    /// Content-ID of the last entity ("Resume consumption").
    pub(super) content_id: String,
    /// Last-Modified of the last entity ("Resume consumption").
    pub(super) modified: Timestamp,
    /// ETag of the page, if it was read to its end and has no next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) etag: Option<String>,
}

/// The delivered part of a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotCheckpoint {
    /// URL of the index.
    pub(super) index: String,
    /// Id of the snapshot; empty before its first entity was delivered.
    pub(super) id: String,
    /// Delivered pages, counted from 0, as ascending ranges of first and last.
    pub(super) done: Vec<(u64, u64)>,
    /// True if the feed's oldest page named the snapshot, and not the user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_linked: bool,
}

impl ReplicationFollowState {
    pub(super) fn new(start: StartFrom, snapshot: Option<String>) -> Self {
        let start = match start {
            StartFrom::Beginning => FollowStart::Beginning,
            StartFrom::Now => FollowStart::Now,
            // Rounded down: entities of the start's own second are delivered rather than lost.
            StartFrom::Time(time) => FollowStart::Time(floor_to_second(time)),
            StartFrom::Position(id) => FollowStart::Id(id),
        };
        let snapshot = snapshot.map(|index| SnapshotCheckpoint { index, ..SnapshotCheckpoint::default() });
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

impl SnapshotCheckpoint {
    pub(super) fn is_done(&self, page: u64) -> bool {
        self.done.iter().any(|&(first, last)| (first..=last).contains(&page))
    }

    pub(super) fn set_done(&mut self, page: u64) {
        self.done.push((page, page));
        // Pages finish in any order. Merged ranges keep the state small for thousands of pages.
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
    fn delivered_pages_are_stored_as_ranges() {
        let mut checkpoint = SnapshotCheckpoint::default();
        for page in [5, 0, 2, 1, 4, 0] {
            checkpoint.set_done(page);
        }
        assert_eq!(checkpoint.done, [(0, 2), (4, 5)]);
        assert!(checkpoint.is_done(1) && !checkpoint.is_done(3) && !checkpoint.is_done(6));
    }

    #[test]
    fn a_state_of_another_protocol_is_a_usage_error() {
        assert!(matches!(
            ReplicationFollowState::parse(serde_json::json!({"cursor": 1})),
            Err(FollowError::Usage(_))
        ));
        let state = ReplicationFollowState::new(
            StartFrom::Time("2024-01-01T00:00:00.9Z".parse().unwrap()),
            Some("i".into()),
        );
        assert_eq!(ReplicationFollowState::parse(state.to_json()).unwrap(), state);
    }
}
