//! Following the documents of the public publisher, in every form that it has had.

use serde_json::json;

use super::foreign::{ids, item};
use super::*;

/// Serves these documents by path; a path without one answers 404.
struct Site(Vec<(&'static str, Vec<u8>)>);

impl Site {
    fn new(documents: &[(&'static str, Value)]) -> Self {
        Self(documents.iter().map(|(path, value)| (*path, value.to_string().into_bytes())).collect())
    }
}

impl TestSite for Site {
    fn answer(&self, request: &Request) -> (u16, HeaderMap, Vec<u8>) {
        let path = request.url.strip_prefix(BASE).unwrap();
        let Some((_, body)) = self.0.iter().find(|(known, _)| *known == path) else {
            return (404, HeaderMap::new(), Vec::new());
        };
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        let etag = format!("\"{}\"", Cursor::of(body).short());
        headers.insert("etag", HeaderValue::from_str(&etag).unwrap());
        if request.headers.get("if-none-match").is_some_and(|v| v == etag.as_str()) {
            return (304, headers, Vec::new());
        }
        (200, headers, body.clone())
    }
}

fn document(cursor: &str, prev: &str, minute: u8, buckets: &Value) -> Value {
    json!({
        "schema_version": "1.2.0", "generated_at": format!("2026-02-10T14:{minute:02}:00Z"), "source_id": "ab",
        "cursor": cursor, "prev_cursor": prev, "changed": true, "ttl_sec": 300,
        "sources_included": ["ab"], "batch_narrative": "ab: 2 releases.", "buckets": buckets
    })
}

fn head(cursor: &Value, minute: u8) -> Value {
    json!({
        "cursor": cursor, "prev_cursor": cursor, "changed": false, "ttl_sec": 300,
        "generated_at": format!("2026-02-10T14:{minute:02}:00Z"), "latest_url": "/diff/ab/latest.json",
        "counts": {"items": 0, "updated": 0, "removed": 0}
    })
}

fn warnings(d: &Driver) -> Vec<&str> {
    fn text(event: &Event) -> Option<&str> {
        match event {
            Event::Warning(text) => Some(text),
            _ => None,
        }
    }
    d.notices.iter().filter_map(text).collect()
}

/// Most public feeds have a single bucket, `items`, for new and updated items.
#[test]
fn items_of_the_bucket_items_are_delivered() {
    let removed = json!({"source": "ab", "id": "gone", "change": "removed"});
    let buckets =
        json!({"items": [item("1"), item("2"), removed], "resolved": [item("3"), item("4")], "notes": {}});
    let site = Site::new(&[
        ("/diff/ab/head.json", head(&json!("c2"), 1)),
        ("/diff/ab/latest.json", document("c2", "c1", 1, &buckets)),
    ]);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&site, at(0), &[]);
    assert_eq!(d.ops(), [(Op::Put, "1"), (Op::Put, "2"), (Op::Delete, "gone")], "{:?}", d.notices);
    // Section 4 lets clients ignore unknown buckets, but not in silence.
    assert!(
        warnings(&d).iter().any(|w| w.contains("\"resolved\"") && w.contains("2 items")),
        "{:?}",
        d.notices
    );
    assert!(!warnings(&d).iter().any(|w| w.contains("notes")), "no items: {:?}", d.notices);
    assert_eq!((d.failed(), d.incomplete()), (0, 0));
}

/// A large text is in memory as the document, as its item's text and as the content: three times its size.
#[test]
fn a_large_text_is_read_at_default_limits() {
    let mut large = item("1");
    large["content"] = json!({"text": "a".repeat(9 << 20)});
    let site = Site::new(&[
        ("/diff/ab/head.json", head(&json!("c2"), 1)),
        ("/diff/ab/latest.json", document("c2", "c1", 1, &json!({"items": [large]}))),
    ]);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&site, at(0), &[]);
    assert_eq!(d.ops(), [(Op::Put, "1")], "{:?}", d.notices);
}

/// Some public documents list an item twice. Versions that differ are told, in their order.
#[test]
fn an_item_that_is_listed_twice_is_delivered_once() {
    let mut other = item("1");
    other["headline"] = json!("another");
    let buckets =
        json!({"items": [item("1"), item("1"), item("2"), other, item("1")], "updated": [item("2")]});
    let site = Site::new(&[
        ("/diff/ab/head.json", head(&json!("c2"), 1)),
        ("/diff/ab/latest.json", document("c2", "c1", 1, &buckets)),
    ]);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&site, at(0), &[]);
    // The bucket `updated` comes first.
    let expected = [(Op::Put, "2"), (Op::Put, "1"), (Op::Put, "1"), (Op::Put, "1")];
    assert_eq!(d.ops(), expected, "{:?}", d.notices);
}

/// Version 1.0.0 of the public documents had no `buckets`, and cursors of another form.
#[test]
fn buckets_beside_buckets_are_delivered() {
    let mut old = document("2026-02-02T23:59:26Z|b", "2026-02-02T23:56:33Z|a", 1, &Value::Null);
    old["new"] = json!([item("1"), item("2")]);
    old["updated"] = json!([]);
    old["resolved"] = json!([item("3")]);
    let site = Site::new(&[("/diff/source/ab/latest.json", old)]);
    let mut d = Driver::new("/diff/source/ab", StartFrom::Beginning);
    d.pass(&site, at(0), &[]);
    assert_eq!(d.ops(), [(Op::Put, "1"), (Op::Put, "2")], "{:?}", d.notices);
    // These cursors are resume points, too.
    for (index, change) in d.changes.iter().enumerate() {
        let mut rest = Driver::new("/diff/source/ab", StartFrom::Position(change.position.clone()));
        rest.pass(&site, at(0), &[]);
        assert_eq!(rest.changes, d.changes[index + 1..], "{}: {:?}", change.position, rest.notices);
    }
    assert!(
        warnings(&d).iter().any(|w| w.contains("\"resolved\"") && w.contains("1 item")),
        "{:?}",
        d.notices
    );
}

/// A disabled source has a null cursor in its head, and the zero cursor in its latest document.
#[test]
fn a_source_without_a_cursor_is_explained() {
    let mut latest = document(&Cursor::ZERO.to_string(), &Cursor::ZERO.to_string(), 1, &json!({"new": []}));
    latest["changed"] = json!(false);
    latest["status"] = json!("disabled");
    let paths = |latest: Value| {
        Site::new(&[("/diff/ab/head.json", head(&Value::Null, 1)), ("/diff/ab/latest.json", latest)])
    };
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    for now in [0, 1000] {
        d.pass(&paths(latest.clone()), at(now), &[]);
        assert!(matches!(warnings(&d)[..], [w] if w.contains("disabled")), "once: {:?}", d.notices);
        assert_eq!((d.failed(), d.changes.len()), (0, 0), "{:?}", d.notices);
    }
    // A source that is disabled after it had changes has nothing new.
    let site = Site::new(&[
        ("/diff/ab/head.json", head(&json!("c2"), 1)),
        ("/diff/ab/latest.json", document("c2", "c1", 1, &json!({"new": [item("1")]}))),
    ]);
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&site, at(0), &[]);
    d.pass(&paths(latest), at(1000), &[]);
    assert_eq!((d.changes.len(), d.failed()), (1, 0), "{:?}", d.notices);
}

/// The public indexes state a URL and a time in the file name's form, and lack snapshots in between.
#[test]
fn an_index_of_urls_and_times_is_used_as_far_as_it_goes() {
    let entry = |n: u8| json!({"url": format!("/archive/ab/s{n}.json"), "generated_at": format!("20260210T14{n:02}00Z")});
    let snapshot = |n: u8| {
        document(&format!("c{n}"), &format!("c{}", n - 1), n, &json!({"items": [item(&n.to_string())]}))
    };
    let paths =
        ["/", "/archive/ab/s1.json", "/archive/ab/s2.json", "/archive/ab/s3.json", "/archive/ab/s4.json"];
    let site = |latest: u8, listed: &[u8]| {
        let mut documents = vec![
            ("/diff/ab/head.json", head(&json!(format!("c{latest}")), latest)),
            ("/diff/ab/latest.json", snapshot(latest)),
            (
                "/archive/ab/index.json",
                json!({"total": 9, "snapshots": listed.iter().map(|n| entry(*n)).collect::<Vec<_>>()}),
            ),
        ];
        documents.extend(listed.iter().map(|n| (paths[usize::from(*n)], snapshot(*n))));
        Site::new(&documents)
    };
    // From the beginning, newest first.
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&site(3, &[3, 2, 1]), at(0), &[]);
    assert_eq!(ids(&d), ["1", "2", "3"], "{:?}", d.notices);
    assert_eq!((d.incomplete(), d.failed()), (0, 0), "{:?}", d.notices);
    // The index lacks the latest.
    d.pass(&site(4, &[1, 2, 3]), at(1000), &[]);
    assert_eq!((ids(&d).len(), d.incomplete(), d.failed()), (4, 0, 0), "{:?}", d.notices);
    // It lacks one between.
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&site(1, &[1]), at(0), &[]);
    d.pass(&site(4, &[1, 3, 4]), at(1000), &[]);
    assert_eq!(ids(&d), ["1", "3", "4"], "{:?}", d.notices);
    assert_eq!((d.incomplete(), d.failed()), (1, 0), "{:?}", d.notices);
    // It lacks the last two.
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&site(1, &[1]), at(0), &[]);
    d.pass(&site(4, &[1, 2]), at(1000), &[]);
    assert_eq!(ids(&d), ["1", "2", "4"], "{:?}", d.notices);
    assert_eq!((d.incomplete(), d.failed()), (1, 0), "{:?}", d.notices);
    // A snapshot is gone, and one entry has no URL.
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    let mut holed = site(4, &[1, 3, 4]);
    holed.0.retain(|(path, _)| *path != "/archive/ab/s3.json");
    d.pass(&holed, at(0), &[]);
    assert_eq!(ids(&d), ["1", "4"], "{:?}", d.notices);
    assert_eq!((d.incomplete(), d.failed()), (2, 0), "gone, and the gap before 4: {:?}", d.notices);
}

/// Some publishers list the newest snapshot first.
#[test]
fn an_index_in_any_order_is_walked_oldest_first() {
    let p = three_mints();
    let whole: Value = serde_json::from_slice(&p.index()).unwrap();
    for order in [[2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        let mut index = whole.clone();
        index["snapshots"] = order.map(|n| whole["snapshots"][n].clone()).into();
        let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
        d.index = Some(index.to_string().into());
        d.pass(&p, at(50), &[]);
        let titles: Vec<_> = d.changes.iter().filter_map(|c| c.item.title.as_deref()).collect();
        assert_eq!(titles, ["1", "2", "3"], "{order:?}: {:?}", d.notices);
        assert_eq!(d.notices, [], "{order:?}");
    }
}

/// A program that is started for each pass polls conditionally, too.
#[test]
fn a_state_polls_conditionally() {
    let p = three_mints();
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.pass(&p, at(50), &[]);
    d.restart("/diff/ab");
    let request = d.follower.poll_request(Now::simulated(at(60))).unwrap();
    assert_eq!(request.headers["if-none-match"], format!("\"{}\"", p.chain.cursor));
    // A start from now, and a static file without a head.
    for (address, from) in [("/diff/ab", StartFrom::Now), ("/diff/ab/latest.json", StartFrom::Beginning)] {
        let latest = ("/diff/ab/latest.json", document("c2", "c1", 1, &json!({"new": [item("1")]})));
        let site = Site::new(&[("/diff/ab/head.json", head(&json!("c2"), 1)), latest.clone()]);
        let site = if from == StartFrom::Now { site } else { Site::new(&[latest]) };
        let mut d = Driver::new(address, from);
        d.pass(&site, at(0), &[]);
        for _ in 0..2 {
            d.restart(address);
            d.requests.clear();
            d.pass(&site, at(1000), &[]);
        }
        assert_eq!(d.answers.last(), Some(&304), "{address}: {:?}", d.requests);
    }
}

/// RFC 8259, section 8.1: a reader may ignore a byte order mark.
#[test]
fn a_byte_order_mark_is_ignored() {
    let mut p = three_mints();
    let marked = |text: &[u8]| [b"\xef\xbb\xbf", text].concat();
    (p.head, p.latest) = (marked(&p.head), marked(&p.latest));
    for (entry, text) in &mut p.snapshots {
        *text = marked(text);
        entry.sha256 = Cursor::of(text).hex();
    }
    let mut d = Driver::new("/diff/ab", StartFrom::Beginning);
    d.index = Some(marked(&p.index()).into());
    d.pass(&p, at(50), &[]);
    assert_eq!((d.changes.len(), d.notices.len()), (3, 0), "{:?}", d.notices);
}

/// A document that does not state its source is of the source in its path.
#[test]
fn the_address_names_the_source() {
    let unnamed = |minute: u8, id: &str| {
        let unnamed = json!({"id": id, "headline": "h"});
        let mut document =
            document(&format!("c{minute}"), &format!("c{}", minute - 1), minute, &json!({"new": [unnamed]}));
        document.as_object_mut().unwrap().remove("source_id");
        document
    };
    let entry = |n: u8| json!({"url": format!("s{n}.json")});
    let site = Site::new(&[
        ("/diff/source/ab/latest.json", unnamed(2, "2")),
        ("/archive/ab/index.json", json!({"snapshots": [entry(1), entry(2)]})),
        ("/archive/ab/s1.json", unnamed(1, "1")),
        ("/archive/ab/s2.json", unnamed(2, "2")),
        ("/archive/_global/index.json", json!({"snapshots": []})),
    ]);
    let mut d = Driver::new("/diff/source/ab", StartFrom::Beginning);
    d.pass(&site, at(0), &[]);
    assert_eq!(ids(&d), ["1", "2"], "{:?} {:?}", d.requests, d.notices);
    assert!(d.changes.iter().all(|change| change.feed == "ab"), "{:?}", d.changes);
}
