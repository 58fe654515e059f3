//! HTTP responses of pull requests.

use serde_json::Value;

use crate::change::NewChange;
use crate::item::{Content, Item};
use crate::smart::publish::cursor::CursorKind;
use crate::smart::publish::pull::{Pull, PullError};
use crate::smart::publish::query::PullQuery;
use crate::smart::publish::testing::{MemoryLog, log, settings, time};
use crate::smart::publish::{fail, not_acceptable, refuse, respond};
use crate::smart::wire::Collection;
use crate::smart::wire::accept::{PageFormat, negotiate, negotiate_script};
use crate::smart::wire::atom::entry_without_id;
use crate::smart::wire::spec::OrderBy;

fn get(log: &mut MemoryLog, query: &str, accept: Option<&str>) -> http::Response<bytes::Bytes> {
    let feed = settings(CursorKind::Sequence);
    let query = match PullQuery::parse(query, &feed.limits) {
        Ok(query) => query,
        Err(error) => return refuse(&error),
    };
    let negotiate = if query.callback.is_some() { negotiate_script } else { negotiate };
    let Some(format) = negotiate(accept) else { return not_acceptable() };
    let mut pull = Pull::new(query, &feed, time(1_000_000));
    match log.run(&mut pull) {
        Ok(page) => respond(&feed, pull.query(), &page, format),
        Err(error) => fail(&error),
    }
}

fn header<'a>(response: &'a http::Response<bytes::Bytes>, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}

fn text(response: &http::Response<bytes::Bytes>) -> String {
    String::from_utf8(response.body().to_vec()).unwrap()
}

const ATOM: Option<&str> = Some("application/atom+xml");

/// HTTP Pull: set count, totalItems, url; last_cursor is set to the cursor of the last item; next.
#[test]
fn an_activitystreams_collection() {
    let mut log = log(&[("a", 10), ("b", 20), ("-a", 30)]);
    let response = get(&mut log, "lang=en&max=1&order=modified&timeout=0", None);
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "content-type"), "application/json; charset=utf-8");
    assert_eq!(header(&response, "vary"), "Accept");
    let page: Value = serde_json::from_slice(response.body()).unwrap();
    let cursor = settings(CursorKind::Sequence).tag.cursor(OrderBy::Modified, 2);
    assert_eq!((&page["count"], &page["totalItems"]), (&1.into(), &2.into()));
    assert_eq!(page["url"], "http://example.com/feeds/a/items?lang=en&order=modified");
    assert_eq!(page["last_cursor"], *cursor);
    let next =
        format!("http://example.com/feeds/a/items?lang=en&order=modified&since=cursor%3A{cursor}&max=1");
    assert_eq!(page["next"], *next);
    assert_eq!((&page["items"][0]["id"], page["items"].as_array().unwrap().len()), (&"b".into(), 1));

    // `next` leads to the last page.
    let query = next.split_once('?').unwrap().1;
    let page: Value = serde_json::from_slice(get(&mut log, query, None).body()).unwrap();
    assert_eq!((&page["items"][0]["id"], &page["items"][0]["deleted"]), (&"a".into(), &true.into()));
    assert_eq!(page.get("next"), None);
}

/// A link that kept only the second would let in what came later in it.
#[test]
fn next_keeps_the_end_of_the_range_to_the_millisecond() {
    let mut log = MemoryLog::default();
    for (id, millisecond) in [("a", 8_000), ("b", 9_000), ("c", 10_000), ("d", 10_500)] {
        log.append(NewChange::put(Item::new(id)), jiff::Timestamp::from_millisecond(millisecond).unwrap());
    }
    let mut query = "until=time:1970-01-01T00:00:10.000Z&max=1".to_owned();
    let mut ids = Vec::new();
    while ids.len() < 5 {
        let page: Value = serde_json::from_slice(get(&mut log, &query, None).body()).unwrap();
        ids.push(page["items"][0]["id"].clone());
        let Some(next) = page["next"].as_str() else { break };
        query = next.split_once('?').unwrap().1.to_owned();
        assert!(query.contains("10.000Z"), "{query}");
        // The same in Atom.
        let atom = text(&get(&mut log, &query, ATOM));
        assert!(!atom.contains("rel=\"next\"") || atom.contains("10.000Z"), "{atom}");
    }
    assert_eq!(ids, ["a", "b", "c"]);
}

/// JSON Activity Streams 1.0, section 4: a stream MUST include `items`, so an empty one does too.
#[test]
fn an_empty_collection_has_items() {
    let page: Value = serde_json::from_slice(get(&mut MemoryLog::default(), "", None).body()).unwrap();
    let expected = serde_json::json!({
        "count": 0, "totalItems": 0, "url": "http://example.com/feeds/a/items", "items": []
    });
    assert_eq!(page, expected);
}

/// HTTP Pull: each entry MUST have a fo:id value, even if XML cannot hold the item's id. Our reader restores such ids.
#[test]
fn every_entry_has_a_fo_id() {
    for id in ["t\u{1}", "\u{fffe}", "urn:a:\u{7}", "a b"] {
        let mut log = log(&[(id, 10), (&format!("-{id}"), 20)]);
        let body = get(&mut log, "timeout=0", ATOM).into_body();
        assert_eq!(entry_without_id(&body), None, "{id:?}");
        let page = Collection::from_atom(&body, "http://example.com/").unwrap();
        assert_eq!((page.items[0].item.id.as_str(), page.items[0].deleted), (id, true));
    }
}

/// HTTP Pull: fo:total, fo:last_cursor, rel=self is the base URL; each entry MUST have a fo:id value.
#[test]
fn an_atom_document() {
    let mut log =
        log(&[("b204edf6-7a03-11e0-8617-837f7e2798e8", 10), ("http://a/&", 20), ("-http://a/&", 30)]);
    let response = get(&mut log, "order=modified&max=2&timeout=0", ATOM);
    assert_eq!(header(&response, "content-type"), "application/atom+xml; charset=utf-8");
    let text = text(&response);
    let cursor = settings(CursorKind::Sequence).tag.cursor(OrderBy::Modified, 3);
    for piece in [
        r#"xmlns:fo="http://fanout.org/protocol/atom""#,
        r#"<link rel="self" type="application/atom+xml" href="http://example.com/feeds/a/items?order=modified"/>"#,
        "<fo:total>2</fo:total>",
        &format!("<fo:last_cursor>{cursor}</fo:last_cursor>"),
        "<fo:id>b204edf6-7a03-11e0-8617-837f7e2798e8</fo:id>",
        "<fo:id>http://a/&amp;</fo:id>",
        "<id>http://example.com/feeds/a/items/b204edf6-7a03-11e0-8617-837f7e2798e8</id>",
        r#"<at:deleted-entry xmlns:at="http://purl.org/atompub/tombstones/1.0" ref="http://a/&amp;" when="1970-01-01T00:00:30Z"/>"#,
    ] {
        assert!(text.contains(piece), "{piece}\n{text}");
    }
    let first = get(&mut log, "order=modified&max=1&timeout=0", ATOM);
    let next = r#"<link rel="next" type="application/atom+xml" href="http://example.com/feeds/a/items?order=modified&amp;since=cursor%3A"#;
    assert!(String::from_utf8_lossy(first.body()).contains(next));
}

/// HTTP Pull: JSON-P is application/javascript, and wraps ActivityStreams or Atom as Accept says.
#[test]
fn a_script_calls_the_function() {
    let mut log = log(&[]);
    // Text that ends a script element, or a line of older JavaScript.
    let content = Content::new("text/html", "</script>\u{2028}alert(1)\u{2029}");
    log.append(NewChange::put(Item { content: Some(content), ..Item::new("a") }), time(10));
    for (accept, starts, ends) in [(None, "/**/a.b({\"count\":1", "]});"), (ATOM, "/**/a.b(\"<?xml", "\");")]
    {
        let response = get(&mut log, "callback=a.b&timeout=0", accept);
        assert_eq!(header(&response, "content-type"), "application/javascript; charset=utf-8");
        assert_eq!(header(&response, "x-content-type-options"), "nosniff");
        let text = text(&response);
        assert!(text.starts_with(starts) && text.ends_with(ends), "{text}");
        assert!(!text.contains(['\u{2028}', '\u{2029}', '\n']), "{text}");
        assert!(!text.contains("callback"), "the base URL has no range parameters: {text}");
    }
}

/// Errors are problem documents that name the parameter (RFC 9457).
#[test]
fn errors_are_problem_documents() {
    let mut log = log(&[("a", 10)]);
    let name = format!("callback={}", "a".repeat(10_000));
    let cursor = format!("since=cursor:{}", "x".repeat(1 << 20));
    let cases = [
        ("max=0", None, 400, Some("max")),
        ("max=x", None, 400, Some("max")),
        ("timeout=x", None, 400, Some("timeout")),
        ("order=x", None, 400, Some("order")),
        ("since=x", None, 400, Some("since")),
        ("until=time:x", None, 400, Some("until")),
        ("until=id:a&order=modified", None, 400, Some("until")),
        ("callback=alert(1)//", None, 400, Some("callback")),
        ("callback=\\u0061lert", None, 400, Some("callback")),
        (&name, None, 400, Some("callback")),
        (&cursor, None, 400, Some("since")),
        ("order=created&since=id:none", None, 404, None),
        ("", Some("text/html"), 406, None),
        ("", Some("image/*, application/json;q=0"), 406, None),
    ];
    for (query, accept, status, parameter) in cases {
        let response = get(&mut log, query, accept);
        assert_eq!(response.status().as_u16(), status, "{query:.60}");
        assert_eq!(header(&response, "content-type"), "application/problem+json");
        let problem: Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(problem["status"], status);
        assert_eq!(problem.get("parameter").and_then(Value::as_str), parameter, "{query:.60}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() < 400));
    }
    assert_eq!(fail(&PullError::UnexpectedResult).status(), 500);
}

#[test]
fn the_accept_header_decides() {
    assert_eq!(negotiate(ATOM), Some(PageFormat::Atom));
    let mut log = log(&[("a", 10)]);
    assert!(header(&get(&mut log, "", Some("*/*")), "content-type").starts_with("application/json"));
}
