//! Who is told when a feed has moved: readers of heads, hooks, and those who wait.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use quick_cache::sync::Cache;
use tokio::sync::watch;
use towpath_proto::feed_id::FeedId;

use super::decide::Decided;
use super::keys::Feed;
use crate::{EMPTY, Head, OnMove, OnWrite, StoreError, Table};

/// The heads of the feeds that were asked for lately, the hooks, and those who wait.
pub(crate) struct Tell {
    heads: Cache<FeedId, Feed>,
    hooks: RwLock<Vec<OnMove>>,
    write_hooks: RwLock<Vec<OnWrite>>,
    waiting: Arc<Waiting>,
}

impl Tell {
    /// Keeps at most `heads` heads in memory.
    pub(crate) fn new(heads: usize) -> Self {
        Self {
            heads: Cache::new(heads),
            hooks: RwLock::default(),
            write_hooks: RwLock::default(),
            waiting: Arc::default(),
        }
    }

    /// A feed, from memory or else by `load`.
    ///
    /// A load that a move overtakes is not kept: [`Tell::moved`] replaces what is being loaded.
    pub(crate) fn feed(
        &self,
        name: &FeedId,
        load: impl FnOnce() -> Result<Option<Feed>, StoreError>,
    ) -> Result<Option<Feed>, StoreError> {
        // `Err(None)`: there is no such feed, and that is not kept, or asking for feeds that are none
        // would push out the others.
        match self.heads.get_or_insert_with(name, || load().map_err(Some)?.ok_or(None)) {
            Ok(feed) => Ok(Some(feed)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    /// Lets readers see the new heads, calls the hooks for each write and each append, and wakes those who
    /// wait. To be called once what was decided is readable.
    pub(crate) fn all<'a>(&self, decided: &Decided, appends: impl Iterator<Item = (&'a FeedId, Head)>) {
        for (name, feed) in &decided.feeds {
            self.moved(name, *feed);
        }
        for (table, key) in decided.values.keys() {
            self.call_write_hooks(*table, key);
        }
        for (name, head) in appends {
            self.call_hooks(name, head);
        }
        for (name, feed) in &decided.feeds {
            self.wake(name, feed.head);
        }
    }

    /// Lets readers see a feed's new head. To be called once it is durable and readable.
    pub(crate) fn moved(&self, name: &FeedId, feed: Feed) {
        self.heads.insert(name.clone(), feed);
    }

    /// Calls the hooks, in the order of their registration.
    pub(crate) fn call_hooks(&self, feed: &FeedId, head: Head) {
        for hook in self.hooks.read().iter() {
            // A hook that panics must not take the store with it.
            if catch_unwind(AssertUnwindSafe(|| hook(feed, head))).is_err() {
                tracing::error!(%feed, "a hook of the store panicked");
            }
        }
    }

    fn call_write_hooks(&self, table: Table, key: &[u8]) {
        for hook in self.write_hooks.read().iter() {
            if catch_unwind(AssertUnwindSafe(|| hook(table, key))).is_err() {
                tracing::error!(?table, "a hook of the store panicked");
            }
        }
    }

    /// Wakes those who wait for a feed.
    pub(crate) fn wake(&self, feed: &FeedId, head: Head) {
        if let Some(seat) = self.waiting.0.lock().as_ref().and_then(|seats| seats.get(feed)) {
            seat.head.send_replace(head);
        }
    }

    /// Ends the waiting of all, for good.
    pub(crate) fn end(&self) {
        *self.waiting.0.lock() = None;
    }

    /// Registers a hook.
    pub(crate) fn add_hook(&self, hook: OnMove) {
        self.hooks.write().push(hook);
    }

    /// Registers a hook for writes to the tables.
    pub(crate) fn add_write_hook(&self, hook: OnWrite) {
        self.write_hooks.write().push(hook);
    }

    /// Takes a place among those who wait for a feed, to be woken by every move from now on.
    pub(crate) fn join(&self, feed: &FeedId) -> Result<Waiter, StoreError> {
        let mut waiting = self.waiting.0.lock();
        let seats = waiting.as_mut().ok_or(StoreError::Closed)?;
        let seat =
            seats.entry(feed.clone()).or_insert_with(|| Seat { head: watch::Sender::new(EMPTY), taken: 0 });
        seat.taken += 1;
        let head = seat.head.subscribe();
        Ok(Waiter { feed: feed.clone(), head, waiting: Arc::clone(&self.waiting) })
    }
}

/// The feeds that somebody waits for; no others have an entry. `None` once waiting has ended.
struct Waiting(Mutex<Option<HashMap<FeedId, Seat>>>);

impl Default for Waiting {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

struct Seat {
    head: watch::Sender<Head>,
    taken: usize,
}

/// One who waits. Dropping it ends the waiting.
pub(crate) struct Waiter {
    feed: FeedId,
    head: watch::Receiver<Head>,
    waiting: Arc<Waiting>,
}

impl Waiter {
    /// The feed's head after its next move.
    pub(crate) async fn moved(&mut self) -> Result<Head, StoreError> {
        self.head.changed().await.map_err(|_| StoreError::Closed)?;
        Ok(*self.head.borrow_and_update())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.waiting.0.lock();
        let Some(seats) = waiting.as_mut() else { return };
        let Some(seat) = seats.get_mut(&self.feed) else { return };
        seat.taken -= 1;
        if seat.taken == 0 {
            seats.remove(&self.feed);
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

    fn name(text: &str) -> FeedId {
        FeedId::new(text).unwrap()
    }

    fn at(seq: u64) -> Head {
        Head { seq, ..EMPTY }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_feeds_that_are_waited_for_have_an_entry() {
        let tell = Tell::new(1);
        let count = || tell.waiting.0.lock().as_ref().map_or(0, HashMap::len);
        let (a, b, c) = (tell.join(&name("f1")), tell.join(&name("f1")), tell.join(&name("f2")));
        assert_eq!(count(), 2);
        drop((a, c));
        assert_eq!(count(), 1);
        tell.end();
        drop(b);
        assert_eq!(count(), 0);
        assert!(matches!(tell.join(&name("f1")), Err(StoreError::Closed)));
    }

    #[test]
    fn a_move_wakes_once_and_only_those_who_wait_for_the_feed() {
        let tell = Tell::new(1);
        let wakes: Arc<Wakes> = Arc::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut waiter = tell.join(&name("f1")).unwrap();
        let mut moved = pin!(waiter.moved());
        assert!(moved.as_mut().poll(&mut context).is_pending());
        tell.wake(&name("f2"), at(1));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        tell.wake(&name("f1"), at(1));
        tell.wake(&name("f1"), at(2));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        let Poll::Ready(Ok(head)) = moved.as_mut().poll(&mut context) else { panic!("it moved") };
        assert_eq!(head.seq, 2);
    }

    #[test]
    fn a_hook_that_panics_stops_nobody() {
        let tell = Tell::new(1);
        let called: Arc<AtomicUsize> = Arc::default();
        let hook = Arc::clone(&called);
        tell.add_hook(Arc::new(|_, _| panic!("a hook's fault, on purpose")));
        tell.add_hook(Arc::new(move |_, _| {
            hook.fetch_add(1, Ordering::Relaxed);
        }));
        tell.call_hooks(&name("f1"), at(1));
        assert_eq!(called.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_head_that_moves_while_it_is_loaded_is_not_lost() {
        let tell = Tell::new(10);
        let feed = |seq| Feed { number: 1, head: at(seq), appended: EMPTY.modified };
        let loaded = tell.feed(&name("f1"), || {
            tell.moved(&name("f1"), feed(2));
            Ok(Some(feed(1)))
        });
        assert_eq!(loaded.unwrap(), Some(feed(1)));
        let kept = tell.feed(&name("f1"), || panic!("it is in memory")).unwrap();
        assert_eq!(kept, Some(feed(2)));
    }

    #[test]
    fn feeds_that_are_none_and_errors_are_not_kept() {
        let tell = Tell::new(10);
        assert_eq!(tell.feed(&name("f1"), || Ok(None)).unwrap(), None);
        assert!(tell.feed(&name("f1"), || Err(StoreError::Read("x".into()))).is_err());
        let feed = Feed { number: 1, head: at(1), appended: EMPTY.modified };
        assert_eq!(tell.feed(&name("f1"), || Ok(Some(feed))).unwrap(), Some(feed));
    }
}
