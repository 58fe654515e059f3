//! Ordered, durable logs, one per feed, and tables beside them.
//!
//! [`Store`] is the contract: atomic batches appended to a feed's log, reads by position, id, time and item
//! order, a wait for the next append, and conditional writes to key-value tables. Three backends implement it:
//!
//! - [`embedded::EmbeddedStore`]: one storage engine in a data folder that one process has open.
//! - `towpath_cluster::ClusterStore`: many nodes on one NATS JetStream log, each with an embedded replica.
//! - [`memory::MemoryStore`]: a slow model in memory, for tests.
//!
//! A backend does three things, which the embedded one keeps in separate modules: it *decides* an append (its
//! positions in the log), *applies* it (records and indexes), and *notifies* readers, hooks and waiters. A
//! cluster orders requests in its own log and reuses all three. The feature `conformance` has the test suite
//! that every backend passes.
//!
//! # Example
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use towpath_proto::change::NewChange;
//! use towpath_proto::feed_id::FeedId;
//! use towpath_proto::item::Item;
//! use towpath_store::memory::MemoryStore;
//! use towpath_store::{Expected, ReadLimit, Store};
//!
//! let store = MemoryStore::new(std::sync::Arc::new(jiff::Timestamp::now));
//! let feed = FeedId::new("orders")?;
//! let put = NewChange::put(Item::new("order-1"));
//! let appended = store.append(&feed, Expected::Last(0), vec![put]).await?;
//! assert_eq!(appended.head.seq, 1);
//!
//! let changes = store.read(&feed, 0, ReadLimit::items(100)).await?;
//! assert_eq!(changes[0].item.id, "order-1");
//! # Ok(())
//! # }
//! ```

pub mod backup;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
mod error;
pub mod lease;
pub mod memory;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::change::{Change, NewChange, Op, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;

use crate::embedded::copy::StoreCopy;
pub use crate::error::{AppendError, LeaseError, OpenError, ReadError, ReadTarget, ReplicaError, WriteError};

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

/// Table beside the logs. Keys are arbitrary bytes, ordered bytewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// State of each source: validators, errors, schedule.
    Sources,
    /// State and indexes of document chains: DiffDelta's cursors, snapshot lists.
    Chains,
    /// Whole immutable documents: archives, snapshots.
    Documents,
    /// Push subscriptions.
    Subscriptions,
    /// Leases of the roles that one node at a time may hold.
    Leases,
}

impl Table {
    /// Name of the table in errors and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sources => "sources",
            Self::Chains => "chains",
            Self::Documents => "documents",
            Self::Subscriptions => "subscriptions",
            Self::Leases => "leases",
        }
    }
}

/// Write of one key of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableWrite {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` removes the key.
    pub value: Option<Bytes>,
}

/// Condition of a batch of table writes: the row must have this value when the batch is applied.
///
/// ```
/// # use towpath_store::{Precondition, Table};
/// // The batch creates the row: it must not exist yet.
/// let absent = Precondition { table: Table::Chains, key: b"orders".to_vec(), value: None };
/// # let _ = absent;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The expected value; `None` expects no row.
    pub value: Option<Bytes>,
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

/// Hook that runs after an append is durable and readable, and before it is acknowledged.
///
/// It gets the feed, its new head, and what was appended. It runs on the store's own thread: it must be short and never block.
pub type AppendHook = Arc<dyn Fn(&FeedId, &Appended) + Send + Sync>;

/// Hook that runs after a table row was written or removed and is readable, before the acknowledgement.
///
/// Several writes to one key that are applied together cause one call. It runs on the store's own thread: it
/// must be short and never block.
pub type TableHook = Arc<dyn Fn(Table, &[u8]) + Send + Sync>;

/// Lag of a replica behind the log that it applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Last time, by this node's clock, at which the replica had the whole log; `None` if not since it was opened.
    pub current_at: Option<Timestamp>,
    /// Known reason why it is not current now.
    pub problem: Option<String>,
}

/// State of the log that a replica applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStatus {
    /// Sequence number of the oldest message that the log still has.
    pub first: u64,
    /// Sequence number of the newest message.
    pub last: u64,
    /// Number of messages.
    pub messages: u64,
    /// Size of the messages, in bytes.
    pub bytes: u64,
    /// Sequence number up to which this node has applied the log.
    pub applied: u64,
    /// Feature level of the cluster.
    pub level: u8,
    /// Highest feature level that this node supports.
    pub supported_level: u8,
    /// Last snapshot, from which new nodes begin.
    pub snapshot: Option<LogSnapshot>,
}

/// Snapshot of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSnapshot {
    /// Sequence number of the last message that it covers.
    pub sequence: u64,
    /// Time at which it was begun.
    pub made: Timestamp,
}

/// Failure of the log's upkeep. The next pass tries again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LogUpkeepError(pub String);

/// Reason why nothing can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFailure {
    /// Error of the write or the flush that failed, or the free space.
    pub reason: String,
    /// The store does not recover by itself: the process has to be restarted.
    pub is_final: bool,
    /// The disk is full. Writes go on by themselves once there is space.
    pub is_full: bool,
}

/// Damaged data that reads have met since the store was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreDamage {
    /// Number of reads that failed for it.
    pub reads: u64,
    /// Error of the first one, with the folder.
    pub first: String,
}

/// Commits since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Groups of requests, each with one sync.
    pub groups: u64,
    /// Appends and writes in these groups.
    pub requests: u64,
    /// Time of writing and syncing.
    pub commit_time: std::time::Duration,
    /// Groups that could not be written.
    pub errors: u64,
    /// Size of the store on disk in bytes.
    pub bytes: u64,
}

/// Wall clock. It may jump backwards; times of a log never do.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Logs of all feeds, and the tables beside them.
///
/// An append is one atomic batch, acknowledged once it is durable. Concurrent appends share one sync. Readers
/// see only durable changes. Feeds need no creation: a feed that was never appended to has the head
/// [`LogHead::EMPTY`].
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Appends a batch to a feed: all changes in order, or none. An empty batch appends nothing and returns
    /// the head.
    ///
    /// Of several reasons to refuse it, [`AppendError::Invalid`] comes before [`AppendError::Conflict`], and
    /// that before [`AppendError::Patch`]. After [`AppendError::Storage`] the batch cannot be read; it may be
    /// there, whole, once the store is opened again. Dropping the future does not undo the append.
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError>;

    /// Returns the head of a feed's log.
    async fn head(&self, feed: &FeedId) -> Result<LogHead, ReadError>;

    /// Returns every feed that was ever appended to, ordered by name.
    async fn feeds(&self) -> Result<Vec<FeedId>, ReadError>;

    /// Returns [`Self::feeds`] with their heads. Reads no log: a million feeds cost one scan of the list.
    async fn heads(&self) -> Result<Vec<FeedSummary>, ReadError>;

    /// Returns the changes after a position of the log, ascending, with every version of every item.
    async fn read(&self, feed: &FeedId, after: Seq, limit: ReadLimit) -> Result<Vec<Change>, ReadError>;

    /// Returns the change at a position of the log.
    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, ReadError>;

    /// Returns the latest version of an item, which may be a tombstone.
    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, ReadError>;

    /// Returns the position of the last change made before `time`; zero if there is none. Takes logarithmic time.
    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, ReadError>;

    /// Returns the latest version of items along an order, tombstones included.
    async fn items(
        &self,
        feed: &FeedId,
        order: ItemOrder,
        range: SeqRange,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, ReadError>;

    /// Returns the content hash of every id of a feed, or of `ids` only; `None` for a deleted id. The result
    /// is the input of [`towpath_proto::diff::diff`].
    async fn content_hashes(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<KnownItems, ReadError>;

    /// Waits until the feed reaches beyond `after`, and returns its head; at once if it already does.
    ///
    /// It has no timeout: the caller sets one. Dropping the future ends the wait.
    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<LogHead, ReadError>;

    /// Returns a value of a table.
    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// Returns keys of a table that begin with `prefix` and follow `after`, ascending, with their values.
    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError>;

    /// Writes to the tables durably: all rows or none. Fails with [`WriteError::Precondition`] where a
    /// condition does not hold.
    async fn write(&self, writes: Vec<TableWrite>, conditions: Vec<Precondition>) -> Result<(), WriteError>;

    /// Lets go of what the log has up to a position: versions that a later one up to there replaced, and deletions. The
    /// latest version of each live item stays where it is, and so does everything after the position.
    ///
    /// A call does a bounded part of it. The horizon of the returned head says how far it came. The last change of a
    /// log always stays. A store that cannot let go keeps everything.
    async fn let_go(&self, feed: &FeedId, _horizon: Seq) -> Result<LogHead, WriteError> {
        Ok(self.head(feed).await?)
    }

    /// Registers a hook for every later append. Hooks run in the order of their registration.
    fn on_append(&self, hook: AppendHook);

    /// Registers a hook for every later write to the tables, whichever node made it. Hooks run in the order of
    /// their registration.
    fn on_table_write(&self, hook: TableHook);

    /// Registers a hook for every later write to the tables that is stored although its caller got an error.
    ///
    /// The hooks of [`Self::on_table_write`] run for it as well. A process that makes all writes itself needs only these:
    /// of all others its callers know. A store whose errors are certain has no such writes.
    fn on_late_write(&self, hook: TableHook) {
        drop(hook);
    }

    /// Returns the lag of this store behind its log; `None` for a store that is the log itself.
    fn replica_status(&self) -> Option<ReplicaStatus> {
        None
    }

    /// Does what is due for the log that this store replicates: a snapshot, and removal of the messages that snapshots
    /// cover. Call it again and again while this node holds the role of the lease.
    async fn keep_log(&self, _lease: &lease::Lease) -> Result<(), LogUpkeepError> {
        Ok(())
    }

    /// Returns the state of the log that this store replicates; `None` for a store that is the log itself.
    async fn log_status(&self) -> Option<LogStatus> {
        None
    }

    /// Returns why nothing can be written: an earlier write or flush failed, or the disk is full. It touches the disk.
    fn failure(&self) -> Option<StoreFailure> {
        None
    }

    /// Returns counts of what was committed, and the size of the store. `None` if it does not count.
    fn stats(&self) -> Option<StoreStats> {
        None
    }

    /// Returns the damaged data that reads have met since the store was opened.
    fn damage(&self) -> Option<StoreDamage> {
        None
    }

    /// Requests the lease of a role that one node at a time may hold. A store with a single writer grants it
    /// at once.
    fn acquire_lease(&self, role: &str) -> lease::LeaseHandle {
        lease::LeaseHandle::alone(role)
    }

    /// Waits until documents that were written are no longer held in memory. Writers of gigabytes call it between their
    /// writes. A store that keeps up by itself need not wait.
    async fn flush_documents(&self) {}

    /// Returns a copy of the whole store as it is now; `None` for a store that is not copied by itself, as a node of a
    /// cluster.
    fn copy(&self) -> Result<Option<StoreCopy>, ReadError> {
        Ok(None)
    }

    /// Bounds the writes before [`Self::close`]: one that waits for other processes fails after this time. A store that
    /// waits for nobody needs no bound.
    fn bound_writes(&self, limit: Duration) {
        let _ = limit;
    }

    /// Acknowledges pending requests, refuses later ones, and releases the engine.
    async fn close(&self);
}
