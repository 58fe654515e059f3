//! System calls that fail once: each kind, at each of its first calls. The writer may fail with it, and must not wait for
//! ever. What it acknowledged is kept.
//!
//! `cargo xtask lost-power` lets the first 60 calls of each kind fail in turn, one for each run; a test, one of each kind.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::ledger::CrashLedger;
use crate::lost_power::can_trace;
use crate::writer;

/// Kinds of calls, and their errors.
const KINDS: [(&str, &str); 9] = [
    ("openat", "EIO"),
    ("write", "ENOSPC"),
    ("pwrite64", "ENOSPC"),
    ("fsync", "EIO"),
    ("fdatasync", "EIO"),
    ("rename", "EIO"),
    ("unlink", "EIO"),
    ("ftruncate", "ENOSPC"),
    ("mkdir", "ENOSPC"),
];
const LONGEST_RUN: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_call_that_fails_once_loses_nothing_acknowledged() {
    if !can_trace() {
        eprintln!("left out: strace does not work here");
        return;
    }
    let calls = std::env::var("TOWPATH_REFUSED_CALLS").ok().map(|calls| calls.parse::<u32>().unwrap());
    for (kind, error) in KINDS {
        let first: Vec<u32> = calls.map_or_else(|| vec![fastrand::u32(1..30)], |calls| (1..=calls).collect());
        for call in first {
            fail_once(kind, error, call).await;
        }
    }
}

async fn fail_once(kind: &str, error: &str, call: u32) {
    let folder = tempfile::tempdir().unwrap();
    let (trace, inject) = (format!("trace={kind}"), format!("inject={kind}:error={error}:when={call}"));
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    let output = folder.path().with_extension("out");
    let file = std::fs::File::create(&output).unwrap();
    let mut command = writer::command(&strace, folder.path(), Some(120));
    let mut child = command.stdout(file).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < LONGEST_RUN, "{kind} number {call} failed, and the writer waits for ever");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let text = std::fs::read(&output).unwrap();
    std::fs::remove_file(output).unwrap();
    println!("{kind} number {call}: {error}, {} bytes of output", text.len());
    let mut ledger = CrashLedger::default();
    ledger.add_output(&text);
    ledger.check(folder.path()).await;
}
