//! Crash tests: a writer is killed, loses its power or meets refused system calls. All acknowledged writes and every index
//! are checked after it.
//!
//! `TOWPATH_KILLS=200 cargo test -p towpath-store --test crash` kills more often.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod disk;
mod ledger;
mod lost_power;
mod refused_calls;
mod trace;
mod writer;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use ledger::CrashLedger;
use towpath_store::embedded::EmbeddedStore;
use towpath_store::{OpenError, Store as _};
use writer::options;

/// Starts a writer that never ends by itself.
fn start(folder: &Path) -> Child {
    let mut command = writer::command(&[], folder, None);
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
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
