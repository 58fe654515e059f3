//! Backups: made beside a server that is written to, restored, and never taken for whole where they are not.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{TestFolder, TestServer, clustered, stderr, stdout};

const FEEDS: &str = "[[feed]]\nid = \"notes\"\n[[feed]]\nid = \"other\"\n";

fn publish(server: &TestServer, from: usize, to: usize) {
    let line = |number| json!({ "id": format!("i{number:06}"), "content": format!("{number} ").repeat(50) });
    let lines: String = (from..to).map(|number| format!("{}\n", line(number))).collect();
    let answer = server.ask("POST", "/feeds/notes/items", &[], lines.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Publishes batches of a thousand items each.
fn publish_batches(server: &TestServer, batches: std::ops::Range<usize>) {
    batches.for_each(|batch| publish(server, batch * 1000, (batch + 1) * 1000));
}

fn succeed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    stderr(output)
}

/// Returns the ids of a feed in a data folder of this name, in the order of the log.
fn ids(dir: &TestFolder, data: &str) -> Vec<String> {
    let server = dir.serve_with(&["--data", data]);
    let url = format!("{}/feeds/notes/items", server.base);
    let told = dir.run(&["follow", &url, "--once"]);
    succeed(&told);
    let ids =
        crate::common::lines(&told).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(server.stop(), Some(0));
    ids
}

/// Returns the names of the backups in the folder `copies`, oldest first.
fn listed(dir: &TestFolder) -> Vec<String> {
    let listed = dir.run(&["restore", "copies", "--list", "--format", "json"]);
    let listed: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!(listed["problems"], json!([]));
    let names = listed["backups"].as_array().unwrap().iter();
    names.map(|backup| backup["name"].as_str().unwrap().to_owned()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() { all.extend(files(&entry.path())) } else { all.push(entry.path()) }
    }
    all
}

/// A backup beside a server has one moment of it, and the next one writes only what is new.
#[test]
fn a_served_folder_is_backed_up_and_comes_back() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    publish_batches(&server, 0..20);
    // Publishing goes on while the backup is made.
    let first = std::thread::scope(|scope| {
        let making = scope.spawn(|| dir.run(&["backup", "copies"]));
        publish_batches(&server, 20..30);
        making.join().unwrap()
    });
    assert!(succeed(&first).contains("backed up as"));
    succeed(&dir.run(&["backup", "copies"]));
    publish(&server, 30_000, 30_010);
    let second = succeed(&dir.run(&["backup", "copies"]));
    // Ten new items are in few pieces, of many.
    let (new, all) = second
        .split_once("; ")
        .unwrap()
        .1
        .split_once(" pieces were new")
        .unwrap()
        .0
        .split_once(" of ")
        .unwrap();
    let (new, all): (usize, usize) = (new.parse().unwrap(), all.parse().unwrap());
    assert!(new * 2 < all && new > 0, "{second}");
    let names = listed(&dir);
    assert_eq!(names.len(), 3, "{names:?}");
    let table = stdout(&dir.run(&["restore", "copies", "--list"]));
    assert!(table.starts_with("backup") && table.lines().nth(3).unwrap().starts_with(&names[2]), "{table}");
    for (backup, data) in [(&["--backup", names[0].as_str()][..], "one"), (&[], "two")] {
        succeed(&dir.run(&[&["restore", "copies", "--check"], backup].concat()));
        succeed(&dir.run(&[&["restore", "copies", "--data", data], backup].concat()));
        let verified = dir.run(&["verify", "--data", data]);
        assert!(stdout(&verified).contains("no damage found"), "{}", stderr(&verified));
    }
    // A batch is there whole or not at all, and nothing is missing before the last.
    let restored = ids(&dir, "one");
    assert!(restored.len() >= 20_000 && restored.len().is_multiple_of(1000), "{}", restored.len());
    assert!(restored.iter().enumerate().all(|(number, id)| *id == format!("i{number:06}")));
    assert_eq!(ids(&dir, "two").len(), 30_010);
    // Only the newest is kept, and it is still whole.
    let kept = succeed(&dir.run(&["backup", "copies", "--keep", "1"]));
    assert!(kept.contains("removed 3 older backups"), "{kept}");
    succeed(&dir.run(&["restore", "copies", "--check"]));
    assert_eq!(listed(&dir).len(), 1);
    assert_eq!(server.stop(), Some(0));
}

/// Without a server the command opens the folder itself.
#[test]
fn a_folder_that_nobody_serves_is_backed_up() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(FEEDS);
    succeed(&dir.run(&["put", "notes", "a", "--title", "A"]));
    let made = dir.run(&["backup", "copies", "--keep", "3", "--format", "json"]);
    assert_eq!(succeed(&made), "");
    let receipt: Value = serde_json::from_str(&stdout(&made)).unwrap();
    assert_eq!((&receipt["new_pieces"], &receipt["removed"]), (&receipt["pieces"], &json!(0)), "{receipt}");
    let restored = dir.run(&["restore", "copies", "--data", "new", "--format", "json"]);
    succeed(&restored);
    let restored: Value = serde_json::from_str(&stdout(&restored)).unwrap();
    assert_eq!((&restored["backup"], &restored["same_log"]), (&receipt["backup"], &json!(false)));
    assert_eq!(ids(&dir, "new"), ["a"]);
}

/// Changes after the backup are gone, and their positions are given again: followers are told to begin anew.
#[test]
fn followers_of_a_restored_folder_begin_anew() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(FEEDS);
    let port = crate::common::free_port();
    let server = dir.serve_at(port);
    let put = |server: &TestServer, id: &str| {
        let path = format!("/feeds/notes/items/{id}");
        assert!(server.ask("PUT", &path, &[("content-type", "text/plain")], b"x").status < 300);
    };
    put(&server, "a");
    succeed(&dir.run(&["backup", "copies"]));
    let url = format!("{}/feeds/notes/items", server.base);
    let follow = |state| dir.run(&["follow", &url, "--once", "--state", state]);
    let told = |output: &Output| -> Vec<String> {
        crate::common::lines(output)
            .iter()
            .map(|line| line["id"].as_str().unwrap_or("reset").to_owned())
            .collect()
    };
    assert_eq!(told(&follow("same")), ["a"]);
    put(&server, "b");
    assert_eq!(told(&follow("later")), ["a", "b"]);
    assert_eq!(server.stop(), Some(0));
    std::fs::rename(dir.path("data"), dir.path("old")).unwrap();
    for (option, state, expected, code) in
        [(&["--same-log"][..], "same", &["c"][..], 0), (&[], "later", &["reset", "a", "c"], 3)]
    {
        succeed(&dir.run(&[&["restore", "copies"], option].concat()));
        let server = dir.serve_at(port);
        // It has the position that "b" had.
        put(&server, "c");
        let output = follow(state);
        assert_eq!(
            (told(&output), output.status.code()),
            (expected.iter().map(|id| (*id).to_owned()).collect(), Some(code))
        );
        assert_eq!(server.stop(), Some(0));
        std::fs::remove_dir_all(dir.path("data")).unwrap();
    }
}

/// A backup that is cut off is never listed, whoever is killed.
#[test]
fn a_backup_that_is_cut_off_is_none() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    publish_batches(&server, 0..20);
    let start =
        || dir.command(&["backup", "copies"]).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let mut child = start();
    // Killed as soon as it has written something.
    while !dir.path("copies/pieces").is_dir() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // It may have been quicker than the kill.
    let done = listed(&dir).len();
    let none = dir.run(&["restore", "copies", "--data", "new"]);
    assert_eq!(none.status.code(), Some(if done == 0 { 1 } else { 0 }), "{}", stderr(&none));
    if done == 0 {
        assert!(stderr(&none).contains("there is no backup in"), "{}", stderr(&none));
        assert!(!dir.path("new").exists());
    }
    // The next one uses the pieces that are there.
    succeed(&dir.run(&["backup", "copies"]));
    succeed(&dir.run(&["restore", "copies", "--check"]));
    // The server is killed while it gives its copy.
    let child = start();
    server.kill();
    let output = child.wait_with_output().unwrap();
    let after = listed(&dir).len();
    assert_eq!(after, done + 1 + usize::from(output.status.success()), "{}", stderr(&output));
    succeed(&dir.run(&["restore", "copies", "--check"]));
}

/// Makes a backup of a stopped server, in `copies`. Returns its largest piece, and the piece's bytes.
fn backed_up() -> (TestFolder, PathBuf, Vec<u8>) {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    publish(&server, 0, 2000);
    assert_eq!(server.stop(), Some(0));
    succeed(&dir.run(&["backup", "copies"]));
    let pieces = files(&dir.path("copies/pieces"));
    let largest = pieces.into_iter().max_by_key(|piece| piece.metadata().unwrap().len()).unwrap();
    let whole = std::fs::read(&largest).unwrap();
    (dir, largest, whole)
}

#[test]
fn a_damaged_backup_is_named_and_not_restored() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let (dir, largest, whole) = backed_up();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    let name = largest.file_name().unwrap().to_str().unwrap();
    for bytes in [Some(&damaged[..]), Some(&whole[..middle]), None] {
        match bytes {
            Some(bytes) => std::fs::write(&largest, bytes).unwrap(),
            None => std::fs::remove_file(&largest).unwrap(),
        }
        let checked = dir.run(&["restore", "copies", "--check"]);
        assert_eq!(checked.status.code(), Some(1));
        assert!(stdout(&checked).contains(name), "{}", stdout(&checked));
        let checked = dir.run(&["restore", "copies", "--check", "--format", "json"]);
        assert_eq!(checked.status.code(), Some(1));
        let result: Value = serde_json::from_str(&stdout(&checked)).unwrap();
        assert_eq!(result["problems"].as_array().map(Vec::len), Some(1), "{result}");
        let restored = dir.run(&["restore", "copies", "--data", "new"]);
        assert_eq!(restored.status.code(), Some(1));
        assert!(stderr(&restored).contains(name), "{}", stderr(&restored));
        assert!(!dir.path("new").exists() && !dir.path("new.restoring").exists());
    }
    // The next backup writes the missing piece again.
    succeed(&dir.run(&["backup", "copies"]));
    succeed(&dir.run(&["restore", "copies", "--check"]));
    let list = &files(&dir.path("copies/backups"))[0];
    std::fs::write(list, "{").unwrap();
    let listed = dir.run(&["restore", "copies", "--list"]);
    assert!(stdout(&listed).contains("it is damaged"), "{}", stdout(&listed));
    let listed = dir.run(&["restore", "copies", "--list", "--format", "json"]);
    let listed: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!(listed["problems"].as_array().map(Vec::len), Some(1), "{listed}");
}

/// A piece that was damaged in the backup's place is written again, and does not spoil every later backup.
#[test]
fn a_later_backup_replaces_damaged_pieces() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let (dir, largest, whole) = backed_up();
    let back_up = |more: &[&str]| -> Value {
        let made = dir.run(&[&["backup", "copies", "--format", "json"], more].concat());
        succeed(&made);
        serde_json::from_str(&stdout(&made)).unwrap()
    };
    for length in [0, whole.len() / 2] {
        std::fs::write(&largest, &whole[..length]).unwrap();
        assert_eq!(back_up(&[])["new_pieces"], 1);
        succeed(&dir.run(&["restore", "copies", "--check"]));
    }
    // Damage that keeps the size is found by reading only.
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0xff;
    std::fs::write(&largest, &flipped).unwrap();
    assert_eq!(back_up(&[])["new_pieces"], 0);
    let checked = dir.run(&["restore", "copies", "--check"]);
    assert!(stderr(&checked).contains("towpath backup copies --verify"), "{}", stderr(&checked));
    assert_eq!(back_up(&["--verify"])["new_pieces"], 1);
    succeed(&dir.run(&["restore", "copies", "--check"]));
    assert_eq!(back_up(&["--verify"])["new_pieces"], 0);
}

#[test]
fn nothing_is_ever_replaced() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(FEEDS);
    succeed(&dir.run(&["put", "notes", "a", "--title", "A"]));
    succeed(&dir.run(&["backup", "copies"]));
    let in_use = dir.run(&["restore", "copies"]);
    assert_eq!(in_use.status.code(), Some(2));
    assert!(stderr(&in_use).contains("never replaces"), "{}", stderr(&in_use));
    let server = dir.serve();
    assert_eq!(dir.run(&["restore", "copies"]).status.code(), Some(2));
    assert_eq!(server.stop(), Some(0));
    for (args, why) in [
        (&["restore", "nowhere"][..], "nowhere"),
        (&["restore", "copies", "--data", "new", "--backup", "yesterday"], "there is no backup yesterday"),
        (&["backup", "data/copies"], "one within the other"),
        (&["backup", "ftp://example.com/copies"], "ftp://example.com/copies"),
        (&["backup", "towpath.toml"], "towpath.toml"),
        (&["backup", "copies", "--data", "nowhere"], "there is no data folder"),
    ] {
        let refused = dir.run(args);
        assert!(
            !refused.status.success() && stderr(&refused).contains(why),
            "{args:?}: {}",
            stderr(&refused)
        );
    }
    assert!(!dir.path("nowhere").exists());
    // A restore that was killed leaves a folder of another name, which the next one replaces.
    std::fs::create_dir(dir.path("new.restoring")).unwrap();
    std::fs::write(dir.path("new.restoring/rest"), "x").unwrap();
    succeed(&dir.run(&["restore", "copies", "--data", "new"]));
    assert!(!dir.path("new.restoring").exists());
    assert_eq!(ids(&dir, "new"), ["a"]);
}

/// A full disk fails the backup, and the ones before it stay whole.
#[test]
fn a_full_disk_fails_the_backup_only() {
    if clustered::skips("a node's folder is a replica") {
        return;
    }
    let dir = TestFolder::new(FEEDS);
    succeed(&dir.run(&["put", "notes", "a", "--title", "A"]));
    succeed(&dir.run(&["backup", "copies"]));
    succeed(&dir.run(&["put", "notes", "b", "--title", "B"]));
    // A limit of file sizes meets the same path as a full disk, without a file system of its own.
    let program = env!("CARGO_BIN_EXE_towpath");
    let limited = std::process::Command::new("sh")
        .args(["-c", &format!("ulimit -f 0; trap '' XFSZ; exec '{program}' backup copies")])
        .current_dir(dir.path("."))
        .output()
        .unwrap();
    assert_ne!(limited.status.code(), Some(0), "{}", stderr(&limited));
    assert_eq!(listed(&dir).len(), 1);
    succeed(&dir.run(&["restore", "copies", "--check"]));
}
