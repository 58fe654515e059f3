//! Data Replication: the pages of a real server, and following them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::pages::{FetchedPage, page, path, walk};
use crate::common::{KEV, TestFolder, TestServer, catalogue, kev, lines, stderr};

/// Feed with small pages.
const SMALL: &str = "[[feed]]\nid = \"notes\"\npage_items = 3\npage_bytes = 20\n";

fn put(server: &TestServer, id: &str, content: &str) {
    let path = format!("/feeds/notes/items/{id}");
    let answer = server.ask("PUT", &path, &[("content-type", "text/plain")], content.as_bytes());
    assert!(answer.status < 300, "{}", answer.text());
}

fn replication(server: &TestServer, feed: &str) -> String {
    format!("{}/feeds/{feed}/replication", server.base)
}

fn follow(dir: &TestFolder, url: &str, more: &[&str]) -> Vec<Value> {
    let args = [&["follow", url, "--protocol", "replication", "--once"], more].concat();
    let followed = dir.run(&args);
    assert_eq!(followed.status.code(), Some(0), "{}", stderr(&followed));
    lines(&followed)
}

fn ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["id"].as_str().unwrap()).collect()
}

/// Contents above the limit are written to files while they arrive, by a feed's pages and by a snapshot's.
#[test]
fn large_contents_become_files() {
    let dir = TestFolder::new(SMALL);
    let server = dir.serve();
    let content = "0123456789abcdef".repeat(200_000);
    put(&server, "large", &content);
    put(&server, "small", "text");
    let made = server.ask("POST", "/feeds/notes/snapshots", &[], b"");
    assert!(made.status < 300, "{}", made.text());
    let snapshot = format!("{}/feeds/notes/snapshots/latest", server.base);
    for url in [replication(&server, "notes"), snapshot] {
        let more = ["--limit", "entity_mib=1", "--large-content", "large files"];
        let told = follow(&dir, &url, &more);
        let large = told.iter().find(|line| line["id"] == "large").unwrap();
        assert_eq!((large.get("content"), large.get("content_type")), (None, None));
        let file = &large["item"]["attachments"][0];
        assert_eq!((&file["media_type"], &file["size"]), (&json!("text/plain"), &json!(content.len())));
        let path = url::Url::parse(file["url"].as_str().unwrap()).unwrap().to_file_path().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
        std::fs::remove_file(path).unwrap();
        assert!(told.iter().any(|line| line["content"] == "text"));
    }
    // A folder that cannot be made ends the follow: the line must not come without its file.
    std::fs::write(dir.path("file"), "").unwrap();
    let args = ["follow", &replication(&server, "notes"), "--protocol", "replication", "--once"];
    let failed =
        dir.run(&[&args[..], &["--limit", "entity_mib=1", "--large-content", "file/within"]].concat());
    assert_eq!(failed.status.code(), Some(2));
    assert!(lines(&failed).is_empty());
    assert!(stderr(&failed).contains("cannot write a large content to"), "{}", stderr(&failed));
}

/// "Immutability of pages": the listed exceptions, and no others.
#[test]
fn the_newest_page_grows_until_its_limit_and_then_stays() {
    let dir = TestFolder::new(SMALL);
    let server = dir.serve();
    put(&server, "a", "12345");
    let first = page(&server, "/feeds/notes/replication");
    assert_eq!((first.entities.len(), &first.prev, &first.next), (1, &None, &None));
    assert_eq!(first.own, format!("{}/feeds/notes/replication/pages/1", server.base));
    put(&server, "b", "12345");
    let grown = page(&server, path(&server, &first.own));
    assert_eq!(grown.content_ids(), ["<1@notes>", "<2@notes>"]);
    assert_ne!(grown.etag(), first.etag());
    put(&server, "c", "12345");
    // A page has at most three entities.
    put(&server, "d", "1234567890123456789012345");
    put(&server, "e", "");
    let pages = walk(&server, "notes");
    let shape: Vec<usize> = pages.iter().map(|page| page.entities.len()).collect();
    assert_eq!(shape, [3, 1, 1], "an entity that is too large has a page of its own");
    for n in 0..20 {
        put(&server, &format!("x{n}"), "12345");
    }
    let later = walk(&server, "notes");
    for (before, after) in pages[..2].iter().zip(&later) {
        assert_eq!(before.answer.body, after.answer.body);
        assert_eq!(before.answer.header("link"), after.answer.header("link"));
        assert_eq!(before.etag(), after.etag());
    }
    let etag = later[0].etag().to_owned();
    let own = path(&server, &later[0].own);
    for method in ["GET", "HEAD"] {
        assert_eq!(server.ask(method, own, &[("if-none-match", &etag)], b"").status, 304);
    }
    // Zero, another spelling of 1, pages to come, and more than 64 bits.
    for nothing in ["0", "01", "9999", "x", "-1", "18446744073709551616"] {
        assert_eq!(server.get(&format!("/feeds/notes/replication/pages/{nothing}")).status, 404, "{nothing}");
    }
    assert_eq!(server.get("/feeds/none/replication").status, 404);
    assert_eq!(server.ask("DELETE", "/feeds/notes/replication", &[], b"").status, 405);
}

/// "According to RFC 2046, empty pages are not possible."
#[test]
fn an_empty_feed_says_so() {
    let dir = TestFolder::new(SMALL);
    let server = dir.serve();
    let empty = server.get("/feeds/notes/replication");
    assert_eq!((empty.status, empty.header("content-type")), (404, Some("application/problem+json")));
    assert_eq!(empty.json()["empty"], true);
    assert_eq!(server.get("/feeds/notes/replication/pages/1").status, 404);
    let url = replication(&server, "notes");
    assert!(follow(&dir, &url, &["--state", "state"]).is_empty());
    put(&server, "a", "1");
    assert_eq!(ids(&follow(&dir, &url, &["--state", "state"])), ["a"]);
}

#[test]
fn pages_are_compressed_on_request() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let server = dir.serve();
    put(&server, "a", &"again and ".repeat(1000));
    let gzip = [("accept-encoding", "gzip")];
    for warm in [false, true] {
        let head = server.ask("HEAD", "/feeds/notes/replication/pages/1", &gzip, b"");
        let coded = server.ask("GET", "/feeds/notes/replication/pages/1", &gzip, b"");
        assert_eq!(coded.header("content-encoding"), Some("gzip"), "{warm}");
        assert_eq!(head.header("content-encoding"), Some("gzip"), "{warm}");
        assert_eq!(head.header("etag"), coded.header("etag"));
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&coded.body[..]), &mut plain).unwrap();
        assert_eq!(plain, server.get("/feeds/notes/replication").body);
    }
}

/// "Resume consumption": nothing duplicated, nothing left out, wherever the follower stopped.
#[test]
fn following_resumes_exactly_once() {
    let dir = TestFolder::new(SMALL);
    let server = dir.serve();
    let url = replication(&server, "notes");
    let mut received = Vec::new();
    let mut expected = Vec::new();
    for round in 0..6 {
        for n in 0..round {
            let id = format!("{round}-{n}");
            put(&server, &id, "12345");
            expected.push(id);
        }
        let new = follow(&dir, &url, &["--state", "state"]);
        received.extend(ids(&new).into_iter().map(str::to_owned));
        assert_eq!(received, expected, "round {round}");
    }
    // From the beginning, from a Content-ID, from a time before all and after all.
    assert_eq!(ids(&follow(&dir, &url, &[])), expected);
    assert_eq!(ids(&follow(&dir, &url, &["--from", "<4@notes>"])), expected[4..]);
    assert!(follow(&dir, &url, &["--from", "2099-01-01"]).is_empty());
    let missing = dir.run(&["follow", &url, "--protocol", "replication", "--once", "--from", "<99@notes>"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("missing content ID"), "{}", stderr(&missing));
}

/// A follower of a catalogue's versions ends with the catalogue.
#[test]
fn the_catalogue_s_versions_are_followed_and_sealed_pages_survive_restarts() {
    let config = KEV.replace("lang = \"en\"", "page_items = 100");
    let dir = TestFolder::new(&config);
    let mut sealed: Vec<FetchedPage> = Vec::new();
    let mut copy: BTreeMap<String, Value> = BTreeMap::new();
    for version in [1, 2, 22] {
        let document = kev(version);
        dir.write("kev.json", &document);
        let pass = dir.run(&["run"]);
        assert_eq!(pass.status.code(), Some(0), "{}", stderr(&pass));
        let server = dir.serve();
        for line in follow(&dir, &replication(&server, "kev"), &["--state", &format!("state-{version}")]) {
            apply(&mut copy, &line);
        }
        assert_eq!(copy, catalogue(&document), "version {version}");
        let pages = walk(&server, "kev");
        assert!(pages.len() > 2);
        for (before, after) in sealed.iter().zip(&pages) {
            assert_eq!(before.answer.body, after.answer.body);
        }
        sealed = pages;
        sealed.pop();
        assert!(sealed.iter().all(|page| page.entities.len() == 100));
        let checked = dir.run(&["check", &replication(&server, "kev"), "--protocol", "replication"]);
        assert_eq!(checked.status.code(), Some(0), "{}", crate::common::stdout(&checked));
        copy.clear();
    }
}

fn apply(copy: &mut BTreeMap<String, Value>, line: &Value) {
    let id = line["id"].as_str().unwrap().to_owned();
    if line["op"] == "delete" {
        copy.remove(&id);
    } else {
        copy.insert(id, line["json"].clone());
    }
}

/// The page of a time is found without reading the pages before it.
#[test]
fn a_page_is_found_by_time() {
    let dir = TestFolder::new(SMALL);
    let server = dir.serve();
    assert_eq!(server.get("/feeds/notes/replication?since=2024-01-01T00:00:00Z").status, 404);
    // Times as a mirror or an import stores them.
    for n in 1..=28 {
        let line =
            json!({"id": format!("i{n}"), "content": "x", "modified": format!("2024-01-{n:02}T00:00:00Z")});
        let answer = server.ask("POST", "/feeds/notes/items", &[], line.to_string().as_bytes());
        assert_eq!(answer.status, 200);
    }
    let pages = walk(&server, "notes");
    assert_eq!(pages[1].entities[0].headers.get("last-modified"), Some("Thu, 04 Jan 2024 00:00:00 GMT"));
    for (n, time) in [(0, "2020-01-01T00:00:00Z".to_owned())]
        .into_iter()
        .chain((1..=28).map(|n| (n, format!("2024-01-{n:02}T00:00:00Z"))))
    {
        let answer = server.get(&format!("/feeds/notes/replication?since={time}"));
        assert_eq!(answer.status, 307, "{}", answer.text());
        let expected = usize::max(n, 1).div_ceil(3);
        let expected = format!("{}/pages/{expected}", replication(&server, "notes"));
        assert_eq!(answer.header("location"), Some(expected.as_str()), "{time}");
    }
    let newest = server.get("/feeds/notes/replication?since=2999-01-01T00:00:00Z");
    assert!(newest.header("location").unwrap().ends_with("/pages/10"));
    assert_eq!(server.get("/feeds/notes/replication?since=yesterday").status, 400);
}

/// "A feed followed with this protocol and served again has the same entities, byte for byte, in the same order."
#[test]
fn a_mirror_has_the_same_entities() {
    let dir = TestFolder::new(SMALL);
    let server = dir.serve();
    let merge = ("content-type", "application/merge-patch+json");
    for n in 0..10 {
        put(&server, &format!("n{n}"), &format!("text {n}"));
    }
    server.ask(
        "PUT",
        "/feeds/notes/items/j?title=Gr%C3%BC%C3%9Fe",
        &[("content-type", "application/json")],
        b"{\"a\":1}",
    );
    assert_eq!(server.ask("PATCH", "/feeds/notes/items/j", &[merge], b"{\"b\":2}").status, 200);
    assert_eq!(server.ask("DELETE", "/feeds/notes/items/n3", &[], b"").status, 200);
    // A body that looks like the end of lines and of entities.
    server.ask("PUT", "/feeds/notes/items/bin", &[("content-type", "image/png")], b"\r\n--\0\xff\r\n");
    let original = walk(&server, "notes");
    let config = |from: &TestServer, feed: &str| {
        format!(
            "[[feed]]\nid = \"{feed}\"\npage_items = 5\n[feed.source]\nfollow = \"{}\"\n",
            from.base.clone() + "/feeds/" + if feed == "copy" { "notes" } else { "copy" } + "/replication"
        )
    };
    let second = TestFolder::new(&config(&server, "copy"));
    let mut copy = second.serve();
    let third = TestFolder::new(&config(&copy, "again"));
    let again = third.serve();
    let all = |pages: &[FetchedPage]| {
        let entities = pages.iter().flat_map(|page| &page.entities);
        entities
            .map(|e| (e.headers.iter().map(|(n, v)| format!("{n}: {v}")).collect::<Vec<_>>(), e.body.clone()))
            .collect::<Vec<_>>()
    };
    for (server, feed) in [(&copy, "copy"), (&again, "again")] {
        server.wait_for(&format!("/feeds/{feed}"), |view| view["seq"] == 14);
        assert_eq!(all(&walk(server, feed)), all(&original), "{feed}");
    }
    let item = again.get("/feeds/again/items/j");
    assert_eq!(item.json(), json!({"a": 1, "b": 2}));
    // It continues with the items that came while it was stopped.
    assert_eq!(copy.stop(), Some(0));
    put(&server, "late", "more");
    copy = second.serve();
    copy.wait_for("/feeds/copy", |view| view["seq"] == 15);
}

/// Crash safety: at whatever moment the server is killed, its list of pages is complete, every acknowledged item is
/// on it once, and sealed pages are unchanged.
#[test]
fn killed_while_the_feed_grows() {
    let rounds: usize = std::env::var("TOWPATH_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let dir = TestFolder::new(SMALL);
    let mut acknowledged: Vec<String> = Vec::new();
    let mut sealed: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for round in 0..rounds {
        let server = dir.serve();
        let done = AtomicBool::new(false);
        let base = server.base.clone();
        let (tell, begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let server = &server;
            let writer = scope.spawn(move || {
                let mut written = Vec::new();
                for n in 0.. {
                    let id = format!("r{round}-{n}");
                    let path = format!("/feeds/notes/items/{id}");
                    match server.try_ask("PUT", &path, &[("content-type", "text/plain")], b"123456") {
                        Ok(answer) if answer.status < 300 => written.push(id),
                        _ => break,
                    }
                    let _ = tell.send(());
                }
                written
            });
            let reader = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    // A kill may fail this request, but never break the list.
                    let Ok(newest) = server.try_ask("GET", "/feeds/notes/replication", &[], b"") else {
                        break;
                    };
                    assert!(newest.status == 200 || newest.status == 404, "{}", newest.text());
                }
            });
            // On a busy machine the first answer may take longer than the rest of the round.
            begun.recv().unwrap();
            std::thread::sleep(Duration::from_millis(60 + 37 * round as u64 % 400));
            let killed =
                std::process::Command::new("kill").args(["-KILL", &server.pid().to_string()]).status();
            assert!(killed.unwrap().success());
            acknowledged.extend(writer.join().unwrap());
            done.store(true, Ordering::Release);
            reader.join().unwrap();
        });
        drop(server);
        let server = dir.serve();
        let pages = walk(&server, "notes");
        let listed: Vec<String> = pages
            .iter()
            .flat_map(|page| &page.entities)
            .map(|entity| {
                let item: Value = serde_json::from_str(entity.headers.get("towpath-item").unwrap()).unwrap();
                item["id"].as_str().unwrap().to_owned()
            })
            .collect();
        let known: Vec<&String> = listed.iter().filter(|id| acknowledged.contains(id)).collect();
        assert!(!acknowledged.is_empty());
        assert_eq!(known, acknowledged.iter().collect::<Vec<_>>(), "round {round} from {base}");
        // Each kill leaves at most one request unanswered, which may be in the log.
        assert!(listed.len() <= acknowledged.len() + round + 1);
        for page in &pages[..pages.len() - 1] {
            let name = path(&server, &page.own).to_owned();
            let before = sealed.entry(name).or_insert_with(|| page.answer.body.clone());
            assert_eq!(*before, page.answer.body);
        }
        drop(server);
    }
}
