//! Reads of the log that a pull request needs, and their results.
//!
//! The pure side requests a read; the caller performs it on the store. Every read is bounded, and so is the number of
//! reads for one page.

use jiff::Timestamp;

use crate::change::{Change, Seq};
use crate::smart::wire::spec::OrderBy;

/// A read of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRead {
    /// The head of the log: [`LogReadResult::Head`].
    Head,
    /// Position of the last change made before this time, zero if there is none: [`LogReadResult::Position`].
    LastBefore(Timestamp),
    /// The latest version of the item with this id: [`LogReadResult::Item`].
    Latest(String),
    /// The latest version of items along an order, tombstones included: [`LogReadResult::Items`].
    Items {
        /// The sort key of the order.
        by: OrderBy,
        /// Only items after this position.
        after: Option<Seq>,
        /// Only items before this position.
        before: Option<Seq>,
        /// True to read from the end backwards.
        descending: bool,
        /// Maximum number of items.
        items: usize,
        /// Approximate maximum of record bytes. At least one item is read if there is one.
        bytes: usize,
    },
}

/// Head of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogReadHead {
    /// Position of the last change; zero for an empty log.
    pub seq: Seq,
    /// Time of the last change; the Unix epoch for an empty log.
    pub modified: Timestamp,
    /// Number of ids, including deleted items.
    pub items: u64,
    /// Position up to which old versions and deletions were let go; zero for a whole log.
    pub horizon: Seq,
}

impl LogReadHead {
    /// Returns true if the log has a change at this time or later.
    ///
    /// Then the positions before that time are final, because times never decrease along the log.
    pub fn reaches(&self, time: Timestamp) -> bool {
        self.seq > 0 && self.modified >= time
    }
}

/// Result of a [`LogRead`].
#[derive(Debug, Clone, PartialEq)]
pub enum LogReadResult {
    /// For [`LogRead::Head`].
    Head(LogReadHead),
    /// For [`LogRead::LastBefore`].
    Position(Seq),
    /// For [`LogRead::Latest`].
    Item(Option<Box<Change>>),
    /// For [`LogRead::Items`].
    Items(Vec<Change>),
}
