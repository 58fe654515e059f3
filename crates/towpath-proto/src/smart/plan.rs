//! What answering a pull request needs to know of the log: reads, and their answers.
//!
//! The pure side says what to read; whoever has the log reads it. Every read is bounded, and so is the number
//! of reads for one answer.

use jiff::Timestamp;

use super::spec::By;
use crate::change::{Change, Seq};

/// One read of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// How far it reaches: [`Answer::Head`].
    Head,
    /// The last place whose change was made before this time, zero if none was: [`Answer::Place`].
    LastBefore(Timestamp),
    /// The latest version of the item with this id: [`Answer::Item`].
    Latest(String),
    /// The latest version of items along an order, tombstones included: [`Answer::Items`].
    Items {
        /// What the order goes by.
        by: By,
        /// Only what stands after this position.
        after: Option<Seq>,
        /// Only what stands before this position.
        before: Option<Seq>,
        /// Begin at the far end and go backwards.
        descending: bool,
        /// How many at the most.
        items: usize,
        /// How many bytes of records at the most, about. At least one item where there is one.
        bytes: usize,
    },
}

/// How far a log reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The last change's place; zero for an empty log.
    pub seq: Seq,
    /// The last change's time; the Unix epoch for an empty log.
    pub modified: Timestamp,
    /// How many ids there are, deleted ones included.
    pub items: u64,
}

impl Head {
    /// Whether the log has a change of this time or a later one. Then what comes before that time is settled: a
    /// change never has an earlier time than the one before it.
    pub fn reaches(&self, time: Timestamp) -> bool {
        self.seq > 0 && self.modified >= time
    }
}

/// What was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// For [`Read::Head`].
    Head(Head),
    /// For [`Read::LastBefore`].
    Place(Seq),
    /// For [`Read::Latest`].
    Item(Option<Box<Change>>),
    /// For [`Read::Items`].
    Items(Vec<Change>),
}
