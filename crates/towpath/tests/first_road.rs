//! The first whole road on a real catalogue: polled, kept, published as DiffDelta.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use common::chain::{Chain, Counts, counts};
use common::{KEV, Place, Server, catalogue, kev, stdout};
use serde_json::Value;

/// Counted from the two catalogues alone.
fn difference(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Counts {
    Counts {
        new: after.keys().filter(|id| !before.contains_key(*id)).count() as u64,
        updated: after.iter().filter(|(id, item)| before.get(*id).is_some_and(|old| old != *item)).count()
            as u64,
        removed: before.keys().filter(|id| !after.contains_key(*id)).count() as u64,
    }
}

/// Ids and contents of the chain are those of the catalogue.
fn assert_is(chain: &Chain, expected: &BTreeMap<String, Value>) {
    let found = chain.contents().into_iter();
    let found: BTreeMap<String, Value> =
        found.map(|(id, content)| (id, serde_json::from_slice(&content).unwrap())).collect();
    for (id, item) in expected {
        assert_eq!(found.get(id), Some(item), "{id}");
    }
    assert_eq!(found.len(), expected.len());
}

/// The numbers of `towpath run`'s row: new, updated, removed.
fn row(table: &str, feed: &str) -> Counts {
    let row = table.lines().find(|line| line.split_whitespace().next() == Some(feed)).unwrap();
    let number = |n| row.split_whitespace().nth(n).unwrap().parse().unwrap();
    Counts { new: number(1), updated: number(2), removed: number(3) }
}

#[test]
fn every_version_arrives_by_one_pass_each() {
    let place = Place::new(KEV);
    let mut chain = Chain::new("kev");
    let mut global = Chain::new("_global");
    let mut before = BTreeMap::new();
    for version in 1..=22 {
        let document = kev(version);
        let after = catalogue(&document);
        let expected = difference(&before, &after);
        place.write("kev.json", &document);
        let pass = place.run(&["run"]);
        assert_eq!(pass.status.code(), Some(0), "version {version}: {}", common::stderr(&pass));
        assert_eq!(row(&stdout(&pass), "kev"), expected, "version {version}");
        // Section 3.2: another pass over the same document mints nothing.
        if version % 7 == 0 {
            assert_eq!(row(&stdout(&place.run(&["run"])), "kev"), Counts::default());
        }
        // What the passes kept is all that the server reads: it starts with the same file.
        let server = place.serve();
        let minted = chain.go_on(&server);
        assert_eq!(counts(&minted, "kev"), expected, "version {version}");
        assert_eq!(minted.len(), usize::from(expected != Counts::default()), "version {version}");
        assert_is(&chain, &after);
        chain.check_head(&server);
        global.go_on(&server);
        assert_eq!(global.items, chain.items, "the global feed has the same items");
        if version == 22 {
            items_are_served(&server, &after);
        }
        assert_eq!(server.stop(), Some(0));
        before = after;
    }
}

fn items_are_served(server: &Server, expected: &BTreeMap<String, Value>) {
    for (id, item) in expected.iter().step_by(17) {
        assert_eq!(&server.json(&format!("/feeds/kev/items/{id}")), item);
        let line = server.json(&format!("/feeds/kev/items/{id}?as=line"));
        assert_eq!(line["item"]["title"], item["vulnerabilityName"]);
        assert_eq!(line["item"]["url"], format!("https://nvd.nist.gov/vuln/detail/{id}"));
    }
}

#[test]
fn every_version_arrives_at_a_running_server() {
    let place = Place::new(KEV);
    place.write("kev.json", &kev(1));
    let server = place.serve();
    let mut before = catalogue(&kev(1));
    let mut chain = Chain::new("kev");
    server.wait_for_first("kev");
    chain.go_on(&server);
    assert_is(&chain, &before);
    // The last step goes back: a complete listing that lost two items.
    for version in [2, 5, 21, 22, 21] {
        let document = kev(version);
        let after = catalogue(&document);
        let cursor = chain.cursor.clone();
        place.write("kev.json", &document);
        let head = server.wait_for("/diff/kev/head.json", |head| head["cursor"] != cursor.as_str());
        // Section 2.2.
        assert!(head["prev_cursor"] == cursor.as_str() || head["changed"] == false, "{head}");
        let minted = chain.go_on(&server);
        assert_eq!(counts(&minted, "kev"), difference(&before, &after), "version {version}");
        assert_is(&chain, &after);
        chain.check_head(&server);
        before = after;
    }
    let removed = &server.json("/diff/kev/latest.json")["buckets"]["removed"];
    assert_eq!(removed.as_array().unwrap().len(), 2);
    assert!(removed[0]["headline"].as_str().is_some_and(|text| !text.is_empty()), "shown whole");
}

/// Section 2.3, and the project's decision on runs that find nothing.
#[test]
fn a_run_that_finds_nothing_carries_the_last_delta() {
    let place = Place::new(KEV);
    place.write("kev.json", &kev(16));
    let server = place.serve();
    server.wait_for_first("kev");
    place.write("kev.json", &kev(18));
    let first = server.json("/diff/kev/head.json")["cursor"].clone();
    let minted = server.wait_for("/diff/kev/head.json", |head| head["cursor"] != first);
    let later = |than: &Value| {
        let carried = |head: &Value| head["changed"] == false && head["generated_at"] != than["generated_at"];
        server.wait_for("/diff/kev/head.json", carried)
    };
    let carried = later(&minted);
    let index = server.json("/archive/kev/index.json");
    let again = later(&carried);
    for document in [&carried, &again, &server.json("/diff/kev/latest.json")] {
        assert_eq!(document["cursor"], minted["cursor"]);
        assert_eq!(document["prev_cursor"], minted["cursor"]);
    }
    let snapshot = server.json(index["snapshots"][1]["url"].as_str().unwrap());
    let latest = server.json("/diff/kev/latest.json");
    assert_eq!(latest["buckets"], snapshot["buckets"], "who skipped a run still gets them");
    assert_eq!(latest["buckets"]["new"].as_array().unwrap().len(), 1);
    assert_eq!(server.json("/archive/kev/index.json"), index, "no new snapshot");
    assert_eq!(index["snapshots"].as_array().unwrap().len(), 2);
    // Other bytes, the same items: version 17 differs from 16 in its date only.
    let quiet = Place::new(KEV);
    quiet.write("kev.json", &kev(16));
    assert_eq!(row(&stdout(&quiet.run(&["run"])), "kev").new, 1275);
    quiet.write("kev.json", &kev(17));
    assert_eq!(row(&stdout(&quiet.run(&["run"])), "kev"), Counts::default());
    assert_eq!(Chain::whole(&quiet.serve(), "kev").listed.len(), 1);
}

/// Section 5: an error keeps the cursor and every item, and says so in every place.
#[test]
fn a_cut_off_document_is_an_error_that_keeps_everything() {
    let place = Place::new(KEV);
    place.write("kev.json", &kev(20));
    let server = place.serve();
    server.wait_for_first("kev");
    let mut chain = Chain::whole(&server, "kev");
    let before = catalogue(&kev(20));
    let whole = kev(21);
    for end in [whole.len() / 3, whole.len() - 3] {
        place.write("kev.json", &whole[..end]);
        source_is(&server, "error");
        assert_error(&server, &chain.cursor, "TRUNCATED");
        assert!(chain.go_on(&server).is_empty());
        assert_is(&chain, &before);
        chain.check_head(&server);
    }
    place.write("kev.json", &whole);
    source_is(&server, "ok");
    assert_eq!(chain.go_on(&server).len(), 1, "the chain goes on where it was");
    chain.check_head(&server);
    assert_is(&chain, &catalogue(&whole));
    assert_eq!(server.json("/healthz.json")["status"], "ok");
}

/// Waits for the source's state.
fn source_is(server: &Server, status: &str) {
    server.wait_for("/diff/sources.json", |list| list["sources"][0]["status"] == status);
}

fn assert_error(server: &Server, cursor: &str, code: &str) {
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
fn what_cannot_be_the_catalogue_is_disbelieved() {
    let place = Place::new(KEV);
    let whole = kev(22);
    place.write("kev.json", &whole);
    assert_eq!(place.run(&["run"]).status.code(), Some(0));
    let mut most_lost: Value = serde_json::from_slice(&whole).unwrap();
    most_lost["vulnerabilities"].as_array_mut().unwrap().truncate(500);
    let empty = br#"{"vulnerabilities":[]}"#.to_vec();
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
        place.write("kev.json", &document);
        let pass = place.run(&["run"]);
        let told = stdout(&pass);
        assert_eq!(pass.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("{code}: kev.json: ")), "{code}: {told}");
    }
    std::fs::remove_file(place.path("kev.json")).unwrap();
    assert!(stdout(&place.run(&["run"])).contains("NETWORK_ERROR"));
    let server = place.serve();
    let chain = Chain::whole(&server, "kev");
    assert_is(&chain, &catalogue(&whole));
    assert_eq!(chain.listed.len(), 1);
    chain.check_head(&server);
    let global = server.json("/diff/latest.json");
    assert_eq!(global["sources"]["kev"]["status"], "error");
    assert_eq!(global["sources"]["kev"]["cursor"], chain.cursor.as_str());
    drop(server);
    place.write("kev.json", &whole);
    assert_eq!(place.run(&["run"]).status.code(), Some(0));
    assert_eq!(Chain::whole(&place.serve(), "kev").cursor, chain.cursor);
}

/// Section 2.1: the zero cursor means that there never was a success.
#[test]
fn a_source_that_never_succeeded_has_the_zero_cursor() {
    let place = Place::new(KEV);
    let server = place.serve();
    source_is(&server, "error");
    let latest = server.json("/diff/kev/latest.json");
    assert_eq!(latest["cursor"], format!("sha256:{}", "0".repeat(64)));
    assert!(latest["sources"]["kev"]["last_ok_at"].is_null());
    assert!(server.json("/archive/kev/index.json")["snapshots"].as_array().unwrap().is_empty());
}
