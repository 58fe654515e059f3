//! The cluster backend of the store: NATS JetStream is the log of record, and every node has a replica of it.
//!
//! The log holds *requests* in one order. Every node applies them in that order with the code of the embedded store.
//! So all nodes decide alike which append came first and whose precondition held. `ARCHITECTURE.md` has the reasons
//! for this design and its guarantees.
//!
//! Publishing:
//!
//! - `request_queue`: requests of callers. `producer`: requests into messages, and replies.
//! - `in_flight`: the window of published messages. Pure.
//!
//! Applying:
//!
//! - `consumer`: messages from the log. `apply`: messages into the replica.
//! - `sessions`: deduplication of messages. Pure.
//!
//! Beside them:
//!
//! - `address`: the address. `stream`: the log's stream. `open`: opening a node. `error`: its errors.
//! - `snapshots`: snapshots of replicas, from which new nodes begin. `upkeep`: writing them, and removing messages that
//!   they cover. `retention`: when. Pure. `nodes`: live nodes and their positions.
//! - `level`: feature levels, by which nodes of two versions decide alike.
//! - `lease`: leases of roles that one node at a time may hold. Its `keeper` is pure.
//! - `frame`, `checkpoint`: stored formats. `health`: lag and problems of a node.
//!
//! # Example
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use towpath_cluster::{ClusterAddress, ClusterOptions, ClusterStore};
//! use towpath_store::Store;
//!
//! // Needs a NATS server with JetStream: `nats-server --jetstream`.
//! let address = ClusterAddress::parse("nats://127.0.0.1:4222")?;
//! let store = ClusterStore::open(&address, "replica", ClusterOptions::default()).await?;
//! println!("{} feeds", store.feeds().await?.len());
//! store.close().await;
//! # Ok(())
//! # }
//! ```

mod address;
mod answer_confirmation;
mod apply;
mod checkpoint;
mod consumer;
mod error;
mod frame;
mod health;
mod in_flight;
mod lease;
mod level;
mod nodes;
mod open;
mod producer;
mod request_queue;
mod retention;
mod sessions;
mod snapshots;
mod stream;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::command::LogCommand;
use towpath_store::embedded::copy::StoreCopy;
use towpath_store::embedded::{EmbeddedStore, VerifyReport};
use towpath_store::lease::{Lease, LeaseHandle};
use towpath_store::{
    AppendError, AppendHook, Appended, Expected, FeedSummary, ItemOrder, LogHead, LogStatus, LogUpkeepError,
    Precondition, ReadError, ReadLimit, ReplicaStatus, SeqRange, Store, StoreDamage, StoreFailure,
    StoreStats, Table, TableHook, TableWrite, WriteError,
};

pub use crate::address::ClusterAddress;
pub use crate::error::ClusterError;
use crate::health::NodeHealth;
use crate::lease::RoleRequests;
pub use crate::level::SUPPORTED;
use crate::producer::ReplySender;
use crate::request_queue::RequestQueue;
pub use crate::snapshots::SnapshotOptions;
use crate::upkeep::LogUpkeep;

/// Options of a [`ClusterStore`].
#[derive(Clone)]
pub struct ClusterOptions {
    /// Options of this node's replica. Its clock sets the times of changes.
    pub replica: towpath_store::embedded::EmbeddedOptions,
    /// Time after which a request that the cluster did not acknowledge fails, with [`AppendError::Refused`]
    /// or [`AppendError::UnknownOutcome`].
    pub timeout: Duration,
    /// Time that opening waits for the cluster. After it, a node with an existing replica opens for reads.
    pub connect_timeout: Duration,
    /// Time that opening waits for the cluster where there is no replica yet, so that nothing could be served.
    pub first_connect_timeout: Duration,
    /// Snapshots from which a new node begins. Without them it needs the whole log.
    pub snapshots: Option<SnapshotOptions>,
    /// Highest feature level that this node supports. Tests play an older version with a lower one.
    pub supported_level: u8,
    /// Highest feature level to which this node raises the cluster.
    pub max_level: u8,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        // A replica does not sync, so its cost is the engine's flushes: a larger memtable makes them fewer.
        let memtable = 64 << 20;
        Self {
            replica: towpath_store::embedded::EmbeddedOptions { memtable, ..Default::default() },
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            first_connect_timeout: Duration::from_secs(10),
            snapshots: None,
            supported_level: SUPPORTED,
            max_level: SUPPORTED,
        }
    }
}

/// Store of a node in a cluster. Reads use the node's replica; writes go through the log.
pub struct ClusterStore {
    replica: Arc<EmbeddedStore>,
    health: Arc<NodeHealth>,
    requests: Arc<RequestQueue>,
    roles: RoleRequests,
    upkeep: LogUpkeep,
    supported: u8,
    /// Tells the applying thread to leave what was read ahead.
    closing: Arc<AtomicBool>,
    running: Mutex<Option<StoreTasks>>,
}

/// Time that closing waits for the cluster: to release roles, and for requests that are left.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Tasks of an open store.
struct StoreTasks {
    producer: JoinHandle<()>,
    leases: JoinHandle<()>,
    /// Consumer, watch of the log's end, and answers to other nodes.
    consuming: Vec<JoinHandle<()>>,
    applier: std::thread::JoinHandle<()>,
}

impl ClusterStore {
    /// Checks every index of this node's replica. Reads the whole replica.
    ///
    /// # Errors
    ///
    /// [`ReadError`] where the replica cannot be read. Damage that can be read over is in the report.
    pub async fn verify(&self) -> Result<VerifyReport, ReadError> {
        self.replica.verify().await
    }

    /// Returns a copy of this node's replica as it is now.
    ///
    /// # Errors
    ///
    /// [`ReadError`] where the replica cannot be read.
    pub fn copy_replica(&self) -> Result<StoreCopy, ReadError> {
        self.replica.copy_now()
    }

    /// Returns the sequence number up to which this node has applied the cluster's log.
    pub fn position(&self) -> u64 {
        *self.health.position().borrow()
    }
}

#[async_trait]
impl Store for ClusterStore {
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError> {
        // Encoded on the caller's thread: the producer only concatenates.
        let command = LogCommand::append(feed, expected, changes)?;
        let name = feed.clone();
        let reply = |sender| ReplySender::Append(name, sender);
        self.requests.request(&command, reply).await.map_err(|e| e.append_to(feed))?
    }

    async fn head(&self, feed: &FeedId) -> Result<LogHead, ReadError> {
        self.replica.head(feed).await
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, ReadError> {
        self.replica.feeds().await
    }

    async fn heads(&self) -> Result<Vec<FeedSummary>, ReadError> {
        self.replica.heads().await
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: ReadLimit) -> Result<Vec<Change>, ReadError> {
        self.replica.read(feed, after, limit).await
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, ReadError> {
        self.replica.change(feed, seq).await
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, ReadError> {
        self.replica.latest(feed, id).await
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, ReadError> {
        self.replica.last_before(feed, time).await
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: ItemOrder,
        range: SeqRange,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, ReadError> {
        self.replica.items(feed, order, range, limit).await
    }

    async fn content_hashes(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<KnownItems, ReadError> {
        self.replica.content_hashes(feed, ids).await
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<LogHead, ReadError> {
        self.replica.wait(feed, after).await
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.replica.get(table, key).await
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.replica.scan(table, prefix, after, limit).await
    }

    async fn write(&self, writes: Vec<TableWrite>, conditions: Vec<Precondition>) -> Result<(), WriteError> {
        let command = LogCommand::write(writes, conditions)?;
        self.requests.request(&command, ReplySender::Write).await?
    }

    fn on_append(&self, hook: AppendHook) {
        self.replica.on_append(hook);
    }

    fn on_table_write(&self, hook: TableHook) {
        self.replica.on_table_write(hook);
    }

    fn acquire_lease(&self, role: &str) -> LeaseHandle {
        self.roles.acquire_lease(role)
    }

    fn replica_status(&self) -> Option<ReplicaStatus> {
        Some(self.health.replica_status())
    }

    async fn keep_log(&self, lease: &Lease) -> Result<(), LogUpkeepError> {
        self.upkeep.run(lease).await
    }

    async fn log_status(&self) -> Option<LogStatus> {
        let log = self.health.log().unwrap_or_default();
        Some(LogStatus {
            first: log.first_sequence,
            last: log.last_sequence,
            messages: log.messages,
            bytes: log.bytes,
            applied: self.position(),
            level: self.health.level(),
            supported_level: self.supported,
            snapshot: upkeep::last_snapshot(&self.replica).await,
        })
    }

    fn failure(&self) -> Option<StoreFailure> {
        self.health.failure(self.replica.full_disk())
    }

    async fn flush_documents(&self) {
        self.replica.flush_documents().await;
    }

    fn stats(&self) -> Option<StoreStats> {
        self.replica.stats()
    }

    fn damage(&self) -> Option<StoreDamage> {
        self.replica.damage()
    }

    fn bound_writes(&self, limit: Duration) {
        self.requests.end_at(Instant::now() + limit);
    }

    async fn close(&self) {
        let running = self.running.lock().take();
        self.requests.end_at(Instant::now() + CLOSE_TIMEOUT);
        // Ends the lease task, which releases all roles.
        self.roles.close();
        if let Some(StoreTasks { producer, leases, consuming, applier }) = running {
            // Leases first: releasing them is a last request, after which other nodes take over at once.
            ended(leases, "releases of roles").await;
            self.requests.close();
            // Pending requests get their replies first.
            ended(producer, "requests").await;
            for task in consuming {
                task.abort();
                drop(task.await);
            }
            // The next process reads again what was read ahead.
            self.closing.store(true, Ordering::Release);
            drop(tokio::task::spawn_blocking(move || applier.join()).await);
        }
        self.replica.close().await;
    }
}

/// Waits for a task of a store that closes. A cluster that does not answer must not keep the process.
async fn ended(mut task: JoinHandle<()>, what: &str) {
    // Longer than the deadlines of its requests, which have better errors.
    if timeout(CLOSE_TIMEOUT * 2, &mut task).await.is_err() {
        tracing::warn!(what, "not answered by the cluster before the store closed");
        task.abort();
    }
}

impl Drop for ClusterStore {
    fn drop(&mut self) {
        if let Some(StoreTasks { producer, leases, consuming, applier }) = self.running.lock().take() {
            producer.abort();
            leases.abort();
            consuming.iter().for_each(JoinHandle::abort);
            // The thread ends by itself, once the aborted consumer has dropped its channel. Joining would block.
            drop(applier);
        }
    }
}
