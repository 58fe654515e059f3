//! `towpath follow` with a state file on real DiffDelta versions, whichever versions it misses.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Output;

use serde_json::Value;

use crate::common::{KEV, TestFolder, catalogue, free_port, kev, lines, stderr};

/// Runs `towpath follow --once` with a state file.
fn follow(dir: &TestFolder, url: &str) -> Output {
    dir.run(&["follow", url, "--once", "--state", "state"])
}

/// Applies a follower's output; every line must change an item.
fn apply(output: &Output, items: &mut BTreeMap<String, Value>) -> usize {
    let received = lines(output);
    for line in &received {
        assert_eq!(line["feed"], "kev");
        let id = line["id"].as_str().unwrap().to_owned();
        if line["op"] == "delete" {
            assert!(items.remove(&id).is_some(), "{line}");
            continue;
        }
        let content = line["json"].clone();
        assert_eq!(line["item"]["title"], content["vulnerabilityName"]);
        assert_ne!(items.insert(id, content.clone()), Some(content), "received twice");
    }
    received.len()
}

/// Number of items that differ.
fn distance(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> usize {
    let gone = before.keys().filter(|id| !after.contains_key(*id)).count();
    gone + after.iter().filter(|(id, item)| before.get(*id) != Some(item)).count()
}

/// Polls these versions in one pass each. Returns the number of changed items, counted from the catalogues.
fn poll(
    dir: &TestFolder,
    versions: impl Iterator<Item = usize>,
    known: &mut BTreeMap<String, Value>,
) -> usize {
    let mut changes = 0;
    for version in versions {
        dir.write("kev.json", &kev(version));
        assert_eq!(dir.run(&["run"]).status.code(), Some(0));
        let after = catalogue(&kev(version));
        changes += distance(known, &after);
        *known = after;
    }
    changes
}

/// Section 2.2: a stored cursor that is not `prev_cursor` is a gap; the archive fills it.
#[test]
fn a_follower_that_misses_versions_gets_every_change_once() {
    let dir = TestFolder::new(KEV);
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/diff/kev/head.json");
    let (mut known, mut items) = (BTreeMap::new(), BTreeMap::new());
    // The last step goes back: two items are removed.
    let steps: [Vec<usize>; 5] = [vec![1], vec![2, 3], (4..=13).collect(), (14..=22).collect(), vec![21]];
    for versions in steps {
        let changes = poll(&dir, versions.clone().into_iter(), &mut known);
        let server = dir.serve_at(port);
        let followed = follow(&dir, &url);
        assert_eq!(followed.status.code(), Some(0), "{versions:?}: {}", stderr(&followed));
        assert_eq!(apply(&followed, &mut items), changes, "{versions:?}");
        assert_eq!(items, known, "{versions:?}");
        let again = follow(&dir, &url);
        assert_eq!((again.status.code(), lines(&again).len()), (Some(0), 0), "{}", stderr(&again));
        drop(server);
    }
    let away = follow(&dir, &url);
    assert_eq!((away.status.code(), lines(&away).len()), (Some(1), 0), "{}", stderr(&away));
}

#[test]
fn the_global_feed_and_a_discovered_one_agree() {
    let dir = TestFolder::new(KEV);
    let mut known = BTreeMap::new();
    poll(&dir, [16, 18].into_iter(), &mut known);
    let server = dir.serve();
    for path in ["/diff/head.json", "/diff/latest.json", "/diff/source/kev/latest.json", "/feeds/kev"] {
        // The feed's page offers Smart Feeds too, which is preferred.
        let args = ["follow", &format!("{}{path}", server.base), "--protocol", "diffdelta", "--once"];
        let output = dir.run(&args);
        assert_eq!(output.status.code(), Some(0), "{path}: {}", stderr(&output));
        let mut items = BTreeMap::new();
        apply(&output, &mut items);
        assert_eq!(items, known, "{path}");
    }
    let from_now = ["follow", &format!("{}/diff/kev/head.json", server.base), "--once", "--from", "now"];
    assert!(lines(&dir.run(&from_now)).is_empty());
    let check =
        dir.run(&["check", &format!("{}/diff/kev/head.json", server.base), "--protocol", "diffdelta"]);
    assert_eq!(check.status.code(), Some(0), "{}{}", crate::common::stdout(&check), stderr(&check));
}

/// Serves a publisher that has lost its archive: later versions of `head.json` and `latest.json`, nothing else.
fn serve_without_archive(port: u16, documents: BTreeMap<String, Vec<u8>>) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 8192];
            let read = stream.read(&mut head).unwrap();
            let text = String::from_utf8_lossy(&head[..read]).into_owned();
            let path = text.split(' ').nth(1).unwrap_or_default();
            let (status, body) = match documents.get(path) {
                Some(body) => ("200 OK", body.as_slice()),
                None => ("404 Not Found", b"gone".as_slice()),
            };
            let length = body.len();
            let kind = "application/json; charset=utf-8";
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
            );
            let _ = stream.write_all(body);
        }
    });
}

#[test]
fn an_unfillable_gap_is_reported_beside_the_available_changes() {
    let dir = TestFolder::new(KEV);
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/diff/kev/head.json");
    let (mut known, mut items) = (BTreeMap::new(), BTreeMap::new());
    poll(&dir, [1].into_iter(), &mut known);
    let server = dir.serve_at(port);
    apply(&follow(&dir, &url), &mut items);
    drop(server);
    poll(&dir, [9, 22].into_iter(), &mut known);
    let server = dir.serve_at(port);
    let paths = ["/diff/kev/head.json", "/diff/kev/latest.json"];
    let documents = paths.map(|path| (path.to_owned(), server.get(path).body));
    drop(server);
    serve_without_archive(port, BTreeMap::from(documents));
    let followed = follow(&dir, &url);
    assert_eq!(followed.status.code(), Some(3), "{}", stderr(&followed));
    let received = stderr(&followed);
    assert!(received.contains("are lost") && received.contains("/archive/kev/index.json"), "{received}");
    // The changes of the last run are there; those of version 9 are missing.
    assert_eq!(apply(&followed, &mut items), distance(&catalogue(&kev(9)), &known));
    assert!(items.len() < known.len());
}
