//! Decisions on snapshots: when the next one is due, and which messages they make dispensable. Pure: time is an argument.

use std::time::Duration;

use jiff::Timestamp;

use crate::SnapshotOptions;
use crate::stream::LogExtent;

/// Messages of the log that are written with each snapshot. An idle log has no more after it.
const OWN_MESSAGES: u64 = 1;
/// Shortest time between two snapshots of a log that is longer than it should be.
const MIN_INTERVAL: Duration = Duration::from_secs(60);

/// Snapshot, as the decisions see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SnapshotPoint {
    /// Sequence number of the last message that it covers.
    pub(crate) sequence: u64,
    pub(crate) made: Timestamp,
}

impl SnapshotPoint {
    /// Returns true where it is at least that old, or from the future: a clock was wrong.
    fn is_older_than(&self, age: Duration, now: Timestamp) -> bool {
        Duration::try_from(now.duration_since(self.made)).map_or(true, |passed| passed >= age)
    }
}

/// Returns true where the next snapshot is due. `snapshots` are in the order of their sequence numbers.
pub(crate) fn is_due(
    options: &SnapshotOptions,
    snapshots: &[SnapshotPoint],
    log: &LogExtent,
    applied: u64,
    now: Timestamp,
) -> bool {
    let Some(last) = snapshots.last() else { return applied > 0 };
    let new = applied.saturating_sub(last.sequence);
    if new <= OWN_MESSAGES {
        return false;
    }
    // Only where a snapshot would free a part that is worth it: nodes that are behind keep the rest.
    let is_worthwhile = is_too_long(options, log) && new.saturating_mul(4) >= log.messages;
    last.is_older_than(options.every, now) || is_worthwhile && last.is_older_than(MIN_INTERVAL, now)
}

fn is_too_long(options: &SnapshotOptions, log: &LogExtent) -> bool {
    options.max_stream_bytes.is_some_and(|max| log.bytes > max)
}

/// Returns the index of the snapshot up to which messages may be removed, with all snapshots before it.
///
/// It is never the newest one: should that be damaged, a new node begins from the one before.
pub(crate) fn removable(
    options: &SnapshotOptions,
    snapshots: &[SnapshotPoint],
    log: &LogExtent,
    now: Timestamp,
) -> Option<usize> {
    let older = snapshots.split_last()?.1;
    if is_too_long(options, log) {
        return older.len().checked_sub(1);
    }
    older.iter().rposition(|snapshot| snapshot.is_older_than(options.keep, now))
}

/// Returns the first sequence number that the log keeps; `None` where nothing is to be removed.
///
/// `applied` are the positions of all live nodes.
pub(crate) fn first_kept(snapshot: u64, log: &LogExtent, applied: impl Iterator<Item = u64>) -> Option<u64> {
    let covered = applied.min()?.min(snapshot);
    let first = covered + 1;
    (first > log.first_sequence && covered <= log.last_sequence).then_some(first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use towpath_store::backup::MemoryStorage;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn options(max_stream_bytes: Option<u64>) -> SnapshotOptions {
        SnapshotOptions {
            storage: Arc::new(MemoryStorage::default()),
            every: HOUR * 6,
            keep: HOUR * 24,
            max_stream_bytes,
        }
    }

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(hours * 3600).unwrap()
    }

    fn snapshots(points: &[(u64, i64)]) -> Vec<SnapshotPoint> {
        points
            .iter()
            .map(|(sequence, hours)| SnapshotPoint { sequence: *sequence, made: at(*hours) })
            .collect()
    }

    fn log(first_sequence: u64, last_sequence: u64, bytes: u64) -> LogExtent {
        let messages = last_sequence + 1 - first_sequence;
        LogExtent { first_sequence, last_sequence, messages, bytes }
    }

    #[test]
    fn a_snapshot_is_due_after_a_time_in_which_something_happened() {
        let options = options(None);
        let due = |points: &[(u64, i64)], applied, hours| {
            is_due(&options, &snapshots(points), &log(1, applied, 1), applied, at(hours))
        };
        assert!(!due(&[], 0, 0) && due(&[], 1, 0));
        let points = [(10, 100)];
        assert!(!due(&points, 11, 500), "only the snapshot's own row came after it");
        assert!(!due(&points, 12, 105) && due(&points, 12, 106));
        assert!(due(&points, 12, 99), "the clock of the node that made it was ahead");
    }

    #[test]
    fn a_log_that_is_too_long_gets_snapshots_earlier() {
        let options = options(Some(1000));
        let points = snapshots(&[(600, 100)]);
        let due =
            |applied, bytes, hours| is_due(&options, &points, &log(1, applied, bytes), applied, at(hours));
        assert!(due(1000, 1001, 101) && !due(1000, 1000, 101));
        assert!(!due(620, 1001, 101), "it would free next to nothing");
        assert!(!due(1000, 1001, 100), "one was made a moment ago");
        let points = snapshots(&[(100, 99), (600, 100), (900, 101)]);
        assert_eq!(removable(&options, &points, &log(1, 1000, 1001), at(101)), Some(1));
        assert_eq!(removable(&options, &points, &log(1, 1000, 1000), at(101)), None);
    }

    #[test]
    fn old_snapshots_make_messages_dispensable_and_the_newest_never_does() {
        let options = options(None);
        let points = snapshots(&[(10, 0), (20, 6), (30, 12), (40, 60)]);
        let upto = |points: &[SnapshotPoint], hours| removable(&options, points, &log(1, 50, 1), at(hours));
        assert_eq!(
            [23, 24, 30, 36, 1000].map(|hours| upto(&points, hours)),
            [None, Some(0), Some(1), Some(2), Some(2)]
        );
        assert_eq!(upto(&points[..1], 1000), None);
        assert_eq!(upto(&[], 1000), None);
        let all = |applied: &[u64]| first_kept(30, &log(5, 50, 1), applied.iter().copied());
        assert_eq!(
            (all(&[50, 40]), all(&[50, 12]), all(&[50, 4]), all(&[])),
            (Some(31), Some(13), None, None)
        );
        assert_eq!(first_kept(30, &log(5, 20, 1), [50].into_iter()), None, "the log has lost messages");
    }

    proptest! {
        /// Nothing that a live node or a new one needs is removed, whatever the times are.
        #[test]
        fn what_is_needed_is_kept(
            made in prop::collection::vec((1..1000u64, -50..50i64), 1..8),
            applied in prop::collection::vec(0..1200u64, 1..5),
            first in 1..500u64, more in 0..900u64, bytes in 0..2000u64, now in -60..60i64,
        ) {
            let mut made = made;
            made.sort_unstable();
            let (points, options) = (snapshots(&made), options(Some(1000)));
            let log = log(first, first + more, bytes);
            if let Some(index) = removable(&options, &points, &log, at(now)) {
                prop_assert!(index + 1 < points.len());
                if let Some(kept) = first_kept(points[index].sequence, &log, applied.iter().copied()) {
                    prop_assert!(applied.iter().all(|applied| kept <= applied + 1));
                    prop_assert!(points[index..].iter().all(|point| kept <= point.sequence + 1));
                    prop_assert!(kept > log.first_sequence && kept <= log.last_sequence + 1);
                }
            }
        }
    }
}
