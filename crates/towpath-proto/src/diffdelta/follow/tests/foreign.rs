//! Publishers that are not ours.

use serde_json::json;

use super::*;
use crate::diffdelta::cursor::recompute;
use crate::diffdelta::wire::Snapshot;
use crate::format::jcs::Style;

/// An item in the schema's own members only.
fn item(id: &str) -> Value {
    json!({"source": "ab", "id": id, "url": "https://x/", "headline": "h"})
}

/// A minted document whose cursor recomputes, with head, snapshot and index entry. Nothing in it names the
/// document before, so that the same buckets have the same cursor.
fn mint(p: &mut Publisher, buckets: Value, now: i64) {
    let mut document = json!({"buckets": buckets, "changed": true, "source_id": "ab", "ttl_sec": 60});
    let cursor = recompute(document.to_string().as_bytes(), Style::Jcs).unwrap();
    let prev = std::mem::replace(&mut p.chain.cursor, cursor);
    document["cursor"] = json!(cursor.to_string());
    document["prev_cursor"] = json!(prev.to_string());
    document["generated_at"] = json!(at(now).to_string());
    p.latest = document.to_string().into_bytes();
    document["buckets"].take();
    p.head = document.to_string().into_bytes();
    let snapshot = Snapshot {
        cursor: cursor.to_string(),
        generated_at: at(now).to_string(),
        prev_cursor: prev.to_string(),
        sha256: Cursor::of(&p.latest).hex(),
        url: format!("/archive/ab/{now}.json"),
    };
    p.snapshots.push((snapshot, p.latest.clone()));
}

fn put(p: &mut Publisher, id: &str, now: i64) {
    mint(p, json!({"updated": [item(id)]}), now);
}

fn ids(d: &Driver) -> Vec<&str> {
    d.told.iter().map(|change| change.item.id.as_str()).collect()
}

/// Section 2.2: a cursor that came back (A, B, A, C) hides no document between, whoever follows.
#[test]
fn a_cursor_that_came_back_hides_nothing() {
    let mut p = Publisher::new("ab");
    put(&mut p, "a", 0);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(1), &[]);
    for (id, now) in [("b", 2), ("a", 3), ("c", 4)] {
        put(&mut p, id, now);
    }
    d.restart("/diff/ab");
    d.pass(&p, at(100), &[]);
    assert_eq!(ids(&d), ["a", "b", "a", "c"], "{:?}", d.asked);
    assert_eq!(d.notices, []);
}

/// What nothing but the archive index could show otherwise is not asked of a publisher that has none, after
/// the first time.
#[test]
fn without_an_index_a_document_follows_on_its_prev_cursor() {
    let mut p = Publisher::new("ab");
    put(&mut p, "a", 0);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.has_archive = false;
    d.pass(&p, at(1), &[]);
    for (id, now) in [("b", 100), ("c", 200), ("d", 300)] {
        put(&mut p, id, now);
        d.pass(&p, at(now), &[]);
    }
    assert_eq!(ids(&d), ["a", "b", "c", "d"]);
    assert_eq!(d.notices, []);
    assert_eq!(d.asked.iter().filter(|url| url.contains("/archive/")).count(), 1, "{:?}", d.asked);
}

/// A publisher as the public ones are: cursors that do not recompute, no archive index.
#[test]
fn a_foreign_feed_is_followed_without_proof() {
    let document = |cursor: &str, prev: &str, id: &str| {
        json!({
            "cursor": cursor, "prev_cursor": prev, "changed": true, "cursor_basis": "canonical_v1",
            "ttl_sec": 60, "generated_at": "2026-01-01T00:00:00Z", "source_id": "ab",
            "buckets": {
                "new": [item(id), {"id": 7}],
                "flagged": [item(&format!("f{id}"))],
                "removed": [item("gone")],
                "some_day": [item("unknown")]
            }
        })
    };
    let mut p = Publisher::new("ab");
    let serve = |p: &mut Publisher, cursor: &str, prev: &str, id: &str| {
        p.latest = document(cursor, prev, id).to_string().into_bytes();
        p.head = document(cursor, prev, id).to_string().into_bytes();
        p.chain.cursor = Cursor::of(cursor.as_bytes());
    };
    let mut d = Driver::new("/diff/ab/latest.json", StartFrom::Beginning);
    d.has_archive = false;
    serve(&mut p, "c2", "c1", "1");
    d.pass(&p, at(0), &[]);
    assert_eq!(d.ops(), [(Op::Put, "1"), (Op::Put, "f1"), (Op::Delete, "gone")], "{:?}", d.notices);
    assert_eq!((d.incomplete(), d.notices.len()), (0, 3), "no index, no proof, a bad item: {:?}", d.notices);
    serve(&mut p, "c3", "c2", "2");
    d.pass(&p, at(100), &[]);
    assert_eq!((d.told.len(), d.incomplete(), d.notices.len()), (6, 0, 4), "{:?}", d.notices);
    serve(&mut p, "c9", "c8", "3");
    d.pass(&p, at(200), &[]);
    assert_eq!((d.told.len(), d.incomplete()), (9, 1), "{:?}", d.notices);
}
