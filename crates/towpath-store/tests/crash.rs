//! Crash test: kills a writer at random moments, then checks all acknowledged writes and every index.
//!
//! `TOWPATH_KILLS=200 cargo test -p towpath-store --test crash` kills more often.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use towpath_proto::change::{NewChange, Op};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_proto::patch::MERGE_PATCH;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, OpenError, Precondition, Store, Table, TableWrite};

/// Options with small buffers, so that the engine flushes and compacts all the time.
fn options() -> EmbeddedOptions {
    // Two cached heads for three feeds: heads are evicted and loaded again.
    EmbeddedOptions { memtable: 256 << 10, heads: 2, reserve: 0, ..EmbeddedOptions::default() }
}

/// Starts the writer below in its own process.
fn start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--ignored", "--nocapture", "--test-threads=1"])
        .env("TOWPATH_CRASH_FOLDER", folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Moment at which a writer is killed.
enum KillPoint {
    /// Time after the start of its process.
    AfterStart(Duration),
    /// Time after it opened the store.
    AfterOpen(Duration),
}

/// Runs a writer, kills it, and returns the lines that it printed.
fn run_and_kill(folder: &Path, when: &KillPoint) -> Vec<String> {
    let mut child = start(folder);
    let lines = BufReader::new(child.stdout.take().unwrap());
    let (opened, has_opened) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let lines = lines.lines().map(Result::unwrap);
        lines
            .inspect(|line| {
                if line == "open" {
                    opened.send(()).unwrap();
                }
            })
            .collect()
    });
    match when {
        KillPoint::AfterStart(time) => std::thread::sleep(*time),
        KillPoint::AfterOpen(time) => {
            has_opened.recv().unwrap();
            std::thread::sleep(*time);
        }
    }
    // SIGKILL: nothing of the process runs after it.
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success(), "the writer ended by itself");
    reader.join().unwrap()
}

/// Appends and prints every acknowledgement, until it is killed.
#[test]
#[ignore = "the other tests of this file start it"]
fn writer() {
    let Some(folder) = std::env::var_os("TOWPATH_CRASH_FOLDER") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(EmbeddedStore::open(folder, options()).unwrap());
        println!("\nopen");
        let mut tasks: Vec<_> = (0..6).map(|_| tokio::spawn(append_for_ever(Arc::clone(&store)))).collect();
        // Tables share the groups of appends.
        tasks.push(tokio::spawn(count_for_ever(store)));
        for task in tasks {
            task.await.unwrap();
        }
    });
}

async fn append_for_ever(store: Arc<EmbeddedStore>) {
    let rng = &mut fastrand::Rng::new();
    loop {
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
            let text = rng.lowercase().to_string().repeat(rng.usize(..3000));
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
async fn count_for_ever(store: Arc<EmbeddedStore>) {
    let entry = || (Table::Chains, b"count".to_vec());
    loop {
        let (table, key) = entry();
        let before = store.get(table, &key).await.unwrap();
        let next = before.as_deref().map_or(0, number) + 1;
        let condition = Precondition { table, key: key.clone(), value: before };
        let value = Some(Bytes::from(next.to_string()));
        store.write(vec![TableWrite { table, key, value }], vec![condition]).await.unwrap();
        writeln!(std::io::stdout().lock(), "count {next}").unwrap();
    }
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

/// Acknowledged writes of all runs.
#[derive(Default)]
struct CrashLedger {
    /// Id and mark by feed and position.
    changes: HashMap<(String, u64), (String, String)>,
    count: u64,
    /// Number of runs that opened the store.
    opened: usize,
}

impl CrashLedger {
    fn add(&mut self, lines: &[String]) {
        for line in lines {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["open"] => self.opened += 1,
                // The kill may truncate the last line within its mark: the last line is ignored.
                ["ack", feed, seq, id, mark] if line != lines.last().unwrap() => {
                    let place = (feed.to_owned(), seq.parse().unwrap());
                    let before = self.changes.insert(place.clone(), (id.to_owned(), mark.to_owned()));
                    assert_eq!(before, None, "position {place:?} was given twice");
                }
                ["count", count] if line != lines.last().unwrap() => {
                    let count = number(count.as_bytes());
                    assert_eq!(count, self.count.max(count - 1) + 1, "the count never goes back");
                    self.count = count;
                }
                _ => {}
            }
        }
    }

    /// Checks that every acknowledged write is stored.
    async fn check(&self, folder: &Path) {
        let store = EmbeddedStore::open(folder, options()).unwrap();
        let found = store.verify().await.unwrap();
        assert!(found.is_sound(), "{:#?}", found.problems);
        for ((feed, seq), (id, mark)) in &self.changes {
            let change = store.change(&FeedId::new(feed).unwrap(), *seq).await.unwrap();
            let Some(change) = change else { panic!("change {seq} of {feed} was acknowledged and is lost") };
            assert_eq!(
                (&change.item.id, change.entry_id.as_ref()),
                (id, Some(mark)),
                "change {seq} of {feed}"
            );
            if change.op == Op::Patch {
                let content = change.item.content.unwrap();
                assert!(content.text().unwrap().contains(mark.as_str()));
            }
        }
        let count = store.get(Table::Chains, b"count").await.unwrap();
        // A later count may have been stored without its acknowledgement.
        assert!(count.as_deref().map_or(0, number) >= self.count, "a write to a table is lost");
        store.close().await;
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_by_kills() {
    let kills = std::env::var("TOWPATH_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(15);
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = CrashLedger::default();
    for _ in 0..kills {
        // Mostly during writes; sometimes during the recovery from the kill before.
        let when = match fastrand::u8(..4) {
            0 => KillPoint::AfterStart(Duration::from_millis(fastrand::u64(10..400))),
            _ => KillPoint::AfterOpen(Duration::from_micros(fastrand::u64(0..400_000))),
        };
        acknowledged.add(&run_and_kill(folder.path(), &when));
        acknowledged.check(folder.path()).await;
    }
    let (changes, count, opened) = (acknowledged.changes.len(), acknowledged.count, acknowledged.opened);
    println!("{kills} kills, {opened} in use: {changes} changes and {count} counts acknowledged, all there");
    assert!(opened * 2 > kills && changes > kills && count > 0, "the kills came too early");
}

#[tokio::test]
async fn a_folder_that_was_never_finished_can_be_opened() {
    for round in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let mut acknowledged = CrashLedger::default();
        // Killed while the folder is created, and again while that is repeated.
        for _ in 0..2 {
            acknowledged.add(&run_and_kill(
                folder.path(),
                &KillPoint::AfterStart(Duration::from_millis(5 + 10 * round)),
            ));
        }
        acknowledged.check(folder.path()).await;
    }
}

#[tokio::test]
async fn only_one_process_opens_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start(folder.path());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "open"));
    let error = EmbeddedStore::open(folder.path(), options()).err().unwrap();
    assert!(matches!(error, OpenError { .. }));
    let process = format!("another process (process {}) has it open", child.id());
    assert!(error.to_string().contains(&process), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    EmbeddedStore::open(folder.path(), options()).unwrap().close().await;
}
