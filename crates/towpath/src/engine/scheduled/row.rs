//! Rows of scheduled changes, and their keys.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use towpath_proto::change::Seq;
use towpath_proto::line::Line;
use towpath_proto::{Change, FeedId, Op};
use towpath_store::{Store, Table, TableWrite};

use crate::engine::item_versions::{ItemVersion, version};
use crate::engine::table_keys::{from_sortable, sortable};
use crate::store_error::StoreError;

/// Rows of items: `publish-at/item/{feed}/{id}`.
pub(super) const ITEMS: &str = "publish-at/item/";
/// Index by time: `publish-at/time/`, milliseconds as eight bytes, `{feed}/{id}`.
pub(super) const TIMES: &[u8] = b"publish-at/time/";
/// Limit of the marks in a row.
// Only changes whose outcome was unknown leave theirs.
const MAX_MARKS: usize = 16;

/// Scheduled change, as stored.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ScheduledRow {
    pub(super) at: Timestamp,
    pub(super) line: Line,
    /// Later changes that cancel it once they are appended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    marks: Vec<CancelMark>,
}

/// Mark of a later change that was about to be appended.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CancelMark {
    /// Number of the cancellation.
    by: u64,
    /// Latest version of the item before that change; zero if there was none.
    after: Seq,
}

impl ScheduledRow {
    pub(super) fn new(at: Timestamp, line: Line) -> Self {
        Self { at, line, marks: Vec::new() }
    }

    /// Marks it as cancelled by a change that is about to be appended.
    pub(super) fn mark(&mut self, by: u64, latest: Option<&Change>) {
        self.marks.drain(..self.marks.len().saturating_sub(MAX_MARKS - 1));
        self.marks.push(CancelMark { by, after: latest.map_or(0, |latest| latest.seq) });
    }

    /// Returns true if a later change was about to cancel it.
    pub(super) fn is_marked(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Removes a mark. Returns true if there was one.
    pub(super) fn unmark(&mut self, by: u64) -> bool {
        let count = self.marks.len();
        self.marks.retain(|mark| mark.by != by);
        self.marks.len() < count
    }

    /// Returns true if both schedule the same change for the same time.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.at == other.at && self.line == other.line
    }

    /// Returns true if a change whose mark it has is in the log: the item has a newer version, by more than patches.
    pub(super) async fn is_cancelled(
        &self,
        store: &dyn Store,
        feed: &FeedId,
        latest: Option<&Change>,
    ) -> Result<bool, StoreError> {
        let Some(after) = self.marks.iter().map(|mark| mark.after).min() else { return Ok(false) };
        let mut newer = latest.map(ItemVersion::from);
        while let Some(found) = newer.filter(|found| found.seq > after) {
            if found.op != Op::Patch {
                return Ok(true);
            }
            newer = match found.previous {
                Some(seq) => version(store, feed, &self.line.id, seq).await?.as_ref().map(ItemVersion::from),
                None => None,
            };
        }
        Ok(false)
    }

    /// Returns the write of its item's row.
    pub(super) fn write(&self, feed: &FeedId) -> Result<TableWrite, StoreError> {
        let value = serde_json::to_vec(self).map_err(|e| StoreError::Encode(e.to_string()))?;
        Ok(set(item_key(feed, &self.line.id), Some(value)))
    }

    /// Returns the writes that remove it.
    pub(super) fn removal(&self, feed: &FeedId) -> [TableWrite; 2] {
        [set(time_key(self.at, feed, &self.line.id), None), set(item_key(feed, &self.line.id), None)]
    }
}

/// Rounds a time up to what the index has, so that a change never comes before its time.
pub(super) fn whole_milliseconds(at: Timestamp) -> Timestamp {
    let rest = at.subsec_nanosecond().rem_euclid(1_000_000);
    let millis = at.as_millisecond() + i64::from(rest != 0 && at.as_nanosecond() > 0);
    Timestamp::from_millisecond(millis).unwrap_or(at)
}

pub(super) fn item_key(feed: &FeedId, id: &str) -> Vec<u8> {
    format!("{ITEMS}{feed}/{id}").into_bytes()
}

pub(super) fn time_key(at: Timestamp, feed: &FeedId, id: &str) -> Vec<u8> {
    [TIMES, &sortable(at.as_millisecond()), feed.as_str().as_bytes(), b"/", id.as_bytes()].concat()
}

/// Returns the time, feed and id of a key of the index.
pub(super) fn parse_time_key(key: &[u8]) -> Option<(Timestamp, FeedId, String)> {
    let (millis, rest) = key.strip_prefix(TIMES)?.split_first_chunk::<8>()?;
    // Ids of feeds have no slash; those of items may.
    let (feed, id) = std::str::from_utf8(rest).ok()?.split_once('/')?;
    Some((Timestamp::from_millisecond(from_sortable(*millis)).ok()?, FeedId::new(feed).ok()?, id.to_owned()))
}

pub(super) fn set(key: Vec<u8>, value: Option<Vec<u8>>) -> TableWrite {
    TableWrite { table: Table::Sources, key, value: value.map(Into::into) }
}

pub(super) fn parse(key: &[u8], value: &[u8]) -> Result<ScheduledRow, StoreError> {
    serde_json::from_slice(value).map_err(|e| damaged(key, e))
}

pub(super) fn damaged(key: &[u8], error: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("{}: {error}", String::from_utf8_lossy(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row and the index must have the same time: the task compares them.
    #[test]
    fn times_are_those_of_the_index() {
        let feed = FeedId::new("orders").unwrap();
        for time in [
            "2026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.000000001Z",
            "2026-01-01T00:00:00.0019Z",
            "1969-01-01T00:00:00.9999Z",
        ] {
            let asked: Timestamp = time.parse().unwrap();
            let kept = whole_milliseconds(asked);
            assert_eq!(parse_time_key(&time_key(kept, &feed, "a")).unwrap().0, kept, "{time}");
            assert!(kept >= asked || asked < Timestamp::UNIX_EPOCH, "{time}");
        }
    }

    #[test]
    fn the_index_is_in_the_order_of_time() {
        let feed = FeedId::new("orders").unwrap();
        let times = [
            "-000001-01-01T00:00:00Z",
            "1969-01-01T00:00:00Z",
            "1970-01-01T00:00:00Z",
            "2026-01-01T00:00:00.5Z",
        ];
        let mut before = Vec::new();
        for time in times.map(|time| time.parse::<Timestamp>().unwrap()) {
            let key = time_key(time, &feed, "a/b\u{e9}");
            assert!(before < key);
            assert_eq!(parse_time_key(&key), Some((time, feed.clone(), "a/b\u{e9}".into())));
            before = key;
        }
        assert_eq!(parse_time_key(b"publish-at/time/short"), None);
    }
}
