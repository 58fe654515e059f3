//! Tasks of the streams of one connection: counted while they run, and ended when their clients do not read.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::account::{ACCOUNT, StreamAccount};
use crate::server::guarded_stream::{RateLimits, Stall};

/// Requests that a client may cancel at once.
const CANCEL_BURST: f64 = 200.0;
/// Requests that a client may cancel per second for long.
// A proxy cancels the long polls of clients that leave. Rapid reset cancels thousands (CVE-2023-44487).
const CANCEL_RATE: f64 = 20.0;

/// Streams of one connection.
pub(super) struct ConnectionStreams {
    limits: Arc<RateLimits>,
    /// Streams whose pieces wait for the client: they share its minimum rate.
    waiting: Arc<AtomicUsize>,
    activity: Mutex<Activity>,
    cancelled_too_many: Notify,
}

struct Activity {
    open: usize,
    /// End of the last stream.
    since: Instant,
    cancelled: f64,
    cancelled_at: Instant,
    /// Responses took too much memory at the last look, too.
    was_exceeded: bool,
}

impl ConnectionStreams {
    pub(super) fn new(limits: Arc<RateLimits>) -> Self {
        let now = Instant::now();
        let activity =
            Activity { open: 0, since: now, cancelled: 0.0, cancelled_at: now, was_exceeded: false };
        Self {
            limits,
            waiting: Arc::default(),
            activity: Mutex::new(activity),
            cancelled_too_many: Notify::new(),
        }
    }

    /// Returns the time of the next look at this connection; `None` if it is to be closed.
    ///
    /// It is closed after it was idle for `longest`. It is also closed while responses take too much memory for long:
    /// a client can shrink windows that it gave, and hold bytes that no task waits for any more.
    pub(super) fn next_check(&self, longest: Duration) -> Option<Instant> {
        let mut activity = self.activity.lock();
        let now = Instant::now();
        let is_exceeded = self.limits.memory.is_exceeded();
        let was_exceeded = std::mem::replace(&mut activity.was_exceeded, is_exceeded);
        // Exceeded at two looks: a peak that passes is no client's fault. Streams that wait are cut by their own
        // tasks.
        if is_exceeded && was_exceeded && self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        match activity.open {
            0 if now >= activity.since + longest => None,
            0 => Some(activity.since + longest),
            _ => Some(now + longest),
        }
    }

    /// Waits until the client has cancelled too many requests.
    pub(super) async fn too_many_cancelled(&self) {
        self.cancelled_too_many.notified().await;
    }

    fn begin(&self) {
        self.activity.lock().open += 1;
    }

    fn end(&self, end: StreamEnd) {
        let mut activity = self.activity.lock();
        let now = Instant::now();
        activity.open -= 1;
        activity.since = now;
        if end == StreamEnd::Complete {
            return;
        }
        // A leaky bucket, which needs no timer: what leaked meanwhile is computed at the next cancellation.
        let paid_off = (now - activity.cancelled_at).as_secs_f64() * CANCEL_RATE;
        activity.cancelled = (activity.cancelled - paid_off).max(0.0) + 1.0;
        activity.cancelled_at = now;
        if activity.cancelled > CANCEL_BURST {
            self.cancelled_too_many.notify_one();
        }
    }
}

/// End of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The response was sent to its end.
    Complete,
    Cancelled,
}

/// Runs the streams of one connection as tasks.
#[derive(Clone)]
pub(super) struct StreamExecutor(pub(super) Arc<ConnectionStreams>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        let account = Arc::new(StreamAccount::new(self.0.waiting.clone()));
        self.0.begin();
        let task = StreamTask {
            stream: Some(Box::pin(stream)),
            account: account.clone(),
            streams: self.0.clone(),
            stall: None,
        };
        // In the scope, the body of the stream's response finds its account without hyper's help.
        tokio::spawn(ACCOUNT.scope(account, task));
    }
}

/// Task of one stream. It drops the stream, and so resets it, when its client takes too little.
struct StreamTask<F> {
    stream: Option<Pin<Box<F>>>,
    account: Arc<StreamAccount>,
    streams: Arc<ConnectionStreams>,
    /// `None` until a piece had to wait.
    stall: Option<Stall>,
}

impl<F: Future<Output = ()>> Future for StreamTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let task = &mut *self;
        let Some(stream) = &mut task.stream else { return Poll::Ready(()) };
        if stream.as_mut().poll(context).is_ready() {
            task.stream = None;
            return Poll::Ready(());
        }
        let limits = &task.streams.limits;
        // After the stream's own poll, in which hyper may have taken a piece or asked for the next.
        let (taken, is_waiting) = task.account.take_progress();
        if let Some(stall) = &mut task.stall
            && taken > 0
        {
            // The streams of a connection share the client's bandwidth, so the minimum rate holds for all of them
            // together.
            stall.end(taken, task.streams.waiting.load(Ordering::Relaxed), limits);
        }
        if !is_waiting {
            return Poll::Pending;
        }
        let stall = task.stall.get_or_insert_with(|| Stall::new(limits));
        if stall.poll_exhausted(context, limits).is_pending() {
            return Poll::Pending;
        }
        tracing::debug!("reset a stream: the client reads too slowly");
        task.stream = None;
        Poll::Ready(())
    }
}

impl<F> Drop for StreamTask<F> {
    fn drop(&mut self) {
        // Before the count: it frees the response.
        self.stream = None;
        let is_complete = self.account.is_complete();
        self.streams.end(if is_complete { StreamEnd::Complete } else { StreamEnd::Cancelled });
    }
}

#[cfg(test)]
mod tests {
    use crate::document::response_memory::ResponseMemory;

    use super::*;

    fn streams(memory: &Arc<ResponseMemory>) -> ConnectionStreams {
        ConnectionStreams::new(RateLimits::with_memory(memory.clone()))
    }

    const IDLE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_closed() {
        let streams = streams(&ResponseMemory::new(usize::MAX));
        assert_eq!(streams.next_check(IDLE), Some(Instant::now() + IDLE));
        streams.begin();
        tokio::time::advance(IDLE * 10).await;
        assert_eq!(streams.next_check(IDLE), Some(Instant::now() + IDLE), "a request waits");
        streams.end(StreamEnd::Complete);
        tokio::time::advance(IDLE / 2).await;
        assert_eq!(streams.next_check(IDLE), Some(Instant::now() + IDLE / 2));
        tokio::time::advance(IDLE / 2).await;
        assert_eq!(streams.next_check(IDLE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_closed_while_memory_is_short_for_long() {
        let memory = ResponseMemory::new(20_000);
        let streams = streams(&memory);
        streams.begin();
        let held = memory.hold(bytes::Bytes::from(vec![1; 20_000]));
        assert!(streams.next_check(IDLE).is_some(), "it may be over soon");
        assert!(streams.next_check(IDLE).is_none());
        drop(held);
        assert!(streams.next_check(IDLE).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_cancels_again_and_again_is_cut() {
        let streams = streams(&ResponseMemory::new(usize::MAX));
        let cancel = || {
            streams.begin();
            streams.end(StreamEnd::Cancelled);
        };
        let is_cut =
            || async { tokio::time::timeout(Duration::ZERO, streams.too_many_cancelled()).await.is_ok() };
        for _ in 0..30 {
            (0..20).for_each(|_| cancel());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(!is_cut().await, "a proxy may cancel as much");
        (0..=200).for_each(|_| cancel());
        assert!(is_cut().await);
    }
}
