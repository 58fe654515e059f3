//! The embedded backend: one storage engine in a data folder, opened by one process.
//!
//! - `decide`: positions, versions and preconditions of requests. Pure.
//! - `apply`: writes a decided group as one batch with one sync. `read` reads it, `verify` checks it.
//! - `notifier`: caches heads, runs hooks, wakes waiters.
//! - `commit`: the thread that takes all waiting requests through these three as one group.
//! - [`copy`]: a copy of everything, for backups, and a folder from one.
//! - [`command`], [`replica`]: the same three in the order of a cluster's log.
//! - `storage_engine`: opening it, and its keyspaces. `slot`: the engine that is in use; a failed write replaces it.
//! - `let_go`: retention of a log. `repair`: a new store from what a damaged one has.
//! - `keys`, `record`, `folder`, `journal_mark`, `journal_tail`: the stored format. `migration` brings earlier ones to it.

mod apply;
pub mod command;
mod commit;
mod commit_stats;
pub mod copy;
mod damage;
mod decide;
mod engine_error;
mod file_checksum;
mod folder;
mod journal_batches;
mod journal_mark;
mod journal_tail;
mod keys;
mod let_go;
mod migration;
mod notifier;
mod open_journal;
mod permissions;
mod precondition;
mod read;
mod record;
mod records;
mod repair;
pub mod replica;
mod slot;
mod storage_engine;
mod table_lists;
mod verify;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;

pub use self::folder::holder;
pub use self::repair::{FolderRepair, LostChange, RepairError, RepairReport};
pub use self::verify::{StoreProblem, VerifyProgress, VerifyReport};

use self::commit::{CommitRequest, Committer};
use self::commit_stats::CommitStats;
use self::copy::StoreCopy;
use self::damage::DamageLog;
use self::decide::Lookup;
use self::keys::FeedRow;
use self::notifier::Notifier;
use self::slot::EngineSlot;
use self::storage_engine::StorageEngine;
use crate::error::{ReadTarget, StorageError};
use crate::{
    AppendError, AppendHook, Appended, Expected, FeedSummary, ItemOrder, LogHead, OpenError, Precondition,
    ReadError, ReadLimit, SeqRange, Store, StoreDamage, StoreFailure, StoreStats, Table, TableHook,
    TableWrite, WallClock, WriteError,
};

/// Maximum length of a table's key, in bytes.
// The engine stores at most 65,535 bytes, of which the table's tag takes one.
pub const MAX_KEY_BYTES: usize = 65_000;

/// Options of an [`EmbeddedStore`].
#[derive(Clone)]
pub struct EmbeddedOptions {
    /// WallClock of appended changes.
    pub clock: WallClock,
    /// Memory for cached blocks, in bytes.
    pub cache: u64,
    /// Memory for log records that are not yet flushed to a table, in bytes. Each index gets a quarter of it.
    pub memtable: u64,
    /// Disk space of the engine's journals, in bytes, above which it flushes to shorten them. Opening after a
    /// crash reads them again. At least 64 MiB.
    pub journal: u64,
    /// Free disk space, in bytes, below which appends are refused.
    pub reserve: u64,
    /// Number of tables that are kept open, at one descriptor each. At least 10.
    pub max_files: usize,
    /// Number of feeds whose heads are cached, at about 150 bytes each.
    pub heads: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            clock: Arc::new(Timestamp::now),
            cache: 32 << 20,
            memtable: 16 << 20,
            journal: 128 << 20,
            reserve: 256 << 20,
            max_files: 900,
            heads: 50_000,
        }
    }
}

/// Store in a data folder.
///
/// Bounded reads run on the caller's thread: they take microseconds from the cache, else one disk access per
/// block. Reads without a limit run on a thread for blocking work.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use towpath_proto::{change::NewChange, feed_id::FeedId, item::Item};
/// use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
/// use towpath_store::{Expected, Store};
///
/// # let folder = tempfile::tempdir()?;
/// let store = EmbeddedStore::open(&folder, EmbeddedOptions::default())?;
/// let feed = FeedId::new("orders")?;
/// store.append(&feed, Expected::Any, vec![NewChange::put(Item::new("order-1"))]).await?;
/// assert_eq!(store.head(&feed).await?.live, 1);
/// store.close().await;
/// # Ok(())
/// # }
/// ```
pub struct EmbeddedStore {
    slot: Arc<EngineSlot>,
    stats: Arc<CommitStats>,
    notifier: Arc<Notifier>,
    damage: Arc<DamageLog>,
    /// `None` once closed.
    queue: Mutex<Option<mpsc::Sender<CommitRequest>>>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens the store in `folder`, which is created if needed.
    ///
    /// # Errors
    ///
    /// [`OpenError`] if another process has it open, if it cannot be written to, and if it is not a data folder of a
    /// known format.
    pub fn open(folder: impl AsRef<Path>, options: EmbeddedOptions) -> Result<Self, OpenError> {
        let path = folder.as_ref();
        let engine = Arc::new(StorageEngine::open(folder::DataFolder::open(path)?, &options)?);
        if engine.opened_as_replica()? {
            return Err(engine.refuse(
                "it is a cluster's replica, and writes to it alone would be lost; set [server] cluster",
            ));
        }
        let notifier = Arc::new(Notifier::new(options.heads));
        let (sender, receiver) = mpsc::channel(commit::QUEUE);
        let clock = options.clock.clone();
        let slot = EngineSlot::new(Arc::clone(&engine), Arc::clone(&notifier), path.to_owned(), options);
        let slot = Arc::new(slot);
        let stats = Arc::<CommitStats>::default();
        let (at, told, counted) = (Arc::clone(&slot), Arc::clone(&notifier), Arc::clone(&stats));
        let committer = Committer { slot: at, notifier: told, clock, stats: counted };
        let thread = std::thread::Builder::new().name("towpath-store".into());
        let thread = thread.spawn(move || committer.run(receiver));
        thread.map_err(|e| engine.refuse(&format!("cannot start the commit thread: {e}"))).map(|thread| {
            let (queue, committer) = (Mutex::new(Some(sender)), Mutex::new(Some(thread)));
            Self {
                slot,
                stats,
                notifier,
                damage: Arc::new(DamageLog::new(path.to_owned())),
                queue,
                committer,
            }
        })
    }

    /// Appends changes that another store decided, with their positions, times and hashes.
    ///
    /// # Errors
    ///
    /// [`AppendError::Conflict`] if a change does not follow the end of the log, and [`AppendError::Invalid`] if it does
    /// not follow its item's latest version here.
    pub async fn replicate(&self, feed: &FeedId, changes: Vec<Change>) -> Result<Appended, AppendError> {
        let name = feed.clone();
        let replicate = |reply| CommitRequest::Replicate { feed: name, changes, reply };
        self.request(replicate).await.map_err(|e| e.append_to(feed))?
    }

    /// Checks every index against the log, and the log against itself. Reads the whole store.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if the store cannot be read. What the check finds is no error.
    pub async fn verify(&self) -> Result<VerifyReport, ReadError> {
        self.verify_with(Arc::default()).await
    }

    /// Does what [`Self::verify`] does, and says how far it is.
    ///
    /// # Errors
    ///
    /// As [`Self::verify`].
    pub async fn verify_with(&self, progress: Arc<VerifyProgress>) -> Result<VerifyReport, ReadError> {
        let engine = self.engine()?;
        self.blocking(ReadTarget::Everything, move || engine.verify(&progress)).await
    }

    /// Rewrites all tables without what was removed, as far as the engine does. Returns the bytes on disk before and after.
    ///
    /// # Errors
    ///
    /// The engine's.
    pub async fn compact(&self) -> Result<(u64, u64), ReadError> {
        let engine = self.engine()?;
        self.blocking(ReadTarget::Everything, move || engine.compact()).await
    }

    /// Writes what the engine has in memory to tables. Nothing needs that to be durable: the journal is.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if a table cannot be written, or the store is closed.
    pub async fn flush(&self) -> Result<(), ReadError> {
        let engine = self.engine()?;
        self.blocking(ReadTarget::Everything, move || engine.flush()).await
    }

    fn engine(&self) -> Result<Arc<StorageEngine>, ReadError> {
        self.slot.engine()
    }

    fn feed(&self, engine: &StorageEngine, name: &FeedId) -> Result<Option<FeedRow>, ReadError> {
        let found = self.notifier.feed(name, || engine.feed(name));
        found.map_err(|e| self.damage.error(e, ReadTarget::Feed(name.clone())))
    }

    /// Reads from a feed; returns the default for a feed that does not exist.
    fn read_feed<T: Default>(
        &self,
        name: &FeedId,
        read: impl FnOnce(&StorageEngine, FeedRow) -> Result<T, StorageError>,
    ) -> Result<T, ReadError> {
        let engine = self.engine()?;
        match self.feed(&engine, name)? {
            Some(feed) => {
                read(&engine, feed).map_err(|e| self.damage.error(e, ReadTarget::Feed(name.clone())))
            }
            None => Ok(T::default()),
        }
    }

    /// Runs an unbounded read on the pool of blocking threads.
    async fn blocking<T: Send + 'static>(
        &self,
        target: ReadTarget,
        work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let done = tokio::task::spawn_blocking(work).await;
        let done =
            done.unwrap_or_else(|e| Err(StorageError::Read(format!("the reading thread has ended: {e}"))));
        done.map_err(|e| self.damage.error(e, target))
    }

    /// Returns an error if less space is free than is reserved.
    pub fn full_disk(&self) -> Option<String> {
        self.slot.engine().ok()?.full_disk()
    }

    /// Sends a request to the commit thread and waits for its reply.
    async fn request<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<T>) -> CommitRequest,
    ) -> Result<T, QueueError> {
        // A clone, and not the lock: a full queue makes senders wait, and closing must not wait for them.
        let queue = self.queue.lock().clone().ok_or(QueueError::Closed)?;
        let (reply, answer) = oneshot::channel();
        queue.send(make(reply)).await.map_err(|_| QueueError::NoThread)?;
        // The commit thread ends when all senders are gone: this one must not outlive the send.
        drop(queue);
        answer.await.map_err(|_| QueueError::NoThread)
    }
}

/// Failure to hand a request to the commit thread.
enum QueueError {
    Closed,
    NoThread,
}

/// Reason of the errors that follow a panic of the commit thread.
const NO_THREAD: &str = "the commit thread has ended; restart the process";

impl QueueError {
    fn append_to(self, feed: &FeedId) -> AppendError {
        match self {
            Self::Closed => AppendError::Closed,
            Self::NoThread => AppendError::Storage { feed: feed.clone(), reason: NO_THREAD.into() },
        }
    }
}

impl From<QueueError> for WriteError {
    fn from(error: QueueError) -> Self {
        match error {
            QueueError::Closed => Self::Closed,
            QueueError::NoThread => Self::Storage { reason: NO_THREAD.into() },
        }
    }
}

impl Drop for EmbeddedStore {
    /// Waits for the commit thread, so that the folder can be opened again at once.
    fn drop(&mut self) {
        // The only sender that lives on between requests: without it the commit thread ends.
        self.queue.lock().take();
        if let Some(thread) = self.committer.lock().take() {
            // The thread first applies everything that is still in the queue.
            drop(thread.join());
        }
        // Also keeps a recovery that sleeps from opening the folder again.
        drop(self.slot.close());
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError> {
        let changes = decide::prepare(feed, changes)?;
        let name = feed.clone();
        let append = |reply| CommitRequest::Append { feed: name, expected, changes, reply };
        self.request(append).await.map_err(|e| e.append_to(feed))?
    }

    async fn head(&self, feed: &FeedId) -> Result<LogHead, ReadError> {
        let engine = self.engine()?;
        Ok(self.feed(&engine, feed)?.map_or(LogHead::EMPTY, |feed| feed.head))
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, ReadError> {
        let engine = self.engine()?;
        self.blocking(ReadTarget::Feeds, move || engine.feed_names()).await
    }

    async fn heads(&self) -> Result<Vec<FeedSummary>, ReadError> {
        let engine = self.engine()?;
        self.blocking(ReadTarget::Feeds, move || engine.feed_heads()).await
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: ReadLimit) -> Result<Vec<Change>, ReadError> {
        self.read_feed(feed, |engine, feed| engine.changes(feed, after, limit))
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, ReadError> {
        self.read_feed(feed, |engine, feed| engine.change(feed, seq))
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, ReadError> {
        self.read_feed(feed, |engine, feed| engine.latest(feed.number, id))
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, ReadError> {
        self.read_feed(feed, |engine, feed| engine.last_before(feed, time))
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: ItemOrder,
        range: SeqRange,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, ReadError> {
        self.read_feed(feed, |engine, feed| engine.items(feed, order, range, limit))
    }

    async fn content_hashes(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<KnownItems, ReadError> {
        if ids.is_some() {
            return self.read_feed(feed, |engine, feed| engine.content_hashes(feed.number, ids));
        }
        let engine = self.engine()?;
        let Some(FeedRow { number, .. }) = self.feed(&engine, feed)? else { return Ok(KnownItems::new()) };
        self.blocking(ReadTarget::Feed(feed.clone()), move || engine.content_hashes(number, None)).await
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<LogHead, ReadError> {
        // Subscribe before reading the head: an append between the two is not missed.
        let mut waiter = self.notifier.subscribe(feed)?;
        let mut head = self.head(feed).await?;
        while head.seq <= after {
            head = waiter.appended().await?;
        }
        Ok(head)
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let target = || ReadTarget::Table(table, key.to_vec());
        self.engine()?.get(table, key).map_err(|e| self.damage.error(e, target()))
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let target = || ReadTarget::Table(table, prefix.to_vec());
        self.engine()?.scan(table, prefix, after, limit).map_err(|e| self.damage.error(e, target()))
    }

    async fn write(&self, writes: Vec<TableWrite>, conditions: Vec<Precondition>) -> Result<(), WriteError> {
        decide::check_keys(&writes)?;
        self.request(|reply| CommitRequest::Write { writes, conditions, reply }).await?
    }

    async fn let_go(&self, feed: &FeedId, horizon: Seq) -> Result<LogHead, WriteError> {
        let feed = feed.clone();
        self.request(|reply| CommitRequest::LetGo { feed, horizon, reply }).await?
    }

    fn on_append(&self, hook: AppendHook) {
        self.notifier.add_append_hook(hook);
    }

    fn on_table_write(&self, hook: TableHook) {
        self.notifier.add_table_hook(hook);
    }

    fn on_late_write(&self, hook: TableHook) {
        self.notifier.add_late_hook(hook);
    }

    fn failure(&self) -> Option<StoreFailure> {
        self.slot.failure()
    }

    fn stats(&self) -> Option<StoreStats> {
        let bytes = self.slot.engine().map_or(0, |engine| engine.disk_space());
        Some(self.stats.get(bytes))
    }

    fn damage(&self) -> Option<StoreDamage> {
        self.damage.found()
    }

    async fn flush_documents(&self) {
        // A failure shows in the next write.
        let Ok(engine) = self.engine() else { return };
        drop(tokio::task::spawn_blocking(move || engine.flush_documents()).await);
    }

    fn copy(&self) -> Result<Option<StoreCopy>, ReadError> {
        self.copy_now().map(Some)
    }

    async fn close(&self) {
        self.queue.lock().take();
        let thread = self.committer.lock().take();
        if let Some(thread) = thread {
            // A panic of that thread was already logged by the panic hook.
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
        // After the commit thread, whose last group still wakes its waiters with a head.
        self.notifier.close();
        let mut engine = self.slot.close();
        // Running reads finish first. Dropping the last reference closes the engine, which joins its own threads:
        // that must not happen on a runtime thread.
        while let Some(shared) = engine.take() {
            match Arc::try_unwrap(shared) {
                Ok(last) => drop(tokio::task::spawn_blocking(move || drop(last)).await),
                Err(shared) => {
                    engine = Some(shared);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }
}
