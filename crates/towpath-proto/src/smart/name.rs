//! Giving an item its T+O+C cursor: a count of the items of its second, up to it.

use super::cursor::LogTag;
use super::plan::Read;
use super::spec::By;
use super::toc::{Count, Counted, MAX_OFFSET, second_of};
use crate::change::{Change, Seq};

/// The last item of a page on its way to a cursor.
#[derive(Debug)]
pub(super) struct Naming {
    by: By,
    time: i64,
    position: Seq,
    count: Option<Count>,
    found: bool,
}

impl Naming {
    /// Begins with the read of the last place before the item's second.
    pub(super) fn new(by: By, change: &Change) -> (Self, Read) {
        let time = second_of(by.time(change));
        let naming = Self { by, time, position: by.position(change), count: None, found: false };
        // A second that holds an item begins within what a timestamp can say, but for the very first.
        let start = jiff::Timestamp::from_second(time).unwrap_or(jiff::Timestamp::MIN);
        (naming, Read::LastBefore(start))
    }

    /// The last place before the item's second was read.
    pub(super) fn started(mut self, start: Seq) -> (Self, Option<Read>) {
        let count = Count::new(self.by, self.time, start);
        let read = count.read(self.wanted(&count));
        self.count = Some(count);
        (self, Some(read))
    }

    /// Items of the second were read.
    pub(super) fn counted(mut self, changes: &[Change]) -> (Self, Option<Read>) {
        let position = self.position;
        let Some(count) = &mut self.count else { return (self, None) };
        let end = count.take(changes, |count| count.position() >= position);
        self.found = end == Counted::Found && count.position() == position;
        let over = end != Counted::On || count.counted() > MAX_OFFSET;
        let read = (!over).then(|| self.count.as_ref().map(|count| count.read(self.wanted(count))));
        (self, read.flatten())
    }

    /// No more items than there are places up to the one looked for.
    fn wanted(&self, count: &Count) -> u64 {
        self.position.saturating_sub(count.position()).clamp(1, MAX_OFFSET + 1)
    }

    /// The T+O+C cursor, where it can be trusted when it comes back; a sequence cursor, which every feed
    /// understands, where too many items share the second, or one of them has moved meanwhile.
    pub(super) fn cursor(&self, tag: &LogTag) -> String {
        let toc = self.count.as_ref().filter(|_| self.found).and_then(Count::toc);
        toc.map_or_else(|| tag.cursor(self.by, self.position), |toc| toc.to_string())
    }
}
