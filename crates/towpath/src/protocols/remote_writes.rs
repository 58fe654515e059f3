//! Writes of other nodes to the tables.
//!
//! Appends reach every node through the store's append hook, whichever node made them. A write to a table has further
//! effects: cached documents become invalid, and subscribers appear that another node verified. On a store that is the log
//! itself, only writes come here that are stored although their caller got an error.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use towpath_store::Table;

use crate::engine::Engine;
use crate::protocols::{diffdelta, pages, replication, websub};
use crate::stop::{Stop, stopped};
use crate::store_error::StoreError;

/// Time until a write that could not be read is read again.
const RETRY: Duration = Duration::from_secs(2);
/// Interval of measuring the replica's age.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

/// Wakes [`run`] after a write.
#[derive(Default)]
struct RemoteWriteSignal(Notify);

impl RemoteWriteSignal {
    fn of(engine: &Engine) -> &Self {
        engine.extensions.get_or_insert_with(Self::default)
    }
}

/// Passes a write to the protocol that owns the key. Runs on the store's thread: reading follows in [`run`].
pub(super) fn on_table_write(engine: &Arc<Engine>, table: Table, key: &[u8]) {
    let needs_reading = match table {
        Table::Chains => on_chains_write(engine, key),
        Table::Subscriptions => websub::on_subscription_written(engine, key),
        // No cached document depends on a row of these that can change.
        Table::Sources | Table::Documents | Table::Leases => false,
    };
    if needs_reading {
        RemoteWriteSignal::of(engine).0.notify_one();
    }
}

fn on_chains_write(engine: &Engine, key: &[u8]) -> bool {
    let Ok(key) = std::str::from_utf8(key) else { return false };
    let parts: Vec<&str> = key.split('/').collect();
    match *parts.as_slice() {
        ["diffdelta", chain, "chain"] => diffdelta::on_chain_written(engine, chain),
        ["replication", feed, "retention"] => pages::on_retention_written(engine, feed),
        // Its task reads the order itself.
        ["sink", name, "control"] => {
            engine.sinks.get(name).inspect(|sink| sink.wake());
            return false;
        }
        // Needs no read: the cached index is dropped, and the next request makes it again.
        ["replication", feed, "snapshot", id] => {
            replication::snapshot::on_snapshot_written(engine, feed, id, None);
            return false;
        }
        ["replication", feed, "items", id, number] => {
            replication::snapshot::on_snapshot_written(engine, feed, id, Some(number));
            return false;
        }
        _ => return false,
    }
    true
}

/// Reads the state that other nodes wrote, before the first request.
///
/// # Errors
///
/// [`StoreError`] if the subscriptions or the chains cannot be read.
pub async fn recover(engine: &Arc<Engine>) -> Result<(), StoreError> {
    engine.refresh_replica_age();
    websub::recover(engine).await?;
    diffdelta::refresh(engine).await
}

/// Applies the writes that other nodes made, until `stop` turns true. In a cluster, [`recover`] comes first.
pub async fn run(engine: Arc<Engine>, stop: Stop) {
    if engine.is_shared() {
        tokio::join!(apply(&engine, &stop), watch_age(&engine, &stop));
    } else {
        apply(&engine, &stop).await;
    }
}

async fn apply(engine: &Arc<Engine>, stop: &Stop) {
    while !*stop.borrow() {
        // Before the first wait: writes may have come between `recover` and this task.
        // Each runs, whatever became of the one before.
        let done = [
            diffdelta::apply_remote(engine).await,
            pages::apply_remote(engine).await,
            websub::apply_remote(engine).await,
        ];
        tokio::select! {
            () = RemoteWriteSignal::of(engine).0.notified() => {}
            () = tokio::time::sleep(RETRY), if done.contains(&false) => {}
            () = stopped(stop) => {}
        }
    }
}

async fn watch_age(engine: &Engine, stop: &Stop) {
    while !*stop.borrow() {
        engine.refresh_replica_age();
        tokio::select! {
            () = tokio::time::sleep(AGE_INTERVAL) => {}
            () = stopped(stop) => {}
        }
    }
}
