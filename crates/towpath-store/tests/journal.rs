//! A journal that is missing, shortened or damaged is an error that names the file, never an empty store.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::Item;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};
use towpath_store::{Expected, Store};

fn open(folder: &Path) -> Result<EmbeddedStore, String> {
    let options = EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
    EmbeddedStore::open(folder, options).map_err(|e| e.to_string())
}

fn feed() -> FeedId {
    FeedId::new("f1").unwrap()
}

async fn append(store: &EmbeddedStore, ids: std::ops::Range<u32>) {
    for id in ids {
        let item = Item { title: Some("x".repeat(1000)), ..Item::new(id.to_string()) };
        store.append(&feed(), Expected::Any, vec![NewChange::put(item)]).await.unwrap();
    }
}

/// Returns a folder with 20 items, written in two sessions, and the path of its journal.
async fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for ids in [0..10, 10..20] {
        let store = open(folder.path()).unwrap();
        append(&store, ids).await;
        store.close().await;
    }
    let mut journals: Vec<_> = fs::read_dir(folder.path().join("engine"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "jnl"))
        .collect();
    assert_eq!(journals.len(), 1);
    (folder, journals.remove(0))
}

/// Returns the error of opening the folder, which stays the same however often it is tried.
fn refusal(folder: &Path) -> String {
    let first = open(folder).err().unwrap();
    assert_eq!(open(folder).err().unwrap(), first);
    first
}

#[tokio::test]
async fn a_missing_journal_is_refused_until_its_loss_is_accepted() {
    let (folder, journal) = folder().await;
    let saved = folder.path().join("saved");
    fs::rename(&journal, &saved).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("engine/0.jnl is missing") && error.contains("restore"), "{error}");
    // The file is brought back.
    fs::copy(&saved, &journal).unwrap();
    let store = open(folder.path()).unwrap();
    assert_eq!(store.head(&feed()).await.unwrap().seq, 20);
    store.close().await;

    // Or the loss is accepted, once.
    fs::remove_file(&journal).unwrap();
    fs::write(folder.path().join("towpath.journal"), "accept\n").unwrap();
    let store = open(folder.path()).unwrap();
    assert!(store.head(&feed()).await.unwrap().seq < 20);
    append(&store, 0..3).await;
    store.close().await;
    let store = open(folder.path()).unwrap();
    store.close().await;
    for entry in fs::read_dir(folder.path().join("engine")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "jnl") {
            fs::remove_file(path).unwrap();
        }
    }
    assert!(refusal(folder.path()).contains("is missing"));
}

#[tokio::test]
async fn a_shortened_journal_is_refused_and_left_as_it_is() {
    let (folder, journal) = folder().await;
    let length = fs::metadata(&journal).unwrap().len();
    for kept in [0, 100, length / 2, length - 1] {
        let copy = tempfile::tempdir().unwrap();
        let status = std::process::Command::new("cp").arg("-a").arg(folder.path()).arg(copy.path()).status();
        assert!(status.unwrap().success());
        let copied = copy.path().join(folder.path().file_name().unwrap());
        let journal = copied.join("engine").join(journal.file_name().unwrap());
        OpenOptions::new().write(true).open(&journal).unwrap().set_len(kept).unwrap();
        let error = refusal(&copied);
        let expected = format!("engine/0.jnl is shortened: it has {kept} bytes of {length}");
        assert!(error.contains(&expected), "{error}");
        assert_eq!(fs::metadata(&journal).unwrap().len(), kept);
    }
}

/// Zeros, as a file system may leave them after a power loss, look to the engine like the end of the journal.
#[tokio::test]
async fn a_journal_that_was_overwritten_is_refused() {
    let (folder, journal) = folder().await;
    let length = fs::metadata(&journal).unwrap().len();
    let file = OpenOptions::new().write(true).open(&journal).unwrap();
    file.write_all_at(&vec![0; (length / 2) as usize], length / 2).unwrap();
    drop(file);
    let error = refusal(folder.path());
    assert!(error.contains("engine/0.jnl is damaged") && error.contains("are missing"), "{error}");

    // A changed byte in a batch: the engine finds it by the checksum.
    let (folder, journal) = self::folder().await;
    let file = OpenOptions::new().write(true).open(&journal).unwrap();
    let at = fs::read(&journal).unwrap().windows(100).position(|w| w.iter().all(|b| *b == b'x')).unwrap();
    file.write_all_at(b"y", at as u64).unwrap();
    drop(file);
    let error = refusal(folder.path());
    assert!(error.contains("engine/0.jnl") && error.contains("restore"), "{error}");
}

#[tokio::test]
async fn an_engine_that_is_gone_is_no_empty_store() {
    for lost in ["engine", "engine/version"] {
        let (folder, _) = folder().await;
        let lost = folder.path().join(lost);
        if lost.is_dir() {
            fs::remove_dir_all(&lost).unwrap();
        } else {
            fs::remove_file(&lost).unwrap();
        }
        let error = refusal(folder.path());
        assert!(error.contains("engine/version is missing"), "{error}");
    }
}

/// Folders of earlier versions have no mark; a mark that a power loss left without its text is none.
#[tokio::test]
async fn a_folder_without_a_mark_opens() {
    for text in [None, Some(""), Some("\0\0\0\0")] {
        let (folder, _) = folder().await;
        let mark = folder.path().join("towpath.journal");
        match text {
            Some(text) => fs::write(&mark, text).unwrap(),
            None => fs::remove_file(&mark).unwrap(),
        }
        let store = open(folder.path()).unwrap();
        assert_eq!(store.head(&feed()).await.unwrap().seq, 20);
        append(&store, 20..30).await;
        store.close().await;
        assert!(fs::read_to_string(&mark).unwrap().starts_with("towpath journal 1 commit 0"));
        assert_eq!(open(folder.path()).unwrap().head(&feed()).await.unwrap().seq, 30);
    }
}

/// Bytes that a disk writes whole or not at all.
const BLOCK: usize = 4096;

/// Returns a folder whose 21st item is large, its journal, and where that item's text begins and ends.
async fn folder_with_large_end() -> (TempDir, PathBuf, std::ops::Range<usize>) {
    let (folder, journal) = folder().await;
    let store = open(folder.path()).unwrap();
    let item = Item { title: Some("L".repeat(40_000)), ..Item::new("large") };
    store.append(&feed(), Expected::Any, vec![NewChange::put(item)]).await.unwrap();
    store.close().await;
    let bytes = fs::read(&journal).unwrap();
    let begin = bytes.windows(100).position(|window| window.iter().all(|byte| *byte == b'L')).unwrap();
    let end = begin + bytes[begin..].iter().position(|byte| *byte != b'L').unwrap();
    assert!(end - begin >= 40_000, "{begin} {end}");
    (folder, journal, begin..end)
}

fn overwrite(journal: &Path, at: usize, bytes: &[u8]) {
    OpenOptions::new().write(true).open(journal).unwrap().write_all_at(bytes, at as u64).unwrap();
}

/// Takes the mark away, as a lost power may: it is never synced.
fn forget_mark(folder: &Path) {
    fs::remove_file(folder.join("towpath.journal")).unwrap();
}

/// Disks write the blocks of a file in any order. So the end of a batch whose sync never returned may be there, and a
/// block in its midst not.
#[tokio::test]
async fn a_last_batch_with_a_hole_was_never_acknowledged_and_is_dropped() {
    for number in 0..3 {
        let (folder, journal, text) = folder_with_large_end().await;
        overwrite(&journal, text.start.next_multiple_of(BLOCK) + number * 3 * BLOCK, &[0; BLOCK]);
        forget_mark(folder.path());
        let store = open(folder.path()).unwrap();
        assert_eq!(store.head(&feed()).await.unwrap().seq, 20);
        append(&store, 20..22).await;
        store.close().await;
        let store = open(folder.path()).unwrap();
        assert_eq!(store.head(&feed()).await.unwrap().seq, 22);
        store.close().await;
    }
}

#[tokio::test]
async fn a_hole_in_a_batch_that_was_acknowledged_is_refused() {
    // The mark has it.
    let (folder, journal, text) = folder_with_large_end().await;
    overwrite(&journal, text.start.next_multiple_of(BLOCK), &[0; BLOCK]);
    let error = open(folder.path()).err().unwrap();
    assert!(error.contains("engine/0.jnl is damaged") && error.contains("the last 1 are missing"), "{error}");

    // Another batch follows it, so its sync had returned.
    let (folder, journal, text) = folder_with_large_end().await;
    let store = open(folder.path()).unwrap();
    append(&store, 21..22).await;
    store.close().await;
    overwrite(&journal, text.start.next_multiple_of(BLOCK), &[0; BLOCK]);
    forget_mark(folder.path());
    let damaged = fs::read(&journal).unwrap();
    let error = refusal(folder.path());
    assert!(error.contains("engine/0.jnl is damaged from byte") && error.contains("restore"), "{error}");
    assert_eq!(fs::read(&journal).unwrap(), damaged);
}

#[tokio::test]
async fn other_damage_of_the_last_batch_is_refused_and_left_as_it_is() {
    let at = |text: &std::ops::Range<usize>| text.start.next_multiple_of(BLOCK);
    // A flipped bit, and zeros that are not a whole block.
    for (offset, bytes) in [(0, vec![b'L' ^ 1]), (1, vec![0; BLOCK]), (0, vec![0; BLOCK - 1])] {
        let (folder, journal, text) = folder_with_large_end().await;
        overwrite(&journal, at(&text) + offset, &bytes);
        forget_mark(folder.path());
        let damaged = fs::read(&journal).unwrap();
        let error = refusal(folder.path());
        assert!(error.contains("engine/0.jnl is damaged from byte") && error.contains("restore"), "{error}");
        assert_eq!(fs::read(&journal).unwrap(), damaged);
    }
}
