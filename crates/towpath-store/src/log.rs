//! Terms of a log: its head, the conditions of an append and its result, and the ranges of reads.

use jiff::Timestamp;
use towpath_proto::change::{Op, Seq};
use towpath_proto::feed_id::FeedId;

/// The end of a feed's log, and counts of its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogHead {
    /// Position of the last change; zero for a feed without changes.
    pub seq: Seq,
    /// Time of the last change; the Unix epoch for a feed without changes.
    pub modified: Timestamp,
    /// Number of ids in the feed, tombstones included.
    pub items: u64,
    /// Number of ids that are not deleted.
    pub live: u64,
    /// Position up to which the log is no longer whole: old versions and deletions were let go, and live items stay. Zero
    /// for a whole log.
    pub horizon: Seq,
}

impl LogHead {
    /// Head of a feed without changes.
    pub const EMPTY: Self = Self { seq: 0, modified: Timestamp::UNIX_EPOCH, items: 0, live: 0, horizon: 0 };
}

/// Entry of the list of all feeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSummary {
    /// Name of the feed.
    pub feed: FeedId,
    /// Head of its log.
    pub head: LogHead,
    /// Time of the last append here, by the store's clock. For a mirrored feed this is later than
    /// [`LogHead::modified`], which is the publisher's.
    pub appended: Timestamp,
}

/// Compare half of a compare-and-append.
///
/// ```
/// # use towpath_store::Expected;
/// // Appends only if the log still ends at position 41.
/// let expected = Expected::Last(41);
/// # let _ = expected;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Append at whatever position the log ends.
    Any,
    /// Append only if the log ends at this position.
    Last(Seq),
    /// Append only if the item of the batch's first change has its latest version at this position; with `None`, only
    /// if there is no such item, or it is deleted. An empty batch has no item, so its condition holds.
    Version(Option<Seq>),
}

/// Order of a feed's items, as opposed to its log: each id occurs once, at its latest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ItemOrder {
    /// By position of the first version: items keep their position.
    Created,
    /// By position of the latest version: a changed item moves to the end.
    Modified,
}

/// Range of positions along an [`ItemOrder`], and the direction to read it in.
///
/// Positions are positions of the log: of the first version for [`ItemOrder::Created`], of the latest version
/// for [`ItemOrder::Modified`].
///
/// ```
/// # use towpath_store::SeqRange;
/// // The newest items first, from the one before position 100.
/// let range = SeqRange { before: Some(100), descending: true, ..SeqRange::default() };
/// # assert_eq!(range.after, None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SeqRange {
    /// Exclusive lower bound.
    pub after: Option<Seq>,
    /// Exclusive upper bound.
    pub before: Option<Seq>,
    /// Read from the upper end towards the lower one.
    pub descending: bool,
}

/// Upper bound of one read. A read returns at least one change where there is one.
///
/// ```
/// # use towpath_store::ReadLimit;
/// assert_eq!(ReadLimit::items(500).items, 500);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimit {
    /// Number of changes.
    pub items: usize,
    /// Approximate bytes of stored records.
    pub bytes: usize,
}

impl ReadLimit {
    /// Limit of a number of changes, and of 64 MiB together.
    pub fn items(items: usize) -> Self {
        // A bound for memory: records can be up to 1 GiB.
        Self { items, bytes: 64 << 20 }
    }
}

/// Result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Position of the batch's first change; for an empty batch, the position that the next change will have.
    pub first: Seq,
    /// Head of the feed after the append. `head.seq` is the position of the batch's last change.
    pub head: LogHead,
    /// Changes of the batch by operation.
    pub ops: OpCounts,
}

/// Numbers of changes by operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// New and replaced items.
    pub puts: u64,
    /// Changed items.
    pub patches: u64,
    /// Deleted items.
    pub deletes: u64,
}

impl OpCounts {
    /// Counts a change.
    pub fn add(&mut self, op: Op) {
        *match op {
            Op::Put => &mut self.puts,
            Op::Patch => &mut self.patches,
            Op::Delete => &mut self.deletes,
        } += 1;
    }
}

impl FromIterator<Op> for OpCounts {
    fn from_iter<I: IntoIterator<Item = Op>>(ops: I) -> Self {
        let mut counts = Self::default();
        ops.into_iter().for_each(|op| counts.add(op));
        counts
    }
}
