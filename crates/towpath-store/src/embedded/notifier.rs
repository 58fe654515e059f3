//! Notification after an append: caches heads, runs hooks, wakes waiters.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use tokio::sync::watch;
use towpath_proto::feed_id::FeedId;

use super::decide::DecidedGroup;
use super::keys::FeedRow;
use crate::error::StorageError;
use crate::{AppendHook, Appended, LogHead, ReadError, Table, TableHook};

/// Cache of recently used heads, the hooks, and the waiters.
pub(crate) struct Notifier {
    heads: Cache<FeedId, FeedRow>,
    append_hooks: RwLock<Vec<AppendHook>>,
    table_hooks: RwLock<Vec<TableHook>>,
    late_hooks: RwLock<Vec<TableHook>>,
    waiters: Arc<AppendWaiters>,
}

impl Notifier {
    /// Creates a notifier that caches at most `heads` heads.
    pub(crate) fn new(heads: usize) -> Self {
        Self {
            heads: Cache::new(heads),
            append_hooks: RwLock::default(),
            table_hooks: RwLock::default(),
            late_hooks: RwLock::default(),
            waiters: Arc::default(),
        }
    }

    /// Returns a feed from the cache, or else by `load`.
    ///
    /// A load that an append overtakes is not cached: [`Notifier::set_head`] replaces the pending entry.
    pub(crate) fn feed(
        &self,
        name: &FeedId,
        load: impl FnOnce() -> Result<Option<FeedRow>, StorageError>,
    ) -> Result<Option<FeedRow>, StorageError> {
        // `Err(None)` is a feed that does not exist. It is not cached, or requests for made-up names would evict
        // the heads of real feeds.
        match self.heads.get_or_insert_with(name, || load().map_err(Some)?.ok_or(None)) {
            Ok(feed) => Ok(Some(feed)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    /// Publishes the new heads, runs the hooks of every table write and append, and wakes waiters.
    ///
    /// Call it once the group is readable. Heads come first: a hook or a waiter reads the store.
    pub(crate) fn publish<'a>(
        &self,
        decided: &DecidedGroup,
        appends: impl Iterator<Item = (&'a FeedId, &'a Appended)>,
    ) {
        for (name, feed) in &decided.feeds {
            self.set_head(name, *feed);
        }
        // Keyed by row: several writes of a group to one row run each hook once.
        for (table, key) in decided.values.keys() {
            run_table_hooks(&self.table_hooks, *table, key);
        }
        for (name, appended) in appends {
            self.run_append_hooks(name, appended);
        }
        for (name, feed) in &decided.feeds {
            // Last: a woken reader must not find a document that an append hook is about to invalidate.
            self.wake(name, feed.head);
        }
    }

    /// Does what [`Self::publish`] does for a group whose callers were told that it failed.
    pub(crate) fn publish_late<'a>(
        &self,
        decided: &DecidedGroup,
        appends: impl Iterator<Item = (&'a FeedId, &'a Appended)>,
    ) {
        for (table, key) in decided.values.keys() {
            run_table_hooks(&self.late_hooks, *table, key);
        }
        self.publish(decided, appends);
    }

    /// Drops every cached head: the engine may have others now.
    pub(crate) fn forget_heads(&self) {
        self.heads.clear();
    }

    /// Replaces the cached head of a feed. Call it once the head is durable and readable.
    pub(crate) fn set_head(&self, name: &FeedId, feed: FeedRow) {
        self.heads.insert(name.clone(), feed);
    }

    /// Runs the append hooks in the order of their registration.
    pub(crate) fn run_append_hooks(&self, feed: &FeedId, appended: &Appended) {
        for hook in self.append_hooks.read().iter() {
            // A panic here would end the commit thread, and with it every later append.
            if catch_unwind(AssertUnwindSafe(|| hook(feed, appended))).is_err() {
                tracing::error!(%feed, "an append hook panicked; the append is stored");
            }
        }
    }

    /// Wakes the waiters of a feed.
    pub(crate) fn wake(&self, feed: &FeedId, head: LogHead) {
        if let Some(waiters) = self.waiters.0.lock().as_ref().and_then(|feeds| feeds.get(feed)) {
            // A watch channel keeps the newest head only: a slow waiter wakes once for many appends.
            waiters.head.send_replace(head);
        }
    }

    /// Ends every wait, and refuses later ones.
    pub(crate) fn close(&self) {
        // Dropping the senders fails every pending `changed`, which waiters read as closed.
        *self.waiters.0.lock() = None;
    }

    /// Registers a hook for appends.
    pub(crate) fn add_append_hook(&self, hook: AppendHook) {
        self.append_hooks.write().push(hook);
    }

    /// Registers a hook for writes to the tables.
    pub(crate) fn add_table_hook(&self, hook: TableHook) {
        self.table_hooks.write().push(hook);
    }

    /// Registers a hook for writes to the tables that were told to have failed, and are stored.
    pub(crate) fn add_late_hook(&self, hook: TableHook) {
        self.late_hooks.write().push(hook);
    }

    /// Registers a waiter, which every later append to the feed wakes.
    pub(crate) fn subscribe(&self, feed: &FeedId) -> Result<AppendWaiter, ReadError> {
        let mut registry = self.waiters.0.lock();
        let feeds = registry.as_mut().ok_or(ReadError::Closed)?;
        // Nobody reads this initial head: a subscriber waits for the next one.
        let new = || FeedWaiters { head: watch::Sender::new(LogHead::EMPTY), count: 0 };
        let waiters = feeds.entry(feed.clone()).or_insert_with(new);
        waiters.count += 1;
        let head = waiters.head.subscribe();
        Ok(AppendWaiter { feed: feed.clone(), head, registry: Arc::clone(&self.waiters) })
    }
}

fn run_table_hooks(hooks: &RwLock<Vec<TableHook>>, table: Table, key: &[u8]) {
    for hook in hooks.read().iter() {
        if catch_unwind(AssertUnwindSafe(|| hook(table, key))).is_err() {
            tracing::error!(table = table.name(), "a table hook panicked; the write is stored");
        }
    }
}

/// Waiters by feed. A feed without waiters has no entry. `None` once closed.
struct AppendWaiters(Mutex<Option<HashMap<FeedId, FeedWaiters>>>);

impl Default for AppendWaiters {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

struct FeedWaiters {
    head: watch::Sender<LogHead>,
    count: usize,
}

/// Waiter for appends to one feed. Dropping it ends the wait.
pub(crate) struct AppendWaiter {
    feed: FeedId,
    head: watch::Receiver<LogHead>,
    registry: Arc<AppendWaiters>,
}

impl AppendWaiter {
    /// Waits for the next append, and returns the head after it.
    pub(crate) async fn appended(&mut self) -> Result<LogHead, ReadError> {
        self.head.changed().await.map_err(|_| ReadError::Closed)?;
        Ok(*self.head.borrow_and_update())
    }
}

impl Drop for AppendWaiter {
    fn drop(&mut self) {
        let mut registry = self.registry.0.lock();
        let Some(feeds) = registry.as_mut() else { return };
        let Some(waiters) = feeds.get_mut(&self.feed) else { return };
        waiters.count -= 1;
        // Without this, a client could fill the map with feeds that it waited for once.
        if waiters.count == 0 {
            feeds.remove(&self.feed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;
    use crate::OpCounts;

    fn name(text: &str) -> FeedId {
        FeedId::new(text).unwrap()
    }

    fn at(seq: u64) -> LogHead {
        LogHead { seq, ..LogHead::EMPTY }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_feeds_with_waiters_have_an_entry() {
        let notifier = Notifier::new(1);
        let count = || notifier.waiters.0.lock().as_ref().map_or(0, HashMap::len);
        let (a, b, c) = (
            notifier.subscribe(&name("f1")),
            notifier.subscribe(&name("f1")),
            notifier.subscribe(&name("f2")),
        );
        assert_eq!(count(), 2);
        drop((a, c));
        assert_eq!(count(), 1);
        notifier.close();
        drop(b);
        assert_eq!(count(), 0);
        assert!(matches!(notifier.subscribe(&name("f1")), Err(ReadError::Closed)));
    }

    #[test]
    fn an_append_wakes_only_the_waiters_of_its_feed_and_once() {
        let notifier = Notifier::new(1);
        let wakes: Arc<Wakes> = Arc::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut waiter = notifier.subscribe(&name("f1")).unwrap();
        let mut appended = pin!(waiter.appended());
        assert!(appended.as_mut().poll(&mut context).is_pending());
        notifier.wake(&name("f2"), at(1));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        notifier.wake(&name("f1"), at(1));
        // The waiter is not polled in between: two appends, one wake.
        notifier.wake(&name("f1"), at(2));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let Poll::Ready(Ok(head)) = appended.as_mut().poll(&mut context) else { panic!("an append woke it") };
        assert_eq!(head.seq, 2);
    }

    #[test]
    fn a_panicking_hook_does_not_stop_the_next_one() {
        let notifier = Notifier::new(1);
        let called: Arc<AtomicUsize> = Arc::default();
        let hook = Arc::clone(&called);
        notifier.add_append_hook(Arc::new(|_, _| panic!("a hook's fault, on purpose")));
        notifier.add_append_hook(Arc::new(move |_, _| {
            hook.fetch_add(1, Ordering::Relaxed);
        }));
        let appended = Appended { first: 1, head: at(1), ops: OpCounts::default() };
        notifier.run_append_hooks(&name("f1"), &appended);
        assert_eq!(called.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_append_during_a_load_replaces_the_loaded_head() {
        let notifier = Notifier::new(10);
        let feed = |seq| FeedRow { number: 1, head: at(seq), appended: LogHead::EMPTY.modified };
        let loaded = notifier.feed(&name("f1"), || {
            notifier.set_head(&name("f1"), feed(2));
            Ok(Some(feed(1)))
        });
        // The overtaken load may return the old head. It must not stay in the cache.
        assert_eq!(loaded.unwrap(), Some(feed(1)));
        let cached = notifier.feed(&name("f1"), || panic!("it is in memory")).unwrap();
        assert_eq!(cached, Some(feed(2)));
    }

    #[test]
    fn missing_feeds_and_errors_are_not_cached() {
        let notifier = Notifier::new(10);
        assert_eq!(notifier.feed(&name("f1"), || Ok(None)).unwrap(), None);
        assert!(notifier.feed(&name("f1"), || Err(StorageError::Read("x".into()))).is_err());
        let feed = FeedRow { number: 1, head: at(1), appended: LogHead::EMPTY.modified };
        assert_eq!(notifier.feed(&name("f1"), || Ok(Some(feed))).unwrap(), Some(feed));
    }
}
