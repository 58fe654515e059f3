//! Errors of a data folder that cannot be opened or written to.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use towpath_proto::change::NewChange;
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, Item};
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore, FolderRepair};
use towpath_store::{AppendError, Expected, OpenError, Store, Table, TableWrite};

fn options() -> EmbeddedOptions {
    EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() }
}

fn feed() -> FeedId {
    FeedId::new("f1").unwrap()
}

fn put(id: &str, bytes: usize) -> NewChange {
    let content = Some(Content::new("text/plain", fastrand::alphanumeric().to_string().repeat(bytes)));
    NewChange::put(Item { content, ..Item::new(id) })
}

fn refusal(folder: &Path) -> String {
    let error = EmbeddedStore::open(folder, options()).err().unwrap();
    assert!(matches!(error, OpenError { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&folder.display().to_string()), "{text}");
    text
}

#[tokio::test]
async fn a_folder_is_opened_once_and_again_after_closing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/deep");
    let store = EmbeddedStore::open(&path, options()).unwrap();
    store.append(&feed(), Expected::Any, vec![put("a", 10)]).await.unwrap();
    assert!(refusal(&path).contains("has it open"));
    store.close().await;
    let store = EmbeddedStore::open(&path, options()).unwrap();
    assert_eq!(store.head(&feed()).await.unwrap().seq, 1);
    // Dropping the store releases the folder, too.
    drop(store);
    EmbeddedStore::open(&path, options()).unwrap();
}

/// Damage of the small files is named by file, with the next step.
#[tokio::test]
async fn damaged_small_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path(), options()).unwrap();
    store.append(&feed(), Expected::Any, vec![put("a", 10)]).await.unwrap();
    store.close().await;
    drop(store);
    for (name, next_step) in [
        ("towpath.format", "run `towpath repair`"),
        ("engine/version", "use the towpath that towpath.version names"),
    ] {
        let file = folder.path().join(name);
        let sound = fs::read(&file).unwrap();
        fs::write(&file, sound.iter().map(|byte| byte ^ 0x20).collect::<Vec<u8>>()).unwrap();
        let refusal = refusal(folder.path());
        assert!(refusal.contains(name) && refusal.contains(next_step), "{refusal}");
        fs::write(&file, sound).unwrap();
    }
    let store = EmbeddedStore::open(folder.path(), options()).unwrap();
    assert_eq!(store.head(&feed()).await.unwrap().seq, 1);
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("holiday.jpg"), "x").unwrap();
    assert!(refusal(folder.path()).contains("holiday.jpg"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("towpath.format"), "something else\n").unwrap();
    assert!(
        refusal(folder.path())
            .contains("its file towpath.format was not written by towpath; use another folder")
    );

    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(refusal(&file).contains("not a folder"));
}

#[tokio::test]
async fn a_folder_without_its_format_is_refused_and_never_emptied() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path(), options()).unwrap();
    store.append(&feed(), Expected::Any, vec![put("a", 10)]).await.unwrap();
    store.close().await;
    assert!(!folder.path().join("towpath.new").exists());
    let format = folder.path().join("towpath.format");
    fs::remove_file(&format).unwrap();
    for _ in 0..2 {
        let text = refusal(folder.path());
        assert!(text.contains("towpath.format is missing") && text.contains("`towpath repair`"), "{text}");
    }
    // Written by another program, it may have any format.
    let program = folder.path().join("towpath.version");
    let own = fs::read_to_string(&program).unwrap();
    fs::write(&program, "99.0.0\n").unwrap();
    let refused = FolderRepair::write_lost_format(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("99.0.0") && !format.exists(), "{refused}");
    // Format 1 had no file with the program's version.
    for (program_version, written) in [(Some(own), "towpath store 2\n"), (None, "towpath store 1\n")] {
        match &program_version {
            Some(version) => fs::write(&program, version).unwrap(),
            None => fs::remove_file(&program).unwrap(),
        }
        drop(fs::remove_file(&format));
        assert!(FolderRepair::has_lost_format(folder.path()));
        FolderRepair::write_lost_format(folder.path()).unwrap();
        assert_eq!(fs::read_to_string(&format).unwrap(), written);
        assert!(!FolderRepair::has_lost_format(folder.path()));
        let store = EmbeddedStore::open(folder.path(), options()).unwrap();
        assert_eq!(store.head(&feed()).await.unwrap().seq, 1);
        store.close().await;
    }

    // A creation that crashed is finished by the next.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("towpath.lock"), "1\n").unwrap();
    fs::write(folder.path().join("towpath.new"), "").unwrap();
    fs::create_dir(folder.path().join("engine")).unwrap();
    fs::write(folder.path().join("engine/half"), "x").unwrap();
    drop(EmbeddedStore::open(folder.path(), options()).unwrap());
    assert!(folder.path().join("towpath.format").exists() && !folder.path().join("towpath.new").exists());
}

#[test]
fn a_newer_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(EmbeddedStore::open(folder.path(), options()).unwrap());
    fs::write(folder.path().join("towpath.format"), "towpath store 3\n").unwrap();
    let text = refusal(folder.path());
    assert!(text.contains("version 3") && text.contains("reads up to 2"), "{text}");
    fs::write(folder.path().join("towpath.format"), "towpath store 1\n").unwrap();
    EmbeddedStore::open(folder.path(), options()).unwrap();
}

/// Runs one of the ignored tests below in its own process, and returns its output.
fn child(name: &str, folder: &Path, shell: &str, user: Option<u32>) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell} exec \"$0\" --exact {name} --ignored --nocapture")]);
    command.arg(std::env::current_exe().unwrap()).env("TOWPATH_FOLDER", folder);
    if let Some(user) = user {
        command.uid(user);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn a_read_only_folder_says_so() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write everywhere, so the test must run as another user.
    let user = fs::File::create(folder.path().join("probe")).is_ok().then_some(65_534);
    fs::remove_file(folder.path().join("probe")).ok();
    let text = child("opens_a_read_only_folder", folder.path(), "", user);
    assert!(text.contains("refused: cannot open the data folder"), "{text}");
    assert!(text.contains("it cannot be written to"), "{text}");
}

#[test]
#[ignore = "another test starts it"]
fn opens_a_read_only_folder() {
    let Some(folder) = std::env::var_os("TOWPATH_FOLDER") else { return };
    println!("\nrefused: {}", EmbeddedStore::open(folder, options()).err().unwrap());
}

#[tokio::test]
async fn a_nearly_full_disk_refuses_appends_and_answers_reads() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path(), options()).unwrap();
    store.append(&feed(), Expected::Any, vec![put("a", 10)]).await.unwrap();
    store.close().await;
    // No disk has that much free space.
    let store =
        EmbeddedStore::open(folder.path(), EmbeddedOptions { reserve: u64::MAX, ..options() }).unwrap();
    let error = store.append(&feed(), Expected::Any, vec![put("b", 10)]).await.unwrap_err();
    assert!(matches!(error, AppendError::Storage { .. }), "{error:?}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert_eq!(store.head(&feed()).await.unwrap().seq, 1);
    assert!(store.latest(&feed(), "a").await.unwrap().is_some());
    assert!(store.latest(&feed(), "b").await.unwrap().is_none());
}

/// Limits the file size, which to the engine looks like a full disk: a write fails in the middle.
#[tokio::test]
async fn a_write_that_fails_loses_nothing_and_reads_go_on() {
    let folder = tempfile::tempdir().unwrap();
    // 64 MiB in blocks of 512 bytes: the initial size of a journal, which it outgrows.
    let text = child("writes_until_it_fails", folder.path(), "trap '' XFSZ; ulimit -f 131072;", None);
    let acknowledged = text.lines().filter(|line| line.starts_with("ack ")).count() as u64;
    assert!(acknowledged > 20, "{text}");
    assert!(text.contains("refused: cannot append to feed f1: File too large"), "{text}");
    assert!(
        text.contains("again: cannot append to feed f1: an earlier write failed (File too large"),
        "{text}"
    );
    assert!(text.contains(&format!("head {acknowledged}")), "{text}");

    let store = EmbeddedStore::open(folder.path(), options()).unwrap();
    let found = store.verify().await.unwrap();
    assert!(found.is_sound(), "{:#?}", found.problems);
    let head = store.head(&feed()).await.unwrap();
    assert!(head.seq >= acknowledged, "{head:?} {acknowledged}");
    let next = store.append(&feed(), Expected::Any, vec![put("next", 10)]).await.unwrap();
    assert_eq!(next.first, head.seq + 1);
}

#[tokio::test]
#[ignore = "another test starts it"]
async fn writes_until_it_fails() {
    let Some(folder) = std::env::var_os("TOWPATH_FOLDER") else { return };
    let out = || std::io::stdout().lock();
    // A large memtable keeps everything in the journal, so that the journal write fails.
    let store = EmbeddedStore::open(folder, EmbeddedOptions { memtable: 1 << 30, ..options() }).unwrap();
    let mut acknowledged = 0;
    let error = loop {
        match store
            .append(&feed(), Expected::Any, vec![put(&format!("i{}", acknowledged % 10), 1 << 20)])
            .await
        {
            Ok(appended) => acknowledged = appended.head.seq,
            Err(error) => break error,
        }
        writeln!(out(), "\nack {acknowledged}").unwrap();
    };
    let again = store.append(&feed(), Expected::Any, vec![put("x", 10)]).await.unwrap_err();
    writeln!(out(), "refused: {error}\nagain: {again}").unwrap();
    let found = store.verify().await.unwrap();
    assert!(found.is_sound(), "{:#?}", found.problems);
    assert_eq!(store.change(&feed(), acknowledged).await.unwrap().unwrap().seq, acknowledged);
    writeln!(out(), "head {}", store.head(&feed()).await.unwrap().seq).unwrap();
}

/// Runs on a separate file system, where the system lets a user mount one.
#[test]
fn a_full_disk_refuses_until_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let allowed =
        Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none"]).arg(folder.path()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("this system lets nobody mount a disk: only the other tests of full disks ran");
        return;
    }
    let mount = "exec unshare -rm sh -c 'mount -t tmpfs -o size=100m none \"$TOWPATH_FOLDER\" && exec \"$0\" \"$@\"' \"$0\" \
                 --exact fills_a_disk --ignored --nocapture; #";
    let text = child("fills_a_disk", folder.path(), mount, None);
    assert!(text.contains("refused: cannot append to feed f1: the disk is full: "), "{text}");
    assert!(text.contains("went on"), "{text}");
    assert!(text.contains("failed: cannot append to feed f1: No space left on device"), "{text}");
    assert!(text.contains("whole"), "{text}");
    assert!(text.contains("opened on a full disk"), "{text}");
}

#[tokio::test]
#[ignore = "another test starts it"]
async fn fills_a_disk() {
    let Some(folder) = std::env::var_os("TOWPATH_FOLDER") else { return };
    let folder = Path::new(&folder);
    let ballast = folder.join("data/ballast");
    let small = EmbeddedOptions { memtable: 4 << 20, ..options() };

    // With a reserve, appends are refused before the disk is full, and resume when there is space.
    let store =
        EmbeddedStore::open(folder.join("data"), EmbeddedOptions { reserve: 20 << 20, ..small.clone() })
            .unwrap();
    fs::write(&ballast, vec![1; 20 << 20]).unwrap();
    let (error, reached) = append_until_refused(&store).await;
    println!("\nrefused: {error}");
    assert_eq!(store.head(&feed()).await.unwrap().seq, reached);
    assert!(store.verify().await.unwrap().is_sound());
    // What fills the disk may be the store's own: removing goes on.
    let removed =
        store.append(&feed(), Expected::Last(reached), vec![NewChange::delete("i1")]).await.unwrap();
    let row = |value| vec![TableWrite { table: Table::Documents, key: b"a".to_vec(), value }];
    store.write(row(None), Vec::new()).await.unwrap();
    // A row that notes what is being removed.
    store.write(row(Some("x".into())), Vec::new()).await.unwrap();
    assert!(store.write(row(Some(vec![0; 100_000].into())), Vec::new()).await.is_err());
    fs::remove_file(&ballast).unwrap();
    let expected = Expected::Last(removed.head.seq);
    let next = store.append(&feed(), expected, vec![put("more", 1 << 20)]).await.unwrap();
    println!("went on at {}", next.first);
    store.close().await;

    // Without a reserve, a write fails in the middle; no acknowledged write is lost.
    let store = EmbeddedStore::open(folder.join("data"), small.clone()).unwrap();
    let (error, reached) = append_until_refused(&store).await;
    println!("failed: {error}");
    assert_eq!(store.head(&feed()).await.unwrap().seq, reached);
    assert!(store.latest(&feed(), "more").await.unwrap().is_some());
    store.close().await;
    let store = EmbeddedStore::open(folder.join("data"), small).unwrap();
    assert!(store.head(&feed()).await.unwrap().seq >= reached);
    assert!(store.verify().await.unwrap().is_sound());
    store.close().await;
    println!("whole");

    // Nothing is free, and a lost power has left the lock empty: its process id was not synced.
    fs::write(folder.join("data/towpath.lock"), "").unwrap();
    fill(&ballast);
    let store = EmbeddedStore::open(folder.join("data"), options()).unwrap();
    assert!(store.head(&feed()).await.unwrap().seq >= reached);
    assert!(store.verify().await.unwrap().is_sound());
    println!("opened on a full disk");
}

/// Writes a file until the disk has no room for a byte.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).unwrap();
    for piece in [&[1; 1 << 20][..], &[1]] {
        while file.write_all(piece).is_ok() {}
    }
}

/// Appends until the store refuses. Returns the error, and the last acknowledged position.
async fn append_until_refused(store: &EmbeddedStore) -> (AppendError, u64) {
    let mut reached = store.head(&feed()).await.unwrap().seq;
    loop {
        match store.append(&feed(), Expected::Any, vec![put(&format!("i{reached}"), 1 << 19)]).await {
            Ok(appended) => reached = appended.head.seq,
            Err(error) => return (error, reached),
        }
    }
}

/// One call removes the files of large values of which nothing is left.
#[tokio::test]
async fn compacting_gives_back_the_space_of_removed_contents() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(folder.path(), options()).unwrap();
    let row = |n: u8, value: Option<Vec<u8>>| {
        vec![TableWrite { table: Table::Documents, key: vec![b'a', n], value: value.map(Into::into) }]
    };
    for n in 0..24 {
        let noise: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(1 << 20).collect();
        store.write(row(n, Some(noise)), Vec::new()).await.unwrap();
    }
    let (_, full) = store.compact().await.unwrap();
    assert!(full > 24 << 20, "{full}");
    for n in 0..24 {
        store.write(row(n, None), Vec::new()).await.unwrap();
    }
    let (before, after) = store.compact().await.unwrap();
    assert!(before > 24 << 20 && after < 1 << 20, "{before} before, {after} after");
    store.close().await;
}
