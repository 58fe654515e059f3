//! Fault test: three nodes on three servers. Servers are killed and paused, and nodes closed, at random while all write.
//!
//! At the end all nodes have equal logs, with every acknowledged change once and at its position.
//!
//! `TOWPATH_FAULTS=1000 cargo test -p towpath-cluster --test faults` (or `cargo xtask faults 1000`) for longer.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::time::sleep;
use towpath_cluster::{ClusterAddress, ClusterOptions, ClusterStore};
use towpath_proto::change::{Change, NewChange, Seq};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::Content;
use towpath_store::conformance::{feed, item, log};
use towpath_store::{AppendError, Appended, Expected, Precondition, Store, Table, TableWrite, WriteError};

const FEEDS: [&str; 4] = ["fa", "fb", "fc", "fd"];
const COUNTER: &[u8] = b"counter";

/// Node, with the store that it has open now.
struct FaultNode {
    address: ClusterAddress,
    store: RwLock<Option<Arc<ClusterStore>>>,
    folder: Mutex<PathBuf>,
    /// Position of each feed at the last call of a hook.
    last_hook: Arc<Mutex<HashMap<FeedId, Seq>>>,
}

impl FaultNode {
    async fn open(&self) -> Arc<ClusterStore> {
        let folder = self.folder.lock().clone();
        let mut options =
            ClusterOptions { connect_timeout: Duration::from_secs(60), ..ClusterOptions::default() };
        options.replica.reserve = 0;
        let store = Arc::new(ClusterStore::open(&self.address, folder, options).await.unwrap());
        let positions = Arc::clone(&self.last_hook);
        store.on_append(Arc::new(move |feed: &FeedId, appended: &Appended| {
            let seq = appended.head.seq;
            let before = positions.lock().insert(feed.clone(), seq);
            assert!(before.is_none_or(|before| before < seq), "{feed}: hooks ran out of order");
        }));
        *self.store.write() = Some(Arc::clone(&store));
        store
    }

    fn get(&self) -> Option<Arc<ClusterStore>> {
        self.store.read().clone()
    }

    /// Closes the store and opens it again, sometimes with an empty folder.
    async fn reopen(&self, new_folder: Option<PathBuf>) {
        let store = self.store.write().take();
        if let Some(store) = store {
            store.close().await;
            // Writers that still hold it get an error from the closed store.
        }
        self.last_hook.lock().clear();
        if let Some(folder) = new_folder {
            *self.folder.lock() = folder;
        }
        self.open().await;
    }
}

/// Acknowledged writes.
#[derive(Default)]
struct FaultLedger {
    /// Mark of each change, by feed and position.
    changes: HashMap<(&'static str, Seq), String>,
    /// Values of the counter that were written.
    counts: HashSet<u64>,
    conflicts: usize,
    unavailable: usize,
    reasons: HashSet<String>,
}

struct FaultRun {
    nodes: Vec<FaultNode>,
    acknowledged: Mutex<FaultLedger>,
    done: AtomicBool,
}

impl FaultRun {
    /// Writes through random nodes until the end of the run.
    async fn write(self: Arc<Self>, writer: usize) {
        let mut rng = fastrand::Rng::with_seed(writer as u64);
        let mut number = 0;
        while !self.done.load(Ordering::Relaxed) {
            let node = &self.nodes[rng.usize(..3)];
            let Some(store) = node.get() else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            number += 1;
            let mark = format!("w{writer}-{number}");
            if rng.u8(..8) == 0 {
                self.count(&store).await;
            } else {
                self.append(&store, &mut rng, &mark).await;
            }
            sleep(Duration::from_millis(rng.u64(..8))).await;
        }
    }

    async fn append(&self, store: &ClusterStore, rng: &mut fastrand::Rng, mark: &str) {
        let name = FEEDS[rng.usize(..FEEDS.len())];
        let f = feed(name);
        let changes: Vec<_> = (0..rng.usize(1..4)).map(|n| change(rng, &format!("{mark}-{n}"))).collect();
        let count = changes.len() as u64;
        let expected = match (rng.bool(), store.head(&f).await) {
            (true, Ok(head)) => Expected::Last(head.seq),
            _ => Expected::Any,
        };
        let result = store.append(&f, expected, changes).await;
        let mut acknowledged = self.acknowledged.lock();
        match result {
            Ok(appended) => {
                assert_eq!(appended.head.seq, appended.first + count - 1);
                if let Expected::Last(last) = expected {
                    assert_eq!(appended.first, last + 1, "a compare that did not hold was acknowledged");
                }
                for n in 0..count {
                    let place = (name, appended.first + n);
                    let before = acknowledged.changes.insert(place, format!("{mark}-{n}"));
                    assert_eq!(before, None, "position {place:?} was given twice");
                }
            }
            Err(AppendError::Conflict { expected, actual, .. }) => {
                assert!(actual > expected, "{actual} {expected}: a feed went back");
                acknowledged.conflicts += 1;
            }
            Err(
                error @ (AppendError::Refused { .. }
                | AppendError::UnknownOutcome { .. }
                | AppendError::Closed),
            ) => acknowledged.refused(&error),
            Err(error) => panic!("{error}"),
        }
    }

    /// Increments the counter, with its previous value as precondition.
    async fn count(&self, store: &ClusterStore) {
        let Ok(before) = store.get(Table::Chains, COUNTER).await else { return };
        let next = before.as_deref().map_or(0, number) + 1;
        let condition = Precondition { table: Table::Chains, key: COUNTER.to_vec(), value: before };
        let value = Some(Bytes::from(next.to_string()));
        let write = TableWrite { table: Table::Chains, key: COUNTER.to_vec(), value };
        let result = store.write(vec![write], vec![condition]).await;
        let mut acknowledged = self.acknowledged.lock();
        match result {
            Ok(()) => assert!(acknowledged.counts.insert(next), "two counted up to {next}"),
            Err(WriteError::Precondition { .. }) => acknowledged.conflicts += 1,
            Err(
                error @ (WriteError::Refused { .. } | WriteError::UnknownOutcome { .. } | WriteError::Closed),
            ) => acknowledged.refused(&error),
            Err(error) => panic!("{error}"),
        }
    }
}

impl FaultLedger {
    fn refused(&mut self, error: &dyn std::error::Error) {
        self.unavailable += 1;
        self.reasons.insert(error.to_string());
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

fn change(rng: &mut fastrand::Rng, mark: &str) -> NewChange {
    let id = format!("i{}", rng.u32(..300));
    // Some changes are larger than a message.
    let length = if rng.u8(..100) == 0 { 700_000 } else { rng.usize(..2000) };
    let change = match rng.u8(..10) {
        0 => NewChange::delete(id),
        _ => {
            let mut put = item(&id, mark);
            put.content = Some(Content::new("text/plain", "x".repeat(length)));
            NewChange::put(put)
        }
    };
    NewChange { entry_id: Some(mark.to_owned()), ..change }
}

/// Injects a fault, and repairs it.
async fn fault(servers: &mut common::ServerTrio, run: &FaultRun, folders: &tempfile::TempDir, n: usize) {
    let rng = &mut fastrand::Rng::new();
    let victim = rng.usize(..3);
    let time = Duration::from_millis(rng.u64(200..3000));
    let what = match rng.u8(..10) {
        0..4 => {
            servers.servers[victim].kill();
            sleep(time).await;
            servers.servers[victim].start();
            "server killed"
        }
        4..7 => {
            servers.servers[victim].signal("STOP");
            sleep(time).await;
            servers.servers[victim].signal("CONT");
            "server paused"
        }
        7 => {
            // Two of three servers: no quorum.
            let other = (victim + 1) % 3;
            servers.servers[victim].kill();
            servers.servers[other].signal("STOP");
            sleep(time).await;
            servers.servers[other].signal("CONT");
            servers.servers[victim].start();
            "two servers down"
        }
        8 => {
            run.nodes[victim].reopen(None).await;
            "node reopened"
        }
        _ => {
            let folder = folders.path().join(format!("again-{n}"));
            run.nodes[victim].reopen(Some(folder)).await;
            "node reopened with an empty folder"
        }
    };
    let acknowledged = run.acknowledged.lock().changes.len();
    common::say(&format!("fault {n}: {what} ({time:?}); {acknowledged} changes acknowledged"));
    sleep(Duration::from_millis(rng.u64(..2000))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_changes_are_stored_exactly_once() {
    let faults = std::env::var("TOWPATH_FAULTS").ok().and_then(|faults| faults.parse().ok()).unwrap_or(10);
    let mut servers = common::trio("");
    let folders = tempfile::tempdir().unwrap();
    let node = |n: usize| FaultNode {
        address: ClusterAddress::parse(&servers.address(n, "")).unwrap(),
        store: RwLock::default(),
        // Folders outlive stores: a node reopens in the same one.
        folder: Mutex::new(folders.path().join(n.to_string())),
        last_hook: Arc::default(),
    };
    let nodes: Vec<_> = (0..3).map(node).collect();
    let run = Arc::new(FaultRun { nodes, acknowledged: Mutex::default(), done: AtomicBool::new(false) });
    // All at once, so that three nodes race to create the stream.
    futures_util::future::join_all(run.nodes.iter().map(FaultNode::open)).await;
    let writers: Vec<_> = (0..9).map(|n| tokio::spawn(Arc::clone(&run).write(n))).collect();
    let begun = Instant::now();
    // Faults before the first writes would test only the opening.
    while run.acknowledged.lock().changes.len() < 100 {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is acknowledged");
        sleep(Duration::from_millis(20)).await;
    }
    for n in 0..faults {
        fault(&mut servers, &run, &folders, n).await;
    }
    // The last fault needs writes after its repair.
    sleep(Duration::from_secs(1)).await;
    run.done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    check(&run).await;
}

/// Checks that every node continues, and that all have equal logs.
async fn check(run: &FaultRun) {
    let healed = Instant::now();
    for (n, node) in run.nodes.iter().enumerate() {
        let store = node.get().unwrap();
        while let Err(error) = store.append(&feed("end"), Expected::Any, vec![NewChange::delete("x")]).await {
            assert!(healed.elapsed() < Duration::from_secs(60), "node {n}: {error}");
        }
    }
    let stores: Vec<_> = run.nodes.iter().map(|node| node.get().unwrap()).collect();
    // No writer is left, so the highest position is the end of the log.
    let end = stores.iter().map(|store| store.position()).max().unwrap();
    for store in &stores {
        while store.position() < end {
            assert!(healed.elapsed() < Duration::from_secs(90), "a node does not catch up");
            sleep(Duration::from_millis(20)).await;
        }
        let found = store.verify().await.unwrap();
        assert!(found.is_sound(), "{:#?}", found.problems);
    }
    let acknowledged = std::mem::take(&mut *run.acknowledged.lock());
    let mut marks = HashSet::new();
    let mut total = 0;
    for name in FEEDS {
        let logs: Vec<Vec<Change>> =
            futures_util::future::join_all(stores.iter().map(async |store| log(&**store, &feed(name)).await))
                .await;
        assert!(logs[0] == logs[1] && logs[0] == logs[2], "the nodes have different logs of {name}");
        total += logs[0].len();
        for (change, place) in logs[0].iter().zip(1..) {
            assert_eq!(change.seq, place);
            let mark = change.entry_id.as_ref().unwrap();
            assert!(marks.insert(mark.clone()), "{mark} is there twice");
            if let Some(expected) = acknowledged.changes.get(&(name, place)) {
                assert_eq!(mark, expected, "place {place} of {name} was acknowledged to another");
            }
        }
        let last = acknowledged.changes.keys().filter(|(f, _)| *f == name).map(|(_, seq)| *seq).max();
        assert!(logs[0].len() as u64 >= last.unwrap(), "acknowledged changes of {name} are lost");
    }
    let counters =
        futures_util::future::join_all(stores.iter().map(|store| store.get(Table::Chains, COUNTER))).await;
    let counters: Vec<_> = counters.into_iter().map(|counter| counter.unwrap()).collect();
    assert!(counters[0] == counters[1] && counters[0] == counters[2], "{counters:?}");
    let counter = counters[0].as_deref().map_or(0, number);
    // A count without an acknowledgement may be in the log as well.
    assert!(acknowledged.counts.iter().all(|count| *count <= counter));
    common::say(&format!(
        "{total} changes, {} acknowledged, {} counts of {counter}, {} conflicts, {} unavailable: {:#?}",
        acknowledged.changes.len(),
        acknowledged.counts.len(),
        acknowledged.conflicts,
        acknowledged.unavailable,
        acknowledged.reasons,
    ));
    assert!(acknowledged.changes.len() > 200 && acknowledged.conflicts > 0, "too little happened");
    for store in stores {
        store.close().await;
    }
}
