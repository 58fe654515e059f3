//! The ordered log of each feed, and what is kept beside it.
//!
//! Three things stand apart, so that a cluster's engine can take the first and leave the others: where an
//! append is *decided* (its place in the order), where it is *applied* (indexes and reads), and who is
//! *told* ([`Store::on_move`]).

#[cfg(any(test, feature = "battery"))]
pub mod battery;
pub mod embedded;
pub mod lease;
pub mod memory;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::diff::Known;
use towpath_proto::feed_id::FeedId;
use towpath_proto::patch::PatchError;

/// How far a feed's log reaches, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The last change's place; zero for a feed without changes.
    pub seq: Seq,
    /// The last change's time; the Unix epoch for a feed without changes.
    pub modified: Timestamp,
    /// How many ids the feed has, deleted ones (tombstones) included.
    pub items: u64,
    /// How many of them are not deleted.
    pub live: u64,
}

/// The head of a feed to which nothing was ever appended.
pub const EMPTY: Head = Head { seq: 0, modified: Timestamp::UNIX_EPOCH, items: 0, live: 0 };

/// A feed as the list of all feeds has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedHead {
    /// Its name.
    pub feed: FeedId,
    /// How far it reaches.
    pub head: Head,
    /// When its last change was appended here, by the store's clock: of a mirrored feed that is later than
    /// [`Head::modified`], which is its publisher's.
    pub appended: Timestamp,
}

/// What an append demands of the feed's last place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Nothing: append after whatever is there.
    Any,
    /// That it is just this.
    Last(Seq),
}

/// An order of a feed's items (not of its log): each id stands there once, at its latest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// By the place of its first version: items do not move.
    Created,
    /// By the place of its latest version: a changed item moves to the end.
    Modified,
}

/// A stretch of an order. Positions are places in the log: of the first version ([`Order::Created`]) or of
/// the latest ([`Order::Modified`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stretch {
    /// Only what stands after this position.
    pub after: Option<Seq>,
    /// Only what stands before this position.
    pub before: Option<Seq>,
    /// Begin at the far end and go backwards.
    pub descending: bool,
}

/// How much one read returns at the most. At least one change is returned where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How many changes.
    pub items: usize,
    /// How many bytes of stored records, about.
    pub bytes: usize,
}

impl Limit {
    /// So many changes, of whatever size up to 64 MiB together.
    pub fn items(items: usize) -> Self {
        Self { items, bytes: 64 << 20 }
    }
}

/// One of the tables beside the log. Keys are free bytes, ordered bytewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// What the engine knows of each source: validators, errors, schedule.
    Sources,
    /// The state of document chains (DiffDelta's cursors, snapshot lists) and their indexes.
    Chains,
    /// Whole immutable documents: archives, snapshots.
    Documents,
    /// Push subscriptions.
    Subscriptions,
    /// Leases: who does what only one may do.
    Leases,
}

/// One write to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Which table.
    pub table: Table,
    /// Which key.
    pub key: Vec<u8>,
    /// The new value; `None` removes the key.
    pub value: Option<Bytes>,
}

/// A condition on a table that a batch of writes may carry: the value must be just this when it is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Which table.
    pub table: Table,
    /// Which key.
    pub key: Vec<u8>,
    /// What must be there; `None`: nothing.
    pub value: Option<Bytes>,
}

/// Why a read or a write of a table failed. Always ours, never the peer's.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The engine below cannot write: a full disk, a folder that is read-only.
    #[error("the store cannot write: {0}")]
    Write(String),
    /// The engine below cannot read.
    #[error("the store cannot read: {0}")]
    Read(String),
    /// A stored record is not what was written.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// A [`Condition`] did not hold; nothing was written.
    #[error("somebody else was there first")]
    Condition,
    /// The engine cannot be reached, or refuses, for now. What was to be written was not acknowledged; whether
    /// it will be there is not known where `reason` does not say otherwise.
    #[error("the store takes no writes for now: {reason}")]
    Unavailable {
        /// What is wrong.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// The cluster's log cannot be followed, and what to do about it.
    #[error("cannot use the cluster at {address}: {reason}")]
    Cluster {
        /// Where it is.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store is being closed.
    #[error("the store is closed")]
    Closed,
    /// The store cannot be opened, and what to do about it.
    #[error("cannot open the data folder {folder}: {reason}")]
    Open {
        /// The folder.
        folder: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Why an append was refused. Nothing of its batch was appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The feed has moved on.
    #[error("expected the feed to end at {expected}, and it ends at {actual}")]
    Conflict {
        /// What [`Expected::Last`] said.
        expected: Seq,
        /// Where the feed ends.
        actual: Seq,
    },
    /// A change cannot be kept: the caller's fault.
    #[error("change {index} of the batch: {reason}")]
    Invalid {
        /// Which change of the batch, from 0.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A patch does not apply.
    #[error("change {index} of the batch: {source}")]
    Patch {
        /// Which change of the batch, from 0.
        index: usize,
        /// Why.
        source: PatchError,
    },
    /// The store's fault.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The place of the batch's first change; for an empty batch, the place that the next one will have.
    pub first: Seq,
    /// The feed as it then was; `head.seq` is the place of the batch's last change.
    pub head: Head,
}

/// Called with a feed and its new head after an append is durable and readable, and before it is
/// acknowledged. Runs on the store's own thread: short, and never blocking.
pub type OnMove = Arc<dyn Fn(&FeedId, Head) + Send + Sync>;

/// Called with the table and the key of what was written to a table or removed from it, once that can be read
/// and before it is acknowledged; of several writes to one key that are applied together, once for all. Runs on
/// the store's own thread: short, and never blocking.
pub type OnWrite = Arc<dyn Fn(Table, &[u8]) + Send + Sync>;

/// How far a replica is behind the log that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// When it last was known to have all that the log had, by this node's clock; `None`: not since it was
    /// opened.
    pub current_at: Option<Timestamp>,
    /// Why it is not current now, where that is known.
    pub problem: Option<String>,
}

/// Tells the time. May go backwards: the times of a log do not.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The log of each feed and the tables beside it.
///
/// An append is one atomic batch, acknowledged once it is durable; appends that come at the same time share
/// one sync. Readers see only what is durable. Feeds need no creation: one that was never appended to is
/// [`EMPTY`].
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Appends a batch to a feed: all of it, in order, or nothing. An empty batch appends nothing and
    /// returns the head.
    ///
    /// Of several reasons to refuse it, an invalid change comes before a conflict, and that before a patch
    /// that does not apply. After [`StoreError::Write`] the batch is not there; it may be, whole, once the
    /// store was opened again. Dropping the future does not take an append back.
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError>;

    /// How far a feed reaches.
    async fn head(&self, feed: &FeedId) -> Result<Head, StoreError>;

    /// Every feed that was ever appended to, in the order of their names.
    async fn feeds(&self) -> Result<Vec<FeedId>, StoreError>;

    /// The same feeds with their heads. Reads no log: a million feeds are one walk along their list.
    async fn heads(&self) -> Result<Vec<FeedHead>, StoreError>;

    /// Changes after a place of the log, ascending, with every version of every item.
    async fn read(&self, feed: &FeedId, after: Seq, limit: Limit) -> Result<Vec<Change>, StoreError>;

    /// The change at a place of the log.
    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, StoreError>;

    /// The latest version of an item, which may be its deletion.
    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, StoreError>;

    /// The last place whose change was made before `time`; zero if none was. Logarithmic.
    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, StoreError>;

    /// The latest version of items along an order, tombstones included.
    async fn items(
        &self,
        feed: &FeedId,
        order: Order,
        stretch: Stretch,
        limit: Limit,
    ) -> Result<Vec<Change>, StoreError>;

    /// The hash of every id of a feed, as [`towpath_proto::diff::diff`] wants them; `None` for a deleted one.
    /// With `ids`, only of those.
    async fn known(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<Known, StoreError>;

    /// Returns the head as soon as the feed reaches beyond `after`; at once if it does already. Waits for
    /// ever otherwise: the caller bounds it. Dropping the future ends the waiting.
    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<Head, StoreError>;

    /// A value of a table.
    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Keys of a table that begin with `prefix` and come after `after`, ascending, with their values.
    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError>;

    /// Writes to the tables: all, durably, or nothing; [`StoreError::Condition`] where a condition does not
    /// hold.
    async fn write(&self, writes: Vec<Write>, conditions: Vec<Condition>) -> Result<(), StoreError>;

    /// Has `hook` called for every append from now on. Several hooks are called in the order of their
    /// registration.
    fn on_move(&self, hook: OnMove);

    /// Has `hook` called for every write to the tables from now on, whichever node made it. Several hooks are
    /// called in the order of their registration.
    fn on_write(&self, hook: OnWrite);

    /// How far what is read here may be behind; `None` for a store that is the log itself.
    fn standing(&self) -> Option<Standing> {
        None
    }

    /// Asks for a role that only one node may have at a time. In a store that nobody else writes to it is held at
    /// once.
    fn hold(&self, role: &str) -> lease::Holding {
        lease::Holding::alone(role)
    }

    /// Acknowledges what is under way, refuses what comes later, and releases the engine.
    async fn close(&self);
}
