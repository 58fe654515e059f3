//! The SQLite sink on a disk that is full, then read-only. Both are real ones, where the system lets a user mount one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rusqlite::Connection;
use towpath_client::{Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::Followed;
use towpath_proto::{Content, Item, Op};
use towpath_sinks::open;

/// Variable with the folder on which a disk is mounted.
const FOLDER: &str = "TOWPATH_FOLDER";

fn sink(path: &Path) -> Box<dyn Sink> {
    open(&format!("sqlite:{}", path.display()).parse().unwrap())
}

fn batch(from: usize, to: usize) -> SinkBatch {
    let put = |n: usize| {
        let content = Some(Content::new("text/plain", "x".repeat(1000)));
        let item = Item { content, ..Item::new(n.to_string()) };
        let (feed, position) = ("f".into(), n.to_string());
        let change =
            Followed { feed, op: Op::Put, item, patch: None, modified: None, position, entry_id: None };
        SinkEvent::Change(Box::new(change))
    };
    let checkpoint = Some(to.to_string().into_bytes().into());
    SinkBatch { source: "s".into(), events: Arc::new((from..to).map(put).collect()), checkpoint }
}

fn count(path: &Path, table: &str) -> usize {
    let sql = format!("SELECT count(*) FROM {table}");
    Connection::open(path).unwrap().query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap() as usize
}

#[test]
fn a_full_or_read_only_disk_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let allowed =
        Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none"]).arg(folder.path()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("this system lets nobody mount a disk: a full one is not tested");
        return;
    }
    let script = "mount -t tmpfs -o size=8m none \"$TOWPATH_FOLDER\" && exec \"$0\" --exact uses_a_small_disk --ignored --nocapture";
    let child = Command::new("unshare")
        .args(["-rm", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}{}", String::from_utf8_lossy(&child.stderr));
    assert!(text.contains("whole after both"), "{text}");
}

#[tokio::test]
#[ignore = "another test starts it"]
async fn uses_a_small_disk() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let (path, ballast) = (folder.join("copy.db"), folder.join("ballast"));
    let mut to = sink(&path);
    to.open("s").await.unwrap();
    to.apply(&batch(0, 100)).await.unwrap();
    fs::write(&ballast, vec![1; 6 << 20]).unwrap();
    // More than is left: it fails in the middle, and again after a wait, as the writer tries it.
    let large = batch(100, 900);
    for _ in 0..2 {
        match to.apply(&large).await {
            Err(SinkError::Unavailable { message, .. }) => {
                assert!(message.contains("is full: free space"), "{message}");
            }
            other => panic!("not full: {other:?}"),
        }
        assert_eq!((count(&path, "items"), count(&path, "changes")), (100, 100));
    }
    fs::remove_file(&ballast).unwrap();
    to.apply(&large).await.unwrap();
    to.close().await.unwrap();
    assert_eq!((count(&path, "items"), count(&path, "changes")), (900, 900));

    let mount = |options: &str| {
        assert!(Command::new("mount").args(["-o", options]).arg(folder).status().unwrap().success());
    };
    mount("remount,ro");
    let mut to = sink(&path);
    match to.open("s").await {
        Err(SinkError::Refused { message }) => assert!(message.contains("can be written"), "{message}"),
        other => panic!("not read-only: {other:?}"),
    }
    drop(to);
    mount("remount,rw");
    let mut to = sink(&path);
    assert_eq!(to.open("s").await.unwrap().as_deref(), Some(&b"900"[..]));
    to.apply(&batch(900, 950)).await.unwrap();
    to.close().await.unwrap();
    assert_eq!((count(&path, "items"), count(&path, "changes")), (950, 950));
    println!("whole after both");
}
