//! Wait registry: long polls that wait for an append, grouped by query.
//!
//! Waiters with equal keys join one `SharedPoll`. An append runs the query of each shared poll once, and all of
//! its waiters get the one response. So an append costs the same with one waiter and with ten thousand, except
//! for the wake-ups. A waiter holds no thread: it is a waker in a list.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use futures_util::future::{BoxFuture, FutureExt as _};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::runtime::Handle;
use towpath_proto::FeedId;

/// Runs the query of a shared poll; returns `None` while the log has nothing that matches.
pub(crate) type RunQuery<R> = Box<dyn Fn() -> BoxFuture<'static, Option<R>> + Send + Sync>;

/// Shared polls of a feed up to which their queries run on the thread of a waiter.
// More would keep that thread from its other connections.
const FEW_POLLS: usize = 4;

/// The configured number of waiters is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyWaiters;

/// All waiters of this process, by feed and by query.
pub struct WaitRegistry<K, R> {
    // Locked before any poll's state, never after it: the other order could deadlock.
    feeds: Mutex<HashMap<FeedId, FeedPolls<K, R>>>,
    waiting: AtomicUsize,
    /// Most waiters; a reload changes it.
    limit: AtomicUsize,
    gauge: Gauge,
    runtime: Handle,
}

/// The shared polls of one feed.
struct FeedPolls<K, R> {
    polls: HashMap<K, Arc<SharedPoll<K, R>>>,
    /// A task runs the queries of this feed right now.
    is_running: bool,
    /// The log changed after that task took its list of polls, so it must run them once more.
    runs_again: bool,
}

/// Waiters with the same key: one query, one response.
struct SharedPoll<K, R> {
    feed: FeedId,
    key: K,
    run: RunQuery<R>,
    state: Mutex<SharedPollState<R>>,
}

struct SharedPollState<R> {
    response: Option<Arc<R>>,
    /// The last waiter left and the poll was removed from its feed; nobody may join it any more.
    is_closed: bool,
    slots: Vec<Option<WakeTarget>>,
    free: Vec<u32>,
    /// The runtimes of the waiters: at most as many as the server has worker threads.
    runtimes: Vec<Handle>,
}

/// Index into [`SharedPollState::runtimes`], and the waker of the waiter's task.
type WakeTarget = (usize, Waker);

impl<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> WaitRegistry<K, R> {
    /// Creates a registry for at most `limit` waiters. The queries of a feed with many run on the current runtime.
    pub fn new(limit: usize, gauge: Gauge) -> Self {
        let (feeds, waiting) = (Mutex::default(), AtomicUsize::new(0));
        Self { feeds, waiting, limit: AtomicUsize::new(limit), gauge, runtime: Handle::current() }
    }

    /// Changes the limit. Those who wait already stay.
    pub fn set_limit(&self, limit: usize) {
        // Relaxed: the limit guards memory, and orders nothing else.
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns true if no further waiter is accepted.
    pub fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }

    /// Adds a waiter to the shared poll of `key`. After that the caller reads the feed's head, and calls
    /// [`Self::log_changed`] if it moved since the caller ran the query: otherwise an append between the query and
    /// the join would wake nobody.
    ///
    /// `new_query` makes the poll's query; it is called for the first waiter only.
    pub fn join(
        self: &Arc<Self>,
        feed: &FeedId,
        key: K,
        new_query: impl FnOnce() -> RunQuery<R>,
    ) -> Result<PollWaiter<K, R>, TooManyWaiters> {
        self.count_waiter()?;
        let mut feeds = self.feeds.lock();
        let empty = || FeedPolls { polls: HashMap::new(), is_running: false, runs_again: false };
        let poll = feeds.entry(feed.clone()).or_insert_with(empty).poll_of(feed, key, new_query);
        // Lock order: registry, then poll.
        let slot = poll.state.lock().take_slot();
        // The slot is taken under the registry's lock: else the last waiter could close the poll before.
        drop(feeds);
        Ok(PollWaiter { registry: self.clone(), poll, slot })
    }

    /// Returns the shared polls of a feed with their numbers of waiters.
    pub fn of_feed(&self, feed: &FeedId) -> Vec<(K, usize)> {
        let feeds = self.feeds.lock();
        let Some(polls) = feeds.get(feed) else { return Vec::new() };
        let waiting = |poll: &SharedPoll<K, R>| {
            let state = poll.state.lock();
            state.slots.len() - state.free.len()
        };
        polls.polls.values().map(|poll| (poll.key.clone(), waiting(poll))).collect()
    }

    fn count_waiter(&self) -> Result<(), TooManyWaiters> {
        // Not `fetch_add`: refused requests must not push the count over the limit, even for a moment.
        let limit = self.limit.load(Ordering::Relaxed);
        let one_more = |waiting| (waiting < limit).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(TooManyWaiters);
        }
        self.gauge.inc();
        Ok(())
    }

    fn uncount_waiter(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }

    /// Runs the queries of a feed's shared polls in a task. Returns at once.
    pub fn log_changed(self: &Arc<Self>, feed: &FeedId) {
        let mut feeds = self.feeds.lock();
        // Most feeds have no waiter, and this runs on the store's thread.
        let Some(polls) = feeds.get_mut(feed) else { return };
        // One task per feed: appends during its run collapse into a single further run.
        if polls.is_running {
            polls.runs_again = true;
            return;
        }
        polls.is_running = true;
        // On a waiter's own thread the response needs no further change of threads.
        let runtime = polls.runtime_of_few().unwrap_or_else(|| self.runtime.clone());
        drop(feeds);
        let run = QueryRun { registry: self.clone(), feed: feed.clone(), is_done: false };
        runtime.spawn(run.finish().boxed());
    }

    async fn run_queries(&self, feed: &FeedId) {
        while let Some(polls) = self.polls_to_run(feed) {
            for poll in polls {
                // A panic of one query must not leave the feed marked as running: later appends would wake nobody. The
                // panic hook has logged it.
                let run = AssertUnwindSafe(async { (poll.run)().await }).catch_unwind();
                // Without a response the poll stays: the append did not match its query, or the store failed.
                if let Ok(Some(response)) = run.await {
                    self.respond(&poll, response);
                }
            }
            if !self.runs_again(feed) {
                return;
            }
            // Appends that follow one another must not keep a thread that serves from its connections.
            tokio::task::yield_now().await;
        }
    }

    fn polls_to_run(&self, feed: &FeedId) -> Option<Vec<Arc<SharedPoll<K, R>>>> {
        let mut feeds = self.feeds.lock();
        let polls = feeds.get_mut(feed)?;
        polls.runs_again = false;
        Some(polls.polls.values().cloned().collect())
    }

    fn runs_again(&self, feed: &FeedId) -> bool {
        let mut feeds = self.feeds.lock();
        let Some(polls) = feeds.get_mut(feed) else { return false };
        // Cleared in the same lock in which appends set it, so no append falls between.
        polls.is_running = polls.runs_again;
        // `remove` left the entry to this task, because it was running.
        if !polls.runs_again && polls.polls.is_empty() {
            feeds.remove(feed);
            return false;
        }
        polls.runs_again
    }

    /// Closes a shared poll to further waiters, then wakes all of its waiters with the response.
    fn respond(&self, poll: &Arc<SharedPoll<K, R>>, response: R) {
        let mut feeds = self.feeds.lock();
        // Removed before the waiters wake: their next requests must join a new poll, not this one.
        remove(&mut feeds, poll);
        drop(feeds);
        let (slots, runtimes) = {
            let mut state = poll.state.lock();
            state.response = Some(Arc::new(response));
            // Taken out, for waking runs other code: a waker may drop its task, whose waiter locks this state again.
            (std::mem::take(&mut state.slots), std::mem::take(&mut state.runtimes))
        };
        wake(slots, runtimes);
    }
}

/// Run of a feed's queries. If the runtime of a waiter ends before it, the registry's own runs them.
struct QueryRun<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> {
    registry: Arc<WaitRegistry<K, R>>,
    feed: FeedId,
    is_done: bool,
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> QueryRun<K, R> {
    async fn finish(mut self) {
        self.registry.run_queries(&self.feed).await;
        self.is_done = true;
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> Drop for QueryRun<K, R> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        // A thread that serves ends with a panic or the server. Waiters on other threads must not wait for ever.
        let (registry, feed) = (self.registry.clone(), self.feed.clone());
        // The entry still counts as running, so the appends since then are included.
        registry.runtime.clone().spawn(async move { registry.run_queries(&feed).await }.boxed());
    }
}

/// Removes a shared poll from its feed, and the feed's entry with its last poll.
fn remove<K: Eq + Hash, R>(feeds: &mut HashMap<FeedId, FeedPolls<K, R>>, poll: &Arc<SharedPoll<K, R>>) {
    let Some(polls) = feeds.get_mut(&poll.feed) else { return };
    // The key may belong to a newer poll by now.
    if polls.polls.get(&poll.key).is_some_and(|registered| Arc::ptr_eq(registered, poll)) {
        polls.polls.remove(&poll.key);
    }
    if polls.polls.is_empty() && !polls.is_running {
        feeds.remove(&poll.feed);
    }
}

impl<K: Clone + Eq + Hash, R> FeedPolls<K, R> {
    fn poll_of(
        &mut self,
        feed: &FeedId,
        key: K,
        new_query: impl FnOnce() -> RunQuery<R>,
    ) -> Arc<SharedPoll<K, R>> {
        let new = |key: &K| {
            let (slots, free, runtimes) = (Vec::new(), Vec::new(), Vec::new());
            let state = SharedPollState { response: None, is_closed: false, slots, free, runtimes };
            Arc::new(SharedPoll {
                feed: feed.clone(),
                key: key.clone(),
                run: new_query(),
                state: Mutex::new(state),
            })
        };
        self.polls.entry(key).or_insert_with_key(new).clone()
    }

    /// Returns the runtime of a waiter, if the feed has few polls.
    fn runtime_of_few(&self) -> Option<Handle> {
        let mut polls = self.polls.values().filter(|_| self.polls.len() <= FEW_POLLS);
        polls.find_map(|poll| poll.state.lock().runtimes.first().cloned())
    }
}

impl<R> SharedPollState<R> {
    fn take_slot(&mut self) -> u32 {
        // Reused, so that a poll with waiters that come and go does not grow.
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        self.slots.push(None);
        // `limit` is far below this; `u32` keeps a parked connection small.
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    fn poll(&mut self, slot: u32, context: &Context<'_>) -> Poll<Arc<R>> {
        if let Some(response) = &self.response {
            return Poll::Ready(response.clone());
        }
        if let Some(target) = self.slots.get_mut(slot as usize)
            // A parked connection is polled several times during a wait; its waker is cloned only once.
            && !target.as_ref().is_some_and(|(_, waker)| waker.will_wake(context.waker()))
        {
            *target = Some((runtime_index(&mut self.runtimes), context.waker().clone()));
        }
        Poll::Pending
    }

    /// Frees a slot. Returns true if it was the last one in use.
    fn free_slot(&mut self, slot: u32) -> bool {
        // The slots went with the wake-up, so there is nothing to free.
        if self.response.is_some() {
            return false;
        }
        if let Some(target) = self.slots.get_mut(slot as usize) {
            *target = None;
            self.free.push(slot);
        }
        // Set in the same lock: a handle that joins after this is turned away.
        self.is_closed = self.free.len() == self.slots.len();
        self.is_closed
    }
}

/// Wakes all waiters, with one task on each of their runtimes.
fn wake(slots: Vec<Option<WakeTarget>>, runtimes: Vec<Handle>) {
    // A wake from another thread is a system call (a write to the runtime's eventfd) for every single waiter.
    let mut wakers: Vec<Vec<Waker>> = runtimes.iter().map(|_| Vec::new()).collect();
    for (runtime, waker) in slots.into_iter().flatten() {
        wakers[runtime].push(waker);
    }
    let current = Handle::current().id();
    for (runtime, wakers) in runtimes.into_iter().zip(wakers).filter(|(_, wakers)| !wakers.is_empty()) {
        // On the waiters' own thread a wake is a push to a local queue.
        let wake = move || wakers.into_iter().for_each(Waker::wake);
        if runtime.id() == current {
            wake();
        } else {
            runtime.spawn(async move { wake() });
        }
    }
}

/// Returns the index of the current runtime, which is added if it is new.
fn runtime_index(runtimes: &mut Vec<Handle>) -> usize {
    let current = Handle::current();
    runtimes.iter().position(|known| known.id() == current.id()).unwrap_or_else(|| {
        runtimes.push(current);
        runtimes.len() - 1
    })
}

/// A waiter in a shared poll; it leaves when it is dropped.
pub struct PollWaiter<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> {
    registry: Arc<WaitRegistry<K, R>>,
    poll: Arc<SharedPoll<K, R>>,
    slot: u32,
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> PollWaiter<K, R> {
    /// Waits for the response.
    pub async fn response(&self) -> Arc<R> {
        poll_fn(|context| self.poll_response(context)).await
    }

    /// Polls for the response, for a task that polls other events beside it.
    pub fn poll_response(&self, context: &Context<'_>) -> Poll<Arc<R>> {
        self.poll.state.lock().poll(self.slot, context)
    }

    /// Returns a handle by which others can join the shared poll of this waiter.
    pub fn shared_poll(&self) -> SharedPollHandle<K, R> {
        SharedPollHandle { registry: self.registry.clone(), poll: Arc::downgrade(&self.poll) }
    }
}

/// Handle to a shared poll, to join it without its key. It does not keep the poll alive.
pub struct SharedPollHandle<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> {
    registry: Arc<WaitRegistry<K, R>>,
    poll: Weak<SharedPoll<K, R>>,
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> SharedPollHandle<K, R> {
    /// Adds a waiter, as [`WaitRegistry::join`] does. Returns `None` if the poll has its response, if its last
    /// waiter has left, or if the registry is full.
    pub fn join(&self) -> Option<PollWaiter<K, R>> {
        let poll = self.poll.upgrade()?;
        let mut state = poll.state.lock();
        if state.response.is_some() || state.is_closed {
            return None;
        }
        self.registry.count_waiter().ok()?;
        let slot = state.take_slot();
        drop(state);
        Some(PollWaiter { registry: self.registry.clone(), poll, slot })
    }

    /// Returns true if the poll can still be joined.
    pub fn is_open(&self) -> bool {
        self.poll.upgrade().is_some_and(|poll| {
            let state = poll.state.lock();
            state.response.is_none() && !state.is_closed
        })
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, R: Send + Sync + 'static> Drop for PollWaiter<K, R> {
    fn drop(&mut self) {
        self.registry.uncount_waiter();
        // Without the registry's lock: ten thousand waiters leave right after their response.
        if self.poll.state.lock().response.is_some() {
            return;
        }
        // The registry's lock is taken before the slot is freed, so that nobody joins an empty poll by its key while
        // it is being removed.
        let mut feeds = self.registry.feeds.lock();
        if self.poll.state.lock().free_slot(self.slot) {
            remove(&mut feeds, &self.poll);
        }
    }
}

#[cfg(test)]
mod tests;
