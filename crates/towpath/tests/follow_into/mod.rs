//! Follows that end in a destination: `follow --into` and `follow --ack`.

mod repeating;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;

use rusqlite::Connection;
use serde_json::{Value, json};

use crate::common::sqlite_copy::SqliteCopy;
use crate::common::{TestFolder, TestServer, lines, stderr, wait_until};

const CONFIG: &str = "[[feed]]\nid = \"notes\"\n[[feed]]\nid = \"orders\"\n";

impl SqliteCopy {
    fn number(&self, sql: &str) -> i64 {
        self.rows(sql, |row| row.get(0))[0]
    }
}

fn publish(server: &TestServer, feed: &str, lines: &[Value]) {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], body.as_bytes());
    assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
}

fn feed(server: &TestServer, name: &str) -> String {
    format!("{}/feeds/{name}", server.base)
}

#[test]
fn a_feed_is_copied_into_sqlite_and_the_copy_follows() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(
        &server,
        "notes",
        &[json!({"id":"a","content":"1","item":{"title":"A","tags":["x"]}}), json!({"id":"b"})],
    );
    let copy = SqliteCopy(dir.path("copy.db"));
    let url = feed(&server, "notes");
    let output = dir.run(&["follow", &url, "--into", "sqlite:copy.db?search=on", "--once"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{}", stderr(&output));
    let row = copy.rows("SELECT title, tags, content_type FROM items WHERE id = 'a'", |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
    });
    assert_eq!(row, [("A".into(), "[\"x\"]".into(), "text/plain; charset=utf-8".into())]);
    assert_eq!(copy.number("SELECT count(*) FROM items_search WHERE items_search MATCH 'a'"), 1);
    // A running follow applies what comes, and a second one at the same time is refused.
    let mut child = dir.command(&["follow", &url, "--into", "sqlite:copy.db?search=on"]).spawn().unwrap();
    publish(&server, "notes", &[json!({"id":"a","op":"delete"}), json!({"id":"c","content":"3"})]);
    wait_until("the copy follows", || copy.items_now() == ["b", "c"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(copy.number("SELECT count(*) FROM changes"), 4);
}

impl SqliteCopy {
    fn items_now(&self) -> Vec<String> {
        self.rows("SELECT id FROM items ORDER BY id", |row| row.get(0))
    }
}

#[test]
fn several_feeds_share_the_tables() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, "notes", &[json!({"id":"a"})]);
    publish(&server, "orders", &[json!({"id":"a"}), json!({"id":"b"})]);
    let (notes, orders) = (feed(&server, "notes"), feed(&server, "orders"));
    // DiffDelta's documents come a moment after the publishing.
    for feed in ["notes", "orders"] {
        server
            .wait_for(&format!("/diff/{feed}/latest.json"), |latest| latest["buckets"]["new"][0].is_object());
    }
    for _ in 0..2 {
        let output = dir.run(&["follow", &notes, &orders, "--into", "sqlite:copy.db?table=all", "--once"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
    let copy = SqliteCopy(dir.path("copy.db"));
    let count = |feed: &str| copy.number(&format!("SELECT count(*) FROM all_items WHERE feed = '{feed}'"));
    assert_eq!((count(&notes), count(&orders)), (1, 2));
    assert_eq!(copy.number("SELECT count(*) FROM all_changes"), 3);
}

/// The documents of DiffDelta name the feed of each item. Otherwise a copy would have two of each changed item.
#[test]
fn a_diffdelta_copy_that_began_alone_keeps_its_name_among_others() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let publish_diff = |feed: &str, id: &str, title: &str| {
        publish(&server, feed, &[json!({"id": id, "item": {"title": title}})]);
        let path = format!("/diff/{feed}/latest.json");
        server.wait_for(&path, |latest| latest["buckets"].to_string().contains(title));
    };
    publish_diff("orders", "a", "One");
    publish_diff("notes", "n", "Note");
    let urls = ["orders", "notes"].map(|feed| format!("{}/diff/{feed}/latest.json", server.base));
    let follow = |urls: &[String]| {
        let urls = urls.iter().map(String::as_str);
        let args: Vec<&str> =
            std::iter::once("follow").chain(urls).chain(["--into", "sqlite:copy.db", "--once"]).collect();
        let output = dir.run(&args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    follow(&urls[..1]);
    publish_diff("orders", "a", "Two");
    follow(&urls);
    publish_diff("orders", "a", "Three");
    follow(&urls[..1]);
    let copy = SqliteCopy(dir.path("copy.db"));
    let count = |feed: &str| copy.number(&format!("SELECT count(*) FROM items WHERE feed = '{feed}'"));
    assert_eq!((count("orders"), count(&urls[0]), count(&urls[1])), (1, 0, 1));
    assert_eq!(copy.number("SELECT count(*) FROM items WHERE title = 'Three'"), 1);
}

#[test]
fn a_folder_has_one_file_per_item() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(
        &server,
        "notes",
        &[json!({"id":"../a","content":"1"}), json!({"id":"b"}), json!({"id":"b","op":"delete"})],
    );
    let url = feed(&server, "notes");
    let output = dir.run(&["follow", &url, "--into", "dir:copy", "--once"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let mut files = Vec::new();
    for folder in std::fs::read_dir(dir.path("copy")).unwrap().map(|entry| entry.unwrap().path()) {
        let inside = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        files.extend(
            inside.filter(|path| {
                path.extension().is_some_and(|e| e == "json") && !folder.ends_with(".towpath")
            }),
        );
    }
    assert!(matches!(files.as_slice(), [file] if file.ends_with("%2e.%2fa.json")), "{files:?}");
}

#[test]
fn a_program_acknowledges_what_it_has_finished() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, "notes", &[json!({"id":"a"}), json!({"id":"b"})]);
    let url = feed(&server, "notes");
    for expected in [2, 2] {
        let args = ["follow", &url, "--into", "exec:tee -a out", "--state", "state", "--once"];
        let output = dir.run(&args);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(std::fs::read_to_string(dir.path("out")).unwrap().lines().count(), expected);
    }
}

#[test]
fn a_destination_that_cannot_be_used_is_named() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, "notes", &[json!({"id":"a"})]);
    let url = feed(&server, "notes");
    Connection::open(dir.path("mine.db")).unwrap().execute_batch("CREATE TABLE items (x)").unwrap();
    for (args, code, part) in [
        (["--into", "sqlite:mine.db", "--once"].as_slice(), 1, "table items is not towpath's"),
        (&["--into", "sqlite:no/such/copy.db", "--once"], 1, "check that its folder exists"),
        (&["--into", "sqlite:copy.db", "--once", "--state", "s"], 2, "keeps the position itself"),
        (&["--into", "mysql://x/", "--once"], 2, "sqlite:PATH"),
        (&["--into", "sqlite:copy.db", "--ack"], 2, "cannot be used with"),
        (&["--ack", "--once"], 2, "--state"),
    ] {
        let output = dir.run(&[&["follow", url.as_str()], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{args:?}: {}", stderr(&output));
    }
}

/// Number of snapshot pages that the copy's position has as delivered.
fn delivered_pages(copy: &SqliteCopy) -> i64 {
    copy.number(
        "SELECT coalesce(sum(json_extract(value, '$[1]') - json_extract(value, '$[0]') + 1), 0)
         FROM positions, json_each(CAST(checkpoint AS TEXT), '$.state.snapshot.done')",
    )
}

#[test]
fn a_first_sync_from_a_snapshot_resumes_where_it_was_cut_off() {
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\npage_items = 100\n");
    let server = dir.serve();
    let items: Vec<Value> = (0..3000).map(|n| json!({ "id": format!("{n:04}"), "content": "x" })).collect();
    publish(&server, "notes", &items);
    let made = server.ask("POST", "/feeds/notes/snapshots", &[], b"");
    assert_eq!(made.status, 201, "{}", made.text());
    let url = made.header("location").unwrap().to_owned();
    let follow =
        ["follow", &url, "--protocol", "replication", "--into", "sqlite:copy.db", "--stop-on-refused-item"];
    let once = [&follow[..], &["--once"]].concat();
    // The tables are there before the first item comes.
    let orders = feed(&server, "orders");
    drop(dir.run(&["follow", &orders, "--into", "sqlite:copy.db", "--protocol", "smart", "--once"]));
    let copy = SqliteCopy(dir.path("copy.db"));
    let rule = "CREATE TRIGGER mine BEFORE INSERT ON items WHEN new.id = '2990' BEGIN SELECT raise(ABORT, 'not yet'); END";
    Connection::open(&copy.0).unwrap().execute_batch(rule).unwrap();
    let cut = dir.run(&once);
    assert_eq!(cut.status.code(), Some(1), "{}", stderr(&cut));
    let (items, pages) = (copy.number("SELECT count(*) FROM items"), delivered_pages(&copy));
    assert!(pages > 0 && pages < 30 && items >= pages * 100, "{pages} pages, {items} items");
    Connection::open(&copy.0).unwrap().execute_batch("DROP TRIGGER mine").unwrap();
    let resumed = dir.run(&once);
    assert_eq!(resumed.status.code(), Some(0), "{}", stderr(&resumed));
    assert_eq!(copy.number("SELECT count(*) FROM items"), 3000);
    // A page that was delivered is not delivered again: each entity of the snapshot stands once.
    let snapshot = "FROM changes WHERE position LIKE '%/snapshots/%'";
    assert_eq!(copy.number(&format!("SELECT count(*) {snapshot}")), 3000);
    assert_eq!(copy.number(&format!("SELECT count(DISTINCT position) {snapshot}")), 3000);
}

#[test]
fn a_refused_item_is_set_aside_or_stops_the_follow() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, "notes", &[json!({"id":"a"}), json!({"id":"bad"}), json!({"id":"c"})]);
    let url = feed(&server, "notes");
    let orders = feed(&server, "orders");
    publish(&server, "orders", &[json!({"id":"o"})]);
    assert_eq!(dir.run(&["follow", &orders, "--into", "sqlite:copy.db", "--once"]).status.code(), Some(0));
    let rule = "CREATE TRIGGER mine BEFORE INSERT ON items WHEN new.id = 'bad' BEGIN SELECT raise(ABORT, 'bad id'); END";
    Connection::open(dir.path("copy.db")).unwrap().execute_batch(rule).unwrap();
    let follow = ["follow", &url, "--into", "sqlite:copy.db", "--once"];
    let stopped = dir.run(&[&follow[..], &["--stop-on-refused-item"]].concat());
    assert_eq!(stopped.status.code(), Some(1));
    assert!(stderr(&stopped).contains("refuses item \"bad\""), "{}", stderr(&stopped));
    let copy = SqliteCopy(dir.path("copy.db"));
    assert_eq!(copy.items_now(), ["o"]);
    let output = dir.run(&follow);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("bad id"), "{}", stderr(&output));
    assert_eq!(copy.items_now(), ["a", "c", "o"]);
    assert_eq!(copy.number("SELECT count(*) FROM refused WHERE id = 'bad'"), 1);
}

/// Runs `follow --ack`, acknowledges so many lines, and kills it; returns the ids that it printed until then.
fn read_and_acknowledge(dir: &TestFolder, url: &str, acknowledged: usize, expected: usize) -> Vec<String> {
    let mut child = dir
        .command(&["follow", url, "--ack", "--state", "state"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut ids = Vec::new();
    for number in 0..expected {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        ids.push(line["id"].as_str().unwrap().to_owned());
        if number < acknowledged {
            writeln!(input, "{}", line["position"].as_str().unwrap()).unwrap();
        }
    }
    let last = ids.get(acknowledged.wrapping_sub(1)).cloned().unwrap_or_default();
    wait_until("the acknowledgements are saved", || {
        acknowledged == 0 || is_saved(&dir.path("state"), acknowledged)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!last.is_empty() || acknowledged == 0);
    ids
}

/// Returns whether the state has moved past so many lines.
fn is_saved(path: &Path, acknowledged: usize) -> bool {
    let Ok(text) = std::fs::read_to_string(path) else { return false };
    let state: Value = serde_json::from_str(&text).unwrap();
    let source = state["sources"].as_object().unwrap().values().next().cloned().unwrap_or_default();
    source["acknowledged"].as_array().map_or(0, Vec::len) >= acknowledged || !source["checkpoint"].is_null()
}

#[test]
fn only_acknowledged_lines_move_the_state() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let items: Vec<Value> = (0..10).map(|n| json!({ "id": format!("{n}") })).collect();
    publish(&server, "notes", &items);
    let url = feed(&server, "notes");
    let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    assert_eq!(read_and_acknowledge(&dir, &url, 0, 10), all);
    assert_eq!(read_and_acknowledge(&dir, &url, 3, 10), all);
    assert_eq!(read_and_acknowledge(&dir, &url, 7, 7), all[3..]);
    let output = dir.run(&["follow", &url, "--ack", "--state", "state", "--once"]);
    assert_eq!((output.status.code(), lines(&output).len()), (Some(0), 0), "{}", stderr(&output));
    // A consumer that ends before it has acknowledged all is named.
    publish(&server, "notes", &[json!({"id":"10"})]);
    let output = dir.run(&["follow", &url, "--ack", "--state", "state", "--once"]);
    assert_eq!((output.status.code(), lines(&output).len()), (Some(1), 1));
    assert!(stderr(&output).contains("1 lines not acknowledged"), "{}", stderr(&output));
}
