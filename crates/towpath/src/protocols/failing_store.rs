//! Store for tests whose writes fail where a test wants it.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Barrier, Notify};
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::diff::KnownItems;
use towpath_proto::feed_id::FeedId;
use towpath_store::memory::MemoryStore;
use towpath_store::{
    AppendError, AppendHook, Appended, Expected, FeedSummary, ItemOrder, LogHead, Precondition, ReadError,
    ReadLimit, ReadTarget, SeqRange, Store, Table, TableHook, TableWrite, WriteError,
};

use crate::config::Config;
use crate::engine::Engine;

/// Store in memory with faults.
pub(crate) struct FailingStore {
    inner: Arc<MemoryStore>,
    /// Part of a key: the next write to such a key fails, once.
    pub(crate) write_fault: Mutex<Option<&'static str>>,
    /// Part of a key: the next write to such a key fails, once, and is stored by [`Self::reopen`].
    pub(crate) doubt_fault: Mutex<Option<&'static str>>,
    in_doubt: Mutex<Option<(Vec<TableWrite>, Vec<Precondition>)>>,
    late_hooks: Mutex<Vec<TableHook>>,
    /// Part of a key: the next read of such a key fails, once.
    pub(crate) read_fault: Mutex<Option<&'static str>>,
    /// Part of a prefix: the next scan of such a prefix fails, once.
    pub(crate) scan_fault: Mutex<Option<&'static str>>,
    /// Number of further times that the read fails.
    pub(crate) read_repeats: Mutex<usize>,
    /// Part of a key: the next read of such a key panics, once.
    pub(crate) read_panic: Mutex<Option<&'static str>>,
    /// Part of a key: writes to such keys wait until as many have come as the barrier asks for.
    pub(crate) write_gate: Mutex<Option<(&'static str, Arc<Barrier>)>>,
    /// Part of a key: the next write to such a key is made, and its answer is held back.
    pub(crate) write_hold: Mutex<Option<(&'static str, Arc<HeldAnswer>)>>,
}

/// Answer to a write that a test holds back.
#[derive(Default)]
pub(crate) struct HeldAnswer {
    /// The write is made.
    pub(crate) made: Notify,
    /// The answer may come.
    pub(crate) released: Notify,
}

impl FailingStore {
    /// Holds back the answer to the next write of a key with this part.
    pub(crate) fn hold(&self, part: &'static str) -> Arc<HeldAnswer> {
        let held = Arc::new(HeldAnswer::default());
        *self.write_hold.lock() = Some((part, held.clone()));
        held
    }
}

/// Returns an engine on such a store, for a configuration.
pub(crate) async fn engine(config: &str) -> (Arc<Engine>, Arc<FailingStore>) {
    let inner = Arc::new(MemoryStore::new(Arc::new(Timestamp::now)));
    let store = FailingStore {
        inner,
        write_fault: Mutex::default(),
        doubt_fault: Mutex::default(),
        in_doubt: Mutex::default(),
        late_hooks: Mutex::default(),
        read_fault: Mutex::default(),
        scan_fault: Mutex::default(),
        read_repeats: Mutex::default(),
        read_panic: Mutex::default(),
        write_gate: Mutex::default(),
        write_hold: Mutex::default(),
    };
    let store = Arc::new(store);
    let config = Config::parse(config, Path::new("towpath.toml")).unwrap();
    (crate::protocols::start(config, store.clone()).await.unwrap(), store)
}

impl FailingStore {
    /// Stores the write whose caller was told that it failed, as an embedded store does that is opened again after a
    /// failed sync. `is_told` is false where a reader comes before the hooks.
    pub(crate) async fn reopen(&self, is_told: bool) {
        let (writes, conditions) = self.in_doubt.lock().take().unwrap();
        let keys: Vec<_> = writes.iter().map(|write| (write.table, write.key.clone())).collect();
        self.inner.write(writes, conditions).await.unwrap();
        for (table, key) in keys.iter().filter(|_| is_told) {
            self.late_hooks.lock().iter().for_each(|hook| hook(*table, key));
        }
    }
}

/// Takes a fault if it is for one of the keys.
fn is_due<'a>(fault: &Mutex<Option<&'static str>>, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut fault = fault.lock();
    let of = |part: &str, key: &[u8]| String::from_utf8_lossy(key).contains(part);
    fault.take_if(|part| keys.any(|key| of(part, key))).is_some()
}

#[async_trait]
impl Store for FailingStore {
    async fn append(
        &self,
        feed: &FeedId,
        expected: Expected,
        changes: Vec<NewChange>,
    ) -> Result<Appended, AppendError> {
        self.inner.append(feed, expected, changes).await
    }

    async fn head(&self, feed: &FeedId) -> Result<LogHead, ReadError> {
        self.inner.head(feed).await
    }

    async fn feeds(&self) -> Result<Vec<FeedId>, ReadError> {
        self.inner.feeds().await
    }

    async fn heads(&self) -> Result<Vec<FeedSummary>, ReadError> {
        self.inner.heads().await
    }

    async fn read(&self, feed: &FeedId, after: Seq, limit: ReadLimit) -> Result<Vec<Change>, ReadError> {
        self.inner.read(feed, after, limit).await
    }

    async fn change(&self, feed: &FeedId, seq: Seq) -> Result<Option<Change>, ReadError> {
        self.inner.change(feed, seq).await
    }

    async fn latest(&self, feed: &FeedId, id: &str) -> Result<Option<Change>, ReadError> {
        self.inner.latest(feed, id).await
    }

    async fn last_before(&self, feed: &FeedId, time: Timestamp) -> Result<Seq, ReadError> {
        self.inner.last_before(feed, time).await
    }

    async fn items(
        &self,
        feed: &FeedId,
        order: ItemOrder,
        range: SeqRange,
        limit: ReadLimit,
    ) -> Result<Vec<Change>, ReadError> {
        self.inner.items(feed, order, range, limit).await
    }

    async fn content_hashes(&self, feed: &FeedId, ids: Option<&[String]>) -> Result<KnownItems, ReadError> {
        self.inner.content_hashes(feed, ids).await
    }

    async fn wait(&self, feed: &FeedId, after: Seq) -> Result<LogHead, ReadError> {
        self.inner.wait(feed, after).await
    }

    async fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        assert!(!is_due(&self.read_panic, [key].into_iter()), "a fault of the program");
        let fault = *self.read_fault.lock();
        if is_due(&self.read_fault, [key].into_iter()) {
            let mut repeats = self.read_repeats.lock();
            if *repeats > 0 {
                *repeats -= 1;
                *self.read_fault.lock() = fault;
            }
            let target = ReadTarget::Table(table, key.to_vec());
            return Err(ReadError::Storage { target, reason: "it is being opened again".into() });
        }
        self.inner.get(table, key).await
    }

    async fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        if is_due(&self.scan_fault, [prefix].into_iter()) {
            let target = ReadTarget::Table(table, prefix.to_vec());
            return Err(ReadError::Storage { target, reason: "it is being opened again".into() });
        }
        self.inner.scan(table, prefix, after, limit).await
    }

    async fn write(&self, writes: Vec<TableWrite>, conditions: Vec<Precondition>) -> Result<(), WriteError> {
        if is_due(&self.write_fault, writes.iter().map(|write| &write.key[..])) {
            return Err(WriteError::Storage { reason: "no space left".into() });
        }
        if is_due(&self.doubt_fault, writes.iter().map(|write| &write.key[..])) {
            *self.in_doubt.lock() = Some((writes, conditions));
            return Err(WriteError::Storage { reason: "a sync failed".into() });
        }
        let gate = self.write_gate.lock().clone();
        let has = |part: &str| writes.iter().any(|write| String::from_utf8_lossy(&write.key).contains(part));
        if let Some((_, barrier)) = gate.filter(|(part, _)| has(part)) {
            barrier.wait().await;
        }
        let held = self.write_hold.lock().take_if(|(part, _)| has(part));
        // As the commit thread of an embedded store: what is queued is written, whether or not the caller waits.
        let inner = self.inner.clone();
        let written = tokio::spawn(async move { inner.write(writes, conditions).await }).await.unwrap();
        if let Some((_, held)) = held {
            held.made.notify_one();
            held.released.notified().await;
        }
        written
    }

    async fn let_go(&self, feed: &FeedId, horizon: Seq) -> Result<LogHead, WriteError> {
        self.inner.let_go(feed, horizon).await
    }

    fn on_append(&self, hook: AppendHook) {
        self.inner.on_append(hook);
    }

    fn on_table_write(&self, hook: TableHook) {
        self.inner.on_table_write(hook);
    }

    fn on_late_write(&self, hook: TableHook) {
        self.late_hooks.lock().push(hook);
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
