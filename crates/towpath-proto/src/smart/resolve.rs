//! From a position spec to a position of the order: which reads it takes, and what it degrades to.

use super::cursor::{self, Cursor, LogTag};
use super::plan::{Answer, Head, Read};
use super::pull::PullError;
use super::spec::{By, Span, Spec};
use super::toc::{Count, Counted, MAX_OFFSET, Toc};
use crate::change::Seq;

/// Which end of the ascending order a position limits. Both leave the position itself out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Only what comes after it.
    After,
    /// Only what comes before it.
    Before,
}

/// What resolving a spec goes by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) tag: &'a LogTag,
    pub(super) by: By,
    pub(super) end: End,
    pub(super) head: Head,
}

/// A spec being resolved: what the read under way is for.
#[derive(Debug)]
pub(super) enum Resolve {
    /// Of a time: the last place before it.
    Time,
    /// Of an id: its item.
    Id(String),
    /// Of a T+O+C cursor: the last place before its second.
    Second(Toc),
    /// Of a T+O+C cursor: the items of its second.
    Count(Toc, Count),
}

/// How far resolving has come.
#[derive(Debug)]
pub(super) enum Progress {
    /// This is to be read.
    Read(Resolve, Read),
    /// Here it is; `None`: no limit, because the cursor cannot be read or is stale.
    At(Option<Seq>),
    /// After everything that there is, at a time that the log has yet to come to: what is appended before then does
    /// not count.
    Ahead(Span),
}

impl Context<'_> {
    /// Begins to resolve a spec.
    pub(super) fn start(&self, spec: &Spec) -> Progress {
        match spec {
            Spec::Time(span) => self.time(*span),
            Spec::Id(id) => Progress::Read(Resolve::Id(id.clone()), Read::Latest(id.clone())),
            Spec::Cursor(text) => match cursor::read(text, self.tag, self.by) {
                Some(Cursor::Sequence(seq)) if seq <= self.head.seq => Progress::At(Some(seq)),
                Some(Cursor::Toc(toc)) => self.toc(toc),
                // Of another log or order, cut off, or from the future: everything is sent again.
                Some(Cursor::Sequence(_)) | None => Progress::At(None),
            },
        }
    }

    /// Goes on with what was read.
    pub(super) fn go_on(&self, resolve: Resolve, answer: Answer) -> Result<Progress, PullError> {
        match (resolve, answer) {
            (Resolve::Time, Answer::Place(before)) => Ok(Progress::At(Some(match self.end {
                End::After => before,
                End::Before => before.saturating_add(1),
            }))),
            (Resolve::Id(id), Answer::Item(found)) => match found {
                Some(change) => Ok(Progress::At(Some(self.by.position(&change)))),
                None => Err(PullError::UnknownId(id)),
            },
            (Resolve::Second(toc), Answer::Place(start)) => {
                let count = Count::new(self.by, toc.time, start);
                Ok(self.count(toc, count))
            }
            (Resolve::Count(toc, mut count), Answer::Items(changes)) => {
                match count.take(&changes, |count| count.counted() > toc.offset) {
                    Counted::On => Ok(self.count(toc, count)),
                    Counted::Found if count.toc() == Some(toc) => Ok(Progress::At(Some(count.position()))),
                    Counted::Found | Counted::Ended => Ok(self.mismatch(toc, &count)),
                }
            }
            _ => Err(PullError::Answer),
        }
    }

    fn count(&self, toc: Toc, count: Count) -> Progress {
        let read = count.read(toc.offset + 1 - count.counted());
        Progress::Read(Resolve::Count(toc, count), read)
    }

    fn time(&self, span: Span) -> Progress {
        let edge = match self.end {
            End::After if !self.head.reaches(span.start) => return Progress::Ahead(span),
            End::After => Some(span.start),
            End::Before => span.end,
        };
        edge.map_or(Progress::At(None), |time| Progress::Read(Resolve::Time, Read::LastBefore(time)))
    }

    /// A T+O+C cursor. One from the future, or beyond the limit, is read as its time without being counted.
    fn toc(&self, toc: Toc) -> Progress {
        match Span::second(toc.time) {
            None => Progress::At(None),
            Some(span) if toc.offset >= MAX_OFFSET || !self.head.reaches(span.start) => self.time(span),
            Some(span) => Progress::Read(Resolve::Second(toc), Read::LastBefore(span.start)),
        }
    }

    /// "If the result does not match C, then it should treat the position spec as if it were time:{T}."
    fn mismatch(&self, toc: Toc, count: &Count) -> Progress {
        match (self.end, Span::second(toc.time)) {
            (End::After, _) => Progress::At(Some(count.start())),
            (End::Before, Some(span)) => self.time(span),
            (End::Before, None) => Progress::At(None),
        }
    }
}
