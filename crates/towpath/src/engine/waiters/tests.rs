use std::time::Duration;

use super::*;

type Numbers = Waiters<&'static str, usize>;

fn feed() -> FeedId {
    FeedId::new("feed").unwrap()
}

/// Answers with how often it was asked, from the `first` time on.
fn ask(asked: &Arc<AtomicUsize>, first: usize) -> Ask<usize> {
    let asked = asked.clone();
    Box::new(move || {
        let count = asked.fetch_add(1, Ordering::SeqCst) + 1;
        Box::pin(async move { (count >= first).then_some(count) })
    })
}

fn none() -> Ask<usize> {
    Box::new(|| Box::pin(async { None }))
}

#[tokio::test]
async fn one_question_is_asked_once_for_all() {
    let waiters = Arc::new(Numbers::new(1000, Gauge::default()));
    let asked = Arc::default();
    let seats: Vec<_> = (0..1000).map(|_| waiters.join(&feed(), "q", || ask(&asked, 2)).unwrap()).collect();
    assert!(waiters.is_full() && waiters.join(&feed(), "q", none).is_err());
    let waiting: Vec<_> = seats.into_iter().map(|s| tokio::spawn(async move { *s.answer().await })).collect();
    tokio::task::yield_now().await;
    waiters.moved(&feed());
    while asked.load(Ordering::SeqCst) < 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(waiters.gauge.get(), 1000, "the first time there was no answer");
    waiters.moved(&feed());
    for one in waiting {
        assert_eq!(one.await.unwrap(), 2);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!((waiters.gauge.get(), waiters.rooms.lock().len()), (0, 0));
}

#[tokio::test]
async fn whoever_leaves_leaves_nothing_behind() {
    let waiters = Arc::new(Numbers::new(10, Gauge::default()));
    let (a, b) = (waiters.join(&feed(), "a", none).unwrap(), waiters.join(&feed(), "b", none).unwrap());
    let again = waiters.join(&feed(), "a", none).unwrap();
    assert_eq!(waiters.rooms.lock()[&feed()].groups.len(), 2);
    drop((a, b));
    assert_eq!(waiters.rooms.lock()[&feed()].groups.len(), 1);
    let reused = waiters.join(&feed(), "a", none).unwrap();
    assert_eq!(reused.place, 0);
    drop((again, reused));
    assert_eq!((waiters.rooms.lock().len(), waiters.gauge.get()), (0, 0));
}

#[tokio::test]
async fn whoever_joins_after_the_answer_waits_for_the_next() {
    let waiters = Arc::new(Numbers::new(10, Gauge::default()));
    let asked = Arc::default();
    let first = waiters.join(&feed(), "q", || ask(&asked, 1)).unwrap();
    waiters.moved(&feed());
    assert_eq!(*first.answer().await, 1);
    let second = waiters.join(&feed(), "q", || ask(&asked, 1)).unwrap();
    let early = tokio::time::timeout(Duration::from_millis(20), second.answer()).await;
    assert!(early.is_err());
    waiters.moved(&feed());
    assert_eq!(*second.answer().await, 2);
}

#[tokio::test]
async fn a_known_group_is_joined_until_it_has_its_answer_or_has_left() {
    let waiters = Arc::new(Numbers::new(3, Gauge::default()));
    let asked = Arc::default();
    let first = waiters.join(&feed(), "q", || ask(&asked, 1)).unwrap();
    let company = first.company();
    let second = company.join().unwrap();
    assert_eq!((first.place, second.place, waiters.gauge.get()), (0, 1, 2));
    let other = waiters.join(&feed(), "other", none).unwrap();
    assert!(company.join().is_none(), "as many wait as may");
    drop((first, other));
    assert!(company.is_waiting());
    waiters.moved(&feed());
    assert_eq!(*second.answer().await, 1);
    assert!(company.join().is_none() && !company.is_waiting(), "it has its answer");
    assert_eq!((waiters.gauge.get(), asked.load(Ordering::SeqCst)), (1, 1));
    drop(second);
    let alone = waiters.join(&feed(), "q", none).unwrap();
    let company = alone.company();
    drop(alone);
    assert!(company.join().is_none() && !company.is_waiting(), "everybody left");
    assert_eq!((waiters.rooms.lock().len(), waiters.gauge.get()), (0, 0));
}
