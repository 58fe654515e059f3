//! `recent_items`: newest documents show the last changes, and `prev` leads to all others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;
use towpath_proto::format::{self, FeedDocument, ReadOptions};

use crate::common::notes::SYNTAXES;
use crate::common::tree::{address, files};
use crate::common::{PATIENCE, TestFolder, TestResponse, TestServer, free_port, lines, stderr, stdout};

const NOTES: &str = "[[feed]]\nid = \"notes\"\npage_items = 100\nrecent_items = 8\n";

fn read(answer: &TestResponse) -> FeedDocument {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let options = ReadOptions { content_type: answer.header("content-type"), ..ReadOptions::default() };
    format::read(&answer.body, &options).unwrap()
}

/// Publishes the items `i{n}` of a range, each as a change of its own.
fn publish(server: &TestServer, numbers: std::ops::Range<usize>) {
    let line =
        |n: usize| json!({ "id": format!("i{n}"), "content": "x", "item": { "title": format!("t{n}") } });
    let body: String = numbers.map(|n| format!("{}\n", line(n))).collect();
    let answer = server.ask("POST", "/feeds/notes/items", &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn ids(document: &FeedDocument) -> BTreeSet<String> {
    document.items.iter().map(|item| item.id.clone()).collect()
}

fn numbered(numbers: std::ops::Range<usize>) -> BTreeSet<String> {
    numbers.map(|n| format!("i{n}")).collect()
}

/// Walks along `prev-archive` from a feed's newest document. Returns the ids of all documents, and each address with the
/// document's entries.
fn walk(server: &TestServer, name: &str) -> (BTreeSet<String>, Vec<(String, TestResponse)>) {
    let (mut all, mut walked) = (BTreeSet::new(), Vec::new());
    let mut at = Some(format!("/feeds/notes/{name}"));
    while let Some(path) = at {
        let answer = server.get(&path);
        // Permanent documents link to what retention removed.
        if answer.status == 410 && !walked.is_empty() {
            break;
        }
        let document = read(&answer);
        all.extend(ids(&document));
        let prev = document.link("prev-archive").map(str::to_owned);
        assert_eq!(document.link("prev"), prev.as_deref(), "{path}");
        walked.push((path, answer));
        assert!(walked.len() < 30, "{name} has no end");
        at = prev.map(|url| url.strip_prefix(&server.base).unwrap().to_owned());
    }
    (all, walked)
}

/// RFC 5005, section 4: the subscription document and its archives have every entry, at any length of the log. Permanent
/// documents keep their bytes, also when `recent_items` changes.
#[test]
fn the_newest_document_is_short_and_the_chain_has_every_entry() {
    let port = free_port();
    let dir = TestFolder::new(NOTES);
    let mut server = dir.serve_at(port);
    let mut permanent: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let (mut there, mut shown) = (1, 8);
    for step in [3, 6, 1, 13, 40, 36, 1, 1, 3, 70, 26, 1, 60] {
        publish(&server, there..there + step);
        there += step;
        if there > 150 && shown == 8 {
            server.kill();
            dir.write("towpath.toml", NOTES.replace("recent_items = 8", "recent_items = 20").as_bytes());
            (server, shown) = (dir.serve_at(port), 20);
        }
        for (name, _) in SYNTAXES {
            let (all, walked) = walk(&server, name);
            assert_eq!(all, numbered(1..there), "{name}");
            let newest = read(&walked[0].1);
            assert_eq!(ids(&newest), numbered(there.saturating_sub(shown).max(1)..there), "{name}");
            let this = newest.link("this").unwrap().strip_prefix(&server.base).unwrap().to_owned();
            let this = [(this.clone(), server.get(&this))];
            assert_eq!(read(&this[0].1).items, newest.items);
            for (address, answer) in walked.into_iter().skip(1).chain(this) {
                // The last sealed page becomes an archive document with the next one.
                if answer.header("cache-control") != Some("no-cache") {
                    let before = permanent.entry(address.clone()).or_insert_with(|| answer.body.clone());
                    assert_eq!(*before, answer.body, "{address}");
                }
            }
        }
    }
    assert!(permanent.len() > 40, "{}", permanent.len());
    for (address, body) in &permanent {
        assert_eq!(server.get(address).body, *body, "{address}");
    }
}

#[test]
fn fifty_are_shown_unless_configured_and_fewer_than_eight_are_refused() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let server = dir.serve();
    publish(&server, 1..201);
    for (name, _) in SYNTAXES {
        assert_eq!(ids(&read(&server.get(&format!("/feeds/notes/{name}")))), numbered(151..201), "{name}");
    }
    drop(server);
    dir.write("towpath.toml", b"[[feed]]\nid = \"notes\"\nrecent_items = 7\n");
    let refused = dir.run(&["config", "check"]);
    assert!(!refused.status.success() && stderr(&refused).contains("recent_items must be from 8 to"));
}

/// A follower is told every entry once, from a server and from a tree, and our check finds nothing.
#[test]
fn a_follower_is_told_every_entry_once() {
    let (port, base) = address();
    let dir = TestFolder::new(NOTES);
    let server_port = free_port();
    let mut server = dir.serve_at(server_port);
    std::fs::create_dir(dir.path("tree")).unwrap();
    let tree = files(port, &dir.path("tree"));
    let mut there = 1;
    for step in [5, 7, 30, 48, 25, 9, 90, 3] {
        publish(&server, there..there + step);
        drop(server);
        let done = dir.run(&["export", "tree", "--base-url", &base]);
        assert!(done.status.success(), "{}", stderr(&done));
        server = dir.serve_at(server_port);
        for (from, state) in [(&server.base, "of-server"), (&tree.base, "of-tree")] {
            let url = format!("{from}/feeds/notes/atom");
            let args = ["follow", &url, "--protocol", "history", "--once", "--state", state];
            let told = dir.run(&args);
            assert!(told.status.success(), "{from}: {}", stderr(&told));
            let told: Vec<String> =
                lines(&told).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
            let expected: Vec<String> = (there..there + step).map(|n| format!("i{n}")).collect();
            assert_eq!(told, expected, "{from}");
        }
        there += step;
    }
    for name in ["atom", "rss", "feed.json"] {
        let checked = dir.run(&["check", &format!("{}/feeds/notes/{name}", server.base)]);
        let text = stdout(&checked);
        assert!(checked.status.success(), "{name}: {text}");
        // Parts are replaced by longer ones, so they cannot name the document after them.
        let failed: Vec<&str> = text.lines().filter(|line| line.contains("FAIL  ")).collect();
        assert!(failed.iter().all(|line| line.contains("'next-archive'")), "{name}: {text}");
    }
}

/// Follows a feed's newest document once, and returns the lines.
fn follow(dir: &TestFolder, server: &TestServer, name: &str, more: &[&str]) -> Vec<serde_json::Value> {
    let url = format!("{}/feeds/notes/{name}", server.base);
    let told = dir.run(&[&["follow", &url, "--protocol", "history", "--once"], more].concat());
    assert!(told.status.success(), "{name} {more:?}: {}", stderr(&told));
    lines(&told)
}

fn told_ids(told: &[serde_json::Value]) -> Vec<String> {
    told.iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

/// The log has other documents by the time of each pass: parts, longer parts, pages. All of them have older items, too.
#[test]
fn a_follow_from_now_is_told_what_is_new_only() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    publish(&server, 1..31);
    for (name, _) in SYNTAXES {
        assert_eq!(told_ids(&follow(&dir, &server, name, &["--from", "now", "--state", name])), [""; 0]);
    }
    let mut there = 31;
    for step in [5, 40, 30, 1, 120, 9] {
        publish(&server, there..there + step);
        let expected: Vec<String> = (there..there + step).map(|n| format!("i{n}")).collect();
        for (name, _) in SYNTAXES {
            assert_eq!(told_ids(&follow(&dir, &server, name, &["--state", name])), expected, "{name}");
        }
        there += step;
    }
}

/// A line's position stays a resume point while its documents are replaced, and also once its item has a later version.
#[test]
fn a_position_outlives_its_document() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    publish(&server, 1..31);
    publish(&server, 31..61);
    let before: Vec<_> =
        ["atom", "rss"].into_iter().map(|name| (name, follow(&dir, &server, name, &[]))).collect();
    publish(&server, 61..140);
    for (name, told) in &before {
        assert_eq!(told.len(), 60, "{name}");
        for index in (0..60).step_by(7) {
            let position = told[index]["position"].as_str().unwrap();
            let rest = follow(&dir, &server, name, &["--from", position]);
            let expected: Vec<String> = (index + 2..140).map(|n| format!("i{n}")).collect();
            assert_eq!(told_ids(&rest), expected, "{name} {position}");
        }
    }
    // Items 20 to 49 have later versions. What stood beside them is in the documents that the positions name.
    let edits: String =
        (20..50).map(|n| format!("{}\n", json!({ "id": format!("i{n}"), "content": "y" }))).collect();
    assert_eq!(server.ask("POST", "/feeds/notes/items", &[], edits.as_bytes()).status, 200);
    for (name, told) in &before {
        for index in [24, 44] {
            let position = told[index]["position"].as_str().unwrap();
            let rest = told_ids(&follow(&dir, &server, name, &["--from", position]));
            assert!(rest.iter().all(|id| *id != "i1" && *id != "i19"), "{name} {position}: {rest:?}");
            let missing: Vec<usize> =
                (50..140).chain(20..50).filter(|n| !rest.contains(&format!("i{n}"))).collect();
            let is_told = |n: &usize| (50..index + 2).contains(n);
            assert!(missing.iter().all(is_told), "{name} {position}: {missing:?}");
        }
    }
}

/// Parts of a page that retention removed are 410, as the page is.
#[test]
fn parts_go_with_their_page() {
    let dir = TestFolder::new(&format!("{NOTES}[feed.retention]\nbytes = 10\ngrace = \"0s\"\n"));
    let port = free_port();
    let server = dir.serve_at(port);
    publish(&server, 1..60);
    let (_, walked) = walk(&server, "atom");
    assert!(walked.len() > 2);
    publish(&server, 60..330);
    let end = Instant::now() + PATIENCE;
    while server.get("/feeds/notes/atom/1").status != 410 {
        assert!(Instant::now() < end, "page 1 stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (address, _) in &walked[1..] {
        assert_eq!(server.get(address).status, 410, "{address}");
    }
    let (all, _) = walk(&server, "atom");
    assert!(all.contains("i329") && all.len() >= 8, "{all:?}");
}

/// docs/storage.md: "A follower whose page is gone tells that changes are missing", also if no page but the newest is left.
#[test]
fn a_follower_of_removed_pages_is_told_that_changes_are_missing() {
    let dir = TestFolder::new(
        "[[feed]]\nid = \"notes\"\npage_items = 3\n[feed.retention]\nage = \"1s\"\ngrace = \"1s\"\n",
    );
    let server = dir.serve();
    publish(&server, 1..5);
    for (name, _) in SYNTAXES {
        assert_eq!(follow(&dir, &server, name, &["--state", name]).len(), 4);
    }
    publish(&server, 5..41);
    let end = Instant::now() + PATIENCE;
    while server.get("/feeds/notes/atom/13").status != 410 {
        assert!(Instant::now() < end, "page 13 stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    for (name, _) in SYNTAXES {
        let url = format!("{}/feeds/notes/{name}", server.base);
        for more in [&["--state", name][..], &[]] {
            let told = dir.run(&[&["follow", &url, "--protocol", "history", "--once"], more].concat());
            assert_eq!(told.status.code(), Some(3), "{name} {more:?}: {}", stderr(&told));
            assert!(stderr(&told).contains(&format!("{url}/13 is gone")), "{}", stderr(&told));
            assert_eq!(lines(&told).len(), 1, "{name}");
        }
        let checked = dir.run(&["check", &url]);
        assert!(checked.status.success(), "{name}: {}", stdout(&checked));
    }
}
