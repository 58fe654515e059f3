//! The program's embedded store, with its commit thread at the simulation's gate.
//!
//! Everything is the program's: deciding, applying, notifying, reading, and the storage engine with its files. Requests
//! to write wait here for the disk, and go to the commit thread as one group.

mod group;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{
    AppendError, AppendHook, Appended, Expected, FeedSummary, ItemOrder, LogHead, OpenError, Precondition,
    ReadError, ReadLimit, SeqRange, Store, StoreDamage, StoreFailure, StoreStats, Table, TableHook,
    TableWrite, WriteError,
};

use crate::bug::Bug;
use crate::disk::Disk;
use crate::gate::Stop;
use crate::recovery::RecoveryPause;
use crate::world::World;
use crate::{recovery, system};

/// Returns the number of the next change of any store.
fn next_step() -> u64 {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    STEPS.fetch_add(1, Ordering::Relaxed)
}

/// A request to the commit thread: makes its future, which sends its answer when the group is done.
type Request = Box<dyn FnOnce(Arc<EmbeddedStore>) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send>;
/// Sends the answer of a request.
type Reply = Box<dyn FnOnce() + Send>;

/// Store of a node.
pub struct SimulatedStore {
    inner: Mutex<Option<Arc<EmbeddedStore>>>,
    disk: Arc<Disk>,
    queue: Mutex<VecDeque<Request>>,
    queued: Notify,
    /// Number of the last change of what is stored.
    step: AtomicU64,
    /// State of this store and of the ledger that was compared last.
    compared: Mutex<Option<(u64, u64)>>,
    /// True while a group is being made durable.
    is_syncing: watch::Sender<bool>,
    /// True once the machine is off.
    is_off: watch::Sender<bool>,
    /// True from a failed write on, until the engine is open again.
    is_failed: AtomicBool,
    /// Notified when a write failed.
    failed: Notify,
    /// Pause of the thread that opens the engine again.
    pause: Mutex<Option<RecoveryPause>>,
    world: Arc<World>,
}

impl SimulatedStore {
    /// Opens the store on a disk.
    pub fn open(disk: Arc<Disk>, world: Arc<World>) -> Result<Arc<Self>, OpenError> {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let (gate, number) = (disk.gate.clone(), STORES.fetch_add(1, Ordering::Relaxed));
        let clock = move || {
            system::join_as_commit_thread(number);
            if system::is_commit_thread() {
                gate.arrive(Stop::Clock);
            }
            Timestamp::now()
        };
        let options = EmbeddedOptions {
            clock: Arc::new(clock),
            cache: 1 << 20,
            // The engine syncs its journal when it has written a full one to a table, at a moment of its own choice. What a
            // lost power leaves would depend on it. So none is ever full: see `FLUSH`.
            memtable: 1 << 30,
            reserve: 0,
            max_files: 50,
            heads: 1000,
            ..EmbeddedOptions::default()
        };
        let inner = system::run_apart(|| EmbeddedStore::open(disk.folder(), options));
        let inner = Arc::new(inner?);
        let (queue, queued, is_off) = (Mutex::default(), Notify::new(), watch::Sender::new(false));
        let (inner, is_syncing) = (Mutex::new(Some(inner)), watch::Sender::new(false));
        let (is_failed, failed, pause) = (AtomicBool::default(), Notify::new(), Mutex::default());
        let (step, compared) = (AtomicU64::new(next_step()), Mutex::default());
        let store = Self {
            inner,
            disk,
            queue,
            queued,
            step,
            compared,
            is_syncing,
            is_off,
            is_failed,
            failed,
            pause,
            world,
        };
        let store = Arc::new(store);
        tokio::spawn(group::run_disk(store.clone()));
        tokio::spawn(group::run_recoveries(store.clone()));
        Ok(store)
    }

    /// Returns once a group is being made durable.
    pub async fn syncing(&self) {
        let _ = self.is_syncing.subscribe().wait_for(|is_syncing| *is_syncing).await;
    }

    /// Turns the machine off: nothing is written from now on, and every call fails.
    pub fn turn_off(&self) {
        self.is_off.send_replace(true);
        self.queue.lock().clear();
        if !self.disk.gate.turn_off() {
            return;
        }
        let Some(inner) = self.inner.lock().clone() else { return };
        // The thread that would open the engine again is taken now: the next one that pauses is another store's.
        while inner.failure().is_none() {
            system::let_others_work();
        }
        self.note_failure();
    }

    /// Closes the engine of a machine that is off, and removes its files.
    pub fn remove(&self) {
        // The last reference: calls under way have ended with the machine.
        drop(self.inner.lock().take());
        // Only now: a thread that would open the engine again finds it closed, and ends.
        drop(self.pause.lock().take());
        self.disk.remove();
    }

    /// Checks every index against the log.
    pub fn verify(&self) -> Result<Vec<String>, String> {
        let inner = self.inner().map_err(|e| e.to_string())?;
        let report = block_on(inner.verify()).map_err(|e| e.to_string())?;
        Ok(report.problems.iter().map(ToString::to_string).collect())
    }

    /// Writes a row of the simulation's own, as a look whether the store takes writes.
    pub async fn probe(&self) -> Result<(), WriteError> {
        let row = TableWrite { table: Table::Chains, key: b"simulation".into(), value: Some(Bytes::new()) };
        self.write(vec![row], Vec::new()).await
    }

    /// Returns the number of the last change of what is stored. No other store has it.
    pub fn step(&self) -> u64 {
        self.step.load(Ordering::Relaxed)
    }

    fn note_change(&self) {
        self.step.store(next_step(), Ordering::Relaxed);
    }

    /// Notes that the store and the ledger are compared now. Returns true if neither has changed since the last time.
    pub fn is_compared(&self, ledger: u64) -> bool {
        let now = Some((self.step(), ledger));
        std::mem::replace(&mut *self.compared.lock(), now) == now
    }

    /// Returns the program's store.
    pub fn whole(&self) -> Arc<EmbeddedStore> {
        self.inner.lock().clone().expect("the engine is there until it is removed")
    }

    fn inner(&self) -> Result<Arc<EmbeddedStore>, ReadError> {
        let inner = self.inner.lock().clone().filter(|_| !*self.is_off.borrow());
        inner.ok_or(ReadError::Closed)
    }

    /// Takes the thread that opens the engine again after a failed write: its pause takes simulated time.
    fn note_failure(&self) {
        // At once: the next thread that pauses may be another store's.
        if !self.is_failed.swap(true, Ordering::Relaxed) {
            *self.pause.lock() = Some(recovery::next_pause());
            self.failed.notify_one();
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.world.has(bug)
    }

    /// Has the commit thread do a request; `None` once the machine is off.
    async fn request<T: Send + 'static, F>(
        &self,
        call: impl FnOnce(Arc<EmbeddedStore>) -> F + Send + 'static,
    ) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let is_off = self.is_off.subscribe();
        if *is_off.borrow() {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let request: Request = Box::new(move |store| {
            Box::pin(call(store).map(|result| -> Reply { Box::new(move || drop(sender.send(result))) }))
        });
        self.queue.lock().push_back(request);
        self.queued.notify_one();
        tokio::select! {
            biased;
            () = off(is_off) => None,
            answer = answer => answer.ok(),
        }
    }
}

/// Returns once the machine is off.
async fn off(mut is_off: watch::Receiver<bool>) {
    let _ = is_off.wait_for(|is_off| *is_off).await;
}

/// Runs a future that other threads complete, while this thread waits.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

#[async_trait]
impl Store for SimulatedStore {
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError> {
        let expected = if self.has(Bug::IgnoreExpected) { Expected::Any } else { expected };
        let feed = feed.clone();
        let call =
            move |store: Arc<EmbeddedStore>| async move { store.append(&feed, expected, changes).await };
        self.request(call).await.unwrap_or(Err(AppendError::Closed))
    }

    async fn head(&self, feed: &FeedId) -> Result<LogHead, ReadError> {
        self.inner()?.head(feed).await
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, ReadError> {
        let inner = self.inner()?;
        block_on(inner.feeds())
    }

    async fn heads(&self) -> Result<Vec<FeedSummary>, ReadError> {
        let inner = self.inner()?;
        block_on(inner.heads())
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: ReadLimit) -> Result<Vec<Change>, ReadError> {
        self.inner()?.read(feed, after, limit).await
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, ReadError> {
        self.inner()?.change(feed, seq).await
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, ReadError> {
        self.inner()?.latest(feed, id).await
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, ReadError> {
        self.inner()?.last_before(feed, time).await
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: ItemOrder,
        range: SeqRange,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, ReadError> {
        self.inner()?.items(feed, order, range, limit).await
    }

    async fn content_hashes(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<KnownItems, ReadError> {
        let inner = self.inner()?;
        block_on(inner.content_hashes(feed, ids))
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<LogHead, ReadError> {
        let inner = self.inner()?;
        let is_off = self.is_off.subscribe();
        tokio::select! {
            biased;
            () = off(is_off) => Err(ReadError::Closed),
            head = inner.wait(feed, after) => head,
        }
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner()?.get(table, key).await
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.inner()?.scan(table, prefix, after, limit).await
    }

    async fn write(&self, writes: Vec<TableWrite>, conditions: Vec<Precondition>) -> Result<(), WriteError> {
        let call = move |store: Arc<EmbeddedStore>| async move { store.write(writes, conditions).await };
        self.request(call).await.unwrap_or(Err(WriteError::Closed))
    }

    async fn let_go(&self, feed: &FeedId, horizon: Seq) -> Result<LogHead, WriteError> {
        let feed = feed.clone();
        let call = move |store: Arc<EmbeddedStore>| async move { store.let_go(&feed, horizon).await };
        self.request(call).await.unwrap_or(Err(WriteError::Closed))
    }

    fn on_append(&self, hook: AppendHook) {
        let Ok(inner) = self.inner() else { return };
        if !self.has(Bug::LoseHook) {
            return inner.on_append(hook);
        }
        let world = self.world.clone();
        inner.on_append(Arc::new(move |feed: &FeedId, appended: &Appended| {
            if !world.one_in(20) {
                hook(feed, appended);
            }
        }));
    }

    fn on_table_write(&self, hook: TableHook) {
        if let Ok(inner) = self.inner() {
            inner.on_table_write(hook);
        }
    }

    fn on_late_write(&self, hook: TableHook) {
        if let Ok(inner) = self.inner() {
            inner.on_late_write(hook);
        }
    }

    fn failure(&self) -> Option<StoreFailure> {
        let failure = self.inner().ok()?.failure()?;
        self.note_failure();
        Some(failure)
    }

    fn stats(&self) -> Option<StoreStats> {
        // Times of the disk are the machine's, which differ from run to run.
        None
    }

    fn damage(&self) -> Option<StoreDamage> {
        self.inner().ok()?.damage()
    }

    async fn close(&self) {}
}
