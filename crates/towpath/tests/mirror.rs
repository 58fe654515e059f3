//! A feed that mirrors another towpath by DiffDelta, with both sides killed at bad moments.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::chain::ChainReader;
use crate::common::{TestFolder, TestServer, free_port, stdout};

fn publisher() -> TestFolder {
    TestFolder::new("[[feed]]\nid = \"notes\"\nttl = 15\n")
}

fn mirror_of(port: u16) -> TestFolder {
    TestFolder::new(&format!(
        "[[feed]]\nid = \"copy\"\nttl = 15\n[feed.source]\nfollow = \"http://127.0.0.1:{port}/diff/notes/head.json\"\n"
    ))
}

fn publish(server: &TestServer, ids: std::ops::Range<u32>) {
    let line = |n: u32| {
        let content = format!("{n} {}", "x".repeat(n as usize % 700));
        let item = json!({"title": format!("Item {n}"), "published": "2024-01-01T00:00:00.5Z", "tags": ["t"],
            // A number that JCS and Python write differently must not enter a document.
            "authors": [{"name": "Ann"}], "extra": {"n": 1e300}});
        json!({"id": format!("item/{n}"), "content_type": "text/plain", "content": content, "item": item})
    };
    let batch: String = ids.map(|n| format!("{}\n", line(n))).collect();
    let answer = server.ask("POST", "/feeds/notes/items", &[], batch.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Waits until the copy's log has so many entries; it may never have more.
fn wait_for(copy: &TestServer, seq: u64) {
    let end = Instant::now() + Duration::from_secs(90);
    while copy.json("/feeds/copy")["seq"].as_u64().unwrap() < seq {
        assert!(Instant::now() < end, "the mirror stays at {}", copy.json("/feeds/copy"));
        std::thread::sleep(Duration::from_millis(100));
    }
    // A duplicate would arrive by then.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(copy.json("/feeds/copy")["seq"], seq, "nothing is there twice");
}

fn line(server: &TestServer, feed: &str, id: &str) -> Value {
    let mut line = server.json(&format!("/feeds/{feed}/items/{}?as=line", id.replace('/', "%2F")));
    line["feed"].take();
    line["position"].take();
    line
}

#[test]
fn a_mirror_has_each_item_once_whichever_side_is_killed() {
    let origin = publisher();
    let port = free_port();
    let server = origin.serve_at(port);
    publish(&server, 0..3000);
    server.wait_for_first("notes");
    let mirror = mirror_of(port);
    // Killed while it copies the first items, and between batches.
    for life in [30, 80, 150, 300, 500] {
        let copy = mirror.serve();
        std::thread::sleep(Duration::from_millis(life));
        copy.kill();
    }
    let copy = mirror.serve();
    wait_for(&copy, 3000);
    for n in (0..3000).step_by(211) {
        assert_eq!(line(&copy, "copy", &format!("item/{n}")), line(&server, "notes", &format!("item/{n}")));
    }
    // The publisher is restarted and has more: changes, a deletion, new items.
    server.kill();
    let server = origin.serve_at(port);
    publish(&server, 2990..3100);
    assert_eq!(server.ask("DELETE", "/feeds/notes/items/item%2F7", &[], b"").status, 200);
    server.wait_for("/diff/notes/latest.json", |latest| !latest["buckets"]["removed"][0].is_null());
    copy.kill();
    let copy = mirror.serve();
    // Ten of the puts change nothing, and are not appended.
    assert_eq!(server.json("/feeds/notes")["seq"], 3000 + 100 + 1);
    wait_for(&copy, 3101);
    assert_eq!(copy.get("/feeds/copy/items/item%2F7").status, 410);
    same_items(&server, &copy);
    assert_eq!(copy.stop(), Some(0));
    let copy = mirror.serve();
    wait_for(&copy, 3101);
}

/// Asserts that followers of the mirror get the publisher's items.
fn same_items(server: &TestServer, copy: &TestServer) {
    let original = ChainReader::whole(server, "notes");
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let copied = ChainReader::whole(copy, "copy");
        if copied.contents() == original.contents() {
            return;
        }
        assert!(Instant::now() < end, "the mirror publishes other items");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_mirror_without_its_publisher_reports_it_and_keeps_its_items() {
    let origin = publisher();
    let port = free_port();
    let server = origin.serve_at(port);
    publish(&server, 0..20);
    server.wait_for_first("notes");
    let mirror = mirror_of(port);
    let copy = mirror.serve();
    wait_for(&copy, 20);
    copy.kill();
    server.kill();
    let copy = mirror.serve();
    let list = copy.wait_for("/diff/sources.json", |list| list["sources"][0]["status"] == "error");
    assert_eq!(list["sources"][0]["error"]["code"], "NETWORK_ERROR");
    assert_eq!(ChainReader::whole(&copy, "copy").items.len(), 20);
    assert_eq!(copy.get("/feeds/copy/items/item%2F3").status, 200);
    let status = |copy: &TestServer| stdout(&mirror.run(&["status", "--server", &copy.base]));
    let source = copy.wait_for("/feeds/copy", |feed| feed["source"]["error"].is_object())["source"].clone();
    assert_eq!(source["address"], format!("http://127.0.0.1:{port}/diff/notes/head.json"));
    assert_eq!(
        (&source["protocol"], &source["error"]["code"]),
        (&json!("diffdelta"), &json!("NETWORK_ERROR"))
    );
    assert!(source["last_ok"].is_string(), "{source}");
    assert!(status(&copy).contains("NETWORK_ERROR: "), "{}", status(&copy));
    let page = copy.get("/feeds/copy/source").text();
    assert!(page.contains("followed by diffdelta") && page.contains("NETWORK_ERROR"), "{page}");
    // The publisher is back, without new items.
    let server = origin.serve_at(port);
    let feed = copy.wait_for("/feeds/copy", |feed| feed["source"]["error"].is_null());
    assert_eq!(feed["seq"], 20);
    copy.wait_for("/diff/sources.json", |list| list["sources"][0]["status"] == "ok");
    assert!(status(&copy).contains(", by diffdelta"), "{}", status(&copy));
    drop(server);
}

/// A protected feed is mirrored with the headers of its source, which no other server gets.
#[test]
fn a_feed_with_readers_is_mirrored() {
    let origin = TestFolder::new("[[feed]]\nid = \"notes\"\nttl = 15\nreaders = [\"s3cret\"]\n");
    let server = origin.serve();
    publish(&server, 0..3);
    let follow = format!("{}/feeds/notes", server.base);
    let source = format!("[feed.source]\nfollow = \"{follow}\"\n");
    let headers = "[feed.source.headers]\nAuthorization = \"Bearer s3cret\"\n";
    let mirror = TestFolder::new(&format!(
        "[[feed]]\nid = \"copy\"\n{source}{headers}[[feed]]\nid = \"none\"\n{source}"
    ));
    let copy = mirror.serve();
    wait_for(&copy, 3);
    let refused = copy.wait_for("/feeds/none", |feed| feed["source"]["error"].is_object());
    assert!(refused["source"]["error"]["message"].as_str().unwrap().contains("401"), "{refused}");
    assert_eq!(refused["seq"], 0);
}
