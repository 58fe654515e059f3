//! The folder sink on file systems that are full or read-only, and with feeds of one name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use towpath_client::{Sink, SinkBatch, SinkError, SinkEvent};
use towpath_proto::follow::{FeedReset, Followed};
use towpath_proto::{Content, Item, Op};
use towpath_sinks::open;

fn change(id: &str, bytes: usize) -> SinkEvent {
    let mut item = Item::new(id);
    item.content = Some(Content::new("text/plain", "x".repeat(bytes)));
    SinkEvent::Change(Box::new(Followed {
        feed: "f".into(),
        op: Op::Put,
        item,
        patch: None,
        modified: None,
        position: id.into(),
        entry_id: None,
    }))
}

fn batch(source: &str, events: Vec<SinkEvent>) -> SinkBatch {
    SinkBatch { source: source.into(), events: Arc::new(events), checkpoint: Some((*b"1").into()) }
}

async fn opened(folder: &Path) -> Result<Box<dyn Sink>, SinkError> {
    let mut sink = open(&format!("dir:{}", folder.display()).parse().unwrap());
    sink.open("s").await?;
    Ok(sink)
}

/// A small file system in memory, which ends with the value.
struct SmallDisk {
    at: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    /// `None` where this user may not mount.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("disk");
        std::fs::create_dir(&at).unwrap();
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "towpath"]).arg(&at).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this user may not mount a file system");
            return None;
        }
        Some(Self { at, _folder: folder })
    }

    fn remount(&self, options: &str) {
        let remounted =
            Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.at).status();
        assert!(remounted.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazy: the sink's files may still be open.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_waited_for_and_nothing_is_half_applied() {
    let Some(disk) = SmallDisk::mount() else { return };
    let copy = disk.at.join("copy");
    let mut sink = opened(&copy).await.unwrap();
    sink.apply(&batch("s", vec![change("a", 100_000)])).await.unwrap();
    let before = std::fs::read(copy.join("f/a.json")).unwrap();
    let large = batch("s", vec![change("b", 500_000), change("a", 600_000)]);
    match sink.apply(&large).await {
        Err(SinkError::Unavailable { message, .. }) => {
            assert!(message.contains("is full") && message.contains("free space"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        std::fs::read(copy.join("f/a.json")).unwrap(),
        before,
        "a file is replaced whole or not at all"
    );
    // Somebody frees space: the same batch is applied, by this process or the next.
    disk.remount("size=8m");
    drop(sink);
    let mut next = opened(&copy).await.unwrap();
    next.apply(&large).await.unwrap();
    assert!(std::fs::metadata(copy.join("f/a.json")).unwrap().len() > 600_000);
    assert_eq!(next.open("s").await.unwrap().as_deref(), Some(&b"1"[..]));
}

#[tokio::test]
async fn a_read_only_folder_is_refused_with_advice() {
    let Some(disk) = SmallDisk::mount() else { return };
    let copy = disk.at.join("copy");
    let mut sink = opened(&copy).await.unwrap();
    sink.apply(&batch("s", vec![change("a", 1)])).await.unwrap();
    drop(sink);
    disk.remount("ro");
    let error = opened(&copy).await.err().unwrap();
    let SinkError::Refused { message } = &error else { panic!("{error:?}") };
    assert!(message.contains("copy") && message.to_lowercase().contains("read-only"), "{message}");
}

#[tokio::test]
async fn two_feeds_of_one_name_are_kept_apart() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let mut sink = opened(&copy).await.unwrap();
    sink.apply(&batch("https://a.example/feeds/f", vec![change("1", 1)])).await.unwrap();
    drop(sink);
    let mut sink = opened(&copy).await.unwrap();
    let other =
        sink.apply(&batch("https://me:hush@b.example/feeds/f", vec![change("1", 2)])).await.unwrap_err();
    let SinkError::Refused { message } = &other else { panic!("{other:?}") };
    assert!(message.contains("a.example") && message.contains("another folder"), "{message}");
    assert!(!message.contains("hush"), "{message}");
    sink.apply(&batch("https://a.example/feeds/f", vec![change("1", 3)])).await.unwrap();
}

#[tokio::test]
async fn a_folder_of_somebody_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("mine"), "x").unwrap();
    let refused = opened(folder.path()).await.err().unwrap();
    assert!(refused.to_string().contains("has other files"), "{refused}");
    let file = opened(&folder.path().join("mine")).await.err().unwrap();
    assert!(matches!(&file, SinkError::Refused { message } if message.contains("name a folder")), "{file:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// The global feed of DiffDelta begins anew as a whole, under an address that no change has.
#[tokio::test]
async fn a_reset_under_another_name_is_of_the_whole_source() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    let mut sink = opened(&copy).await.unwrap();
    let of = |feed: &str, id: &str| {
        let SinkEvent::Change(mut change) = change(id, 1) else { panic!("no change") };
        change.feed = feed.into();
        SinkEvent::Change(change)
    };
    let reset = |feed: &str| SinkEvent::Reset(FeedReset { feed: feed.into(), reason: "anew".into() });
    let global = "http://publisher/diff/latest.json";
    sink.apply(&batch("other", vec![of("cc", "kept")])).await.unwrap();
    sink.apply(&batch("s", vec![of("aa", "old"), of("bb", "old")])).await.unwrap();
    drop(sink);
    let mut sink = opened(&copy).await.unwrap();
    sink.apply(&batch("s", vec![reset(global), of("aa", "new"), of("bb", "new"), reset("bb")]))
        .await
        .unwrap();
    let is_there = |path: &str| copy.join(path).exists();
    assert!(is_there("cc/kept.json") && is_there("aa/new.json"));
    assert!(!is_there("aa/old.json") && !is_there("bb/old.json") && !is_there("bb/new.json"));
    let folders = std::fs::read_dir(&copy).unwrap().count();
    assert_eq!(folders, 4, "three feeds and our own folder");
}

#[tokio::test]
async fn damaged_files_are_named_and_do_not_hold_up_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("copy");
    let mut sink = opened(&at).await.unwrap();
    sink.apply(&batch("s", vec![change("a", 1), change("b", 1)])).await.unwrap();
    std::fs::write(at.join("f/a.json"), "{\"id\":").unwrap();
    let patch = |id: &str| {
        let SinkEvent::Change(mut change) = change(id, 0) else { unreachable!() };
        (change.op, change.item.content) = (Op::Patch, None);
        change.patch = Some(Content::new("application/merge-patch+json", "{}"));
        SinkEvent::Change(change)
    };
    let refused = sink.apply(&batch("s", vec![patch("a"), change("c", 1)])).await;
    assert!(
        matches!(&refused, Err(SinkError::Items(items)) if items.len() == 1 && items[0].index == 0 && items[0].message.contains("a.json")),
        "{refused:?}"
    );
    sink.apply(&batch("s", vec![change("a", 2), change("c", 1)])).await.unwrap();
    drop(sink);
    std::fs::write(at.join(".towpath/feeds.json"), "{").unwrap();
    match opened(&at).await.err() {
        Some(SinkError::Refused { message }) => assert!(message.contains("feeds.json"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// A copy must not go on where the folder of what was copied before is gone. Opened again, it is whole.
#[tokio::test]
async fn a_folder_that_is_replaced_while_it_is_open_is_copied_into_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, aside) = (dir.path().join("copy"), dir.path().join("aside"));
    let mut sink = opened(&folder).await.unwrap();
    sink.apply(&batch("s", vec![change("a", 1)])).await.unwrap();
    std::fs::rename(&folder, &aside).unwrap();
    for is_there in [false, true] {
        if is_there {
            std::fs::create_dir_all(folder.join(".towpath")).unwrap();
        }
        let refused = sink.apply(&batch("s", vec![change("b", 1)])).await.unwrap_err();
        assert!(refused.to_string().contains("moved, removed or unmounted"), "{refused}");
    }
    let mut again = open(&format!("dir:{}", folder.display()).parse().unwrap());
    assert_eq!(again.open("s").await.unwrap(), None);
    again.apply(&batch("s", vec![change("a", 1), change("b", 1)])).await.unwrap();
    assert!(folder.join("f/a.json").is_file() && folder.join("f/b.json").is_file());
}
