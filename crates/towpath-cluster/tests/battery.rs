//! A node's store passes the battery that every store passes, on a real server; and, opened again with an empty folder,
//! makes its replica from the log.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tempfile::TempDir;
use towpath_cluster::{Address, ClusterStore, Options};
use towpath_store::battery::Backend;
use towpath_store::{Clock, Store};

/// A stream of its own, and the folders of a node's replica.
struct Node {
    address: Address,
    /// Whether every opening has a new folder.
    anew: bool,
    folders: Mutex<Vec<TempDir>>,
}

impl Node {
    fn new(anew: bool) -> Self {
        let address = Address::parse(&common::fresh_stream()).unwrap();
        Self { address, anew, folders: Mutex::default() }
    }
}

#[async_trait]
impl Backend for Node {
    async fn open(&self, clock: Clock) -> Arc<dyn Store> {
        let folder = {
            let mut folders = self.folders.lock();
            if self.anew || folders.is_empty() {
                folders.push(tempfile::tempdir().unwrap());
            }
            folders.last().unwrap().path().to_owned()
        };
        let mut options = Options::default();
        (options.replica.clock, options.replica.reserve, options.replica.heads) = (clock, 0, 2);
        Arc::new(ClusterStore::open(&self.address, folder, options).await.unwrap())
    }
}

towpath_store::battery!(Node::new(false));

mod rebuilt {
    use super::Node;

    towpath_store::battery!(Node::new(true); lifecycle: everything_is_there_after_opening_again, a_closed_store_refuses,
        closing_acknowledges_what_is_under_way);
}
