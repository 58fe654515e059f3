//! The T+O+C encoding of cursors ("Cursors"): timestamp, offset, checksum.

use std::fmt;

use jiff::Timestamp;

use super::log_read::LogRead;
use crate::change::{Change, Seq};
use crate::smart::wire::spec::OrderBy;

/// Maximum number of items of one second that a T+O+C cursor counts. Later positions get a sequence cursor, so that
/// neither parsing nor issuing a cursor reads more items than this.
pub const MAX_OFFSET: u64 = 10_000;

/// Number of items per read while counting.
const BATCH: usize = 1000;

/// `{T}_{O}_{C}`, all decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TocCursor {
    /// T: the item's time in the order, in Unix seconds, rounded down.
    pub time: i64,
    /// O: the item's index among those of the same second, ascending, from 0, in the unfiltered order.
    pub offset: u64,
    /// C: CRC-32 of the ids from index 0 to this one, joined by `_`.
    pub checksum: u32,
}

impl TocCursor {
    /// Parses a cursor, split from the right; `None` if it differs from the output of [`fmt::Display`].
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, checksum) = text.rsplit_once('_')?;
        let (time, offset) = rest.rsplit_once('_')?;
        let toc =
            Self { time: time.parse().ok()?, offset: offset.parse().ok()?, checksum: checksum.parse().ok()? };
        // One spelling per cursor: `01_2_3` and `1_+2_3` parse as numbers, but nobody issued them.
        (toc.to_string() == text).then_some(toc)
    }
}

impl fmt::Display for TocCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.time, self.offset, self.checksum)
    }
}

/// Returns Unix seconds, rounded down (also before 1970).
pub fn second_of(time: Timestamp) -> i64 {
    time.as_second() - i64::from(time.subsec_nanosecond() < 0)
}

/// Counts the items of one second from the first, with the checksum of their ids.
#[derive(Debug)]
pub(super) struct TocCounter {
    by: OrderBy,
    time: i64,
    /// The last position before the second.
    start: Seq,
    /// The last position that was counted.
    position: Seq,
    counted: u64,
    crc: crc32fast::Hasher,
    /// True if a counted item had an earlier version within the same second.
    ///
    /// Then the ids may have had the same order before that item changed, and the checksum of a cursor issued before
    /// the change would still match: the change would be missed. Such cursors are neither issued nor accepted.
    ambiguous: bool,
}

/// Progress of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountProgress {
    /// More items are to be read.
    Incomplete,
    /// The searched item was counted.
    Found,
    /// The second ended, or its limit was reached, without the searched item.
    Ended,
}

impl TocCounter {
    /// Starts a count of the second `time`; `start` is the last position before it.
    pub(super) fn new(by: OrderBy, time: i64, start: Seq) -> Self {
        let crc = crc32fast::Hasher::new();
        Self { by, time, start, position: start, counted: 0, crc, ambiguous: false }
    }

    /// Returns the next read, of at most `limit` items.
    pub(super) fn read(&self, limit: u64) -> LogRead {
        let items = usize::try_from(limit).unwrap_or(BATCH).min(BATCH);
        LogRead::Items {
            by: self.by,
            after: Some(self.position),
            before: None,
            descending: false,
            items,
            // Only ids and times are needed, but a read returns whole records.
            bytes: 16 << 20,
        }
    }

    /// Counts items up to and including the first for which `is_last` returns true.
    pub(super) fn add(&mut self, changes: &[Change], is_last: impl Fn(&Self) -> bool) -> CountProgress {
        for change in changes {
            if second_of(self.by.time(change)) != self.time || self.counted > MAX_OFFSET {
                return CountProgress::Ended;
            }
            if self.counted > 0 {
                self.crc.update(b"_");
            }
            self.crc.update(change.item.id.as_bytes());
            self.position = self.by.position(change);
            self.counted += 1;
            // `None` is less than any `Some`, so a first version is never ambiguous.
            self.ambiguous |= self.by == OrderBy::Modified && change.previous > Some(self.start);
            if is_last(self) {
                return CountProgress::Found;
            }
        }
        if changes.is_empty() { CountProgress::Ended } else { CountProgress::Incomplete }
    }

    /// Returns the last position before the second.
    pub(super) fn start(&self) -> Seq {
        self.start
    }

    /// Returns the position of the last counted item.
    pub(super) fn position(&self) -> Seq {
        self.position
    }

    /// Returns the number of counted items.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// Returns the cursor of the last counted item; `None` if it is ambiguous.
    pub(super) fn toc(&self) -> Option<TocCursor> {
        let offset = self.counted.checked_sub(1).filter(|offset| *offset < MAX_OFFSET && !self.ambiguous)?;
        Some(TocCursor { time: self.time, offset, checksum: self.crc.clone().finalize() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smart::publish::testing::change;

    fn count(changes: &[Change]) -> TocCounter {
        let mut count =
            TocCounter::new(OrderBy::Modified, second_of(changes[0].modified), changes[0].seq - 1);
        count.add(changes, |_| false);
        count
    }

    /// Cursors: "{T}_{O}_{C}", CRC-32 of the ids joined by "_".
    #[test]
    fn checksums_match_known_vectors() {
        let id = "c859e306-38fb-49bb-b3c4-44ef02b6e7c5";
        let one = count(&[change(1, id, 1_389_003_527)]);
        assert_eq!(one.toc().unwrap().to_string(), "1389003527_0_3678689003");
        // CRC-32 of "123456789" is CBF43926, the check value of the algorithm's catalogue entry.
        let check = count(&[change(1, "123456789", 5)]);
        assert_eq!(check.toc().unwrap().checksum, 0xCBF4_3926);
        let two = count(&[change(1, "1", 5), change(2, "2", 5)]);
        assert_eq!(two.toc().unwrap().checksum, crc32fast::hash(b"1_2"));
        assert_eq!(two.toc().unwrap().offset, 1);
    }

    #[test]
    fn cursors_are_split_from_the_right_and_exact() {
        let text = "-5_9_4294967295";
        assert_eq!(TocCursor::parse(text).unwrap().to_string(), text);
        for bad in ["", "_", "__", "1_2", "1_2_", "1_2_4294967296", "01_2_3", "1_+2_3", "a_1_2_3", "1_-2_3"] {
            assert_eq!(TocCursor::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn seconds_are_rounded_down() {
        for (text, second) in
            [("1970-01-01T00:00:01.9Z", 1), ("1969-12-31T23:59:59.9Z", -1), ("1969-12-31T23:59:59Z", -1)]
        {
            assert_eq!(second_of(text.parse().unwrap()), second, "{text}");
        }
    }

    #[test]
    fn a_change_within_its_second_makes_cursors_ambiguous() {
        let mut again = change(3, "a", 5);
        again.previous = Some(1);
        let (mut count, changes) = (TocCounter::new(OrderBy::Modified, 5, 0), [again.clone()]);
        count.add(&changes, |_| false);
        assert_eq!(count.toc(), None);
        // An earlier version in an earlier second is harmless, and by creation no item moves.
        let mut count = TocCounter::new(OrderBy::Modified, 5, 2);
        count.add(&changes, |_| false);
        assert!(count.toc().is_some());
        again.first_seq = 1;
        let mut count = TocCounter::new(OrderBy::Created, 5, 0);
        count.add(&[again], |_| false);
        assert!(count.toc().is_some());
    }
}
