//! The T+O+C encoding of cursors ("Cursors"): timestamp, offset, checksum.

use std::fmt;

use jiff::Timestamp;

use super::plan::Read;
use super::spec::By;
use crate::change::{Change, Seq};

/// How many items that share one second a T+O+C cursor can count. Positions beyond get a sequence cursor, so
/// that neither reading nor giving a cursor looks at more than these.
pub const MAX_OFFSET: u64 = 10_000;

/// How many items one read fetches while counting.
const BATCH: usize = 1000;

/// `{T}_{O}_{C}`, all decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toc {
    /// T: the item's time in the order, in Unix seconds, rounded down.
    pub time: i64,
    /// O: the item's place among those of the same second, ascending, from 0, over the unfiltered order.
    pub offset: u64,
    /// C: CRC-32 of the ids from place 0 to this one, joined by `_`.
    pub checksum: u32,
}

impl Toc {
    /// Reads a cursor, split from the right; `None` where it is not written just as [`fmt::Display`] does.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, checksum) = text.rsplit_once('_')?;
        let (time, offset) = rest.rsplit_once('_')?;
        let toc =
            Self { time: time.parse().ok()?, offset: offset.parse().ok()?, checksum: checksum.parse().ok()? };
        (toc.to_string() == text).then_some(toc)
    }
}

impl fmt::Display for Toc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}_{}", self.time, self.offset, self.checksum)
    }
}

/// Unix seconds, rounded down (also before 1970).
pub fn second_of(time: Timestamp) -> i64 {
    time.as_second() - i64::from(time.subsec_nanosecond() < 0)
}

/// Counts the items of one second from the first, and keeps the checksum of their ids.
#[derive(Debug)]
pub(super) struct Count {
    by: By,
    time: i64,
    /// The last position before the second.
    start: Seq,
    /// The last position that was counted.
    position: Seq,
    counted: u64,
    crc: crc32fast::Hasher,
    /// Whether an item that was counted had an earlier version within the same second.
    ///
    /// Then the same ids may have stood in the same places before that item changed, and the checksum could
    /// not tell a cursor from before the change from one after it: the change would be missed. Such cursors
    /// are not given, and not trusted when they come.
    ambiguous: bool,
}

/// How a count ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    /// Not yet: more is to be read.
    On,
    /// At the item that was looked for.
    Found,
    /// Without it.
    Ended,
}

impl Count {
    /// A count of the second `time`, before which `start` is the last position.
    pub(super) fn new(by: By, time: i64, start: Seq) -> Self {
        let crc = crc32fast::Hasher::new();
        Self { by, time, start, position: start, counted: 0, crc, ambiguous: false }
    }

    /// The next read, of at most so many items.
    pub(super) fn read(&self, wanted: u64) -> Read {
        let wanted = usize::try_from(wanted).unwrap_or(BATCH).min(BATCH);
        Read::Items {
            by: self.by,
            after: Some(self.position),
            before: None,
            descending: false,
            items: wanted,
            bytes: 16 << 20,
        }
    }

    /// Counts what was read, up to and with the first item that `is_last` says so of.
    pub(super) fn take(&mut self, changes: &[Change], is_last: impl Fn(&Self) -> bool) -> Counted {
        for change in changes {
            if second_of(self.by.time(change)) != self.time || self.counted > MAX_OFFSET {
                return Counted::Ended;
            }
            if self.counted > 0 {
                self.crc.update(b"_");
            }
            self.crc.update(change.item.id.as_bytes());
            self.position = self.by.position(change);
            self.counted += 1;
            let moved = self.by == By::Modified && change.previous > Some(self.start);
            self.ambiguous |= moved;
            if is_last(self) {
                return Counted::Found;
            }
        }
        if changes.is_empty() { Counted::Ended } else { Counted::On }
    }

    /// The last position before the second.
    pub(super) fn start(&self) -> Seq {
        self.start
    }

    /// The position of the last item that was counted.
    pub(super) fn position(&self) -> Seq {
        self.position
    }

    /// How many items were counted.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// The cursor of the last item that was counted; `None` where it could not be trusted.
    pub(super) fn toc(&self) -> Option<Toc> {
        let offset = self.counted.checked_sub(1).filter(|offset| *offset < MAX_OFFSET && !self.ambiguous)?;
        Some(Toc { time: self.time, offset, checksum: self.crc.clone().finalize() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::change;
    use super::*;

    fn count(changes: &[Change]) -> Count {
        let mut count = Count::new(By::Modified, second_of(changes[0].modified), changes[0].seq - 1);
        count.take(changes, |_| false);
        count
    }

    /// Cursors: "{T}_{O}_{C}", CRC-32 of the ids joined by "_".
    #[test]
    fn the_known_vectors() {
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
        assert_eq!(Toc::parse(text).unwrap().to_string(), text);
        for bad in ["", "_", "__", "1_2", "1_2_", "1_2_4294967296", "01_2_3", "1_+2_3", "a_1_2_3", "1_-2_3"] {
            assert_eq!(Toc::parse(bad), None, "{bad}");
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
    fn an_item_that_changed_within_its_second_makes_cursors_untrustworthy() {
        let mut again = change(3, "a", 5);
        again.previous = Some(1);
        let (mut count, changes) = (Count::new(By::Modified, 5, 0), [again.clone()]);
        count.take(&changes, |_| false);
        assert_eq!(count.toc(), None);
        // An earlier version in an earlier second is no matter, and nothing moves in the other order.
        let mut count = Count::new(By::Modified, 5, 2);
        count.take(&changes, |_| false);
        assert!(count.toc().is_some());
        again.first_seq = 1;
        let mut count = Count::new(By::Created, 5, 0);
        count.take(&[again], |_| false);
        assert!(count.toc().is_some());
    }
}
