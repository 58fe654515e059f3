//! The Simple Update Protocol of a real server.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{PATIENCE, TestFolder, TestResponse, TestServer, free_port, python, stderr, stdout};

const FEEDS: &str = r#"
[[feed]]
id = "notes"
page_items = 2
[[feed]]
id = "quiet"
[[feed]]
id = "few"
filter = { of = "notes", tags = ["x"] }
[[feed]]
id = "own"
readers = ["secret"]
"#;

fn put(server: &TestServer, feed: &str, id: &str) {
    let path = format!("/feeds/{feed}/items/{id}?title=T&tag=x");
    let answer = server.ask("PUT", &path, &[("content-type", "text/plain")], b"x");
    assert!(answer.status < 300, "{}", answer.text());
}

/// SUP-ID in a response's header, which must agree with its `Link`.
fn announced(server: &TestServer, answer: &TestResponse) -> String {
    let header = answer.header("x-sup-id").unwrap_or_else(|| panic!("no X-SUP-ID: {:?}", answer.headers));
    let (document, id) = header.split_once('#').unwrap();
    assert_eq!(document, format!("{}/sup.json?seconds=60", server.base));
    let link =
        format!("<{header}>; rel=\"http://api.friendfeed.com/2008/03#sup\"; type=\"application/json\"");
    let links: Vec<_> = answer.headers.iter().filter(|(name, _)| name == "link").map(|(_, v)| v).collect();
    assert_eq!(links.iter().filter(|value| ***value == link).count(), 1, "{links:?}");
    id.to_owned()
}

/// SUP-ID of a feed, from its JSON page.
fn id_of(server: &TestServer, feed: &str) -> String {
    announced(server, &server.get(&format!("/feeds/{feed}")))
}

fn updates(document: &Value) -> BTreeSet<(String, String)> {
    let list = document["updates"].as_array().unwrap();
    list.iter().map(|tuple| (tuple[0].as_str().unwrap().into(), tuple[1].as_str().unwrap().into())).collect()
}

fn listed(document: &Value) -> BTreeSet<String> {
    updates(document).into_iter().map(|(id, _)| id).collect()
}

/// Every path of a feed in the OpenAPI description, with its parameters filled in.
fn paths_of_feeds(server: &TestServer) -> Vec<String> {
    let snapshot = server.ask("POST", "/feeds/notes/snapshots", &[], b"");
    assert_eq!(snapshot.status, 201, "{}", snapshot.text());
    let snapshot = snapshot.json()["id"].as_str().unwrap().to_owned();
    let index = server.wait_for("/archive/notes/index.json", |index| index["snapshots"][0].is_object());
    let archived = index["snapshots"][0]["url"].as_str().unwrap();
    let fill = |path: &String| {
        let path = path.replace("{feed}", "notes").replace("{id}", "a").replace("{snapshot}", &snapshot);
        path.replace("{page}", "1").replace("{snapshot_page}", "0").replace("{part}", "1-2")
    };
    // Pages are for people, and a callback is another hub's; the archive's file is named below.
    let is_document = |path: &str, methods: &Value| {
        methods["get"]["tags"][0] != "pages" && !path.ends_with("/callback") && !path.contains("{year}")
    };
    let description = server.json("/openapi.json");
    let paths = description["paths"].as_object().unwrap().iter();
    let paths = paths.filter(|(path, methods)| path.contains("{feed}") && methods.get("get").is_some());
    let paths = paths.filter(|(path, methods)| is_document(path, methods));
    let mut paths: Vec<String> = paths.map(|(path, _)| fill(path)).collect();
    paths.push(archived[archived.find("/archive/").unwrap()..].to_owned());
    paths.extend(["atom", "rss", "feed.json"].map(|name| format!("/feeds/notes/{name}/1")));
    paths
}

/// Section 6.1: "Responses to HTTP requests for content feeds SHOULD include … 'X-SUP-ID'", and section 6.3; section
/// 4: "A single feed MUST always map to a single, stable SUP ID".
#[test]
fn sections_4_and_6_every_response_for_a_feed_says_its_sup_id() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let id = id_of(&server, "notes");
    assert_eq!(announced(&server, &server.get("/feeds/notes/replication")), id, "of an empty feed, too");
    for item in ["a", "b", "c"] {
        put(&server, "notes", item);
    }
    let paths = paths_of_feeds(&server);
    assert!(paths.len() >= 13, "{paths:?}");
    for path in &paths {
        // A stream has no end; the next test reads its head. There is no file here.
        if path.ends_with("/events") || path.contains("/attachments/") {
            continue;
        }
        let first = server.get(path);
        assert_eq!((first.status, announced(&server, &first)), (200, id.clone()), "{path}");
        // From memory, compressed, without a body, and as not modified.
        let answers = [
            server.get(path),
            server.ask("GET", path, &[("accept-encoding", "gzip")], b""),
            server.ask("HEAD", path, &[], b""),
        ];
        for answer in answers {
            assert_eq!((answer.status, announced(&server, &answer)), (200, id.clone()), "{path}");
        }
        if let Some(tag) = first.header("etag") {
            let known = server.ask("GET", path, &[("if-none-match", tag)], b"");
            assert_eq!((known.status, announced(&server, &known)), (304, id.clone()), "{path}");
        }
    }
    // Pages for people are responses for the feed, and so are those to changes.
    let html = ("accept", "text/html");
    for page in ["/feeds/notes", "/feeds/notes/follow", "/feeds/notes/items/a"] {
        let shown = server.ask("GET", page, &[html], b"");
        let is_page = shown.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
        assert_eq!((is_page, announced(&server, &shown)), (true, id.clone()), "{page}");
    }
    for (method, path, status) in [
        ("PUT", "/feeds/notes/items/a", 200),
        ("POST", "/feeds/notes/items", 200),
        ("DELETE", "/feeds/notes/items/c", 200),
        ("DELETE", "/feeds/notes/items/c", 404),
        ("PATCH", "/feeds/notes", 405),
    ] {
        let body = if method == "POST" { &b"{\"id\":\"d\"}"[..] } else { b"new" };
        let changed = server.ask(method, path, &[("content-type", "application/x-ndjson")], body);
        assert_eq!((changed.status, announced(&server, &changed)), (status, id.clone()), "{method} {path}");
    }
    let filter = server.get("/feeds/few/items");
    assert_ne!(announced(&server, &filter), id, "an address of its own");
    // Documents of no single feed have no SUP ID.
    for path in ["/", "/sup.json", "/diff/latest.json", "/feeds/nothing"] {
        assert_eq!(server.get(path).header("x-sup-id"), None, "{path}");
    }
}

/// Delayed responses have the SUP-ID, too.
#[test]
fn section_6_1_long_polls_and_event_streams() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    let id = id_of(&server, "quiet");
    std::thread::scope(|scope| {
        let held = scope.spawn(|| server.get("/feeds/quiet/items?timeout=20"));
        std::thread::sleep(Duration::from_millis(200));
        put(&server, "quiet", "a");
        assert_eq!(announced(&server, &held.join().unwrap()), id);
    });
    let late = server.get("/feeds/quiet/items?order=modified&since=time:2999-01-01T00:00:00Z&timeout=1");
    assert_eq!((late.status, announced(&server, &late)), (200, id.clone()));
    // A stream does not end: its head is enough.
    let host = server.base.strip_prefix("http://").unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("GET /feeds/quiet/events HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    let head = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    assert!(head.into_iter().any(|line| line.to_lowercase().starts_with("x-sup-id:") && line.ends_with(&id)));
}

/// Section 6.2: the link in the document itself.
#[test]
fn section_6_2_atom_documents_have_the_link() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    put(&server, "notes", "a");
    let id = id_of(&server, "notes");
    let pull = server.ask("GET", "/feeds/notes/items", &[("accept", "application/atom+xml")], b"");
    let link = format!(
        "<link rel=\"http://api.friendfeed.com/2008/03#sup\" type=\"application/json\" \
         href=\"{}/sup.json?seconds=60#{id}\"/>",
        server.base
    );
    assert!(pull.text().contains(&link), "{}", pull.text());
}

#[test]
fn sections_3_and_5_updated_feeds_are_listed_with_their_last_update() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    assert!(listed(&server.json("/sup.json")).is_empty(), "section 3.1: it may be empty");
    put(&server, "notes", "a");
    let (notes, few) = (id_of(&server, "notes"), id_of(&server, "few"));
    let both: BTreeSet<String> = [notes, few].into();
    let first = server.wait_for("/sup.json", |document| listed(document) == both);
    put(&server, "notes", "b");
    let moved = |document: &Value| updates(document) != updates(&first);
    let second = server.wait_for("/sup.json?seconds=1", moved);
    assert_eq!(listed(&second), both);
    // A protected feed is listed under an id that only its readers know.
    put(&server, "own", "a");
    let third = server.wait_for("/sup.json", |document| listed(document).len() == 3);
    let own = server.ask("GET", "/feeds/own/items", &[("authorization", "Bearer secret")], b"");
    assert!(listed(&third).contains(&announced(&server, &own)));
    let refused = server.get("/feeds/own/items");
    assert_eq!((refused.status, refused.header("x-sup-id")), (401, None));
    let metrics = server.get("/metrics").text();
    // `notes`, its filter and `own`; `quiet` never moved.
    assert!(metrics.contains("towpath_sup_feeds 3\n"), "{metrics}");
    assert!(metrics.contains("towpath_sup_documents_total "), "{metrics}");
}

/// Section 3.2: "A positive integer"; any other text is the client's error.
#[test]
fn section_3_2_any_number_of_seconds_and_nothing_else() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    for seconds in [1, 59, 60, 61, 600, 86_399, 86_400] {
        let document = server.json(&format!("/sup.json?seconds={seconds}"));
        assert_eq!(document["period"], seconds);
    }
    assert_eq!(server.json("/sup.json?seconds=9999999")["period"], 86_400, "what there is");
    for bad in ["", "0", "-1", "1.5", "x", "60x", "%20", "99999999999999999999"] {
        let answer = server.get(&format!("/sup.json?seconds={bad}"));
        assert_eq!((answer.status, answer.json()["parameter"].as_str()), (400, Some("seconds")), "{bad}");
    }
    assert_eq!(server.ask("POST", "/sup.json", &[], b"").status, 405);
}

/// The cache lifetime follows the period, and a document is served again without another read.
#[test]
fn the_document_is_prebuilt_and_cacheable() {
    let dir = TestFolder::new("[server]\ncreate_feeds = true\n");
    let server = dir.serve();
    for feed in 0..60 {
        put(&server, &format!("feed{feed}"), "a");
    }
    server.wait_for("/sup.json?seconds=3600", |document| listed(document).len() == 60);
    let path = "/sup.json?seconds=3600";
    let fast = |server: &TestServer| {
        let text = server.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix("towpath_requests_fast_total ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    // Within the second for which the document is served.
    let end = Instant::now() + PATIENCE;
    loop {
        let (before, made) = (fast(&server), server.get(path));
        assert_eq!(made.header("content-type"), Some("application/json"));
        assert_eq!(made.header("cache-control"), Some("public, max-age=3600"));
        assert!(made.header("expires").unwrap().ends_with(" GMT"));
        let packed = server.ask("GET", path, &[("accept-encoding", "gzip")], b"");
        assert_eq!(packed.header("content-encoding"), Some("gzip"));
        assert!(packed.body.len() < made.body.len());
        let known = server.ask("GET", path, &[("if-none-match", made.header("etag").unwrap())], b"");
        let same = (0..5).all(|_| server.get(path).body == made.body);
        if known.status == 304 && same && fast(&server) >= before + 6 {
            assert_eq!(known.header("cache-control"), made.header("cache-control"));
            assert_eq!(known.header("expires"), made.header("expires"));
            break;
        }
        assert!(Instant::now() < end, "{known:?}");
    }
}

/// Updates before a restart are listed after it, with the same ids. A mirror's items have their publisher's times,
/// but are listed at the time of the copy.
#[test]
fn updates_are_listed_after_a_restart() {
    let port = free_port();
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve_at(port);
    put(&server, "notes", "a");
    let old = br#"{"id":"o","content":"x","modified":"2001-01-01T00:00:00Z"}"#;
    assert_eq!(server.ask("POST", "/feeds/quiet/items", &[], old).status, 200);
    let before = server.wait_for("/sup.json", |document| listed(document).len() == 3);
    server.kill();
    let server = dir.serve_at(port);
    let begun = Instant::now();
    let again = loop {
        let document = server.json("/sup.json?seconds=300");
        if listed(&document).len() == 3 || begun.elapsed() > PATIENCE {
            break document;
        }
    };
    assert_eq!(listed(&again), listed(&before));
    let known: BTreeSet<_> = updates(&before);
    assert!(updates(&again).is_superset(&known), "a consumer that knows the updates asks for nothing again");
    assert!(listed(&again).contains(&id_of(&server, "quiet")));
}

/// The rules of the original validator, in Python.
#[test]
fn the_original_validator_s_rules_hold() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    put(&server, "notes", "a");
    put(&server, "quiet", "a");
    server.wait_for("/sup.json", |document| listed(document).len() == 3);
    let check = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/sup.py");
    let received =
        Command::new(python()).arg(check).arg(format!("{}/sup.json", server.base)).output().unwrap();
    assert!(received.status.success(), "{}{}", stdout(&received), stderr(&received));
    assert_eq!(stdout(&received).trim(), "6 documents, 18 updates");
}
