use http::HeaderMap;

use super::*;

fn detected(url: &str, status: u16, content_type: &str, start: &str) -> Option<(Protocol, String)> {
    let mut headers = HeaderMap::new();
    headers.insert("content-type", content_type.parse().unwrap());
    let head = ResponseHead { status, url: url.into(), headers };
    let url = Url::parse(url).unwrap();
    let probed = ProbedResponse { url: &url, head: &head, start: start.as_bytes() };
    let offer = preferred(offers(&probed), FollowPace::Held)?;
    Some((offer.protocol, offer.url))
}

fn protocol(content_type: &str, start: &str) -> Option<Protocol> {
    detected("http://x/a", 200, content_type, start).map(|(protocol, _)| protocol)
}

#[test]
fn protocols_are_detected_by_the_document() {
    let json = "application/json";
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom'";
    for (content_type, start, expected) in [
        (json, r#"{"cursor":"sha256:0","prev_cursor":"sha256:0"}"#.to_owned(), Protocol::DiffDelta),
        (json, r#"{"endpoints":{"diff_latest":"/diff/latest.json"}}"#.into(), Protocol::DiffDelta),
        ("Multipart/Mixed; boundary=a", "--a".into(), Protocol::Replication),
        (json, r#"{"createdAt":"…","pages":[]}"#.into(), Protocol::Replication),
        (json, r#"{"items":[],"last_cursor":"1"}"#.into(), Protocol::Smart),
        (json, r#"{"count":0,"totalItems":0,"url":"http://x/a","items":[]}"#.into(), Protocol::Smart),
        (
            "text/xml",
            format!("{atom} xmlns:fo='http://fanout.org/protocol/atom'><fo:total>1</fo:total>"),
            Protocol::Smart,
        ),
        (
            "text/xml",
            "<rss xmlns:fh='http://purl.org/syndication/history/1.0'><channel><fh:complete/>".into(),
            Protocol::History,
        ),
        ("text/xml", format!("{atom}><link rel='prev-archive' href='a'/>"), Protocol::History),
        ("text/xml", format!("{atom}><link rel='next' href='?page=2'/>"), Protocol::History),
        // A byte order mark and white space before the document are common.
        ("text/html", "\u{feff}  <rss version='2.0'>".into(), Protocol::Rss),
        ("text/xml", format!("{atom} xmlns:fh='http://purl.org/syndication/history/1.0'>"), Protocol::Rss),
        (
            "text/xml",
            "<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#'>".into(),
            Protocol::Rss,
        ),
        ("text/plain", r#"{"version":"https://jsonfeed.org/version/1.1","items":[]}"#.into(), Protocol::Rss),
        (
            json,
            r#"{"version":"https://jsonfeed.org/version/1.1","items":[],"next_url":"/2"}"#.into(),
            Protocol::History,
        ),
        (json, r#"{"updates":[],"since_time":"","updated_time":""}"#.into(), Protocol::Sup),
    ] {
        assert_eq!(protocol(content_type, &start), Some(expected), "{start}");
    }
    // None of these is a feed, though some share a member name or a format with one.
    for start in [
        "",
        "hello",
        "{}",
        "<html>",
        "[1]",
        r#"{"a":{"cursor":1,"prev_cursor":2}}"#,
        "<opml>",
        "{\"items\":[]}",
    ] {
        assert_eq!(protocol("text/html", start), None, "{start}");
    }
}

#[test]
fn errors_show_no_protocol_but_an_empty_replication_feed_does() {
    let document = r#"{"cursor":"sha256:0","prev_cursor":"sha256:0"}"#;
    assert_eq!(detected("http://x/diff/a/head.json", 500, "application/json", document), None);
    let empty = detected("http://x/feeds/a/replication", 404, "application/problem+json", "{}");
    assert_eq!(empty.map(|(protocol, _)| protocol), Some(Protocol::Replication));
}

#[test]
fn the_strongest_of_a_list_of_addresses_is_chosen() {
    let list = r#"{"id":"aa","addresses":[{"name":"atom","url":"/a/atom"},{"name":"head","url":"http://y/diff/a/head.json"},
        {"name":"items","url":"/a/items"}]}"#;
    let offer = detected("http://x/feeds/a", 200, "application/json", list);
    assert_eq!(offer, Some((Protocol::DiffDelta, "http://y/diff/a/head.json".into())));
}

#[test]
fn a_list_of_addresses_tells_the_feeds_name() {
    let names = |id: &str| {
        let list = format!(r#"{{"id":{id},"addresses":[{{"name":"smart","url":"/a/items"}}]}}"#);
        let url = Url::parse("http://x/feeds/aa").unwrap();
        let head = ResponseHead { status: 200, url: url.to_string(), headers: HeaderMap::new() };
        let found = offers(&ProbedResponse { url: &url, head: &head, start: list.as_bytes() });
        found.into_iter().map(|offer| offer.feed.map(|name| name.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(names("\"aa\""), [Some("aa".into())]);
    // Somebody else's list, whose id is no feed's name.
    assert_eq!(names("\"http://x/a\""), [None]);
    assert_eq!(names("7"), [None]);
}

#[test]
fn the_reason_names_the_guarantee_and_weaker_protocols() {
    let offer = |protocol, url: &str| Offer { protocol, url: url.into(), why: "it is so".into(), feed: None };
    let found = vec![
        offer(Protocol::Rss, "http://x/rss"),
        offer(Protocol::Smart, "http://x/1"),
        offer(Protocol::Smart, "http://x/2"),
        offer(Protocol::History, "http://x/atom"),
    ];
    let taken = preferred(found, FollowPace::Held).unwrap();
    assert_eq!(
        (taken.url.as_str(), taken.why.as_str()),
        ("http://x/1", "it is so (exactly once; weaker: history, rss)")
    );
    assert_eq!(preferred(vec![], FollowPace::Held), None);
}

/// Of one promise, a single follower takes the long poll, and one of many feeds the cheapest poll.
#[test]
fn among_equal_guarantees_the_pace_decides() {
    let offer = |protocol| Offer { protocol, url: "http://x/".into(), why: "it is so".into(), feed: None };
    let found = || {
        vec![
            offer(Protocol::DiffDelta),
            offer(Protocol::Replication),
            offer(Protocol::Smart),
            offer(Protocol::Rss),
        ]
    };
    let held = preferred(found(), FollowPace::Held).unwrap();
    assert_eq!(
        (held.protocol, held.why.as_str()),
        (Protocol::Smart, "it is so (exactly once; later: diffdelta, replication; weaker: rss)")
    );
    let polled = preferred(found(), FollowPace::Polled).unwrap();
    assert_eq!(
        (polled.protocol, polled.why.as_str()),
        (Protocol::DiffDelta, "it is so (exactly once; costlier: replication, smart; weaker: rss)")
    );
    let without =
        preferred(found().into_iter().filter(|o| o.protocol != Protocol::Smart).collect(), FollowPace::Held);
    assert_eq!(without.unwrap().protocol, Protocol::Replication);
}

#[test]
fn alternates_come_from_headers_and_pages_by_media_type() {
    let mut headers = HeaderMap::new();
    let link = "</a.json>; rel=alternate; type=\"application/feed+json\", </de>; rel=alternate; hreflang=de, \
                </self>; rel=alternate; type=application/atom+xml";
    headers.insert("link", link.parse().unwrap());
    let head = ResponseHead { status: 200, url: "http://x/self".into(), headers };
    let url = Url::parse("http://x/self").unwrap();
    let page = "<!DOCTYPE html><link rel=alternate type='application/rss+xml' href='b.rss'>\
                <link rel=alternate type='text/css' href='c'><link rel=alternate type='application/feed+json' href='a.json'>";
    let named = alternates(&ProbedResponse { url: &url, head: &head, start: page.as_bytes() });
    assert_eq!(named, ["http://x/a.json", "http://x/b.rss"]);
}
