//! The program's embedded store, with its commit thread at the simulation's gate.
//!
//! Everything is the program's: deciding, applying, notifying, reading, and the storage engine with its files. Requests
//! to write wait here for the disk, and go to the commit thread as one group.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

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
use crate::gate::{Progress, Stop, Verdict};
use crate::world::World;
use crate::{system, trace, trace::count};

/// Groups after one of which the engine writes what it has in memory to tables.
const FLUSH: u64 = 300;

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
    /// True while a group is being made durable.
    is_syncing: watch::Sender<bool>,
    /// True once the machine is off.
    is_off: watch::Sender<bool>,
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
        let store = Arc::new(Self { inner, disk, queue, queued, is_syncing, is_off, world });
        tokio::spawn(run_disk(store.clone()));
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
        self.disk.gate.turn_off();
    }

    /// Closes the engine of a machine that is off, and removes its files.
    pub fn remove(&self) {
        // The last reference: calls under way have ended with the machine.
        drop(self.inner.lock().take());
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

    /// Returns the program's store.
    pub fn whole(&self) -> Arc<EmbeddedStore> {
        self.inner.lock().clone().expect("the engine is there until it is removed")
    }

    fn inner(&self) -> Result<Arc<EmbeddedStore>, ReadError> {
        let inner = self.inner.lock().clone().filter(|_| !*self.is_off.borrow());
        inner.ok_or(ReadError::Closed)
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

/// Takes waiting requests to the commit thread, a group at a time, until the machine is off.
async fn run_disk(store: Arc<SimulatedStore>) {
    loop {
        let is_empty = store.queue.lock().is_empty();
        tokio::select! {
            biased;
            () = off(store.is_off.subscribe()) => return,
            () = store.queued.notified(), if is_empty => {}
            // Others join the group meanwhile.
            () = tokio::time::sleep(Duration::from_micros(store.world.below(400))), if !is_empty => {
                let requests: Vec<_> = store.queue.lock().drain(..).collect();
                let Ok(inner) = store.inner() else { return };
                commit(&store, &inner, requests).await;
            }
        }
    }
}

/// A call of a group, and its answer once there is one.
struct Call {
    future: Pin<Box<dyn Future<Output = Reply> + Send>>,
    reply: Option<Reply>,
}

impl Call {
    fn poll(&mut self, waker: &Waker) -> bool {
        if self.reply.is_none()
            && let Poll::Ready(reply) = self.future.as_mut().poll(&mut Context::from_waker(waker))
        {
            self.reply = Some(reply);
        }
        self.reply.is_some()
    }
}

async fn commit(store: &SimulatedStore, inner: &Arc<EmbeddedStore>, requests: Vec<Request>) {
    let gate = &store.disk.gate;
    let waker = Waker::from(gate.clone());
    // An empty append brings the commit thread to the clock. While it stands there, the group gathers behind it.
    let first = inner.clone();
    let first: Request = Box::new(move |_| {
        Box::pin(async move {
            let feed = FeedId::new("simulation").expect("a valid name");
            let _ = first.append(&feed, Expected::Any, Vec::new()).await;
            Box::new(|| {}) as Reply
        })
    });
    let mut calls = vec![Call { future: first(inner.clone()), reply: None }];
    calls[0].poll(&waker);
    while gate.wait() != Progress::Stopped(Stop::Clock) {}
    for request in requests {
        let mut call = Call { future: request(inner.clone()), reply: None };
        call.poll(&waker);
        calls.push(call);
    }
    trace!("disk {}: a group of {}", store.disk.name(), calls.len() - 1);
    gate.release(Verdict::Done);
    let is_early = store.has(Bug::TellBeforeDurable);
    let mut late = Duration::ZERO;
    loop {
        let is_done = calls.iter_mut().all(|call| call.poll(&waker));
        if is_done {
            break;
        }
        match gate.wait() {
            Progress::Stopped(Stop::Clock) => gate.release(Verdict::Done),
            Progress::Stopped(Stop::Sync) => {
                let wait = store.world.sync_time();
                trace!("disk {}: syncs", store.disk.name());
                if is_early {
                    late += wait;
                    gate.release(Verdict::Ignored);
                    continue;
                }
                store.is_syncing.send_replace(true);
                tokio::time::sleep(wait).await;
                store.is_syncing.send_replace(false);
                if *store.is_off.borrow() {
                    return;
                }
                let verdict =
                    if store.has(Bug::DropSync) { Verdict::Ignored } else { store.world.sync_verdict() };
                gate.release(verdict);
            }
            Progress::Answered => {}
        }
    }
    // In their order: two runs of a seed wake the callers alike.
    for call in calls {
        if let Some(reply) = call.reply {
            reply();
        }
    }
    if is_early {
        store.is_syncing.send_replace(true);
        tokio::time::sleep(late).await;
        store.is_syncing.send_replace(false);
        store.disk.sync_all();
    }
    if inner.failure().is_none() && !store.disk.is_limited() && store.world.one_in(FLUSH) {
        count("flushes");
        if let Err(e) = block_on(inner.flush()) {
            trace!("disk {}: cannot flush: {e}", store.disk.name());
        }
    }
    if let Some(failure) = inner.failure() {
        trace!("disk {}: {}", store.disk.name(), failure.reason);
        if store.disk.take_refused() > 0 {
            count("groups refused by a full disk");
        }
        // Opened again by a thread of the store, which takes no simulated time.
        while inner.failure().is_some() {
            if store.disk.take_need() {
                // No time passes here in which the disk could get space by itself: the operator makes some.
                store.disk.set_free(None, false);
            }
            std::thread::yield_now();
        }
    }
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
        self.inner().ok()?.failure()
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
