//! Conformance suite on the embedded store, with a verification after every case.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use async_trait::async_trait;
use towpath_proto::change::NewChange;
use towpath_store::conformance::{Backend, append, feed, log, put};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{AppendError, Store, WallClock};

/// Data folder, verified when the case ends.
struct EmbeddedBackend(tempfile::TempDir);

#[async_trait]
impl Backend for EmbeddedBackend {
    async fn open(&self, clock: WallClock) -> Arc<dyn Store> {
        // A tiny cache of heads, so that heads are evicted.
        let options = EmbeddedOptions { clock, reserve: 0, heads: 2, ..EmbeddedOptions::default() };
        Arc::new(EmbeddedStore::open(self.0.path(), options).unwrap())
    }
}

impl Drop for EmbeddedBackend {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let store =
            EmbeddedStore::open(self.0.path(), EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() });
        // A store that the case left open still holds the lock.
        if let Ok(store) = store {
            let verify = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = std::thread::spawn(move || verify.block_on(store.verify()).unwrap()).join().unwrap();
            assert!(found.is_sound(), "{:#?}", found.problems);
        }
    }
}

towpath_store::conformance!(EmbeddedBackend(tempfile::tempdir().unwrap()));

/// Replicates one store's log into another store.
#[tokio::test]
async fn a_replica_has_the_same_log_and_indexes() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = || EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
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
    assert_eq!(
        replica.content_hashes(&f, None).await.unwrap(),
        first.content_hashes(&f, None).await.unwrap()
    );
    assert!(replica.verify().await.unwrap().is_sound());
    let again = replica.replicate(&f, all[..1].to_vec()).await.unwrap_err();
    assert!(matches!(again, AppendError::Conflict { actual: 90, .. }), "{again}");
}
