//! Concurrent callers.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use towpath_proto::change::NewChange;

use super::{Backend, append, feed, log, open, patch, put, seqs};
use crate::{AppendError, Expected, ItemOrder, ReadLimit, SeqRange};

pub async fn concurrent_appends_are_all_stored(backend: &dyn Backend) {
    let store = open(backend).await;
    let tasks: Vec<_> = (0..32)
        .map(|task| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut places = Vec::new();
                for n in 0..20 {
                    let f = feed(["fa", "fb", "fc"][(task + n) % 3]);
                    // One id of its own, and one that all tasks write.
                    let batch = vec![put(&format!("{task}-{n}"), "1"), put("shared", &format!("{task}-{n}"))];
                    let appended = append(&*store, &f, batch).await;
                    assert_eq!(appended.head.seq, appended.first + 1);
                    places.push((f, appended.first));
                }
                places
            })
        })
        .collect();
    let mut places = HashSet::new();
    for (task, work) in tasks.into_iter().enumerate() {
        for (n, (f, first)) in work.await.unwrap().into_iter().enumerate() {
            let change = store.change(&f, first).await.unwrap().unwrap();
            assert_eq!(change.item.id, format!("{task}-{n}"));
            assert_eq!(store.change(&f, first + 1).await.unwrap().unwrap().item.id, "shared");
            assert!(places.insert((f, first)), "a position is given once");
        }
    }
    let mut total = 0;
    for f in store.feeds().await.unwrap() {
        let log = log(&*store, &f).await;
        assert_eq!(seqs(&log), (1..=log.len() as u64).collect::<Vec<_>>());
        let head = store.head(&f).await.unwrap();
        // Half of the changes are to ids of their own; the others are to one shared id.
        assert_eq!(head.items, log.len() as u64 / 2 + 1);
        total += log.len();
    }
    assert_eq!(total, 32 * 20 * 2);
}

pub async fn one_writer_wins_a_compare(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    for round in 0..10u64 {
        let tries: Vec<_> = (0..20)
            .map(|n| {
                let (store, f) = (Arc::clone(&store), f.clone());
                tokio::spawn(async move {
                    store.append(&f, Expected::Last(round), vec![put(&n.to_string(), "1")]).await
                })
            })
            .collect();
        let mut won = 0;
        for attempt in tries {
            match attempt.await.unwrap() {
                Ok(appended) => {
                    assert_eq!((appended.first, appended.head.seq), (round + 1, round + 1));
                    won += 1;
                }
                Err(AppendError::Conflict { expected, actual, .. }) => {
                    assert_eq!((expected, actual), (round, round + 1));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(won, 1);
    }
}

pub async fn concurrent_writes_to_one_id(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1")]).await;
    let tasks: Vec<_> = (0..60)
        .map(|n| {
            let (store, f) = (Arc::clone(&store), f.clone());
            let change = match n % 3 {
                0 => patch("a", &format!(r#"{{"k{n}":{n}}}"#)),
                1 => patch("a", &format!(r#"{{"n":{n}}}"#)),
                _ => put(&format!("b{n}"), "1"),
            };
            tokio::spawn(async move { append(&*store, &f, vec![change]).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let log = log(&*store, &f).await;
    let versions: Vec<_> = log.iter().filter(|change| change.item.id == "a").collect();
    // The first put, and the patches: two of every three writes.
    assert_eq!(versions.len(), 41);
    assert!(versions.windows(2).all(|pair| pair[1].previous == Some(pair[0].seq)));
    let last = versions.last().unwrap().item.content.as_ref().unwrap().text().unwrap();
    // Every patch was applied to the result of the one before it: none is lost.
    assert!((0..60).step_by(3).all(|n| last.contains(&format!(r#""k{n}":{n}"#))), "{last}");
}

pub async fn readers_see_whole_batches(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let done = Arc::new(AtomicBool::new(false));
    let reader = tokio::spawn({
        let (store, f, done) = (Arc::clone(&store), f.clone(), Arc::clone(&done));
        async move {
            let mut reads = 0;
            // At least one read, even if the writer finishes first.
            while !done.load(Ordering::Relaxed) || reads == 0 {
                let head = store.head(&f).await.unwrap();
                let log = log(&*store, &f).await;
                assert!(log.len() as u64 >= head.seq, "changes up to the head are readable");
                assert_eq!(log.len() % 5, 0, "a batch is visible whole");
                for order in [ItemOrder::Created, ItemOrder::Modified] {
                    let items =
                        store.items(&f, order, SeqRange::default(), ReadLimit::items(99)).await.unwrap();
                    let titles: HashSet<_> = items.iter().map(|c| c.item.title.clone()).collect();
                    assert!(items.is_empty() || (items.len(), titles.len()) == (5, 1), "{titles:?}");
                }
                reads += 1;
                tokio::task::yield_now().await;
            }
        }
    });
    for n in 0..60 {
        let batch: Vec<NewChange> = (0..5).map(|id| put(&id.to_string(), &n.to_string())).collect();
        append(&*store, &f, batch).await;
    }
    done.store(true, Ordering::Relaxed);
    reader.await.unwrap();
}
