//! Those who wait for a feed to move: held without a thread, woken by the append itself.
//!
//! Whoever waits for the answer to the same question sits in one [`Group`]. A move has each group's question
//! asked once; its answer is made once and is everybody's. An append costs the same whether one or ten
//! thousand wait, but for their waking.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::runtime::Handle;
use towpath_proto::FeedId;

/// Asks a question again; `None` while there is no answer.
pub(super) type Ask<A> = Box<dyn Fn() -> BoxFuture<'static, Option<A>> + Send + Sync>;

/// As many wait already as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// Everybody who waits, by the feed whose log is to move.
pub struct Waiters<Q, A> {
    rooms: Mutex<HashMap<FeedId, Room<Q, A>>>,
    taken: AtomicUsize,
    limit: usize,
    gauge: Gauge,
    runtime: Handle,
}

struct Room<Q, A> {
    groups: HashMap<Q, Arc<Group<Q, A>>>,
    /// Whether a task asks this room's questions right now, and whether it is to do so once more.
    asking: bool,
    again: bool,
}

struct Group<Q, A> {
    feed: FeedId,
    question: Q,
    ask: Ask<A>,
    state: Mutex<State<A>>,
}

struct State<A> {
    answer: Option<Arc<A>>,
    /// Whether everybody has left, and the group with them: nobody sits down any more.
    left: bool,
    seats: Vec<Option<Waiting>>,
    free: Vec<u32>,
    /// The runtimes that those who wait run on: as many as the server has workers.
    runtimes: Vec<Handle>,
}

/// Somebody on a seat: the number of the runtime in [`State::runtimes`], and how to wake.
type Waiting = (usize, Waker);

impl<Q: Clone + Eq + Hash + Send + Sync + 'static, A: Send + Sync + 'static> Waiters<Q, A> {
    /// Room for so many. Questions are asked on the runtime that this is called in.
    pub fn new(limit: usize, gauge: Gauge) -> Self {
        let (rooms, taken) = (Mutex::default(), AtomicUsize::new(0));
        Self { rooms, taken, limit, gauge, runtime: Handle::current() }
    }

    /// Whether nobody more may wait.
    pub fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.limit
    }

    /// Takes a seat among those who wait with the same question. Whoever joins looks at the feed's head after
    /// that, and calls [`Self::moved`] if it has moved since the question was asked.
    ///
    /// `ask` makes how the question is asked, for the first who waits with it.
    pub fn join(
        self: &Arc<Self>,
        feed: &FeedId,
        question: Q,
        ask: impl FnOnce() -> Ask<A>,
    ) -> Result<Seat<Q, A>, Full> {
        self.take()?;
        let mut rooms = self.rooms.lock();
        let empty = || Room { groups: HashMap::new(), asking: false, again: false };
        let group = rooms.entry(feed.clone()).or_insert_with(empty).group(feed, question, ask);
        let place = group.state.lock().sit();
        drop(rooms);
        Ok(Seat { waiters: self.clone(), group, place })
    }

    /// Counts one more who waits.
    fn take(&self) -> Result<(), Full> {
        let room_for_one = |taken| (taken < self.limit).then_some(taken + 1);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room_for_one).is_err() {
            return Err(Full);
        }
        self.gauge.inc();
        Ok(())
    }

    fn give_back(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }

    /// Has the questions of a feed asked again. Returns at once.
    pub fn moved(self: &Arc<Self>, feed: &FeedId) {
        let mut rooms = self.rooms.lock();
        let Some(room) = rooms.get_mut(feed) else { return };
        if room.asking {
            room.again = true;
            return;
        }
        room.asking = true;
        drop(rooms);
        let (waiters, feed) = (self.clone(), feed.clone());
        self.runtime.spawn(async move { waiters.ask_all(&feed).await });
    }

    async fn ask_all(&self, feed: &FeedId) {
        while let Some(groups) = self.groups_to_ask(feed) {
            for group in groups {
                if let Some(answer) = (group.ask)().await {
                    self.tell(&group, answer);
                }
            }
            if !self.asks_again(feed) {
                return;
            }
        }
    }

    fn groups_to_ask(&self, feed: &FeedId) -> Option<Vec<Arc<Group<Q, A>>>> {
        let mut rooms = self.rooms.lock();
        let room = rooms.get_mut(feed)?;
        room.again = false;
        Some(room.groups.values().cloned().collect())
    }

    fn asks_again(&self, feed: &FeedId) -> bool {
        let mut rooms = self.rooms.lock();
        let Some(room) = rooms.get_mut(feed) else { return false };
        room.asking = room.again;
        if !room.again && room.groups.is_empty() {
            rooms.remove(feed);
            return false;
        }
        room.again
    }

    /// Gives a group its answer: nobody joins it from here on, and all who sit in it are woken.
    fn tell(&self, group: &Arc<Group<Q, A>>, answer: A) {
        self.close(group);
        let (seats, runtimes) = {
            let mut state = group.state.lock();
            state.answer = Some(Arc::new(answer));
            (std::mem::take(&mut state.seats), std::mem::take(&mut state.runtimes))
        };
        wake(seats, runtimes);
    }

    fn close(&self, group: &Arc<Group<Q, A>>) {
        let mut rooms = self.rooms.lock();
        let Some(room) = rooms.get_mut(&group.feed) else { return };
        if room.groups.get(&group.question).is_some_and(|known| Arc::ptr_eq(known, group)) {
            room.groups.remove(&group.question);
        }
        if room.groups.is_empty() && !room.asking {
            rooms.remove(&group.feed);
        }
    }
}

impl<Q: Clone + Eq + Hash, A> Room<Q, A> {
    fn group(&mut self, feed: &FeedId, question: Q, ask: impl FnOnce() -> Ask<A>) -> Arc<Group<Q, A>> {
        let new = |question: &Q| {
            let (seats, free, runtimes) = (Vec::new(), Vec::new(), Vec::new());
            let state = State { answer: None, left: false, seats, free, runtimes };
            Arc::new(Group {
                feed: feed.clone(),
                question: question.clone(),
                ask: ask(),
                state: Mutex::new(state),
            })
        };
        self.groups.entry(question).or_insert_with_key(new).clone()
    }
}

impl<A> State<A> {
    fn sit(&mut self) -> u32 {
        if let Some(place) = self.free.pop() {
            return place;
        }
        self.seats.push(None);
        u32::try_from(self.seats.len() - 1).unwrap_or(u32::MAX)
    }

    fn poll(&mut self, place: u32, context: &Context<'_>) -> Poll<Arc<A>> {
        if let Some(answer) = &self.answer {
            return Poll::Ready(answer.clone());
        }
        if let Some(seat) = self.seats.get_mut(place as usize)
            && !seat.as_ref().is_some_and(|(_, waker)| waker.will_wake(context.waker()))
        {
            *seat = Some((runtime(&mut self.runtimes), context.waker().clone()));
        }
        Poll::Pending
    }

    /// Returns whether nobody is left who waits.
    fn leave(&mut self, place: u32) -> bool {
        if self.answer.is_some() {
            return false;
        }
        if let Some(seat) = self.seats.get_mut(place as usize) {
            *seat = None;
            self.free.push(place);
        }
        self.left = self.free.len() == self.seats.len();
        self.left
    }
}

/// Wakes everybody, each from a task of his own runtime: from another thread every single one would be a system
/// call.
fn wake(seats: Vec<Option<Waiting>>, runtimes: Vec<Handle>) {
    let mut wakers: Vec<Vec<Waker>> = runtimes.iter().map(|_| Vec::new()).collect();
    for (runtime, waker) in seats.into_iter().flatten() {
        wakers[runtime].push(waker);
    }
    for (runtime, wakers) in runtimes.into_iter().zip(wakers).filter(|(_, wakers)| !wakers.is_empty()) {
        runtime.spawn(async move { wakers.into_iter().for_each(Waker::wake) });
    }
}

/// The number of the runtime that this is called in.
fn runtime(runtimes: &mut Vec<Handle>) -> usize {
    let current = Handle::current();
    runtimes.iter().position(|known| known.id() == current.id()).unwrap_or_else(|| {
        runtimes.push(current);
        runtimes.len() - 1
    })
}

/// A place among those who wait; free again once it is dropped.
pub struct Seat<Q: Clone + Eq + Hash + Send + Sync + 'static, A: Send + Sync + 'static> {
    waiters: Arc<Waiters<Q, A>>,
    group: Arc<Group<Q, A>>,
    place: u32,
}

impl<Q: Clone + Eq + Hash + Send + Sync + 'static, A: Send + Sync + 'static> Seat<Q, A> {
    /// Returns the answer once there is one.
    pub async fn answer(&self) -> Arc<A> {
        poll_fn(|context| self.poll(context)).await
    }

    /// The same, for who has more to look after.
    pub fn poll(&self, context: &Context<'_>) -> Poll<Arc<A>> {
        self.group.state.lock().poll(self.place, context)
    }

    /// The group that this seat is in.
    pub fn company(&self) -> Company<Q, A> {
        Company { waiters: self.waiters.clone(), group: Arc::downgrade(&self.group) }
    }
}

/// A group that is known: whoever has the same question joins it without asking it, as long as somebody waits there.
pub struct Company<Q: Clone + Eq + Hash + Send + Sync + 'static, A: Send + Sync + 'static> {
    waiters: Arc<Waiters<Q, A>>,
    group: Weak<Group<Q, A>>,
}

impl<Q: Clone + Eq + Hash + Send + Sync + 'static, A: Send + Sync + 'static> Company<Q, A> {
    /// Takes a seat, as [`Waiters::join`] does; `None` where the group has its answer or has left, or as many wait as
    /// may.
    pub fn join(&self) -> Option<Seat<Q, A>> {
        let group = self.group.upgrade()?;
        let mut state = group.state.lock();
        if state.answer.is_some() || state.left {
            return None;
        }
        self.waiters.take().ok()?;
        let place = state.sit();
        drop(state);
        Some(Seat { waiters: self.waiters.clone(), group, place })
    }

    /// Whether there is still somebody to join.
    pub fn is_waiting(&self) -> bool {
        self.group.upgrade().is_some_and(|group| {
            let state = group.state.lock();
            state.answer.is_none() && !state.left
        })
    }
}

impl<Q: Clone + Eq + Hash + Send + Sync + 'static, A: Send + Sync + 'static> Drop for Seat<Q, A> {
    fn drop(&mut self) {
        self.waiters.give_back();
        if self.group.state.lock().answer.is_some() {
            return;
        }
        // An empty group must not be joined while it is being closed: both happen under the rooms' lock.
        let mut rooms = self.waiters.rooms.lock();
        if !self.group.state.lock().leave(self.place) {
            return;
        }
        let Some(room) = rooms.get_mut(&self.group.feed) else { return };
        if room.groups.get(&self.group.question).is_some_and(|known| Arc::ptr_eq(known, &self.group)) {
            room.groups.remove(&self.group.question);
        }
        if room.groups.is_empty() && !room.asking {
            rooms.remove(&self.group.feed);
        }
    }
}

#[cfg(test)]
mod tests;
