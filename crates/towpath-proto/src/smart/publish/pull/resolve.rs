//! Resolves a position spec to a position in the order, by reads of the log.

use super::super::cursor::{self, LogTag, ParsedCursor};
use super::super::error::PullError;
use super::super::log_read::{LogRead, LogReadHead, LogReadResult};
use super::super::toc::{CountProgress, MAX_OFFSET, TocCounter, TocCursor};
use crate::change::Seq;
use crate::smart::wire::spec::{OrderBy, PositionSpec, TimeSpan};

/// End of the ascending order that a position limits. Both exclude the position itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeEnd {
    /// The range begins after the position.
    After,
    /// The range ends before the position.
    Before,
}

/// Context in which a spec is resolved.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResolveContext<'a> {
    pub(super) tag: &'a LogTag,
    pub(super) by: OrderBy,
    pub(super) end: RangeEnd,
    pub(super) head: LogReadHead,
}

/// A spec being resolved, by the purpose of the pending read.
#[derive(Debug)]
pub(super) enum PendingResolve {
    /// The last position before a time.
    Time,
    /// The item of an id.
    Id(String),
    /// The last position before the second of a T+O+C cursor.
    Second(TocCursor),
    /// The items of the second of a T+O+C cursor.
    Count(TocCursor, TocCounter),
}

/// Progress of resolving a spec.
#[derive(Debug)]
pub(super) enum ResolveProgress {
    /// A read is needed.
    Read(PendingResolve, LogRead),
    /// The position; `None` means no limit, because the cursor is unreadable or stale.
    At(Option<Seq>),
    /// A cursor of another log or order, or none at all: no limit.
    Unknown,
    /// A time after the log's head: changes appended before that time are not in the range.
    Ahead(TimeSpan),
}

impl ResolveContext<'_> {
    /// Starts to resolve a spec.
    pub(super) fn start(&self, spec: &PositionSpec) -> ResolveProgress {
        match spec {
            PositionSpec::Time(span) => self.time(*span),
            PositionSpec::Id(id) => {
                ResolveProgress::Read(PendingResolve::Id(id.clone()), LogRead::Latest(id.clone()))
            }
            PositionSpec::Cursor(text) => match cursor::read(text, self.tag, self.by) {
                Some(ParsedCursor::Toc(toc)) => self.toc(toc),
                Some(ParsedCursor::Sequence(seq) | ParsedCursor::Replay(seq, _)) if seq <= self.head.seq => {
                    ResolveProgress::At(Some(seq))
                }
                // Beyond the head: everything is sent again. An error would stop the client for good, and to skip would
                // lose items.
                Some(ParsedCursor::Sequence(_) | ParsedCursor::Replay(..)) => ResolveProgress::At(None),
                // Of another log or order, or truncated: likewise, and the client is told.
                None => ResolveProgress::Unknown,
            },
        }
    }

    /// Continues with the result of a read.
    pub(super) fn resume(
        &self,
        pending: PendingResolve,
        result: LogReadResult,
    ) -> Result<ResolveProgress, PullError> {
        match (pending, result) {
            (PendingResolve::Time, LogReadResult::Position(before)) => {
                Ok(ResolveProgress::At(Some(match self.end {
                    RangeEnd::After => before,
                    // The position is excluded, and the last change before the time is in the range.
                    RangeEnd::Before => before.saturating_add(1),
                })))
            }
            (PendingResolve::Id(id), LogReadResult::Item(found)) => match found {
                Some(change) => Ok(ResolveProgress::At(Some(self.by.position(&change)))),
                None => Err(PullError::UnknownId(id)),
            },
            (PendingResolve::Second(toc), LogReadResult::Position(start)) => {
                let count = TocCounter::new(self.by, toc.time, start);
                Ok(self.count(toc, count))
            }
            (PendingResolve::Count(toc, mut count), LogReadResult::Items(changes)) => {
                // Offsets begin at 0, so offset n is that of item n + 1.
                match count.add(&changes, |count| count.counted() > toc.offset) {
                    CountProgress::Incomplete => Ok(self.count(toc, count)),
                    // Equal checksums prove equal ids up to the offset; an ambiguous count has no cursor to compare.
                    CountProgress::Found if count.toc() == Some(toc) => {
                        Ok(ResolveProgress::At(Some(count.position())))
                    }
                    CountProgress::Found | CountProgress::Ended => Ok(self.mismatch(toc, &count)),
                }
            }
            _ => Err(PullError::UnexpectedResult),
        }
    }

    fn count(&self, toc: TocCursor, count: TocCounter) -> ResolveProgress {
        let read = count.read(toc.offset + 1 - count.counted());
        ResolveProgress::Read(PendingResolve::Count(toc, count), read)
    }

    fn time(&self, span: TimeSpan) -> ResolveProgress {
        let edge = match self.end {
            // Appends before that time would move its position, so it is not final yet.
            RangeEnd::After if !self.head.reaches(span.start) => return ResolveProgress::Ahead(span),
            RangeEnd::After => Some(span.start),
            RangeEnd::Before => span.end,
        };
        edge.map_or(ResolveProgress::At(None), |time| {
            ResolveProgress::Read(PendingResolve::Time, LogRead::LastBefore(time))
        })
    }

    /// Starts to resolve a T+O+C cursor. One beyond the head or the counting limit counts as its time.
    fn toc(&self, toc: TocCursor) -> ResolveProgress {
        match TimeSpan::second(toc.time) {
            None => ResolveProgress::At(None),
            Some(span) if toc.offset >= MAX_OFFSET || !self.head.reaches(span.start) => self.time(span),
            Some(span) => ResolveProgress::Read(PendingResolve::Second(toc), LogRead::LastBefore(span.start)),
        }
    }

    /// "If the result does not match C, then it should treat the position spec as if it were time:{T}."
    fn mismatch(&self, toc: TocCursor, count: &TocCounter) -> ResolveProgress {
        match (self.end, TimeSpan::second(toc.time)) {
            // The second was located already, so `time:{T}` needs no further read.
            (RangeEnd::After, _) => ResolveProgress::At(Some(count.start())),
            (RangeEnd::Before, Some(span)) => self.time(span),
            (RangeEnd::Before, None) => ResolveProgress::At(None),
        }
    }
}
