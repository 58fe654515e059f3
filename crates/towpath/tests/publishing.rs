//! Publishing: `put`, `delete`, `import` and their HTTP forms, with and without a running server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{TestFolder, TestResponse, TestServer, lines, stderr, wait_until};

const NOTES: &str = "[[feed]]\nid = \"notes\"\n[[feed]]\nid = \"copy\"\n";

#[test]
fn an_item_put_over_http_is_published() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let put = server.ask(
        "PUT",
        "/feeds/notes/items/a%2Fb%0A%22%F0%9F%98%80?title=Hello",
        &[("content-type", "text/plain")],
        b"x",
    );
    assert_eq!(put.status, 201, "{}", put.text());
    let got = server.get("/feeds/notes/items/a%2Fb%0A%22%F0%9F%98%80");
    assert_eq!((got.status, got.text().as_str()), (200, "x"));
    assert_eq!(got.header("x-content-type-options"), Some("nosniff"));
    let again = server.ask(
        "PUT",
        "/feeds/notes/items/a%2Fb%0A%22%F0%9F%98%80",
        &[("content-type", "text/plain")],
        b"y",
    );
    assert_eq!(again.status, 200);
    // The two changes may come in one document or in two.
    server.wait_for("/diff/notes/latest.json", |latest| latest.to_string().contains("\"y\""));
    let followed = dir.run(&["follow", &format!("{}/diff/notes/head.json", server.base), "--once"]);
    assert_eq!(followed.status.code(), Some(0), "{}", stderr(&followed));
    let last = lines(&followed).pop().unwrap();
    assert_eq!((last["id"].as_str(), last["op"].as_str()), (Some("a/b\n\"😀"), Some("put")));
    assert_eq!(last["content"], "y");
}

/// Unchanged items before it made the error name another change.
#[test]
fn a_refused_patch_is_named_as_it_stands_in_the_batch() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let same = [json!({"id": "1", "json": 1}), json!({"id": "2", "json": 2})];
    let whole = |lines: &[Value]| Value::from(lines.to_vec()).to_string();
    let post = |body: &str| server.ask("POST", "/feeds/notes/items", &[], body.as_bytes());
    assert_eq!(post(&whole(&same)).status, 200);
    let later = json!({"id": "later", "publish_at": "2999-01-01T00:00:00Z", "json": 3});
    let patch = json!({"id": "rng", "op": "patch", "json": {"a": 1}});
    let batch = [same[0].clone(), later, same[1].clone(), patch, json!({"id": "4", "json": 4})];
    let refused = post(&whole(&batch));
    let problem = refused.json();
    assert_eq!((refused.status, &problem["pointer"]), (422, &json!("/3")), "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with("item 4: id \"rng\": there is no item"), "{detail}");
    let lines: String = batch.iter().map(|line| format!("{line}\n\n")).collect();
    let refused = post(&lines).json();
    assert!(refused["detail"].as_str().unwrap().starts_with("line 7: id \"rng\": "), "{refused}");
    assert_eq!(server.json("/feeds/notes")["seq"], 2, "nothing of a refused batch is there");
}

#[test]
fn lines_may_begin_with_a_byte_order_mark() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let post = |body: &str| server.ask("POST", "/feeds/notes/items", &[], body.as_bytes());
    assert_eq!(post("\u{feff}{\"id\":\"a\"}\n{\"id\":\"b\"}\n").json()["appended"], 2);
    assert_eq!(post("\u{feff}[{\"id\":\"c\"}]").json()["appended"], 1);
    let fault = post("{\"id\":\"a\"}\n{\"id\"}\n").json();
    let detail = fault["detail"].as_str().unwrap();
    assert!(detail.starts_with("line 2: ") && detail.ends_with(" at column 6"), "{detail}");
}

#[test]
fn items_differ_by_what_a_client_accepts() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    assert_eq!(
        server.ask("PUT", "/feeds/notes/items/a", &[("content-type", "text/plain")], b"x").status,
        201
    );
    for query in ["", "?as=line", "?version=1"] {
        let answer = server.get(&format!("/feeds/notes/items/a{query}"));
        let varies = answer.headers("vary").join(",").to_ascii_lowercase();
        assert!(varies.split(',').any(|name| name.trim() == "accept"), "{query}: {varies}");
    }
}

/// A command in another folder than its server made a data folder of its own, and said nothing of it.
#[test]
fn a_receipt_names_a_folder_that_no_server_has_open() {
    let dir = TestFolder::new(NOTES);
    let unknown = dir.run(&["put", "note", "first", "--title", "T"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("did you mean notes?"), "{}", stderr(&unknown));
    assert!(!dir.path("data").exists(), "a mistyped feed makes no folder");
    let put = dir.run(&["put", "notes", "first", "--title", "T"]);
    let said = stderr(&put);
    assert!(
        said.contains("new, change 1, in the data folder") && said.contains("no server has open"),
        "{said}"
    );
    let line = b"{\"id\":\"first\",\"item\":{\"title\":\"T\"}}\n";
    let again = stderr(&dir.run_with(&["import", "notes", "-"], line));
    assert!(again.contains("nothing new for feed notes: 1 change unchanged"), "{again}");
    let server = dir.serve();
    let put = stderr(&dir.run(&["put", "notes", "second", "--title", "T"]));
    assert!(put.contains("new, change 2") && !put.contains("data folder"), "{put}");
    drop(server);
}

/// A URL cannot name them: the deletion reached the feed's own address, and named another item.
#[test]
fn ids_that_are_dots_can_be_deleted_on_the_command_line() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    for id in [".", ".."] {
        assert!(dir.run(&["put", "notes", id, "--title", "T"]).status.success(), "{id}");
        let refused = dir.run(&["diff", "notes", id]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(
            stderr(&refused).contains(&format!("no URL can name the item {id:?}")),
            "{}",
            stderr(&refused)
        );
        let deleted = dir.run(&["delete", "notes", id]);
        assert!(
            stderr(&deleted).contains(&format!("deleted item {id} from feed notes: change ")),
            "{deleted:?}"
        );
        let again = dir.run(&["delete", "notes", id]);
        assert!(stderr(&again).contains(&format!("feed notes has no item {id:?}")), "{}", stderr(&again));
    }
    assert_eq!(server.json("/feeds?status")["feeds"][0]["live"], 0);
}

#[test]
fn a_batch_is_appended_whole_or_not_at_all() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let bad =
        server.ask("POST", "/feeds/notes/items", &[], b"{\"id\":\"a\",\"content\":\"1\"}\n{\"id\":\"\"}\n");
    assert_eq!(bad.status, 400);
    assert!(bad.json()["detail"].as_str().unwrap().contains("line 2"), "{}", bad.text());
    assert_eq!(server.json("/feeds/notes")["seq"], 0);
    let good = server.ask(
        "POST",
        "/feeds/notes/items",
        &[],
        b"{\"id\":\"a\",\"content\":\"1\"}\n\n{\"op\":\"delete\",\"id\":\"a\"}\n",
    );
    assert_eq!(good.json()["appended"], 2);
    assert_eq!(server.get("/feeds/notes/items/a").status, 410);
    let long = format!(r#"{{"id":"a","content":"1","content_type":"{}"}}"#, "x".repeat(70_000));
    let refused = server.ask("POST", "/feeds/notes/items", &[], long.as_bytes());
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("line 1: a content type is"), "{}", refused.text());
    let long = "x".repeat(2000);
    for method in ["PUT", "PATCH"] {
        let typed = [("content-type", long.as_str())];
        assert_eq!(server.ask(method, "/feeds/notes/items/a", &typed, b"x").status, 400);
    }
    // Times never decrease, so a future one would become that of every later change.
    let future = br#"{"id":"a","content":"2","modified":"2199-01-01T00:00:00Z"}"#;
    let published = server.ask("POST", "/feeds/copy/items", &[], future);
    assert_eq!(published.status, 200);
    assert!(!published.text().contains("2199"), "{}", published.text());
    // The feed has two changes by now, so 1 is the view of a stale client.
    let stale = server.ask("POST", "/feeds/notes/items?expect=1", &[], b"{\"id\":\"b\"}\n");
    assert_eq!(stale.status, 409, "{}", stale.text());
    let fresh = server.ask("POST", "/feeds/notes/items?expect=2", &[], b"{\"id\":\"b\"}\n");
    assert_eq!(fresh.status, 200);
}

#[test]
fn publishing_what_is_there_changes_nothing() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let lines: Vec<String> = (0..50).map(|n| format!("{{\"id\":\"i{n}\",\"content\":\"{n}\"}}")).collect();
    let post = |body: &str| server.ask("POST", "/feeds/notes/items", &[], body.as_bytes()).json();
    assert_eq!(
        (post(&lines.join("\n"))["appended"].as_u64(), server.json("/feeds/notes")["seq"].as_u64()),
        (Some(50), Some(50))
    );
    let again = post(&format!("{}\n{{\"id\":\"new\"}}\n", lines.join("\n")));
    assert_eq!(
        (again["appended"].as_u64(), again["unchanged"].as_u64(), again["last"].as_u64()),
        (Some(1), Some(50), Some(51))
    );
    let text = [("content-type", "text/plain")];
    let first = server.ask("PUT", "/feeds/notes/items/a", &text, b"x");
    let second = server.ask("PUT", "/feeds/notes/items/a", &text, b"x");
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(first.header("etag"), second.header("etag"), "it is the same version");
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &text, b"y").header("etag"), Some("\"53\""));
    assert_eq!(server.json("/feeds/notes")["seq"], 53);
    for (line, key) in [
        (r#"{"id":"a","titel":"x"}"#, "titel"),
        (r#"{"id":"a","item":{"titel":"x"}}"#, "titel"),
        (r#"{"id":"a","item":{"authors":[{"nam":"Ann"}]}}"#, "nam"),
        (
            r#"{"id":"a","item":{"attachments":[{"url":"https://a.example/","mime_type":"a/b"}]}}"#,
            "mime_type",
        ),
    ] {
        let unknown = server.ask("POST", "/feeds/notes/items", &[], line.as_bytes());
        assert_eq!(unknown.status, 400, "{line}");
        assert!(unknown.text().contains(&format!("`{key}`")), "{}", unknown.text());
    }
}

/// Runs a request on several threads at once, and returns the statuses.
fn at_once(server: &TestServer, count: usize, ask: impl Fn(usize, &TestServer) -> u16 + Sync) -> Vec<u16> {
    std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = (0..count).map(|n| scope.spawn(move || ask(n, server))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn one_of_two_writers_creates_and_one_of_two_deletes() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    for round in 0..50 {
        let path = format!("/feeds/notes/items/i{round}");
        let body = |n: usize| format!("{n}");
        let mut put =
            at_once(&server, 2, |n, server| server.ask("PUT", &path, &[], body(n).as_bytes()).status);
        put.sort_unstable();
        assert_eq!(put, [200, 201]);
        let mut deleted = at_once(&server, 2, |_, server| server.ask("DELETE", &path, &[], b"").status);
        deleted.sort_unstable();
        assert_eq!(deleted, [200, 404]);
        let absent = [("if-none-match", "*")];
        let mut created =
            at_once(&server, 4, |n, server| server.ask("PUT", &path, &absent, body(n).as_bytes()).status);
        created.sort_unstable();
        assert_eq!(created, [201, 412, 412, 412]);
    }
}

#[test]
fn a_condition_on_one_item_is_not_troubled_by_others() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let answers = at_once(&server, 5, |writer, server| {
        let mut worst = 0;
        for n in 0..60 {
            let path = format!("/feeds/notes/items/w{writer}-{n}");
            // Four writers without conditions, and one that creates items only if they are not there.
            let absent = [("if-none-match", "*")];
            let headers: &[_] = if writer == 0 { &absent } else { &[] };
            worst = worst.max(server.ask("PUT", &path, headers, b"x").status);
        }
        worst
    });
    assert_eq!(answers, [201; 5]);
}

/// The index is made on request, and a request that read it before a mint must not leave it in the cache.
#[test]
fn the_archive_index_of_all_feeds_has_every_mint() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let index = "/archive/_global/index.json";
    for round in 0..12 {
        let item = format!("/feeds/notes/items/i{round}");
        let title = format!("\"title {round}\"");
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| (0..200).for_each(|_| drop(server.get(index))));
            server.ask("PUT", &format!("{item}?title=title+{round}"), &[], b"x");
            server.wait_for("/diff/latest.json", |latest| latest.to_string().contains(&title));
            reading.join().unwrap();
        });
        let cursor = server.json("/diff/head.json")["cursor"].as_str().unwrap().to_owned();
        assert!(server.get(index).text().contains(&cursor), "round {round}");
    }
}

#[test]
fn a_refused_request_creates_no_feed() {
    let dir = TestFolder::new("[server]\ncreate_feeds = true\n");
    let server = dir.serve();
    assert_eq!(server.ask("POST", "/feeds/made-up/items", &[], b"{\"id\":\"\"}").status, 400);
    assert_eq!(server.ask("DELETE", "/feeds/made-up/items/a", &[], b"").status, 404);
    assert_eq!(server.ask("POST", "/feeds/made-up/snapshots", &[], b"").status, 404);
    let (json, line) = (("content-type", "application/json"), "{\"id\":\"a\",\"titel\":\"x\"}");
    let merge = ("content-type", "application/merge-patch+json");
    for (method, path, header, body, status) in [
        ("PUT", "items/a", ("if-match", "\"v1\""), "x", 412),
        ("PUT", "items/a?url=relative", json, "{}", 400),
        ("PUT", "items/a?as=line", json, line, 400),
        ("PATCH", "items/a", merge, "{\"a\":1}", 404),
        ("POST", "items", json, line, 400),
        ("POST", "items", json, "[{\"id\":\"a\"},7]", 400),
        ("POST", "items", json, "{\"id\":\"a\",\"publish_at\":\"soon\"}", 400),
        ("POST", "read-links", json, "{\"expires\":1}", 404),
        ("GET", "items", json, "", 404),
        ("GET", "atom", json, "", 404),
    ] {
        let answer = server.ask(method, &format!("/feeds/made-up/{path}"), &[header], body.as_bytes());
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.text());
        assert_eq!(server.get("/feeds/made-up").status, 404, "{method} {path} {body}");
    }
    assert!(!server.get("/feeds").text().contains("made-up"));
    assert_eq!(server.get("/feeds/made-up").status, 404);
    assert_eq!(server.ask("PUT", "/feeds/made-up/items/a", &[], b"x").status, 201);
    assert_eq!(server.get("/feeds/made-up").status, 200);
}

/// The next poll of a complete listing would remove a published item, so it is refused.
#[test]
fn a_feed_whose_source_lists_everything_is_not_published_to() {
    let source = "[feed.source]\nurl = \"a.json\"\n";
    let config =
        format!("[[feed]]\nid = \"all\"\n{source}complete = true\n[[feed]]\nid = \"some\"\n{source}");
    let dir = TestFolder::new(&config);
    dir.write("a.json", b"{\"version\":\"https://jsonfeed.org/version/1.1\",\"title\":\"t\",\"items\":[]}");
    let server = dir.serve();
    for (feed, status) in [("all", 409), ("some", 201)] {
        let put = server.ask("PUT", &format!("/feeds/{feed}/items/a"), &[], b"x");
        assert_eq!(put.status, status, "{}", put.text());
        let names_it = server.get(&format!("/feeds/{feed}")).text().contains("publish: POST");
        assert_eq!(names_it, status == 201);
    }
}

#[test]
fn preconditions_patches_and_missing_items() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let item = "/feeds/notes/items/a";
    let json_type = ("content-type", "application/json");
    assert_eq!(server.ask("PATCH", item, &[], b"{}").status, 404);
    // An empty text is no JSON: whatever made it failed.
    assert_eq!(server.ask("POST", "/feeds/notes/items", &[json_type], b"\n").status, 400);
    assert_eq!(
        server.ask("POST", "/feeds/notes/items", &[("content-type", "application/x-ndjson")], b"\n").status,
        200
    );
    assert_eq!(server.ask("DELETE", item, &[], b"").status, 404);
    assert_eq!(server.ask("PUT", item, &[json_type, ("if-none-match", "*")], b"{\"n\":1}").status, 201);
    assert_eq!(server.ask("PUT", item, &[json_type, ("if-none-match", "*")], b"{\"n\":2}").status, 412);
    assert_eq!(server.ask("PUT", item, &[json_type, ("if-match", "\"9\"")], b"{\"n\":2}").status, 412);
    let patched =
        server.ask("PATCH", item, &[("content-type", "application/merge-patch+json")], b"{\"m\":2}");
    assert_eq!(patched.status, 200, "{}", patched.text());
    assert_eq!(server.json(item), json!({"n": 1, "m": 2}));
    assert_eq!(server.ask("PATCH", item, &[("content-type", "text/x-diff")], b"-").status, 422);
    assert_eq!(server.ask("DELETE", item, &[("if-match", "\"2\"")], b"").status, 200);
    assert_eq!(server.get(item).status, 410);
    assert_eq!(server.get("/feeds/notes/items/never").status, 404);
    assert_eq!(server.get("/feeds/none/items/a").status, 404);
    let long = format!("/feeds/notes/items/{}", "x".repeat(2049));
    let refused = server.ask("PUT", &long, &[], b"x");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("2049 bytes"), "{}", refused.text());
}

/// A download that broke goes on, and a player jumps: both ask for a part (RFC 9110, section 14).
#[test]
fn parts_of_an_item_and_of_a_document_are_served() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let sound: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let put = server.ask("PUT", "/feeds/notes/items/sound", &[("content-type", "audio/mpeg")], &sound);
    assert_eq!(put.status, 201, "{}", put.text());
    let put = server.ask("PUT", "/feeds/notes/items/text", &[], "a long text ".repeat(500).as_bytes());
    assert_eq!(put.status, 201, "{}", put.text());
    wait_until("it is minted", || server.get("/diff/notes/latest.json").body.len() > 6000);
    // Its tag is the cursor, under which the document is carried with other times.
    let carried = server.ask("GET", "/diff/notes/latest.json", &[("range", "bytes=1000-")], b"");
    assert_eq!((carried.status, carried.header("accept-ranges")), (200, Some("none")));
    let index = server.json("/archive/notes/index.json");
    let snapshot = index["snapshots"].as_array().unwrap().last().unwrap()["url"].as_str().unwrap();
    let snapshot = &snapshot[snapshot.find("/archive/").unwrap()..];
    for path in ["/feeds/notes/items/sound", snapshot, "/feeds/notes/replication"] {
        let whole = server.get(path);
        let tag = whole.header("etag").unwrap();
        assert_eq!((whole.status, whole.header("accept-ranges")), (200, Some("bytes")), "{path}");
        let (first, last) = (1000, whole.body.len() - 1);
        let (range, told) = (format!("bytes={first}-"), format!("bytes {first}-{last}/{}", whole.body.len()));
        let part = server.ask("GET", path, &[("range", &range), ("if-range", tag)], b"");
        assert_eq!((part.status, part.header("content-range")), (206, Some(told.as_str())), "{path}");
        assert_eq!(part.header("etag"), Some(tag));
        assert!(part.body == whole.body[first..], "{path}");
        let changed = server.ask("GET", path, &[("range", &range), ("if-range", "\"other\"")], b"");
        assert!(changed.status == 200 && changed.body == whole.body, "{path}");
        let behind = server.ask("GET", path, &[("range", &format!("bytes={}-", whole.body.len()))], b"");
        assert_eq!(behind.status, 416, "{path}");
        assert_eq!(behind.json()["type"], "urn:towpath:problem:range-not-satisfiable");
    }
}

/// A part in place of the whole would lose the rest (RFC 9110, section 14.5).
#[test]
fn rfc_9110_14_5_a_put_of_a_part_is_refused() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let item = "/feeds/notes/items/a";
    assert_eq!(server.ask("PUT", item, &[], b"0123456789abcdef").status, 201);
    for length in ["16", "*"] {
        let range = format!("bytes 10-15/{length}");
        let part = server.ask("PUT", item, &[("content-range", &range)], b"abcdef");
        assert!(part.status == 400 && part.text().contains("/feeds/{feed}/uploads"), "{}", part.text());
    }
    assert_eq!(server.get(item).body, b"0123456789abcdef");
}

/// The coded bytes would be published as the content (RFC 9112, section 6.1).
#[test]
fn rfc_9112_6_1_an_unknown_transfer_coding_is_refused() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let put = |coding: &str| {
        let host = server.base.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        let head = "PUT /feeds/notes/items/a HTTP/1.1\r\nConnection: close";
        let body = "1\r\nx\r\n0\r\n\r\n";
        write!(stream, "{head}\r\nHost: {host}\r\nTransfer-Encoding: {coding}\r\n\r\n{body}").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = TestResponse::parse(&answer).unwrap();
        (answer.status, answer.text())
    };
    for coding in ["gzip, chunked", "identity, chunked", "gzip\r\nTransfer-Encoding: chunked"] {
        let (status, text) = put(coding);
        assert!(status == 501 && text.contains("Transfer-Encoding"), "{coding}: {status} {text}");
    }
    assert_eq!(server.get("/feeds/notes/items/a").status, 404);
    assert_eq!(put("Chunked").0, 201);
}

/// A client that resumes with If-Match must not join two versions (RFC 9110, section 13.1.1).
#[test]
fn rfc_9110_13_1_1_if_match_holds_for_reads() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let text = "a long text ".repeat(500);
    let item = "/feeds/notes/items/text";
    assert_eq!(server.ask("PUT", item, &[], text.as_bytes()).status, 201);
    wait_until("it is minted", || server.get("/diff/notes/latest.json").body.len() > 6000);
    for path in [item, "/diff/notes/latest.json", "/feeds/notes/replication"] {
        let tag = server.get(path).header("etag").unwrap().to_owned();
        let ask = |method: &str, tags: &str| {
            server.ask(method, path, &[("if-match", tags), ("range", "bytes=0-9")], b"")
        };
        // DiffDelta's current documents have no parts.
        let status = if path.starts_with("/diff/") { 200 } else { 206 };
        for matching in [&*tag, "*", &format!("\"a,b\", {tag}")] {
            assert_eq!(ask("GET", matching).status, status, "{path} {matching}");
            assert_eq!(ask("HEAD", matching).status, 200, "{path} {matching}");
        }
        // A weak tag never matches here (section 8.8.3.2).
        for other in ["\"zz\"", &format!("W/{tag}"), "zz", ""] {
            let refused = ask("GET", other);
            assert_eq!(refused.status, 412, "{path} {other}");
            assert_eq!(refused.json()["type"], "urn:towpath:problem:precondition-failed");
            assert_eq!(ask("HEAD", other).status, 412, "{path} {other}");
        }
    }
    assert_eq!(server.ask("GET", "/feeds/notes/items/none", &[("if-match", "\"1\"")], b"").status, 404);
}

/// An editor that has a date only must not overwrite another's change (RFC 9110, section 13.1.4).
#[test]
fn rfc_9110_13_1_4_if_unmodified_since_holds_for_reads_and_changes() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let item = "/feeds/notes/items/a";
    assert_eq!(server.ask("PUT", item, &[], b"one").status, 201);
    let read = server.get(item);
    let (modified, tag) = (read.header("last-modified").unwrap(), read.header("etag").unwrap());
    let ask =
        |method: &str, headers: &[(&str, &str)], body: &[u8]| server.ask(method, item, headers, body).status;
    let (before, header) = ("Tue, 14 Nov 2023 22:13:20 GMT", "if-unmodified-since");
    for (method, body) in [("PUT", "two"), ("DELETE", ""), ("GET", ""), ("HEAD", "")] {
        assert_eq!(ask(method, &[(header, before)], body.as_bytes()), 412, "{method}");
    }
    assert_eq!(server.get(item).text(), "one");
    assert_eq!(ask("GET", &[(header, modified)], b""), 200);
    // Text that is no date does not count, and neither does a date beside a tag.
    assert_eq!(ask("PUT", &[(header, "yesterday")], b"two"), 200);
    assert_eq!(ask("PUT", &[(header, before), ("if-match", tag)], b"three"), 412);
    let read = server.get(item);
    let tag = read.header("etag").unwrap();
    assert_eq!(ask("PUT", &[(header, before), ("if-match", tag)], b"three"), 200);
    let latest = server.get(item);
    assert_eq!(ask("PUT", &[(header, latest.header("last-modified").unwrap())], b"four"), 200);
    assert_eq!(server.ask("PUT", "/feeds/notes/items/new", &[(header, before)], b"x").status, 201);
}

#[test]
fn tokens_and_web_pages() {
    let dir = TestFolder::new("[server]\ntokens = [\"secret\"]\n[[feed]]\nid = \"notes\"\n");
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[], b"x").status, 401);
    let bearer = ("authorization", "Bearer secret");
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[bearer], b"x").status, 201);
    let open = TestFolder::new(NOTES);
    let server = open.serve();
    assert_eq!(
        // Browsers send Origin: no web page may publish through its visitor.
        server.ask("PUT", "/feeds/notes/items/a", &[("origin", "http://evil.example")], b"x").status,
        403
    );
}

/// A proxy on the same machine, like nginx without further settings: HTTP/1.0, and the upstream's name as Host.
#[test]
fn a_proxy_is_not_a_local_program() {
    use std::io::{Read as _, Write as _};
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let host = server.base.strip_prefix("http://").unwrap();
    for (version, headers, status) in [
        ("1.1", "", "201"),
        ("1.0", "", "403"),
        ("1.1", "X-Real-IP: 192.0.2.1\r\n", "403"),
        ("1.1", "Via: 1.1 proxy\r\n", "403"),
    ] {
        let mut stream = std::net::TcpStream::connect(host).unwrap();
        let request = format!(
            "PUT /feeds/notes/items/a HTTP/{version}\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: 1\r\n\r\nx"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "HTTP/{version} {headers}: {answer}");
    }
}

/// A server behind a proxy on its machine cannot tell remote clients from local programs.
#[test]
fn a_server_for_others_without_tokens_warns() {
    let warns = |config: &str, args: &[&str]| {
        let dir = TestFolder::new(config);
        let server = dir.serve_with(args);
        assert_eq!(server.stop(), Some(0));
        dir.log().contains("[server] tokens")
    };
    assert!(warns(NOTES, &["--base-url", "http://feeds.example/"]));
    assert!(!warns(NOTES, &[]));
    assert!(!warns(NOTES, &["--base-url", "http://[::1]:8080"]));
    let with_tokens = format!("[server]\ntokens = [\"secret\"]\n{NOTES}");
    assert!(!warns(&with_tokens, &["--base-url", "http://feeds.example/"]));
}

/// The status lists every feed to a client that may publish, with or without a running server.
#[test]
fn status_lists_all_feeds_to_publishers() {
    let private = "[[feed]]\nid = \"private\"\nreaders = [\"reader\"]\n";
    let feeds = format!("{NOTES}{private}[[feed]]\nid = \"secret\"\nreaders = [\"nobody\"]\n");
    for tokens in ["[server]\ntokens = [\"secret\"]\n", ""] {
        let dir = TestFolder::new(&format!("{tokens}{feeds}"));
        assert_eq!(dir.run(&["put", "private", "a"]).status.code(), Some(0));
        let of_folder = crate::common::stdout(&dir.run(&["status"]));
        assert!(of_folder.contains("private") && of_folder.lines().count() == 5, "{of_folder}");
        let server = dir.serve();
        let of_server = dir.run(&["status", "--server", &server.base]);
        assert_eq!(crate::common::stdout(&of_server), of_folder, "{}", stderr(&of_server));
    }
}

/// `/feeds` lists the feeds that the client may read.
#[test]
fn the_list_of_feeds_depends_on_the_reader() {
    let private = "[[feed]]\nid = \"private\"\nreaders = [\"reader\"]\n";
    let filtered =
        "[[feed]]\nid = \"part\"\nreaders = [{ token = \"some\", filter = { tags = [\"open\"] } }]\n";
    let dir = TestFolder::new(&format!("[server]\ntokens = [\"publisher\"]\n{NOTES}{private}{filtered}"));
    let server = dir.serve();
    let list = |path: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        server.ask("GET", path, if token.is_empty() { &[] } else { &headers }, b"")
    };
    let names = |answer: &crate::common::TestResponse| -> Vec<String> {
        let list = answer.json();
        list["feeds"].as_array().unwrap().iter().map(|feed| feed["id"].as_str().unwrap().to_owned()).collect()
    };
    for (token, expected) in [
        ("", vec!["copy", "notes"]),
        ("reader", vec!["copy", "notes", "private"]),
        ("some", vec!["copy", "notes", "part"]),
        ("publisher", vec!["copy", "notes", "part", "private"]),
    ] {
        for path in ["/feeds", "/feeds?status"] {
            let answer = list(path, token);
            assert_eq!(names(&answer), expected, "{path} {token}");
            assert_eq!(answer.header("cache-control"), Some("private, no-store"), "{path} {token}");
        }
        // Further status of a feed is shown only to clients that may read all of it.
        for feed in list("/feeds?status", token).json()["feeds"].as_array().unwrap() {
            assert_eq!(feed["seq"].is_u64(), feed["id"] != "part" || token == "publisher", "{feed}");
        }
        assert_eq!(names(&list("/", token)), ["copy", "notes"]);
    }
    assert_eq!(list("/feeds", "nobody").status, 401);
}

#[test]
fn the_command_line_publishes_into_a_folder_or_a_running_server() {
    let dir = TestFolder::new(NOTES);
    dir.write("note.txt", "Hello, towpath".as_bytes());
    let put = dir.run(&["put", "notes", "first", "note.txt", "--title", "A note", "--data", "data"]);
    assert_eq!(put.status.code(), Some(0), "{}", stderr(&put));
    let server = dir.serve();
    assert_eq!(server.get("/feeds/notes/items/first").text(), "Hello, towpath");
    let args = ["put", "notes", "second", "-", "--type", "text/html", "--server", &server.base];
    let put = dir.run_with(&args, b"<p>two</p>");
    assert_eq!(put.status.code(), Some(0), "{}", stderr(&put));
    assert_eq!(server.get("/feeds/notes/items/second").header("content-type"), Some("text/html"));
    let deleted = dir.run(&["delete", "notes", "first", "--server", &server.base]);
    assert_eq!(deleted.status.code(), Some(0), "{}", stderr(&deleted));
    let missing = dir.run(&["delete", "notes", "first", "--server", &server.base]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(stderr(&missing).contains("404"), "{}", stderr(&missing));
    let status = dir.run(&["status", "--server", &server.base]);
    assert!(crate::common::stdout(&status).contains("notes"), "{}", stderr(&status));
}

/// DiffDelta 1.3: an archive is never deleted. Protected archives are removed with the configuration that protected
/// them.
#[test]
fn an_archive_outlives_its_feed_in_the_configuration() {
    let private = "[[feed]]\nid = \"private\"\nreaders = [\"secret\"]\n";
    let feeds = format!("[server]\ncreate_feeds = false\n{NOTES}{private}");
    let dir = TestFolder::new(&feeds);
    let server = dir.serve();
    let bearer = [("Authorization", "Bearer secret")];
    let snapshots = |server: &TestServer, feed: &str| -> Vec<String> {
        let index = server.ask("GET", &format!("/archive/{feed}/index.json"), &bearer, b"").json();
        let urls =
            index["snapshots"].as_array().unwrap().iter().map(|s| s["url"].as_str().unwrap().to_owned());
        urls.collect()
    };
    for feed in ["notes", "private"] {
        assert_eq!(server.ask("PUT", &format!("/feeds/{feed}/items/a"), &[], b"x").status, 201);
    }
    let end = std::time::Instant::now() + crate::common::PATIENCE;
    while ["notes", "private"].iter().any(|feed| snapshots(&server, feed).len() < 2) {
        assert!(std::time::Instant::now() < end, "nothing is minted");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (public, secret) = (snapshots(&server, "notes"), snapshots(&server, "private"));
    assert_eq!(server.get(&secret[1]).status, 401);
    let before = server.get(&public[1]).body;
    assert_eq!(server.stop(), Some(0));
    dir.write("towpath.toml", b"[server]\ncreate_feeds = false\n");
    let server = dir.serve();
    assert_eq!(server.get("/diff/notes/head.json").status, 410);
    assert_eq!(snapshots(&server, "notes"), public);
    assert_eq!(server.get(&public[1]).body, before);
    for gone in ["/archive/private/index.json", &secret[1], "/archive/never/index.json"] {
        assert_eq!(server.ask("GET", gone, &bearer, b"").status, 404, "{gone}");
    }
}

/// RFC 6721: what a document marks as deleted goes. What it leaves out is not all, and the exit code says so.
#[test]
fn an_import_deletes_and_tells_what_it_left_out() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let atom = |entries: &str| {
        format!(
            "<feed xmlns='http://www.w3.org/2005/Atom' xmlns:at='http://purl.org/atompub/tombstones/1.0'>\
             <id>f</id><title>t</title><updated>2024-01-01T00:00:00Z</updated>{entries}</feed>"
        )
    };
    let entry = |id: &str, day: u8| {
        let updated = format!("2024-01-{day:02}T00:00:00Z");
        format!(
            "<entry><id>{id}</id><title>t</title><updated>{updated}</updated><content>c</content></entry>"
        )
    };
    dir.write("first.xml", atom(&(entry("a", 1) + &entry("b", 1))).as_bytes());
    assert_eq!(dir.run(&["import", "notes", "first.xml"]).status.code(), Some(0));
    let gone = |id: &str| format!("<at:deleted-entry ref='{id}' when='2024-01-02T00:00:00Z'/>");
    // What is newer than its deletion stays.
    dir.write("second.xml", atom(&(gone("a") + &gone("b") + &entry("b", 3))).as_bytes());
    assert_eq!(dir.run(&["import", "notes", "second.xml"]).status.code(), Some(0));
    let status = |id: &str| server.get(&format!("/feeds/notes/items/{id}")).status;
    assert_eq!((status("a"), status("b")), (410, 200));
    dir.write(
        "third.json",
        br#"{"version": "https://jsonfeed.org/version/1.1", "items": [{"id": "c"}, {"title": "nameless"}]}"#,
    );
    let imported = dir.run(&["import", "notes", "third.json"]);
    assert_eq!(imported.status.code(), Some(3), "{}", stderr(&imported));
    assert!(stderr(&imported).contains("left out"), "{}", stderr(&imported));
    assert_eq!(status("c"), 200);
}

#[test]
fn a_feed_is_copied_by_follow_and_import() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    let mut batch = String::new();
    for n in 0..50 {
        let line = json!({"id": format!("item {n}"), "content_type": "text/plain", "content": format!("text {n}"),
            "item": {"title": format!("Title {n}"), "authors": [{"name": "Ann"}], "tags": ["t"],
                     "published": "2024-01-01T00:00:00Z", "url": "https://example.com/x"}});
        batch.push_str(&format!("{line}\n"));
    }
    assert_eq!(server.ask("POST", "/feeds/notes/items", &[], batch.as_bytes()).status, 200);
    // The very first document may be one without items.
    let is_published =
        |latest: &Value| latest["buckets"]["new"].as_array().is_some_and(|new| new.len() == 50);
    server.wait_for("/diff/notes/latest.json", is_published);
    let followed = dir.run(&["follow", &format!("{}/diff/notes/head.json", server.base), "--once"]);
    assert_eq!(lines(&followed).len(), 50, "{}", stderr(&followed));
    let imported = dir.run_with(&["import", "copy", "-", "--server", &server.base], &followed.stdout);
    assert_eq!(imported.status.code(), Some(0), "{}", stderr(&imported));
    for n in [0, 49] {
        let path = format!("items/item%20{n}?as=line");
        let mut original = server.json(&format!("/feeds/notes/{path}"));
        let mut copy = server.json(&format!("/feeds/copy/{path}"));
        for line in [&mut original, &mut copy] {
            line["modified"].take();
            line["position"].take();
            line["feed"].take();
        }
        assert_eq!(original, copy);
    }
    let bad = dir.run_with(&["import", "copy", "-", "--server", &server.base], b"{\"id\":\"x\"}\n{\"id\":\n");
    assert_eq!(bad.status.code(), Some(1));
    assert!(stderr(&bad).contains("line 2"), "{}", stderr(&bad));
}

/// A writer may write a line to a pipe in any number of pieces, and a pipe holds 64 KiB.
#[test]
fn lines_from_a_pipe_are_lines_however_they_come() {
    let dir = TestFolder::new(NOTES);
    let long = format!("{{\"id\":\"long\",\"item\":{{\"title\":\"{}\"}}}}\n", "x".repeat(200_000));
    let (begin, end) = long.split_at(12);
    let mut child = dir.command(&["import", "notes", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(begin.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    stdin.write_all(end.as_bytes()).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let server = dir.serve();
    assert_eq!(server.json("/feeds/notes")["seq"], 1);
    let line = server.json("/feeds/notes/items/long?as=line");
    assert_eq!(line["item"]["title"].as_str().map(str::len), Some(200_000));
}

#[test]
fn bodies_that_are_too_large_or_cut_off() {
    let dir = TestFolder::new(&format!("[server]\nlarge_content_mib = 0\n{NOTES}"));
    let server = dir.serve();
    let big = vec![b'x'; 65 << 20];
    let answer = server.ask("PUT", "/feeds/notes/items/big", &[("x", "y")], &big);
    assert_eq!(answer.status, 413);
    let answer = server.ask("POST", "/feeds/notes/items", &[("x", "y")], &big);
    assert_eq!(answer.status, 413);
    assert_eq!(server.json("/feeds/notes")["seq"], 0);
}
