//! The process that the tests kill: it appends, and prints every acknowledgement.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_proto::patch::MERGE_PATCH;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, Precondition, Store, Table, TableWrite};

/// Environment variables of the writer: its folder, and its number of writes (without end by default).
const FOLDER: &str = "TOWPATH_CRASH_FOLDER";
const WRITES: &str = "TOWPATH_CRASH_WRITES";

/// Options with small buffers, so that the engine flushes and compacts all the time.
pub(crate) fn options() -> EmbeddedOptions {
    // Two cached heads for three feeds: heads are evicted and loaded again.
    EmbeddedOptions { memtable: 256 << 10, heads: 2, reserve: 0, ..EmbeddedOptions::default() }
}

/// Makes this test program, by way of another one or by itself, run the writer in its own process.
pub(crate) fn command(by: &[&str], folder: &Path, writes: Option<u32>) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut all = by.iter().map(std::ffi::OsStr::new).chain([own.as_os_str()]);
    let mut command = Command::new(all.next().unwrap());
    command.args(all).args(["--exact", "writer::writer", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder);
    if let Some(writes) = writes {
        command.env(WRITES, writes.to_string());
    }
    command
}

/// Appends and prints every acknowledgement, until it is killed.
#[test]
#[ignore = "the other tests start it"]
fn writer() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(EmbeddedStore::open(folder, options()).unwrap());
        println!("\nopen");
        let writes = std::env::var(WRITES).map_or(i64::MAX, |writes| writes.parse().unwrap());
        let left = Arc::new(AtomicI64::new(writes));
        let append = |_| tokio::spawn(append_all(Arc::clone(&store), Arc::clone(&left)));
        let mut tasks: Vec<_> = (0..6).map(append).collect();
        // Tables share the groups of appends.
        tasks.push(tokio::spawn(count_all(Arc::clone(&store), left)));
        for task in tasks {
            task.await.unwrap();
        }
        store.close().await;
    });
}

/// Takes one of the writes that are left.
fn take(left: &AtomicI64) -> bool {
    left.fetch_sub(1, Ordering::Relaxed) > 0
}

async fn append_all(store: Arc<EmbeddedStore>, left: Arc<AtomicI64>) {
    let rng = &mut fastrand::Rng::new();
    while take(&left) {
        let feed = ["fa", "fb", "fc"][rng.usize(..3)];
        let changes: Vec<_> = (0..rng.usize(1..5)).map(|_| change(rng)).collect();
        let marks: Vec<_> = changes.iter().map(mark).collect();
        match store.append(&FeedId::new(feed).unwrap(), Expected::Any, changes).await {
            Ok(appended) => {
                let mut out = std::io::stdout().lock();
                for (n, (id, mark)) in marks.iter().enumerate() {
                    writeln!(out, "ack {feed} {} {id} {mark}", appended.first + n as u64).unwrap();
                }
            }
            // The id may not exist yet, or have no JSON content.
            Err(towpath_store::AppendError::Patch { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn change(rng: &mut fastrand::Rng) -> NewChange {
    let id = format!("i{}", rng.u32(..200));
    // In the entry id, which every operation stores.
    let mark = rng.u64(..).to_string();
    match rng.u8(..10) {
        0 => NewChange { entry_id: Some(mark), ..NewChange::delete(id) },
        1 => {
            let patch = Content::new(MERGE_PATCH, format!(r#"{{"mark":"{mark}"}}"#));
            NewChange { entry_id: Some(mark), ..NewChange::patch(id, patch) }
        }
        _ => {
            // Some take several blocks of the disk, of which a lost power may leave any.
            let length = if rng.u8(..8) == 0 { 20_000 } else { rng.usize(..3000) };
            let text = rng.lowercase().to_string().repeat(length);
            let content = Content::new("application/json", format!(r#"{{"text":"{text}"}}"#));
            let item = Item { content: Some(content), ..Item::new(id) };
            NewChange { entry_id: Some(mark), ..NewChange::put(item) }
        }
    }
}

/// Returns the id of a random change, and a mark that is unique to it.
fn mark(change: &NewChange) -> (String, String) {
    (change.item.id.clone(), change.entry_id.clone().unwrap())
}

/// Increments a counter in a table, with the previous value as precondition.
async fn count_all(store: Arc<EmbeddedStore>, left: Arc<AtomicI64>) {
    let entry = || (Table::Chains, b"count".to_vec());
    while take(&left) {
        let (table, key) = entry();
        let before = store.get(table, &key).await.unwrap();
        let next = before.as_deref().map_or(0, number) + 1;
        let condition = Precondition { table, key: key.clone(), value: before };
        let value = Some(Bytes::from(next.to_string()));
        store.write(vec![TableWrite { table, key, value }], vec![condition]).await.unwrap();
        writeln!(std::io::stdout().lock(), "count {next}").unwrap();
    }
}

pub(crate) fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}
