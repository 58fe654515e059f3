//! DiffDelta on a real catalogue of 22 versions: polled, stored, published.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::common::chain::{ChainReader, Counts, counts};
use crate::common::{KEV, TestFolder, TestServer, catalogue, kev, stdout};

/// Differences between two catalogues, counted from the catalogues alone.
fn difference(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Counts {
    Counts {
        new: after.keys().filter(|id| !before.contains_key(*id)).count() as u64,
        updated: after.iter().filter(|(id, item)| before.get(*id).is_some_and(|old| old != *item)).count()
            as u64,
        removed: before.keys().filter(|id| !after.contains_key(*id)).count() as u64,
    }
}

/// Asserts that the chain has the ids and contents of the catalogue.
fn assert_is(chain: &ChainReader, expected: &BTreeMap<String, Value>) {
    let found = chain.contents().into_iter();
    let found: BTreeMap<String, Value> =
        found.map(|(id, content)| (id, serde_json::from_slice(&content).unwrap())).collect();
    for (id, item) in expected {
        assert_eq!(found.get(id), Some(item), "{id}");
    }
    assert_eq!(found.len(), expected.len());
}

/// Numbers in the table of `towpath run`: new, updated, removed.
fn row(table: &str, feed: &str) -> Counts {
    let row = table.lines().find(|line| line.split_whitespace().next() == Some(feed)).unwrap();
    let number = |n| row.split_whitespace().nth(n).unwrap().parse().unwrap();
    Counts { new: number(1), updated: number(2), removed: number(3) }
}

#[test]
fn every_version_arrives_by_one_pass_each() {
    let dir = TestFolder::new(KEV);
    let mut chain = ChainReader::new("kev");
    let mut global = ChainReader::new("_global");
    let mut before = BTreeMap::new();
    for version in 1..=22 {
        let document = kev(version);
        let after = catalogue(&document);
        let expected = difference(&before, &after);
        dir.write("kev.json", &document);
        let pass = dir.run(&["run"]);
        assert_eq!(pass.status.code(), Some(0), "version {version}: {}", crate::common::stderr(&pass));
        assert_eq!(row(&stdout(&pass), "kev"), expected, "version {version}");
        // Section 3.2: another pass over the same document mints nothing.
        if version % 7 == 0 {
            assert_eq!(row(&stdout(&dir.run(&["run"])), "kev"), Counts::default());
        }
        // The server needs nothing but the data of the passes: it starts with the same file.
        let server = dir.serve();
        let minted = chain.read_new(&server);
        assert_eq!(counts(&minted, "kev"), expected, "version {version}");
        assert_eq!(minted.len(), usize::from(expected != Counts::default()), "version {version}");
        assert_is(&chain, &after);
        chain.check_head(&server);
        global.read_new(&server);
        assert_eq!(global.items, chain.items, "the global feed has the same items");
        if version == 22 {
            items_are_served(&server, &after);
        }
        assert_eq!(server.stop(), Some(0));
        before = after;
    }
}

fn items_are_served(server: &TestServer, expected: &BTreeMap<String, Value>) {
    for (id, item) in expected.iter().step_by(17) {
        assert_eq!(&server.json(&format!("/feeds/kev/items/{id}")), item);
        let line = server.json(&format!("/feeds/kev/items/{id}?as=line"));
        assert_eq!(line["item"]["title"], item["vulnerabilityName"]);
        assert_eq!(line["item"]["url"], format!("https://nvd.nist.gov/vuln/detail/{id}"));
    }
}

#[test]
fn every_version_arrives_at_a_running_server() {
    let dir = TestFolder::new(KEV);
    dir.write("kev.json", &kev(1));
    let server = dir.serve();
    let mut before = catalogue(&kev(1));
    let mut chain = ChainReader::new("kev");
    server.wait_for_first("kev");
    chain.read_new(&server);
    assert_is(&chain, &before);
    // The last step goes back: a complete listing without two of the items.
    for version in [2, 5, 21, 22, 21] {
        let document = kev(version);
        let after = catalogue(&document);
        let cursor = chain.cursor.clone();
        dir.write("kev.json", &document);
        let head = server.wait_for("/diff/kev/head.json", |head| head["cursor"] != cursor.as_str());
        // Section 2.2.
        assert!(head["prev_cursor"] == cursor.as_str() || head["changed"] == false, "{head}");
        let minted = chain.read_new(&server);
        assert_eq!(counts(&minted, "kev"), difference(&before, &after), "version {version}");
        assert_is(&chain, &after);
        chain.check_head(&server);
        before = after;
    }
    let removed = &server.json("/diff/kev/latest.json")["buckets"]["removed"];
    assert_eq!(removed.as_array().unwrap().len(), 2);
    assert!(removed[0]["headline"].as_str().is_some_and(|text| !text.is_empty()), "shown whole");
}

/// Section 2.3: readers who poll at `ttl_sec` see `changed: true` and the deltas, although runs without changes came since.
#[test]
fn a_run_without_changes_keeps_the_last_delta() {
    let dir = TestFolder::new(KEV);
    dir.write("kev.json", &kev(16));
    let server = dir.serve();
    server.wait_for_first("kev");
    // Every item is new, and the document costs at most twice the bytes of its items.
    let followed = dir.run(&["follow", &format!("{}/feeds/kev/items", server.base), "--once"]);
    let (latest, items) = (server.get("/diff/kev/latest.json").body.len(), stdout(&followed).len());
    assert!(latest <= 2 * items, "{latest} bytes for items of {items}");
    dir.write("kev.json", &kev(18));
    let first = server.json("/diff/kev/head.json")["cursor"].clone();
    let minted = server.wait_for("/diff/kev/head.json", |head| head["cursor"] != first);
    let last_ok = |list: &Value| list["sources"][0]["last_ok_at"].clone();
    let polled = last_ok(&server.json("/diff/sources.json"));
    server.wait_for("/diff/sources.json", |list| last_ok(list) != polled);
    assert_eq!(server.json("/diff/kev/head.json"), minted, "ttl and the lifetime of caches have not passed");
    assert_eq!((&minted["changed"], &minted["prev_cursor"]), (&Value::Bool(true), &first));
    let index = server.json("/archive/kev/index.json");
    let snapshot = server.json(index["snapshots"][1]["url"].as_str().unwrap());
    let latest = server.json("/diff/kev/latest.json");
    assert_eq!(latest["buckets"], snapshot["buckets"], "who skipped a run still gets them");
    assert_eq!(latest["buckets"]["new"].as_array().unwrap().len(), 1);
    assert_eq!(server.json("/archive/kev/index.json"), index, "no new snapshot");
    assert_eq!(index["snapshots"].as_array().unwrap().len(), 2);
    // Other bytes, same items: version 17 differs from 16 in its date only.
    let quiet = TestFolder::new(KEV);
    quiet.write("kev.json", &kev(16));
    assert_eq!(row(&stdout(&quiet.run(&["run"])), "kev").new, 1275);
    quiet.write("kev.json", &kev(17));
    assert_eq!(row(&stdout(&quiet.run(&["run"])), "kev"), Counts::default());
    assert_eq!(ChainReader::whole(&quiet.serve(), "kev").listed.len(), 1);
}

/// Section 5: an error keeps the cursor and every item, and is reported everywhere.
#[test]
fn a_cut_off_document_is_an_error_that_keeps_everything() {
    let dir = TestFolder::new(KEV);
    dir.write("kev.json", &kev(20));
    let server = dir.serve();
    server.wait_for_first("kev");
    let mut chain = ChainReader::whole(&server, "kev");
    let before = catalogue(&kev(20));
    let whole = kev(21);
    // In the middle, and where hardly more than closing brackets is missing.
    for end in [whole.len() / 3, whole.len() - 3] {
        dir.write("kev.json", &whole[..end]);
        source_is(&server, "error");
        assert_error(&server, &chain.cursor, "TRUNCATED");
        assert!(chain.read_new(&server).is_empty());
        assert_is(&chain, &before);
        chain.check_head(&server);
    }
    dir.write("kev.json", &whole);
    source_is(&server, "ok");
    assert_eq!(chain.read_new(&server).len(), 1, "the chain goes on where it was");
    chain.check_head(&server);
    assert_is(&chain, &catalogue(&whole));
    assert_eq!(server.json("/healthz.json")["status"], "ok");
}

/// Waits for the source's state.
fn source_is(server: &TestServer, status: &str) {
    server.wait_for("/diff/sources.json", |list| list["sources"][0]["status"] == status);
}

fn assert_error(server: &TestServer, cursor: &str, code: &str) {
    let latest = server.json("/diff/kev/latest.json");
    assert_eq!((&latest["changed"], &latest["cursor"]), (&Value::Bool(false), &Value::from(cursor)));
    assert_eq!(latest["prev_cursor"], cursor);
    let source = &latest["sources"]["kev"];
    assert_eq!((&source["status"], &source["stale"]), (&Value::from("error"), &Value::Bool(true)));
    assert_eq!(source["error"]["code"], code);
    assert!(source["stale_age_sec"].is_u64() && source["last_ok_at"].is_string(), "{source}");
    let listed = &server.json("/diff/sources.json")["sources"][0];
    assert_eq!((&listed["status"], &listed["stale"]), (&Value::from("error"), &Value::Bool(true)));
    assert_eq!(listed["cursor"], cursor);
    let health = server.json("/healthz.json");
    assert_eq!((&health["status"], &health["sources_stale"][0]), (&"degraded".into(), &"kev".into()));
}

#[test]
fn an_implausible_catalogue_is_rejected() {
    let dir = TestFolder::new(KEV);
    let whole = kev(22);
    dir.write("kev.json", &whole);
    assert_eq!(dir.run(&["run"]).status.code(), Some(0));
    // Less than half of the items: plausible JSON, and still not a plausible catalogue.
    let mut most_lost: Value = serde_json::from_slice(&whole).unwrap();
    most_lost["vulnerabilities"].as_array_mut().unwrap().truncate(500);
    let empty = br#"{"vulnerabilities":[]}"#.to_vec();
    // The list has another name: taken for empty, it would remove every item.
    let moved = br#"{"items":[{"cveID":"CVE-1"}]}"#.to_vec();
    for (document, code) in [
        (whole[..whole.len() / 2].to_vec(), "TRUNCATED"),
        (whole[..1].to_vec(), "TRUNCATED"),
        (Vec::new(), "PARSE_ERROR"),
        (b"<!doctype html><html><body>Be right back</body></html>".to_vec(), "PARSE_ERROR"),
        (serde_json::to_vec(&most_lost).unwrap(), "GUARD"),
        (empty, "GUARD"),
        (moved, "PARSE_ERROR"),
    ] {
        dir.write("kev.json", &document);
        let pass = dir.run(&["run"]);
        let received = stdout(&pass);
        assert_eq!(pass.status.code(), Some(1), "{received}");
        assert!(received.contains(&format!("{code}: kev.json: ")), "{code}: {received}");
    }
    std::fs::remove_file(dir.path("kev.json")).unwrap();
    assert!(stdout(&dir.run(&["run"])).contains("NETWORK_ERROR"));
    let server = dir.serve();
    let chain = ChainReader::whole(&server, "kev");
    assert_is(&chain, &catalogue(&whole));
    assert_eq!(chain.listed.len(), 1);
    chain.check_head(&server);
    let global = server.json("/diff/latest.json");
    assert_eq!(global["sources"]["kev"]["status"], "error");
    assert_eq!(global["sources"]["kev"]["cursor"], chain.cursor.as_str());
    drop(server);
    dir.write("kev.json", &whole);
    assert_eq!(dir.run(&["run"]).status.code(), Some(0));
    // The document from before the errors is no change, so the cursor stays.
    assert_eq!(ChainReader::whole(&dir.serve(), "kev").cursor, chain.cursor);
}

/// Section 2.1: the zero cursor means that no run has succeeded yet.
#[test]
fn a_source_that_never_succeeded_has_the_zero_cursor() {
    let dir = TestFolder::new(KEV);
    let server = dir.serve();
    source_is(&server, "error");
    let latest = server.json("/diff/kev/latest.json");
    assert_eq!(latest["cursor"], format!("sha256:{}", "0".repeat(64)));
    assert!(latest["sources"]["kev"]["last_ok_at"].is_null());
    assert!(server.json("/archive/kev/index.json")["snapshots"].as_array().unwrap().is_empty());
}
