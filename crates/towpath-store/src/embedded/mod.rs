//! The embedded backend: one engine, in the data folder, opened by one process.
//!
//! - [`decide`]: which place in the order a change takes. Pure.
//! - [`apply`]: what was decided goes into the engine as one batch with one sync. [`read`] reads it.
//! - [`tell`]: heads in memory, hooks, and those who wait.
//! - [`commit`]: the thread that takes all waiting requests through these three as one group.
//! - [`command`], [`replica`]: the same three with another thread's order, for a node of a cluster.
//! - [`keys`], [`record`], [`folder`]: the stored format, drawn.

mod apply;
pub mod command;
mod commit;
mod decide;
mod demand;
mod folder;
mod keys;
mod read;
mod record;
mod records;
pub mod replica;
mod tell;
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
use towpath_proto::diff::Known;
use towpath_proto::feed_id::FeedId;

pub use self::verify::Verification;

use self::apply::Engine;
use self::commit::{Committer, Known as Stored, Request};
use self::decide::Lookup;
use self::keys::Feed;
use self::tell::Tell;
use crate::{
    AppendError, Appended, Clock, Condition, EMPTY, Expected, FeedHead, Head, Limit, OnMove, OnWrite, Order,
    Store, StoreError, Stretch, Table, Write,
};

/// The longest key of a table, in bytes.
pub const MAX_KEY_BYTES: usize = 65_000;

/// How an [`EmbeddedStore`] is opened.
#[derive(Clone)]
pub struct Options {
    /// What time it is.
    pub clock: Clock,
    /// Memory for blocks read from disk, in bytes.
    pub cache: u64,
    /// Memory for what was written to the log and is not yet in its place on disk, in bytes; each index
    /// has a quarter of that.
    pub memtable: u64,
    /// Disk space of the engine's journals, in bytes, from which on it makes them shorter. Opening after a
    /// crash reads them again. At least 64 MiB.
    pub journal: u64,
    /// Free disk space, in bytes, below which nothing is appended.
    pub reserve: u64,
    /// How many feeds' heads are kept in memory, about 150 bytes each.
    pub heads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(Timestamp::now),
            cache: 32 << 20,
            memtable: 16 << 20,
            journal: 128 << 20,
            reserve: 256 << 20,
            heads: 50_000,
        }
    }
}

/// The store in a data folder.
///
/// Reads run on the caller's thread: they take microseconds, or as long as the disk takes, and as much as
/// their limit allows. Only what has no limit goes to a thread for blocking work.
pub struct EmbeddedStore {
    /// `None` once closed.
    engine: Mutex<Option<Arc<Engine>>>,
    tell: Arc<Tell>,
    /// `None` once closed.
    queue: Mutex<Option<mpsc::Sender<Request>>>,
    committer: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens the store in `folder`, which is made where it is not there.
    ///
    /// Fails with [`StoreError::Open`] where another process has it open, where it cannot be written to,
    /// and where it is not a data folder that this version knows.
    pub fn open(folder: impl AsRef<Path>, options: Options) -> Result<Self, StoreError> {
        let folder = folder::Folder::open(folder.as_ref())?;
        let engine = Arc::new(Engine::open(folder, &options)?);
        if engine.is_replica()? {
            return Err(engine.refuse("it is a cluster's replica: what is written here alone would be lost"));
        }
        let tell = Arc::new(Tell::new(options.heads));
        let (sender, receiver) = mpsc::channel(commit::QUEUE);
        let committer = Committer {
            known: Stored { engine: Arc::clone(&engine), tell: Arc::clone(&tell) },
            clock: options.clock,
        };
        let thread = std::thread::Builder::new().name("towpath-store".into());
        let thread = thread.spawn(move || committer.run(receiver));
        let thread = thread.map_err(|e| StoreError::Write(format!("no thread for writing: {e}")))?;
        Ok(Self {
            engine: Mutex::new(Some(engine)),
            tell,
            queue: Mutex::new(Some(sender)),
            committer: Mutex::new(Some(thread)),
        })
    }

    /// Takes changes over that were decided elsewhere, with their places, times and hashes: a replica's way
    /// to append. Each must follow the feed's last place, else [`AppendError::Conflict`], and the version of
    /// its item that is here, else [`AppendError::Invalid`].
    pub async fn replicate(&self, feed: &FeedId, changes: Vec<Change>) -> Result<Appended, AppendError> {
        let feed = feed.clone();
        self.request(|reply| Request::Replicate { feed, changes, reply }).await?
    }

    /// Checks every index against the log, and the log against itself. Takes as long as reading everything.
    pub async fn verify(&self) -> Result<Verification, StoreError> {
        let engine = self.engine()?;
        blocking(move || engine.verify()).await
    }

    fn engine(&self) -> Result<Arc<Engine>, StoreError> {
        self.engine.lock().clone().ok_or(StoreError::Closed)
    }

    fn feed(&self, engine: &Engine, name: &FeedId) -> Result<Option<Feed>, StoreError> {
        self.tell.feed(name, || engine.feed(name))
    }

    /// Reads from a feed; from one that is not there, `T`'s default.
    fn read_feed<T: Default>(
        &self,
        name: &FeedId,
        read: impl FnOnce(&Engine, Feed) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let engine = self.engine()?;
        match self.feed(&engine, name)? {
            Some(feed) => read(&engine, feed),
            None => Ok(T::default()),
        }
    }

    /// Hands a request to the writing thread and waits for its answer.
    async fn request<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, StoreError> {
        let queue = self.queue.lock().clone().ok_or(StoreError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let gone = || StoreError::Write("the writing thread has ended".into());
        queue.send(make(reply)).await.map_err(|_| gone())?;
        drop(queue);
        answer.await.map_err(|_| gone())
    }
}

impl Drop for EmbeddedStore {
    /// Waits for the writing thread, so that the folder can be opened again at once.
    fn drop(&mut self) {
        self.queue.lock().take();
        if let Some(thread) = self.committer.lock().take() {
            drop(thread.join());
        }
    }
}

/// Runs what may take long on a thread for that.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| StoreError::Read(format!("the reading thread has ended: {e}")))?
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError> {
        let changes = decide::prepare(changes)?;
        let feed = feed.clone();
        self.request(|reply| Request::Append { feed, expected, changes, reply }).await?
    }

    async fn head(&self, feed: &FeedId) -> Result<Head, StoreError> {
        let engine = self.engine()?;
        Ok(self.feed(&engine, feed)?.map_or(EMPTY, |feed| feed.head))
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, StoreError> {
        let engine = self.engine()?;
        blocking(move || engine.feed_names()).await
    }

    async fn heads(&self) -> Result<Vec<FeedHead>, StoreError> {
        let engine = self.engine()?;
        blocking(move || engine.feed_heads()).await
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: Limit) -> Result<Vec<Change>, StoreError> {
        self.read_feed(feed, |engine, feed| engine.changes(feed, after, limit))
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, StoreError> {
        self.read_feed(feed, |engine, feed| engine.change(feed, seq))
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, StoreError> {
        self.read_feed(feed, |engine, feed| engine.latest(feed.number, id))
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, StoreError> {
        self.read_feed(feed, |engine, feed| engine.last_before(feed.number, time))
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: Order,
        stretch: Stretch,
        limit: Limit,
    ) -> Result<Vec<Change>, StoreError> {
        self.read_feed(feed, |engine, feed| engine.items(feed.number, order, stretch, limit))
    }

    async fn known(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<Known, StoreError> {
        if ids.is_some() {
            return self.read_feed(feed, |engine, feed| engine.known(feed.number, ids));
        }
        let engine = self.engine()?;
        let Some(feed) = self.feed(&engine, feed)? else { return Ok(Known::new()) };
        blocking(move || engine.known(feed.number, None)).await
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<Head, StoreError> {
        // First a place among those who wait, then a look: a move between the two is not missed.
        let mut waiter = self.tell.join(feed)?;
        let mut head = self.head(feed).await?;
        while head.seq <= after {
            head = waiter.moved().await?;
        }
        Ok(head)
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.engine()?.get(table, key)
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.engine()?.scan(table, prefix, after, limit)
    }

    async fn write(&self, writes: Vec<Write>, conditions: Vec<Condition>) -> Result<(), StoreError> {
        decide::check_keys(&writes)?;
        self.request(|reply| Request::Write { writes, conditions, reply }).await?
    }

    fn on_move(&self, hook: OnMove) {
        self.tell.add_hook(hook);
    }

    fn on_write(&self, hook: OnWrite) {
        self.tell.add_write_hook(hook);
    }

    async fn close(&self) {
        self.queue.lock().take();
        let thread = self.committer.lock().take();
        if let Some(thread) = thread {
            // A panic of that thread was logged by its hook and concerns nobody any more.
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
        self.tell.end();
        let mut engine = self.engine.lock().take();
        // Reads that are under way come to their end first; the last one to let go closes the engine, which
        // waits for its own threads.
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
