use std::time::Duration;

use super::*;

type CountRegistry = WaitRegistry<&'static str, usize>;

fn feed() -> FeedId {
    FeedId::new("feed").unwrap()
}

/// A query that returns the number of its runs, from the `first` run on.
fn count_runs(runs: &Arc<AtomicUsize>, first: usize) -> RunQuery<usize> {
    let runs = runs.clone();
    Box::new(move || {
        let count = runs.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move { (count >= first).then_some(count) })
    })
}

/// A query without a response.
fn none() -> RunQuery<usize> {
    Box::new(|| Box::pin(async { None }))
}

#[tokio::test]
async fn one_query_runs_once_for_all_waiters() {
    let registry = Arc::new(CountRegistry::new(1000, Gauge::default()));
    let runs = Arc::default();
    let waiters: Vec<_> =
        (0..1000).map(|_| registry.join(&feed(), "q", || count_runs(&runs, 2)).unwrap()).collect();
    // The limit counts waiters, not polls: each holds a socket.
    assert!(registry.is_full() && registry.join(&feed(), "q", none).is_err());
    let waiting: Vec<_> =
        waiters.into_iter().map(|waiter| tokio::spawn(async move { *waiter.response().await })).collect();
    tokio::task::yield_now().await;
    registry.log_changed(&feed());
    while runs.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(registry.gauge.get(), 1000, "the first run has no response");
    registry.log_changed(&feed());
    for response in waiting {
        assert_eq!(response.await.unwrap(), 2);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!((registry.gauge.get(), registry.feeds.lock().len()), (0, 0));
}

#[tokio::test]
async fn the_last_waiter_removes_its_poll() {
    let registry = Arc::new(CountRegistry::new(10, Gauge::default()));
    let (a, b) = (registry.join(&feed(), "a", none).unwrap(), registry.join(&feed(), "b", none).unwrap());
    let again = registry.join(&feed(), "a", none).unwrap();
    assert_eq!(registry.feeds.lock()[&feed()].polls.len(), 2);
    drop((a, b));
    assert_eq!(registry.feeds.lock()[&feed()].polls.len(), 1);
    let reused = registry.join(&feed(), "a", none).unwrap();
    // The slot of the first waiter, which left: slots do not grow with each reconnect.
    assert_eq!(reused.slot, 0);
    drop((again, reused));
    assert_eq!((registry.feeds.lock().len(), registry.gauge.get()), (0, 0));
}

#[tokio::test]
async fn a_waiter_that_joins_after_the_response_waits_for_the_next() {
    let registry = Arc::new(CountRegistry::new(10, Gauge::default()));
    let runs = Arc::default();
    let first = registry.join(&feed(), "q", || count_runs(&runs, 1)).unwrap();
    registry.log_changed(&feed());
    assert_eq!(*first.response().await, 1);
    let second = registry.join(&feed(), "q", || count_runs(&runs, 1)).unwrap();
    let early = tokio::time::timeout(Duration::from_millis(20), second.response()).await;
    assert!(early.is_err());
    registry.log_changed(&feed());
    assert_eq!(*second.response().await, 2);
}

#[tokio::test]
async fn a_handle_joins_its_poll_until_the_response_or_the_last_leave() {
    let registry = Arc::new(CountRegistry::new(3, Gauge::default()));
    let runs = Arc::default();
    let first = registry.join(&feed(), "q", || count_runs(&runs, 1)).unwrap();
    let handle = first.shared_poll();
    let second = handle.join().unwrap();
    assert_eq!((first.slot, second.slot, registry.gauge.get()), (0, 1, 2));
    let other = registry.join(&feed(), "other", none).unwrap();
    assert!(handle.join().is_none(), "the registry is full");
    drop((first, other));
    assert!(handle.is_open());
    registry.log_changed(&feed());
    assert_eq!(*second.response().await, 1);
    assert!(handle.join().is_none() && !handle.is_open(), "it has its response");
    // The refused joins above must not have been counted.
    assert_eq!((registry.gauge.get(), runs.load(Ordering::SeqCst)), (1, 1));
    drop(second);
    let alone = registry.join(&feed(), "q", none).unwrap();
    let handle = alone.shared_poll();
    drop(alone);
    assert!(handle.join().is_none() && !handle.is_open(), "the last waiter has left");
    assert_eq!((registry.feeds.lock().len(), registry.gauge.get()), (0, 0));
}

/// A panic in one query concerns neither other queries of the feed nor later appends.
#[tokio::test]
async fn a_query_that_panics_leaves_nobody_asleep() {
    let registry = Arc::new(CountRegistry::new(10, Gauge::default()));
    let runs: Arc<AtomicUsize> = Arc::default();
    let counted = runs.clone();
    let panics_once = move || -> RunQuery<usize> {
        Box::new(move || {
            let count = counted.fetch_add(1, Ordering::SeqCst) + 1;
            Box::pin(async move {
                assert!(count > 1, "the first run panics");
                Some(count)
            })
        })
    };
    let waiter = registry.join(&feed(), "q", panics_once).unwrap();
    let other = registry.join(&feed(), "other", || count_runs(&Arc::default(), 1)).unwrap();
    registry.log_changed(&feed());
    assert_eq!(*tokio::time::timeout(Duration::from_secs(30), other.response()).await.unwrap(), 1);
    while registry.feeds.lock()[&feed()].is_running {
        tokio::task::yield_now().await;
    }
    registry.log_changed(&feed());
    assert_eq!(*tokio::time::timeout(Duration::from_secs(30), waiter.response()).await.unwrap(), 2);
}

/// Query that returns the runtime on which it ran.
fn runtime_of_run() -> RunQuery<tokio::runtime::Id> {
    Box::new(|| Box::pin(async { Some(Handle::current().id()) }))
}

/// Runs `work` on a thread with a runtime of its own, as each thread that serves has one.
fn on_worker<T: Send + 'static>(work: impl FnOnce(&tokio::runtime::Runtime) -> T + Send + 'static) -> T {
    let run = || work(&tokio::runtime::Builder::new_current_thread().build().unwrap());
    std::thread::spawn(run).join().unwrap()
}

#[tokio::test]
async fn a_query_runs_on_the_thread_of_a_waiter() {
    let registry = Arc::new(WaitRegistry::<_, tokio::runtime::Id>::new(10, Gauge::default()));
    let waiter = registry.join(&feed(), "q", runtime_of_run).unwrap();
    let (ran, own) = on_worker(move |worker| {
        let waiting = worker.spawn(async move { *waiter.response().await });
        worker.block_on(tokio::task::yield_now());
        registry.log_changed(&feed());
        (worker.block_on(waiting).unwrap(), worker.handle().id())
    });
    assert_eq!(ran, own);
}

#[tokio::test]
async fn waiters_are_answered_after_the_thread_of_another_has_ended() {
    let registry = Arc::new(WaitRegistry::<_, tokio::runtime::Id>::new(10, Gauge::default()));
    let joined = || registry.join(&feed(), "q", runtime_of_run).unwrap();
    let (ended, waiter) = (joined(), joined());
    let ended = on_worker(move |worker| {
        let polled = worker.block_on(poll_fn(|context| Poll::Ready(ended.poll_response(context))));
        assert!(polled.is_pending());
        ended
    });
    registry.log_changed(&feed());
    let response = tokio::time::timeout(Duration::from_secs(30), waiter.response()).await.unwrap();
    assert_eq!(*response, Handle::current().id());
    drop((ended, waiter));
    assert_eq!(registry.feeds.lock().len(), 0);
}
