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
mod log;
pub mod memory;
mod status;
mod table;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;

use crate::embedded::copy::StoreCopy;
pub use crate::error::{AppendError, LeaseError, OpenError, ReadError, ReadTarget, ReplicaError, WriteError};
pub use crate::log::{Appended, Expected, FeedSummary, ItemOrder, LogHead, OpCounts, ReadLimit, SeqRange};
pub use crate::status::{
    LogSnapshot, LogStatus, LogUpkeepError, ReplicaStatus, StoreDamage, StoreFailure, StoreStats,
};
pub use crate::table::{Precondition, Table, TableWrite};

/// Hook that runs after an append is durable and readable, and before it is acknowledged.
///
/// It gets the feed, its new head, and what was appended. It runs on the store's own thread: it must be short and never block.
pub type AppendHook = Arc<dyn Fn(&FeedId, &Appended) + Send + Sync>;

/// Hook that runs after a table row was written or removed and is readable, before the acknowledgement.
///
/// Several writes to one key that are applied together cause one call. It runs on the store's own thread: it
/// must be short and never block.
pub type TableHook = Arc<dyn Fn(Table, &[u8]) + Send + Sync>;

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
