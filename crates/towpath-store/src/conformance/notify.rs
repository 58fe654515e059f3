//! Hooks and waits.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

use super::{Backend, append, feed, open, patch, put};
use crate::{Appended, Expected, Precondition, ReadError, Table, TableWrite};

/// Timeout of a wait: long enough for a loaded machine, so that only a missed wake-up reaches it.
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

pub async fn hooks_come_before_the_acknowledgement(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let seen: Arc<Mutex<Vec<(String, Appended)>>> = Arc::default();
    let hook = Arc::clone(&seen);
    store.on_append(Arc::new(move |feed, appended| hook.lock().push((feed.to_string(), *appended))));
    for n in 1..=20 {
        let appended = append(&*store, &f, vec![put("a", &n.to_string()), put("b", "1")]).await;
        let seen = seen.lock();
        assert_eq!(seen.len(), n, "once for every append, and before it is acknowledged");
        assert_eq!(seen[n - 1], ("f1".to_owned(), appended));
    }
}

pub async fn hooks_are_called_in_order(backend: &dyn Backend) {
    let store = open(backend).await;
    let calls: Arc<Mutex<Vec<(u8, String, u64)>>> = Arc::default();
    for which in [1, 2] {
        let calls = Arc::clone(&calls);
        store.on_append(Arc::new(move |feed, appended| {
            calls.lock().push((which, feed.to_string(), appended.head.seq));
        }));
    }
    append(&*store, &feed("f1"), vec![put("a", "1")]).await;
    append(&*store, &feed("f2"), vec![put("a", "1")]).await;
    let expected = [(1, "f1"), (2, "f1"), (1, "f2"), (2, "f2")].map(|(n, f)| (n, f.to_owned(), 1));
    assert_eq!(*calls.lock(), expected);
    // Under load, hooks run in the order of the log.
    calls.lock().clear();
    let tasks: Vec<_> = (0..50)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { append(&*store, &feed("f1"), vec![put(&n.to_string(), "1")]).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let first: Vec<_> = calls.lock().iter().filter(|call| call.0 == 1).map(|call| call.2).collect();
    assert_eq!(first, (2..=51).collect::<Vec<_>>());
}

pub async fn a_refused_append_runs_no_hook(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let calls: Arc<Mutex<usize>> = Arc::default();
    let hook = Arc::clone(&calls);
    store.on_append(Arc::new(move |_, _| *hook.lock() += 1));
    append(&*store, &f, vec![]).await;
    store.append(&f, Expected::Last(3), vec![put("a", "1")]).await.unwrap_err();
    store.append(&f, Expected::Any, vec![patch("a", "{}")]).await.unwrap_err();
    store.append(&f, Expected::Any, vec![put("", "")]).await.unwrap_err();
    assert_eq!(*calls.lock(), 0);
}

pub async fn wait_returns_at_once(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let appended = append(&*store, &f, vec![put("a", "1"), put("b", "1")]).await;
    for after in [0, 1] {
        let head = timeout(LONG, store.wait(&f, after)).await.unwrap().unwrap();
        assert_eq!(head, appended.head);
    }
    assert!(timeout(SHORT, store.wait(&f, 2)).await.is_err());
}

pub async fn wait_returns_later(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    // The feed does not exist yet, and the wait needs more than the next change.
    let waiting = tokio::spawn({
        let (store, f) = (Arc::clone(&store), f.clone());
        async move { timeout(LONG, store.wait(&f, 2)).await.unwrap().unwrap() }
    });
    // Time for the task to reach its wait. An early close would test another path.
    tokio::time::sleep(SHORT).await;
    append(&*store, &f, vec![put("a", "1")]).await;
    append(&*store, &feed("f2"), vec![put("a", "1"), put("b", "1"), put("c", "1")]).await;
    append(&*store, &f, vec![put("a", "2")]).await;
    tokio::time::sleep(SHORT).await;
    assert!(!waiting.is_finished(), "the feed ends at 2");
    let appended = append(&*store, &f, vec![put("a", "3")]).await;
    assert_eq!(waiting.await.unwrap(), appended.head);
}

pub async fn many_waiters_of_one_feed(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let waiting: Vec<_> = (0..500)
        .map(|_| {
            let (store, f) = (Arc::clone(&store), f.clone());
            // Each follows the feed over ten changes and must not miss one.
            tokio::spawn(async move {
                let mut after = 0;
                while after < 10 {
                    after = timeout(LONG, store.wait(&f, after)).await.unwrap().unwrap().seq;
                }
            })
        })
        .collect();
    for n in 0..10 {
        append(&*store, &f, vec![put("a", &n.to_string())]).await;
    }
    for task in waiting {
        task.await.unwrap();
    }
}

pub async fn waits_can_be_dropped(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    for _ in 0..3 {
        // Dropped waits must not take the wake-up of this one.
        let kept = tokio::spawn({
            let (store, f) = (Arc::clone(&store), f.clone());
            async move {
                let after = store.head(&f).await.unwrap().seq;
                timeout(LONG, store.wait(&f, after)).await.unwrap().unwrap()
            }
        });
        for _ in 0..20 {
            // Never satisfied: each times out, which drops it.
            assert!(timeout(Duration::from_millis(1), store.wait(&f, u64::MAX)).await.is_err());
        }
        append(&*store, &f, vec![put("a", "1")]).await;
        kept.await.unwrap();
    }
}

pub async fn closing_ends_waits(backend: &dyn Backend) {
    let store = open(backend).await;
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { timeout(LONG, store.wait(&feed("f1"), 0)).await.unwrap() }
    });
    tokio::time::sleep(SHORT).await;
    store.close().await;
    assert!(matches!(waiting.await.unwrap(), Err(ReadError::Closed)));
}

pub async fn table_writes_run_hooks(backend: &dyn Backend) {
    let store = open(backend).await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    for which in [1, 2] {
        let calls = Arc::clone(&calls);
        store.on_table_write(Arc::new(move |table, key| calls.lock().push((which, table, key.to_vec()))));
    }
    let write = |table, value: Option<&'static [u8]>| {
        let value = value.map(bytes::Bytes::from_static);
        vec![TableWrite { table, key: b"k".to_vec(), value }]
    };
    for (table, value) in
        [(Table::Leases, Some(&b"1"[..])), (Table::Documents, Some(b"1")), (Table::Leases, None)]
    {
        store.write(write(table, value), vec![]).await.unwrap();
        let told = std::mem::take(&mut *calls.lock());
        assert_eq!(told, [1, 2].map(|n| (n, table, b"k".to_vec())), "once, before the acknowledgement");
    }
    let held = Precondition { table: Table::Leases, key: b"k".to_vec(), value: Some(bytes::Bytes::new()) };
    store.write(write(Table::Leases, Some(b"2")), vec![held]).await.unwrap_err();
    append(&*store, &feed("f1"), vec![put("a", "1")]).await;
    assert!(calls.lock().is_empty(), "nothing was written");
}
