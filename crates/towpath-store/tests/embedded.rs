//! The embedded store passes the battery, and is sound after every case.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use async_trait::async_trait;
use towpath_store::battery::Backend;
use towpath_store::embedded::{EmbeddedStore, Options};
use towpath_store::{Clock, Store};

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
