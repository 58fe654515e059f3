//! Following publishers of other implementations.

use serde_json::json;

use super::*;
use crate::diffdelta::wire::SnapshotEntry;
use crate::diffdelta::wire::cursor::recompute;
use crate::format::jcs::Style;

/// Returns an item with the schema's own members only.
pub(super) fn item(id: &str) -> Value {
    json!({"source": "ab", "id": id, "url": "https://x/", "headline": "h"})
}

/// Mints a document whose cursor recomputes, with head, snapshot and index entry.
///
/// The hashed part does not refer to earlier documents, so equal buckets have equal cursors.
fn mint(p: &mut TestSource, buckets: &Value, now: i64) {
    let mut document = json!({"buckets": buckets, "changed": true, "source_id": "ab", "ttl_sec": 60});
    let cursor = recompute(document.to_string().as_bytes(), Style::Jcs).unwrap();
    let prev = std::mem::replace(&mut p.chain.cursor, cursor);
    document["cursor"] = json!(cursor.to_string());
    document["prev_cursor"] = json!(prev.to_string());
    document["generated_at"] = json!(at(now).to_string());
    p.latest = document.to_string().into_bytes();
    document["buckets"].take();
    p.head = document.to_string().into_bytes();
    let snapshot = SnapshotEntry {
        cursor: cursor.to_string(),
        generated_at: at(now).to_string(),
        prev_cursor: prev.to_string(),
        sha256: Cursor::of(&p.latest).hex(),
        url: format!("/archive/ab/{now}.json"),
    };
    p.snapshots.push((snapshot, p.latest.clone()));
}

/// Mints an item. Unlike our publisher, this one's times may go back.
pub(super) fn put(p: &mut TestSource, id: &str, now: i64) {
    mint(p, &json!({"updated": [item(id)]}), now);
}

pub(super) fn ids(d: &Driver) -> Vec<&str> {
    d.changes.iter().map(|change| change.item.id.as_str()).collect()
}

/// Section 2.2: a cursor that came back (A, B, A, C) hides no document in between.
#[test]
fn a_cursor_that_came_back_hides_nothing() {
    let mut p = TestSource::new("ab");
    put(&mut p, "a", 0);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(1), &[]);
    for (id, now) in [("b", 2), ("a", 3), ("c", 4)] {
        put(&mut p, id, now);
    }
    d.restart("/diff/ab");
    d.pass(&p, at(100), &[]);
    assert_eq!(ids(&d), ["a", "b", "a", "c"], "{:?}", d.requests);
    assert_eq!(d.notices, []);
}

/// A publisher without an archive index is asked for it only the first time.
#[test]
fn without_an_index_a_document_follows_on_its_prev_cursor() {
    let mut p = TestSource::new("ab");
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
    assert_eq!(d.requests.iter().filter(|url| url.contains("/archive/")).count(), 1, "{:?}", d.requests);
}

/// Carries the last document: equal buckets and cursor, a later time.
fn carry(p: &mut TestSource, now: i64) {
    for text in [&mut p.latest, &mut p.head] {
        let mut document: Value = serde_json::from_slice(text).unwrap();
        document["changed"] = json!(false);
        document["prev_cursor"] = document["cursor"].clone();
        document["generated_at"] = json!(at(now).to_string());
        *text = document.to_string().into_bytes();
    }
}

/// Section 2.2: a missed run whose snapshot is gone is delivered from the latest document, if that has it.
#[test]
fn a_missing_snapshot_is_replaced_by_the_latest_document() {
    for carried in [false, true] {
        let mut p = TestSource::new("ab");
        put(&mut p, "a", 0);
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.pass(&p, at(1), &[]);
        put(&mut p, "b", 2);
        put(&mut p, "c", 3);
        let index = p.index();
        p.snapshots.pop();
        if carried {
            carry(&mut p, 4);
        }
        d.index = Some(index);
        d.pass(&p, at(100), &[]);
        assert_eq!(ids(&d), ["a", "b", "c"], "{:?}", d.notices);
        assert!(matches!(d.notices.as_slice(), [Event::Warning(w)] if w.contains("gone")), "{:?}", d.notices);
        // The position is that of the snapshot, not of the document that replaced it.
        assert_eq!(d.state.as_ref().unwrap()["generated_at"], at(3).to_string());
    }
}

/// A removed item is published in its last known version, whose time may be before the removal.
#[test]
fn a_start_time_uses_document_times_if_items_have_none() {
    let dated = |id: &str, fetched: i64| {
        let mut item = item(id);
        item["provenance"] = json!({"fetched_at": at(fetched).to_string()});
        item
    };
    let mut p = TestSource::new("ab");
    mint(&mut p, &json!({"new": [dated("a", -9)]}), 1);
    mint(&mut p, &json!({"new": [dated("b", 2)]}), 2);
    mint(&mut p, &json!({"removed": [dated("a", -9)]}), 3);
    for (from, expected) in [(1, vec!["a", "b", "a"]), (2, vec!["a", "b"]), (3, vec!["a"]), (4, vec![])] {
        let mut d = Driver::new("/diff/ab", StartFrom::Time(at(from)));
        d.pass(&p, at(100), &[]);
        let mut told = ids(&d);
        told.sort_unstable();
        let mut expected = expected;
        expected.sort_unstable();
        assert_eq!(told, expected, "from {from}");
    }
}

/// A publisher like the public ones: cursors do not recompute, and there is no archive index.
#[test]
fn an_unprovable_feed_is_followed_with_warnings() {
    let document = |cursor: &str, prev: &str, id: &str| {
        json!({
            "cursor": cursor, "prev_cursor": prev, "changed": true, "cursor_basis": "canonical_v1",
            "ttl_sec": 60, "generated_at": "2026-01-01T00:00:00Z", "source_id": "ab",
            "buckets": {
                // An item that cannot be read is missing, and the document is not.
                "new": [item(id), {"id": 7}],
                "flagged": [item(&format!("f{id}"))],
                "removed": [item("gone")],
                // Section 4: clients may ignore unknown bucket types.
                "some_day": [item("unknown")]
            }
        })
    };
    let mut p = TestSource::new("ab");
    let serve = |p: &mut TestSource, cursor: &str, prev: &str, id: &str| {
        p.latest = document(cursor, prev, id).to_string().into_bytes();
        p.head = document(cursor, prev, id).to_string().into_bytes();
        p.chain.cursor = Cursor::of(cursor.as_bytes());
    };
    let mut d = Driver::new("/diff/ab/latest.json", StartFrom::Beginning);
    d.has_archive = false;
    serve(&mut p, "c2", "c1", "1");
    d.pass(&p, at(0), &[]);
    assert_eq!(d.ops(), [(Op::Put, "1"), (Op::Put, "f1"), (Op::Delete, "gone")], "{:?}", d.notices);
    let expected = "no index, no proof, an unknown bucket, a bad item";
    assert_eq!((d.incomplete(), d.notices.len()), (1, 4), "{expected}: {:?}", d.notices);
    serve(&mut p, "c3", "c2", "2");
    d.pass(&p, at(100), &[]);
    assert_eq!((d.changes.len(), d.incomplete(), d.notices.len()), (6, 2, 6), "{:?}", d.notices);
    serve(&mut p, "c9", "c8", "3");
    d.pass(&p, at(200), &[]);
    assert_eq!((d.changes.len(), d.incomplete()), (9, 4), "{:?}", d.notices);
}

/// An index that never reaches the latest document: what it lists is delivered, and only the rest is missing.
#[test]
fn an_index_that_lags_for_good_is_walked() {
    for follows_from in [0, 1] {
        let mut p = TestSource::new("ab");
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        for (number, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
            put(&mut p, id, i64::try_from(number).unwrap());
            if number < follows_from {
                d.pass(&p, at(1), &[]);
            }
        }
        p.snapshots.truncate(2);
        d.index = Some(p.index());
        for attempt in 1..=6 {
            assert_eq!(d.changes.len(), follows_from, "{attempt}: {:?}", d.notices);
            d.notices.clear();
            d.restart("/diff/ab");
            d.pass(&p, at(1000), &[]);
        }
        assert_eq!(ids(&d), ["a", "b", "d"], "{:?}", d.notices);
        assert_eq!((d.incomplete(), d.failed()), (1, 0), "{:?}", d.notices);
        // The next document needs no further attempts.
        put(&mut p, "e", 100);
        p.snapshots.truncate(2);
        d.index = Some(p.index());
        d.notices.clear();
        d.restart("/diff/ab");
        d.pass(&p, at(2000), &[]);
        assert_eq!((ids(&d).len(), d.notices.len()), (4, 0), "{:?}", d.notices);
    }
}

/// A site may hide its archive for minutes. Nothing else leads to the documents between the last pass and the latest.
#[test]
fn an_index_that_goes_away_is_waited_for() {
    let mut p = TestSource::new("ab");
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    put(&mut p, "0", 0);
    put(&mut p, "a", 1);
    d.pass(&p, at(10), &[]);
    d.changes.remove(0);
    put(&mut p, "b", 20);
    put(&mut p, "c", 30);
    d.has_archive = false;
    for pass in 0..3 {
        d.restart("/diff/ab");
        d.pass(&p, at(1000 + pass), &[]);
    }
    assert_eq!((ids(&d), d.incomplete(), d.failed()), (vec!["a"], 0, 3), "{:?}", d.notices);
    d.has_archive = true;
    d.restart("/diff/ab");
    d.pass(&p, at(2000), &[]);
    assert_eq!((ids(&d), d.incomplete()), (vec!["a", "b", "c"], 0), "{:?}", d.notices);
    // One that is gone for good does not stop the follower.
    put(&mut p, "d", 3000);
    put(&mut p, "e", 3100);
    d.has_archive = false;
    for pass in 0..7 {
        d.restart("/diff/ab");
        d.pass(&p, at(4000 + pass), &[]);
    }
    assert_eq!((ids(&d), d.incomplete()), (vec!["a", "b", "c", "e"], 1), "{:?}", d.notices);
}

/// Buckets and raw views of repositories serve every file as text or as bytes.
#[test]
fn an_index_of_another_media_type_is_read() {
    struct Plain(TestSource);
    impl TestSite for Plain {
        fn answer(&self, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
            let (status, mut headers, body) = answer(&self.0, request);
            headers.insert("content-type", "text/plain; charset=utf-8".parse().unwrap());
            (status, headers, body)
        }
    }
    let mut p = TestSource::new("ab");
    for (id, now) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&mut p, id, now);
    }
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&Plain(p), at(100), &[]);
    assert_eq!((ids(&d), d.incomplete()), (vec!["a", "b", "c"], 0), "{:?}", d.notices);
}

/// Some sites answer 403 for missing files.
#[test]
fn a_snapshot_that_is_forbidden_is_missing() {
    struct Forbidding(TestSource);
    impl TestSite for Forbidding {
        fn answer(&self, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
            let (status, headers, body) = answer(&self.0, request);
            (if request.url.ends_with("/archive/ab/2.json") { 403 } else { status }, headers, body)
        }
    }
    let mut p = TestSource::new("ab");
    for (id, now) in [("a", 1), ("b", 2), ("c", 3)] {
        put(&mut p, id, now);
    }
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&Forbidding(p), at(100), &[]);
    assert_eq!(ids(&d), ["a", "c"], "{:?}", d.notices);
    assert_eq!((d.incomplete(), d.failed()), (1, 0), "{:?}", d.notices);
}

/// JSON has no largest number, and JSON Schema counts a number with a zero fraction as an integer.
#[test]
fn numbers_of_any_size_cost_nothing() {
    for (member, ttl) in [
        ("\"ttl_sec\":300.0", 300),
        ("\"ttl_sec\":-5", 300),
        ("\"ttl_sec\":null", 300),
        ("\"ttl_sec\":1e300", 86_400),
        ("\"ttl_sec\":60,\"weird\":{\"score\":1e400}", 60),
    ] {
        let mut p = TestSource::new("ab");
        let large = json!({"source": "ab", "id": "large", "n": "1e400"});
        mint(&mut p, &json!({"new": [item("a"), large, item("b")]}), 1);
        for text in [&mut p.head, &mut p.latest] {
            let changed = String::from_utf8(text.clone()).unwrap();
            *text = changed.replace("\"ttl_sec\":60", member).replace("\"1e400\"", "1e400").into();
        }
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.has_archive = false;
        d.pass(&p, at(10), &[]);
        assert_eq!(ids(&d), ["a", "large", "b"], "{member}: {:?}", d.notices);
        assert_eq!(d.changes[1].item.extra["diffdelta"]["n"], "1e400");
        assert!(
            matches!(&d.notices[..], [Event::Warning(w)] if w.contains("without proof")),
            "{:?}",
            d.notices
        );
        let next = d.follower.poll_timeout().map(Monotonic::simulated_wall).unwrap();
        let wait = next.as_second() - at(10).as_second();
        assert!((ttl..=ttl + ttl / 10 + 1).contains(&wait), "{member}: {wait}");
    }
}

/// As values, many small numbers take many times their text: only one item is read at a time.
#[test]
fn a_document_of_many_small_values_is_read_at_default_limits() {
    let numbers: serde_json::Map<_, _> = (0..10).map(|n| (format!("number {n}"), json!(n))).collect();
    let mut p = TestSource::new("ab");
    let numbered = |n: u32| {
        let mut item = item(&n.to_string());
        item["risk"] = json!(numbers);
        item["provenance"] = json!({"fetched_at": at(i64::from(20_000 - n)).to_string()});
        item
    };
    mint(&mut p, &json!({"new": (0..20_000).map(numbered).collect::<Vec<_>>()}), 1);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(30_000), &[]);
    assert_eq!((d.changes.len(), d.notices.len()), (20_000, 0), "{:?}", d.notices);
    assert_eq!((ids(&d)[0], ids(&d)[19_999]), ("19999", "0"), "by time");
    assert_eq!(d.changes[0].position, format!("{}/1", p.chain.cursor));
    assert_eq!(d.changes[19_999].position, p.chain.cursor.to_string());
}

/// Of a feed of several sources, a reset names what was followed, and neither the index nor one of the sources.
#[test]
fn the_reset_of_the_global_feed_has_its_address() {
    let site = |id: &str, now: i64| {
        let mut p = TestSource::new("ab");
        mint(&mut p, &json!({"new": [item(id)]}), now);
        let mut latest: Value = serde_json::from_slice(&p.latest).unwrap();
        latest.as_object_mut().unwrap().remove("source_id");
        latest["cursor"] = json!(recompute(latest.to_string().as_bytes(), Style::Jcs).unwrap().to_string());
        let entry = json!({
            "cursor": latest["cursor"], "prev_cursor": latest["prev_cursor"], "url": "/archive/1.json",
            "generated_at": latest["generated_at"]
        });
        Global { latest, index: json!({"snapshots": [entry]}) }
    };
    let mut d = Driver::new("/diff/latest.json", StartFrom::Beginning);
    d.pass(&site("old", 1), at(10), &[]);
    d.pass(&site("new", 2), at(1000), &[]);
    assert_eq!(ids(&d), ["old", "new"], "{:?}", d.notices);
    let global = format!("{BASE}/diff/latest.json");
    assert!(matches!(&d.notices[..], [Event::Reset(reset)] if reset.feed == global), "{:?}", d.notices);
}

/// A global feed of one document.
struct Global {
    latest: Value,
    index: Value,
}

impl TestSite for Global {
    fn answer(&self, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
        let body = match request.url.strip_prefix(BASE) {
            Some("/diff/latest.json" | "/archive/1.json") => &self.latest,
            Some("/archive/_global/index.json") => &self.index,
            _ => return (404, HeaderMap::new(), Vec::new()),
        };
        (200, HeaderMap::new(), body.to_string().into_bytes())
    }
}
