//! Data Replication: snapshots of a real server, and retention.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::pages::{page, path, walk};
use crate::common::{PATIENCE, TestFolder, TestServer, lines, stderr, stdout};

const NOTES: &str = "[[feed]]\nid = \"notes\"\npage_items = 4\n[feed.snapshots]\nkeep = 2\n";

fn put(server: &TestServer, id: &str, content: &str) {
    let path = format!("/feeds/notes/items/{id}");
    let answer = server.ask("PUT", &path, &[("content-type", "text/plain")], content.as_bytes());
    assert!(answer.status < 300, "{}", answer.text());
}

fn delete(server: &TestServer, id: &str) {
    assert_eq!(server.ask("DELETE", &format!("/feeds/notes/items/{id}"), &[], b"").status, 200);
}

/// Creates a snapshot; returns its address and its index.
fn snapshot(server: &TestServer) -> (String, Value) {
    let made = server.ask("POST", "/feeds/notes/snapshots", &[], b"");
    assert_eq!(made.status, 201, "{}", made.text());
    let url = made.header("location").unwrap().to_owned();
    (url, made.json())
}

fn texts(index: &Value, server: &TestServer) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for url in index["pages"].as_array().unwrap() {
        let page = page(server, path(server, url.as_str().unwrap()));
        for entity in page.entities {
            // "Required and optional entity headers": no others.
            for name in ["content-type", "last-modified"] {
                assert!(entity.headers.get(name).is_some());
            }
            for name in ["content-id", "operation-type"] {
                assert!(entity.headers.get(name).is_none());
            }
            let item: Value = serde_json::from_str(entity.headers.get("towpath-item").unwrap()).unwrap();
            let text = String::from_utf8(entity.body.to_vec()).unwrap();
            assert_eq!(texts.insert(item["id"].as_str().unwrap().to_owned(), text), None);
        }
    }
    texts
}

/// "Snapshot Overview": the live items, immutable, several kept.
#[test]
fn a_snapshot_has_the_live_items_and_does_not_change() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    assert_eq!(server.get("/feeds/notes/snapshots/latest").status, 404);
    // "An empty snapshot has pages: []".
    assert_eq!(snapshot(&server).1["pages"], json!([]));
    let mut expected = BTreeMap::new();
    for n in 0..10 {
        put(&server, &format!("n{n}"), &format!("text {n}"));
        expected.insert(format!("n{n}"), format!("text {n}"));
    }
    put(&server, "n2", "another");
    expected.insert("n2".into(), "another".into());
    delete(&server, "n5");
    expected.remove("n5");
    let (url, index) = snapshot(&server);
    assert_eq!(index["pages"].as_array().unwrap().len(), 3);
    assert_eq!(index["feed"], format!("{}/feeds/notes/replication", server.base));
    assert_eq!(texts(&index, &server), expected);
    let latest = server.get("/feeds/notes/snapshots/latest");
    assert_eq!((latest.json(), latest.header("content-type")), (index.clone(), Some("application/json")));
    let own = server.get(path(&server, &url));
    assert_eq!((own.json(), own.header("cache-control").unwrap().contains("immutable")), (index, true));
    let url = url.replace(&server.base, "");
    let bodies = |server: &TestServer| {
        (0..3).map(|n| server.get(&format!("{url}/pages/{n}")).body).collect::<Vec<_>>()
    };
    let before = bodies(&server);
    for n in 0..10 {
        put(&server, &format!("n{n}"), "changed");
    }
    delete(&server, "n0");
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    assert_eq!(bodies(&server), before);
    assert_eq!(server.get(&format!("{url}/pages/3")).status, 404);
    // Two snapshots are kept: this one is removed by the second newer one.
    snapshot(&server);
    assert_eq!(bodies(&server), before);
    let (newest, _) = snapshot(&server);
    assert_eq!(server.get(&url).status, 404);
    assert_eq!(server.get(&format!("{url}/pages/0")).status, 404);
    let list = server.json("/feeds/notes/snapshots");
    assert_eq!(list["snapshots"].as_array().unwrap().len(), 2);
    assert_eq!(list["snapshots"][1]["url"], newest);
    let checked = dir.run(&["check", &newest, "--protocol", "replication"]);
    assert_eq!(checked.status.code(), Some(0), "{}", stdout(&checked));
}

/// "Finding an entry point": the snapshot, then the feed from its creation on. Nothing is lost, and duplicates change
/// nothing.
#[test]
fn a_snapshot_and_then_its_feed() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    for n in 0..9 {
        put(&server, &format!("n{n}"), &format!("text {n}"));
    }
    delete(&server, "n1");
    let (url, _) = snapshot(&server);
    put(&server, "n2", "new");
    put(&server, "late", "late");
    delete(&server, "n3");
    let args = ["follow", &url, "--protocol", "replication", "--once", "--state", "state"];
    let mut copy = BTreeMap::new();
    let first = dir.run(&args);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    apply(&mut copy, &lines(&first));
    assert_eq!(
        copy.keys().map(String::as_str).collect::<Vec<_>>(),
        ["late", "n0", "n2", "n4", "n5", "n6", "n7", "n8"]
    );
    assert_eq!(copy["n2"], "new");
    put(&server, "later", "x");
    let second = dir.run(&args);
    assert_eq!(lines(&second).len(), 1, "{}", stderr(&second));
    // The address of the newest index works as well, and is recognised.
    let latest = format!("{}/feeds/notes/snapshots/latest", server.base);
    let all = dir.run(&["follow", &latest, "--once"]);
    assert_eq!(all.status.code(), Some(0), "{}", stderr(&all));
    let mut again = BTreeMap::new();
    apply(&mut again, &lines(&all));
    apply(&mut copy, &lines(&second));
    assert_eq!(again, copy);
}

fn apply(copy: &mut BTreeMap<String, String>, lines: &[Value]) {
    for line in lines {
        let id = line["id"].as_str().unwrap().to_owned();
        if line["op"] == "delete" {
            copy.remove(&id);
        } else {
            copy.insert(id, line["content"].as_str().unwrap().to_owned());
        }
    }
}

#[test]
fn snapshots_are_created_on_demand_and_on_schedule() {
    let dir = TestFolder::new(
        "[server]\ntokens = [\"secret\"]\n[[feed]]\nid = \"notes\"\n[feed.snapshots]\nevery = \"1s\"\nkeep = 2\n",
    );
    let bearer = ("authorization", "Bearer secret");
    // Into the folder, without a server.
    dir.write("a.txt", b"hello");
    assert_eq!(dir.run(&["put", "notes", "a", "a.txt"]).status.code(), Some(0));
    let made = dir.run(&["snapshot", "notes"]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    let id = stdout(&made).trim().rsplit('/').next().unwrap().to_owned();
    let server = dir.serve();
    assert_eq!(server.json(&format!("/feeds/notes/snapshots/{id}"))["id"], id);
    // Through the server, with the configuration's token.
    let made = dir.run(&["snapshot", "notes", "--server", &server.base]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    assert!(stdout(&made).starts_with(&server.base));
    let refused = server.ask("POST", "/feeds/notes/snapshots", &[], b"");
    assert_eq!(refused.status, 401);
    assert_eq!(dir.run(&["snapshot", "none", "--server", &server.base]).status.code(), Some(1));
    // No snapshot is due without changes.
    let put = server.ask("PUT", "/feeds/notes/items/b", &[bearer], b"x");
    assert_eq!(put.status, 201);
    let count = |list: &Value| {
        let items = list["snapshots"].as_array().unwrap().iter().map(|one| one["items"].as_u64().unwrap());
        items.max()
    };
    // The third one is listed for a moment before the first one goes.
    let list = server.wait_for("/feeds/notes/snapshots", |list| {
        count(list) == Some(2) && list["snapshots"].as_array().unwrap().len() == 2
    });
    // Two intervals, in which no further snapshot may be made.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(server.json("/feeds/notes/snapshots"), list);
}

fn follow(dir: &TestFolder, url: &str) -> usize {
    let followed = dir.run(&["follow", url, "--protocol", "replication", "--once"]);
    assert_eq!(followed.status.code(), Some(0), "{}", stderr(&followed));
    lines(&followed).len()
}

/// "Finding an entry point": nothing is missing, and that is reported.
#[test]
fn an_index_says_where_its_feed_continues() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let (empty, index) = snapshot(&server);
    let first = format!("{}/feeds/notes/replication/pages/1", server.base);
    assert_eq!((&index["page"], &index["after"]), (&json!(first), &Value::Null));
    for n in 0..5 {
        put(&server, &format!("n{n}"), "x");
    }
    assert_eq!(follow(&dir, &empty), 5);
    let (_, index) = snapshot(&server);
    let second = format!("{}/feeds/notes/replication/pages/2", server.base);
    assert_eq!((&index["page"], &index["after"]), (&json!(second), &json!("<5@notes>")));
}

/// The only remaining page starts in the second of the snapshot.
#[test]
fn a_snapshot_bootstraps_a_follower_after_retention() {
    let config = "[[feed]]\nid = \"notes\"\npage_items = 2\n[feed.retention]\nage = \"2s\"\ngrace = \"1s\"\n";
    let dir = TestFolder::new(config);
    let server = dir.serve();
    put(&server, "n0", "x");
    put(&server, "n1", "x");
    // The last item begins another second, which is that of the snapshot.
    std::thread::sleep(Duration::from_millis(1100));
    put(&server, "n2", "x");
    let (url, _) = snapshot(&server);
    let end = Instant::now() + PATIENCE;
    while server.get("/feeds/notes/replication/pages/1").status != 410 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(follow(&dir, &url), 4, "three items, and the last of them once more");
}

/// The pages show a part of the live items only. Who begins at the feed's own address gets the others from the snapshot that
/// the oldest page links to, and is told if there is none.
#[test]
fn followers_and_mirrors_of_a_feed_with_retention_begin_with_its_snapshot() {
    let config = "[[feed]]\nid = \"notes\"\npage_items = 2\n[feed.retention]\nbytes = 20\ngrace = \"0s\"\n";
    for has_snapshot in [true, false] {
        let dir = TestFolder::new(config);
        let server = dir.serve();
        (0..20).for_each(|n| put(&server, &format!("n{n}"), "12345"));
        if has_snapshot {
            snapshot(&server);
        }
        (20..22).for_each(|n| put(&server, &format!("n{n}"), "12345"));
        let end = Instant::now() + PATIENCE;
        while server.get("/feeds/notes/replication/pages/8").status != 410 {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(50));
        }
        let url = format!("{}/feeds/notes/replication", server.base);
        let followed = dir.run(&["follow", &url, "--protocol", "replication", "--once"]);
        let ids: std::collections::BTreeSet<String> =
            lines(&followed).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
        let mirror = TestFolder::new(&format!("[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = {url:?}\n"));
        let copy = mirror.serve();
        let live = if has_snapshot { 22 } else { 6 };
        copy.wait_for("/feeds/copy/items?timeout=0", |page| page["totalItems"] == live);
        let says_so = |text: &str| text.contains("its first pages were removed");
        let code = if has_snapshot { 0 } else { 3 };
        assert_eq!((ids.len(), followed.status.code()), (live, Some(code)), "{}", stderr(&followed));
        assert_eq!(says_so(&stderr(&followed)), !has_snapshot, "{}", stderr(&followed));
        assert_eq!(says_so(&mirror.log()), !has_snapshot, "{}", mirror.log());
    }
}

/// An incomplete snapshot of a killed server is never visible, and leaves nothing behind.
#[test]
fn killed_while_a_snapshot_is_created() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\npage_items = 2\n");
    let server = dir.serve();
    let mut batch = String::new();
    for n in 0..3000 {
        batch.push_str(&format!("{}\n", json!({"id": format!("n{n}"), "content": "x".repeat(50)})));
    }
    assert_eq!(server.ask("POST", "/feeds/notes/items", &[], batch.as_bytes()).status, 200);
    drop(server);
    for round in 0..4_u64 {
        let server = dir.serve();
        let before = server.json("/feeds/notes/snapshots");
        std::thread::scope(|scope| {
            scope.spawn(|| drop(server.try_ask("POST", "/feeds/notes/snapshots", &[], b"")));
            // Each round kills the server at another moment of the snapshot.
            std::thread::sleep(Duration::from_millis(1000 + 150 * round));
            std::process::Command::new("kill").args(["-KILL", &server.pid().to_string()]).status().unwrap();
        });
        drop(server);
        let server = dir.serve();
        for one in server.json("/feeds/notes/snapshots")["snapshots"].as_array().unwrap() {
            assert_eq!(one["items"], 3000, "whole or not at all, after {before}");
        }
        drop(server);
    }
}

/// "A prev link may be removed from an older page as part of a gradual cleanup process": first the link, then,
/// after the grace period, the pages; never a hole.
#[test]
fn retention_unlinks_first_and_removes_later() {
    let config = "[[feed]]\nid = \"notes\"\npage_items = 2\n[feed.retention]\nbytes = 20\ngrace = \"3s\"\n";
    let dir = TestFolder::new(config);
    let server = dir.serve();
    for n in 0..3 {
        put(&server, &format!("n{n}"), "12345");
    }
    let first = page(&server, "/feeds/notes/replication/pages/1");
    for n in 3..12 {
        put(&server, &format!("n{n}"), "12345");
    }
    let end = Instant::now() + PATIENCE;
    // Three sealed pages have 30 bytes: the oldest kept page loses its prev link.
    let pages = loop {
        let pages = walk(&server, "notes");
        if pages[0].own.ends_with("/4") {
            break pages;
        }
        assert!(Instant::now() < end, "{}", pages[0].own);
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(pages.len(), 3, "the newest page and two sealed ones");
    // A follower on a removed page still finds its way forward.
    let mut at = first.own.clone();
    for _ in 0..5 {
        let page = page(&server, path(&server, &at));
        assert_eq!(page.prev.is_some(), page.own.ends_with("/5") || page.own.ends_with("/6"));
        at = page.next.unwrap();
    }
    assert_eq!(page(&server, "/feeds/notes/replication/pages/1").answer.body, first.answer.body);
    let url = format!("{}/feeds/notes/replication", server.base);
    let followed = dir.run(&["follow", &url, "--protocol", "replication", "--once"]);
    // There is no snapshot to begin from, which the follower says.
    assert_eq!(followed.status.code(), Some(3), "{}", stderr(&followed));
    assert!(stderr(&followed).contains("its first pages were removed"), "{}", stderr(&followed));
    assert_eq!(lines(&followed).len(), 6);
    while server.get("/feeds/notes/replication/pages/3").status == 200 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    for (number, status) in [(1, 410), (2, 410), (3, 410), (4, 200), (6, 200)] {
        let path = format!("/feeds/notes/replication/pages/{number}");
        assert_eq!(server.get(&path).status, status, "{number}");
        assert_eq!(server.ask("HEAD", &path, &[], b"").status, status, "{number}");
    }
    assert!(
        server
            .get("/feeds/notes/replication?since=2000-01-01T00:00:00Z")
            .header("location")
            .unwrap()
            .ends_with("/4")
    );
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    assert_eq!(walk(&server, "notes").len(), 3);
    assert_eq!(server.get("/feeds/notes/replication/pages/1").status, 410);
    // The log still has every item.
    assert_eq!(server.get("/feeds/notes/items/n0").text(), "12345");
}

#[test]
fn retention_by_age() {
    let config = "[[feed]]\nid = \"notes\"\npage_items = 2\n[feed.retention]\nage = \"2s\"\ngrace = \"1s\"\n";
    let dir = TestFolder::new(config);
    let server = dir.serve();
    for n in 0..5 {
        put(&server, &format!("n{n}"), "12345");
    }
    assert_eq!(walk(&server, "notes").len(), 3);
    let end = Instant::now() + PATIENCE;
    while server.get("/feeds/notes/replication/pages/2").status != 410 {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
        // "Never a hole in the middle."
        assert!(matches!(walk(&server, "notes").len(), 1 | 3));
    }
    // The newest page stays, whatever its age.
    assert_eq!(walk(&server, "notes")[0].content_ids(), ["<5@notes>"]);
}
