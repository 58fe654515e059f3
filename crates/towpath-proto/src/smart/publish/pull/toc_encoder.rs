//! Encodes the T+O+C cursor of an item, by counting the items of its second up to it.

use super::super::cursor::LogTag;
use super::super::log_read::LogRead;
use super::super::toc::{CountProgress, MAX_OFFSET, TocCounter, second_of};
use crate::change::{Change, Seq};
use crate::smart::wire::spec::OrderBy;

/// Encoder of the cursor of a page's last item.
#[derive(Debug)]
pub(super) struct TocEncoder {
    by: OrderBy,
    time: i64,
    position: Seq,
    count: Option<TocCounter>,
    found: bool,
}

impl TocEncoder {
    /// Creates the encoder and its first read: the last position before the item's second.
    pub(super) fn new(by: OrderBy, change: &Change) -> (Self, LogRead) {
        let time = second_of(by.time(change));
        let encoder = Self { by, time, position: by.position(change), count: None, found: false };
        // Every second that holds an item begins at a valid timestamp, except the very first one.
        let start = jiff::Timestamp::from_second(time).unwrap_or(jiff::Timestamp::MIN);
        (encoder, LogRead::LastBefore(start))
    }

    /// Handles the last position before the item's second, and returns the next read.
    pub(super) fn started(mut self, start: Seq) -> (Self, Option<LogRead>) {
        let count = TocCounter::new(self.by, self.time, start);
        let read = count.read(self.limit(&count));
        self.count = Some(count);
        (self, Some(read))
    }

    /// Handles items of the second, and returns the next read if the item is not among them.
    pub(super) fn counted(mut self, changes: &[Change]) -> (Self, Option<LogRead>) {
        let position = self.position;
        let Some(count) = &mut self.count else { return (self, None) };
        let progress = count.add(changes, |count| count.position() >= position);
        // Found only after the position: the item has moved since it was read.
        self.found = progress == CountProgress::Found && count.position() == position;
        let is_done = progress != CountProgress::Incomplete || count.counted() > MAX_OFFSET;
        let read = (!is_done).then(|| self.count.as_ref().map(|count| count.read(self.limit(count))));
        (self, read.flatten())
    }

    /// Returns the number of items to read: at most the positions up to the item.
    fn limit(&self, count: &TocCounter) -> u64 {
        // At least one: a read of nothing would look like the end.
        self.position.saturating_sub(count.position()).clamp(1, MAX_OFFSET + 1)
    }

    /// Returns the T+O+C cursor if it is unambiguous, else a sequence cursor, which every feed accepts.
    ///
    /// A cursor is ambiguous if too many items share the second, or if one of them has moved meanwhile.
    pub(super) fn cursor(&self, tag: &LogTag) -> String {
        let toc = self.count.as_ref().filter(|_| self.found).and_then(TocCounter::toc);
        toc.map_or_else(|| tag.cursor(self.by, self.position), |toc| toc.to_string())
    }
}
