//! The cluster backend of the store: NATS JetStream is the log of record, and every node keeps a replica of it.
//!
//! The log holds *requests* in one order. Every node applies them, in that order, with the same code to its embedded
//! store, so every node decides the same: which append was first, whose condition held. See `ARCHITECTURE.md`.
//!
//! - [`address`]: where the cluster is. [`stream`]: its log, made and checked.
//! - [`publish`]: requests into messages. [`window`]: what is on its way. Pure: the window.
//! - [`follow`]: messages from the log. [`apply`]: messages into the replica. [`sessions`]: which count. Pure: the last.
//! - [`lease`]: who does what only one node may do. Pure: its keeper.
//! - [`frame`], [`notes`]: what is stored, drawn. [`health`]: how the node stands with the log.

mod address;
mod apply;
mod follow;
mod frame;
mod health;
mod lease;
mod notes;
mod open;
mod publish;
mod requests;
mod sessions;
mod stream;
mod window;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::diff::Known;
use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::command::Command;
use towpath_store::embedded::{EmbeddedStore, Verification};
use towpath_store::lease::Holding;
use towpath_store::{
    AppendError, Appended, Condition, Expected, FeedHead, Head, Limit, OnMove, OnWrite, Order, Standing,
    Store, StoreError, Stretch, Table, Write,
};

pub use crate::address::Address;
use crate::health::Health;
use crate::lease::Roles;
use crate::publish::Reply;
use crate::requests::Requests;

/// How a [`ClusterStore`] is opened.
#[derive(Clone)]
pub struct Options {
    /// Of this node's replica. Its clock gives changes their times.
    pub replica: towpath_store::embedded::Options,
    /// How long a request may wait for the cluster before it is answered with [`StoreError::Unavailable`].
    pub patience: Duration,
    /// How long opening may wait for the cluster. A node that has a replica is opened then all the same, and reads
    /// from that.
    pub connecting: Duration,
}

impl Default for Options {
    fn default() -> Self {
        // Replicas do not sync what they apply, so that what they cost is the engine's flushes: fewer and larger ones.
        let memtable = 64 << 20;
        Self {
            replica: towpath_store::embedded::Options { memtable, ..Default::default() },
            patience: Duration::from_secs(5),
            connecting: Duration::from_secs(10),
        }
    }
}

/// A node's store in a cluster.
pub struct ClusterStore {
    replica: Arc<EmbeddedStore>,
    health: Arc<Health>,
    requests: Arc<Requests>,
    roles: Roles,
    running: Mutex<Option<Running>>,
}

/// What works for an open store.
struct Running {
    publisher: JoinHandle<()>,
    leases: JoinHandle<()>,
    /// The follower and its watch.
    following: Vec<JoinHandle<()>>,
    applier: std::thread::JoinHandle<()>,
}

impl ClusterStore {
    /// Checks every index of this node's replica. Takes as long as reading everything.
    pub async fn verify(&self) -> Result<Verification, StoreError> {
        self.replica.verify().await
    }

    /// The place in the cluster's log up to which this node has applied everything.
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
        let command = Command::append(feed, expected, changes)?;
        self.requests.ask(&command, Reply::Append).await?
    }

    async fn head(&self, feed: &FeedId) -> Result<Head, StoreError> {
        self.replica.head(feed).await
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, StoreError> {
        self.replica.feeds().await
    }

    async fn heads(&self) -> Result<Vec<FeedHead>, StoreError> {
        self.replica.heads().await
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: Limit) -> Result<Vec<Change>, StoreError> {
        self.replica.read(feed, after, limit).await
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, StoreError> {
        self.replica.change(feed, seq).await
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, StoreError> {
        self.replica.latest(feed, id).await
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, StoreError> {
        self.replica.last_before(feed, time).await
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: Order,
        stretch: Stretch,
        limit: Limit,
    ) -> Result<Vec<Change>, StoreError> {
        self.replica.items(feed, order, stretch, limit).await
    }

    async fn known(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<Known, StoreError> {
        self.replica.known(feed, ids).await
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<Head, StoreError> {
        self.replica.wait(feed, after).await
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.replica.get(table, key).await
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.replica.scan(table, prefix, after, limit).await
    }

    async fn write(&self, writes: Vec<Write>, conditions: Vec<Condition>) -> Result<(), StoreError> {
        let command = Command::write(writes, conditions)?;
        self.requests.ask(&command, Reply::Write).await?
    }

    fn on_move(&self, hook: OnMove) {
        self.replica.on_move(hook);
    }

    fn on_write(&self, hook: OnWrite) {
        self.replica.on_write(hook);
    }

    fn hold(&self, role: &str) -> Holding {
        self.roles.hold(role)
    }

    fn standing(&self) -> Option<Standing> {
        Some(self.health.standing())
    }

    async fn close(&self) {
        let running = self.running.lock().take();
        self.roles.close();
        if let Some(Running { publisher, leases, following, applier }) = running {
            // First the roles, so that others take them at once; that is a last request.
            drop(leases.await);
            self.requests.close();
            // What is under way comes to its end first; that is bounded by the requests' deadlines.
            drop(publisher.await);
            for task in following {
                task.abort();
                drop(task.await);
            }
            drop(tokio::task::spawn_blocking(move || applier.join()).await);
        }
        self.replica.close().await;
    }
}

impl Drop for ClusterStore {
    fn drop(&mut self) {
        if let Some(Running { publisher, leases, following, applier }) = self.running.lock().take() {
            publisher.abort();
            leases.abort();
            following.iter().for_each(JoinHandle::abort);
            // The thread ends once the follower, which is being stopped, has let go of its end.
            drop(applier);
        }
    }
}
