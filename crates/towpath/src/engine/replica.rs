//! What this node takes in of what others wrote to the tables.
//!
//! Appends come to every node through the same hook, whichever node took them ([`Engine`] listens to it). Of the tables
//! there is more that follows from a write than the log says: documents that are in memory here, subscribers that
//! another node verified. Nothing of this happens on a store that is the log itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_proto::FeedId;
use towpath_proto::replication::pages::Cleanup;
use towpath_store::Table;

use super::{Engine, diffdelta, history, pages, push, replication};
use crate::stop::{Stop, stopped};

/// How often it is looked at how old the replica is.
const LOOK: Duration = Duration::from_secs(1);
/// How old a replica may be before that is told of: so long it may take to hear that there is nothing new.
const CURRENT: Duration = Duration::from_secs(4);
/// How many counters there are: those of several chains may be one.
const COUNTERS: usize = 256;
/// Of a replica that is current.
const NONE: u64 = u64::MAX;
/// Of one of which it is not known.
const UNKNOWN: u64 = u64::MAX - 1;

/// What was written and is not taken in yet.
pub(super) struct Replica {
    counters: [AtomicU64; COUNTERS],
    chains: Mutex<HashSet<String>>,
    /// Feeds of which old pages were let go, with what was let go before.
    tidied: Mutex<HashMap<FeedId, Cleanup>>,
    bell: Notify,
    /// How old the replica is, in seconds, or one of the two values above.
    age: AtomicU64,
}

impl Default for Replica {
    fn default() -> Self {
        Self {
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            chains: Mutex::default(),
            tidied: Mutex::default(),
            bell: Notify::new(),
            age: AtomicU64::new(NONE),
        }
    }
}

impl Replica {
    fn counter(&self, chain: &str) -> &AtomicU64 {
        &self.counters[crc32fast::hash(chain.as_bytes()) as usize % COUNTERS]
    }

    /// Another number after every write to a chain: what was made from what was read before is not kept then.
    pub(super) fn writes(&self, chain: &str) -> u64 {
        self.counter(chain).load(Ordering::Acquire)
    }
}

impl Engine {
    /// Whether other nodes write what is read here.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// How old what is read here may be, in seconds if that is known; `None` where it is current.
    pub fn replica_age(&self) -> Option<Option<u64>> {
        match self.replica.age.load(Ordering::Relaxed) {
            NONE => None,
            UNKNOWN => Some(None),
            seconds => Some(Some(seconds)),
        }
    }

    /// Notes a write to a table. Called on the store's thread.
    pub(super) fn wrote(&self, table: Table, key: &[u8]) {
        match table {
            Table::Chains => self.wrote_chain(key),
            Table::Subscriptions => {
                if self.push.wrote(key) {
                    self.replica.bell.notify_one();
                }
            }
            Table::Sources | Table::Documents | Table::Leases => {}
        }
    }

    fn wrote_chain(&self, key: &[u8]) {
        let Ok(key) = std::str::from_utf8(key) else { return };
        let parts: Vec<&str> = key.split('/').collect();
        match *parts.as_slice() {
            ["diffdelta", name, "chain"] => {
                self.replica.counter(name).fetch_add(1, Ordering::AcqRel);
                diffdelta::served::forget(self, name);
                self.replica.chains.lock().insert(name.to_owned());
            }
            ["replication", feed, "retention"] => {
                let Some(feed) = self.feed(feed) else { return };
                if let Some(before) = feed.pages.tidied() {
                    self.replica.tidied.lock().entry(feed.id().clone()).or_insert(before);
                }
            }
            ["replication", feed, "snapshot", id] => {
                return replication::snapshot::forget(self, feed, id, None);
            }
            ["replication", feed, "items", id, number] => {
                return replication::snapshot::forget(self, feed, id, Some(number));
            }
            _ => return,
        }
        self.replica.bell.notify_one();
    }

    fn look_at_age(&self) {
        let Some(standing) = self.store.standing() else { return };
        let age = standing.current_at.map(|at| self.now().duration_since(at));
        let age = age.map(|age| Duration::try_from(age).unwrap_or_default());
        let known = match age {
            Some(age) if age < CURRENT => NONE,
            Some(age) => age.as_secs(),
            None => UNKNOWN,
        };
        self.replica.age.store(known, Ordering::Relaxed);
        self.metrics.replica_age.set(if known == NONE {
            0
        } else {
            i64::try_from(known).unwrap_or(i64::MAX)
        });
    }
}

/// Takes in what is there before anybody is answered.
pub async fn begin(engine: &Arc<Engine>) -> Result<(), towpath_store::StoreError> {
    engine.look_at_age();
    push::begin(engine).await?;
    diffdelta::look(engine).await
}

/// Takes in what others write, until `stop` turns true. [`begin`] comes before.
pub async fn run(engine: Arc<Engine>, stop: Stop) {
    if engine.is_shared() {
        tokio::join!(take_in(&engine, &stop), watch(&engine, &stop));
    }
}

async fn watch(engine: &Engine, stop: &Stop) {
    while !*stop.borrow() {
        engine.look_at_age();
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stopped(stop) => {}
        }
    }
}

async fn take_in(engine: &Arc<Engine>, stop: &Stop) {
    while !*stop.borrow() {
        let chains: Vec<String> = engine.replica.chains.lock().drain().collect();
        for name in chains {
            if let Err(e) = diffdelta::take_in(engine, &name).await {
                tracing::error!(feed = name, "cannot read its chain: {e}");
            }
        }
        let tidied: Vec<(FeedId, Cleanup)> = engine.replica.tidied.lock().drain().collect();
        for (id, before) in tidied {
            let Some(feed) = engine.feed(id.as_str()) else { continue };
            match pages::cleanup(engine, &feed).await {
                Ok(after) => forget_pages(engine, &feed, before, after),
                Err(e) => tracing::error!(feed = %id, "cannot read what was let go: {e}"),
            }
        }
        push::take_written(engine).await;
        tokio::select! {
            () = engine.replica.bell.notified() => {}
            () = stopped(stop) => {}
        }
    }
}

/// Forgets every page from the first that was listed to the first that is: it has lost its prev, or is gone.
pub(super) fn forget_pages(engine: &Engine, feed: &super::Feed, before: Cleanup, after: Cleanup) {
    for number in before.gone_below.max(1)..=after.first_page {
        replication::forget_page(engine, feed, number);
        history::forget(engine, feed, number);
    }
}
