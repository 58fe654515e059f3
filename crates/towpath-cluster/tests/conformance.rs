//! Conformance suite on a node with a real server.
//!
//! The lifecycle cases also run with an empty folder for each opening, so that the replica is rebuilt from the log.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tempfile::TempDir;
use towpath_cluster::{ClusterAddress, ClusterOptions, ClusterStore};
use towpath_store::conformance::Backend;
use towpath_store::{Store, WallClock};

/// Stream of one case, with the folders of its node's replica.
struct NodeBackend {
    address: ClusterAddress,
    /// Uses a new folder for every opening.
    always_new: bool,
    folders: Mutex<Vec<TempDir>>,
}

impl NodeBackend {
    fn new(always_new: bool) -> Self {
        let address = ClusterAddress::parse(&common::fresh_stream()).unwrap();
        Self { address, always_new, folders: Mutex::default() }
    }
}

#[async_trait]
impl Backend for NodeBackend {
    async fn open(&self, clock: WallClock) -> Arc<dyn Store> {
        let folder = {
            let mut folders = self.folders.lock();
            if self.always_new || folders.is_empty() {
                folders.push(tempfile::tempdir().unwrap());
            }
            folders.last().unwrap().path().to_owned()
        };
        let mut options = ClusterOptions::default();
        (options.replica.clock, options.replica.reserve, options.replica.heads) = (clock, 0, 2);
        Arc::new(ClusterStore::open(&self.address, folder, options).await.unwrap())
    }
}

towpath_store::conformance!(NodeBackend::new(false));

mod rebuilt {
    use super::NodeBackend;

    towpath_store::conformance!(NodeBackend::new(true); lifecycle: reopening_restores_everything, a_closed_store_refuses,
        closing_acknowledges_pending_appends);
}
