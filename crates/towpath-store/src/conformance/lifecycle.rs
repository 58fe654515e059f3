//! Closing and reopening.

use std::sync::Arc;

use bytes::Bytes;
use towpath_proto::change::NewChange;

use super::{Backend, ManualClock, append, feed, log, open, patch, put, seqs};
use crate::{
    AppendError, Expected, ItemOrder, ReadError, ReadLimit, SeqRange, Store, Table, TableWrite, WriteError,
};

pub async fn reopening_restores_everything(backend: &dyn Backend) {
    let clock = ManualClock::at("2024-01-01T00:00:00Z");
    let (f, g) = (feed("f1"), feed("f2"));
    let mut store = backend.open(clock.clock()).await;
    for round in 0..3 {
        let r = round.to_string();
        append(&*store, &f, vec![put("a", &r), put(&format!("b{r}"), &r), patch("a", r#"{"x":1}"#)]).await;
        append(&*store, &g, vec![put("a", &r), NewChange::delete("a")]).await;
        let value = Some(Bytes::from(r.clone()));
        store
            .write(vec![TableWrite { table: Table::Chains, key: r.clone().into(), value }], vec![])
            .await
            .unwrap();
        // Backwards: a reopened store must remember the log's last time.
        clock.advance(-60);

        let before = everything(&*store).await;
        store.close().await;
        store = backend.open(clock.clock()).await;
        assert_eq!(everything(&*store).await, before);
        let next = store.append(&f, Expected::Last(4 * round + 3), vec![put("z", &r)]).await.unwrap();
        assert_eq!(next.first, 4 * round + 4);
    }
    // A new feed does not get the number of an old one.
    append(&*store, &feed("f0"), vec![put("a", "new")]).await;
    assert_eq!(store.content_hashes(&feed("f0"), None).await.unwrap().len(), 1);
    assert_eq!(seqs(&log(&*store, &f).await), (1..=12).collect::<Vec<_>>());
}

/// Text of everything that can be read.
async fn everything(store: &dyn Store) -> Vec<String> {
    let mut all = Vec::new();
    for feed in store.feeds().await.unwrap() {
        all.push(format!("{feed} {:?}", store.head(&feed).await.unwrap()));
        all.extend(log(store, &feed).await.iter().map(|change| format!("{change:?}")));
        for order in [ItemOrder::Created, ItemOrder::Modified] {
            let items = store.items(&feed, order, SeqRange::default(), ReadLimit::items(99)).await.unwrap();
            all.push(format!("{order:?} {:?}", seqs(&items)));
        }
        let mut known: Vec<_> = store.content_hashes(&feed, None).await.unwrap().into_iter().collect();
        known.sort();
        all.push(format!("{known:?}"));
    }
    all.push(format!("{:?}", store.scan(Table::Chains, b"", None, 99).await.unwrap()));
    all
}

pub async fn a_closed_store_refuses(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    append(&*store, &f, vec![put("a", "1")]).await;
    store.close().await;
    // A second close has nothing to do and must not fail.
    store.close().await;
    let append = store.append(&f, Expected::Any, vec![put("b", "1")]).await;
    assert!(matches!(append, Err(AppendError::Closed)), "{append:?}");
    assert!(matches!(store.write(vec![], vec![]).await, Err(WriteError::Closed)));
    assert!(matches!(store.head(&f).await, Err(ReadError::Closed)));
    assert!(matches!(store.feeds().await, Err(ReadError::Closed)));
    assert!(matches!(store.read(&f, 0, ReadLimit::items(1)).await, Err(ReadError::Closed)));
    assert!(matches!(store.get(Table::Chains, b"k").await, Err(ReadError::Closed)));
    assert!(matches!(store.wait(&f, 0).await, Err(ReadError::Closed)));
    let store = open(backend).await;
    assert_eq!(store.head(&f).await.unwrap().seq, 1);
}

pub async fn closing_acknowledges_pending_appends(backend: &dyn Backend) {
    let (store, f) = (open(backend).await, feed("f1"));
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let (store, f) = (Arc::clone(&store), f.clone());
            tokio::spawn(async move { store.append(&f, Expected::Any, vec![put(&n.to_string(), "1")]).await })
        })
        .collect();
    // Some appends are queued by now, and some are not: both ends are legal.
    tokio::task::yield_now().await;
    store.close().await;
    let mut acknowledged = Vec::new();
    for task in tasks {
        match task.await.unwrap() {
            Ok(appended) => acknowledged.push(appended.first),
            Err(error) => assert!(matches!(error, AppendError::Closed), "{error}"),
        }
    }
    drop(store);
    let store = open(backend).await;
    acknowledged.sort_unstable();
    assert_eq!(seqs(&log(&*store, &f).await), acknowledged, "exactly the acknowledged appends are stored");
}
