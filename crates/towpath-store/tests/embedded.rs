//! The embedded store passes the battery, and is sound after every case.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use async_trait::async_trait;
use towpath_proto::change::NewChange;
use towpath_store::battery::{Backend, append, feed, log, put};
use towpath_store::embedded::{EmbeddedStore, Options};
use towpath_store::{AppendError, Clock, Store};

/// A data folder.
struct Folder(tempfile::TempDir);

#[async_trait]
impl Backend for Folder {
    async fn open(&self, clock: Clock) -> Arc<dyn Store> {
        // A small cache of heads, so that heads are pushed out of it.
        let options = Options { clock, reserve: 0, heads: 2, ..Options::default() };
        Arc::new(EmbeddedStore::open(self.0.path(), options).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let store = EmbeddedStore::open(self.0.path(), Options { reserve: 0, ..Options::default() });
        // A store that the case left open has the lock still.
        if let Ok(store) = store {
            let verify = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = std::thread::spawn(move || verify.block_on(store.verify()).unwrap()).join().unwrap();
            assert!(found.is_sound(), "{:#?}", found.problems);
        }
    }
}

towpath_store::battery!(Folder(tempfile::tempdir().unwrap()));

/// A store that takes over another's log is that store's replica.
#[tokio::test]
async fn a_replica_has_the_same_log_and_indexes() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = || Options { reserve: 0, ..Options::default() };
    let first = EmbeddedStore::open(ours.path(), options()).unwrap();
    let replica = EmbeddedStore::open(theirs.path(), options()).unwrap();
    let f = feed("f1");
    for n in 0..30 {
        let (id, other) = ((n % 7).to_string(), (n % 3).to_string());
        append(&first, &f, vec![put(&id, &n.to_string()), NewChange::delete(&*other), put(&other, "x")])
            .await;
    }
    let all = log(&first, &f).await;
    let waiting = replica.wait(&f, 89);
    for part in all.chunks(11) {
        replica.replicate(&f, part.to_vec()).await.unwrap();
    }
    assert_eq!(waiting.await.unwrap(), first.head(&f).await.unwrap());
    assert_eq!(log(&replica, &f).await, all);
    assert_eq!(replica.known(&f, None).await.unwrap(), first.known(&f, None).await.unwrap());
    assert!(replica.verify().await.unwrap().is_sound());
    let again = replica.replicate(&f, all[..1].to_vec()).await.unwrap_err();
    assert!(matches!(again, AppendError::Conflict { actual: 90, .. }), "{again}");
}
