//! Groups of a store, and the times at which it is opened again after one that failed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::EmbeddedStore;
use towpath_store::{Expected, Store as _};

use super::{Reply, Request, SimulatedStore, block_on, off};
use crate::bug::Bug;
use crate::gate::{Progress, Stop, Verdict};
use crate::{recovery, system, trace, trace::count};

/// Groups after one of which the engine writes what it has in memory to tables.
const FLUSH: u64 = 300;

/// Attempts to open a store on a full disk again, before one of which the operator makes space.
const OPERATOR: u64 = 3;

/// Takes waiting requests to the commit thread, a group at a time, until the machine is off.
pub(super) async fn run_disk(store: Arc<SimulatedStore>) {
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

/// Opens the engine again after each failed write, until the machine is off.
pub(super) async fn run_recoveries(store: Arc<SimulatedStore>) {
    loop {
        tokio::select! {
            biased;
            () = off(store.is_off.subscribe()) => return,
            () = store.failed.notified() => {}
        }
        loop {
            let Some(length) = store.pause.lock().as_ref().map(|pause| pause.length) else { break };
            tokio::select! {
                biased;
                () = off(store.is_off.subscribe()) => return,
                () = tokio::time::sleep(length) => {}
            }
            let Ok(inner) = store.inner() else { return };
            reopen(&store, &inner);
        }
    }
}

/// Lets the thread that opens the engine again try once, which takes no simulated time.
fn reopen(store: &SimulatedStore, inner: &EmbeddedStore) {
    if store.disk.is_limited() && store.world.one_in(OPERATOR) {
        trace!("disk {}: the operator makes space", store.disk.name());
        store.disk.set_free(None, false);
    }
    store.note_change();
    drop(store.pause.lock().take());
    loop {
        if inner.failure().is_none() {
            trace!("disk {}: open again", store.disk.name());
            count("stores opened again");
            return store.is_failed.store(false, Ordering::Relaxed);
        }
        if let Some(next) = recovery::take_pause() {
            *store.pause.lock() = Some(next);
            return;
        }
        system::let_others_work();
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
    store.note_change();
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
    // After a failed write it comes to no clock: it refuses everything.
    let is_refused = loop {
        if calls[0].poll(&waker) {
            break true;
        }
        if gate.wait() == Progress::Stopped(Stop::Clock) {
            break false;
        }
    };
    for request in requests {
        let mut call = Call { future: request(inner.clone()), reply: None };
        call.poll(&waker);
        calls.push(call);
    }
    trace!("disk {}: a group of {}", store.disk.name(), calls.len() - 1);
    if is_refused {
        count("groups refused until a store is open again");
    } else {
        gate.release(Verdict::Done);
    }
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
    store.note_change();
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
        store.note_change();
        if let Err(e) = block_on(inner.flush()) {
            trace!("disk {}: cannot flush: {e}", store.disk.name());
        }
    }
    if let Some(failure) = inner.failure() {
        trace!("disk {}: {}", store.disk.name(), failure.reason);
        if store.disk.take_refused() > 0 {
            count("groups refused by a full disk");
        }
        store.note_failure();
    }
}
