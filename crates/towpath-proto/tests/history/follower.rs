//! The follower against each kind of feed.

use http::Method;
use towpath_proto::Op;
use towpath_proto::follow::{Exchange, FollowError, Monotonic, StartFrom};
use towpath_proto::history::follow::{CrawlLimits, HistoryFollowOptions, HistoryFollower};

use crate::web::{
    HistorySite, SiteResponse, atom, drive, follow, follow_from, link, once, serve, site, start,
};

const FEED: &str = "http://a.example/feed";

fn url(name: &str) -> String {
    format!("http://a.example/{name}")
}

/// Three archive documents and the newest.
fn archived() -> HistorySite {
    let document = |number: u32, entries: &[(&str, &str, u32)]| {
        let prev = if number > 1 { link("prev-archive", &format!("/{}", number - 1)) } else { String::new() };
        atom(&format!("<fh:archive/>{}{prev}", link("current", "/feed")), entries)
    };
    let newest = atom(&link("prev-archive", "/3"), &[("urn:d", "d", 9), ("urn:a", "a3", 8)]);
    site(&[
        (FEED, newest),
        ("http://a.example/1", document(1, &[("urn:b", "b1", 2), ("urn:a", "a1", 1)])),
        ("http://a.example/2", document(2, &[("urn:c", "c1", 4), ("urn:a", "a2", 3)])),
        ("http://a.example/3", document(3, &[("urn:b", "b2", 5), ("urn:a", "a0", 1)])),
    ])
}

/// RFC 5005, section 4.2: back to the missing `prev-archive`; "only the most recently updated entry".
#[test]
fn archived_feeds_are_walked_back_and_read_forward() {
    let mut site = archived();
    let result = follow(FEED, None, &site);
    assert_eq!(
        result.lines(),
        [
            "put urn:a a1",
            "put urn:b b1",
            "put urn:a a2",
            "put urn:c c1",
            "put urn:b b2",
            "put urn:a a3",
            "put urn:d d"
        ]
    );
    assert_eq!(result.requests.len(), 4, "each document once: {:?}", result.requests);
    assert_eq!((&result.warnings, &result.incomplete), (&vec![], &vec![]));
    // "until the client encounters a prev-archive link relation that has been processed".
    let again = follow(FEED, result.state.clone(), &site);
    assert_eq!((again.lines().len(), again.requests.len()), (0, 1));
    assert_eq!(again.state, None, "no new checkpoint");
    site.insert(url("4"), SiteResponse::ok(atom(&link("prev-archive", "/3"), &[("urn:d", "d", 9)])));
    site.insert(FEED.into(), SiteResponse::ok(atom(&link("prev-archive", "/4"), &[("urn:e", "e", 10)])));
    let more = follow(FEED, result.state, &site);
    assert_eq!((more.lines(), more.requests.len()), (vec!["put urn:e e".to_owned()], 2));
}

/// Of versions with equal dates the later document wins, in any reading order.
#[test]
fn equally_old_versions() {
    let site = site(&[
        (FEED, atom(&link("prev-archive", "/1"), &[("urn:a", "new", 1)])),
        ("http://a.example/1", atom("", &[("urn:a", "old", 1)])),
    ]);
    assert_eq!(follow(FEED, None, &site).lines(), ["put urn:a old", "put urn:a new"]);
}

#[test]
fn documents_that_are_not_cached_are_fetched_again() {
    let limits = CrawlLimits { cached: 0, ..CrawlLimits::default() };
    let options = HistoryFollowOptions { limits, ..once() };
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options).unwrap();
    let site = archived();
    let result = drive(&mut follower, &mut start(), start(), serve(&site));
    assert_eq!(result.lines(), follow(FEED, None, &site).lines());
    // Four on the way back, and the three archives again on the way forward.
    assert_eq!(result.requests.len(), 7);
}

#[test]
fn the_walk_back_uses_head_if_headers_have_the_links() {
    let mut site = archived();
    for (name, prev) in [("feed", "3"), ("3", "2"), ("2", "1")] {
        let answer = site.remove(&url(name)).unwrap();
        site.insert(url(name), answer.with("link", &format!("</{prev}>; rel=prev-archive")));
    }
    let result = follow(FEED, None, &site);
    assert_eq!(result.lines(), follow(FEED, None, &archived()).lines());
    let heads = result.requests.iter().filter(|(method, _)| method == Method::HEAD).count();
    // GET for the newest, HEAD for three archives, then GET for those, oldest first.
    assert_eq!((heads, result.requests.len()), (3, 7));
    // Headers that end too early lose nothing: the document itself decides.
    let answer = site.remove(&url("2")).unwrap();
    site.insert(url("2"), SiteResponse::ok(answer.body));
    assert_eq!(follow(FEED, None, &site).lines(), result.lines());
}

/// -00, section 3: flag 0, "previous entries SHOULD NOT be considered part of the feed"; RFC 5005, section 2.
#[test]
fn complete_documents_replace_what_is_known() {
    for mark in ["<fh:Stateful>0</fh:Stateful>", "<fh:stateful>false</fh:stateful>", "<fh:complete/>"] {
        let head = format!("{mark}{}{}", link("this", "/t"), link("prev", "/1"));
        let mut site = site(&[(FEED, atom(&head, &[("urn:a", "a", 5), ("urn:b", "b", 2)]))]);
        let result = follow(FEED, None, &site);
        assert_eq!(result.lines(), ["put urn:b b", "put urn:a a"]);
        assert_eq!(result.requests.len(), 1, "links are ignored");
        // A complete document is the truth even where its entry is older than the known one.
        site.insert(FEED.into(), SiteResponse::ok(atom(&head, &[("urn:c", "c", 1), ("urn:a", "older", 3)])));
        let result = follow(FEED, result.state, &site);
        let mut lines = result.lines();
        lines.sort();
        assert_eq!(lines, ["delete urn:b", "put urn:a older", "put urn:c c"]);
        site.insert(FEED.into(), SiteResponse::ok(atom(&head, &[])));
        assert_eq!(follow(FEED, result.state, &site).lines(), ["delete urn:a", "delete urn:c"]);
    }
}

/// -00, section 3: flag 1, "previous entries MUST be considered part of the feed". Without a flag nothing is deleted
/// either.
#[test]
fn absence_is_no_deletion_in_other_feeds() {
    for mark in ["<fh:Stateful>1</fh:Stateful>", ""] {
        let mut site = site(&[(FEED, atom(mark, &[("urn:a", "a", 1), ("urn:b", "b", 1)]))]);
        let result = follow(FEED, None, &site);
        site.insert(FEED.into(), SiteResponse::ok(atom(mark, &[("urn:a", "a", 1)])));
        assert_eq!(follow(FEED, result.state, &site).changes, []);
    }
}

/// RFC 6721, section 3.
#[test]
fn deleted_entries() {
    let gone = "<at:deleted-entry ref='urn:a' when='2025-01-05T00:00:00Z'/>";
    let head = |day: &str| link("prev-archive", "/1") + &gone.replace("01-05", day);
    let old = atom("", &[("urn:b", "b", 2), ("urn:a", "a", 3)]);
    let site = site(&[(FEED, atom(&head("01-05"), &[])), ("http://a.example/1", old.clone())]);
    let result = follow(FEED, None, &site);
    assert_eq!(result.lines(), ["put urn:b b", "put urn:a a", "delete urn:a"]);
    assert_eq!(result.changes[2].op, Op::Delete);
    let site = crate::web::site(&[(FEED, atom(&head("01-02"), &[])), ("http://a.example/1", old)]);
    assert_eq!(follow(FEED, None, &site).lines().len(), 2, "the entry was changed after the deletion");
}

/// RFC 5005, section 3; JSON Feed 1.1, `next_url`.
#[test]
fn paged_feeds_are_read_until_a_known_entry() {
    let page = |number: u32, first: u32| {
        let next = if number < 4 { link("next", &format!("/p{}", number + 1)) } else { String::new() };
        let ids: Vec<String> = (0..2).map(|n| format!("urn:{}", first - n)).collect();
        atom(&(next + &link("first", "/feed")), &[(&ids[0], "x", 1), (&ids[1], "x", 1)])
    };
    let pages = |first: u32| {
        let mut site = site(&[(FEED, page(1, first))]);
        for number in 2..=4 {
            site.insert(url(&format!("p{number}")), SiteResponse::ok(page(number, first - 2 * (number - 1))));
        }
        site
    };
    let result = follow(FEED, None, &pages(8));
    assert_eq!((result.changes.len(), result.requests.len()), (8, 4));
    assert!(result.warnings[0].contains("pages"), "{:?}", result.warnings);
    let more = follow(FEED, result.state, &pages(11));
    let ids: Vec<_> = more.changes.iter().map(|c| c.item.id.as_str()).collect();
    assert_eq!((ids, more.requests.len()), (vec!["urn:9", "urn:10", "urn:11"], 2));
    assert_eq!((more.warnings, more.incomplete), (vec![], vec![]), "warned once");
}

#[test]
fn json_feeds_are_read_along_next_url() {
    let page = |next: &str, ids: &[u32]| {
        let items: Vec<_> = ids.iter().map(|id| format!(r#"{{"id":"{id}","content_text":"t"}}"#)).collect();
        format!(
            r#"{{"version":"https://jsonfeed.org/version/1.1","title":"f"{next},"items":[{}]}}"#,
            items.join(",")
        )
    };
    let site = site(&[
        (FEED, page(r#","next_url":"?page=2""#, &[4, 3])),
        ("http://a.example/feed?page=2", page("", &[2, 1])),
    ]);
    let result = follow(FEED, None, &site);
    assert_eq!(result.lines(), ["put 1", "put 2", "put 3", "put 4"]);
}

#[test]
fn feeds_without_history_warn_about_missed_entries() {
    let mut site = site(&[(FEED, atom("", &[("urn:b", "b", 2), ("urn:a", "a", 1)]))]);
    let result = follow(FEED, None, &site);
    assert_eq!(result.lines(), ["put urn:a a", "put urn:b b"]);
    assert_eq!((result.warnings.len(), result.incomplete.len()), (1, 0));
    site.insert(FEED.into(), SiteResponse::ok(atom("", &[("urn:c", "c", 3), ("urn:b", "b", 2)])));
    let result = follow(FEED, result.state, &site);
    assert_eq!(
        (result.lines(), result.warnings.len(), result.incomplete.len()),
        (vec!["put urn:c c".into()], 0, 0)
    );
    // Every entry was edited and none added: nothing is missed.
    site.insert(FEED.into(), SiteResponse::ok(atom("", &[("urn:c", "d", 4), ("urn:b", "c", 4)])));
    let result = follow(FEED, result.state, &site);
    assert_eq!((result.lines().len(), result.warnings.len(), result.incomplete.len()), (2, 0, 0));
    site.insert(FEED.into(), SiteResponse::ok(atom("", &[("urn:z", "z", 9)])));
    let result = follow(FEED, result.state, &site);
    assert!(result.incomplete[0].contains("none of its entries is known"), "{:?}", result.incomplete);
    assert_eq!(result.lines(), ["put urn:z z"]);
}

/// -00, section 4: the oldest document links to the newest one's `this` by mistake.
#[test]
fn a_chain_that_returns_to_the_newest_document_is_read_oldest_first() {
    let document = |number: u32, prev: u32| {
        let head = link("this", &format!("/{number}")) + &link("prev", &format!("/{prev}"));
        atom(&head, &[(&format!("urn:{number}"), "x", number)])
    };
    let site = site(&[
        (FEED, document(3, 2)),
        ("http://a.example/3", document(3, 2)),
        ("http://a.example/2", document(2, 1)),
        ("http://a.example/1", document(1, 3)),
    ]);
    let result = follow(FEED, None, &site);
    assert_eq!(result.lines(), ["put urn:1 x", "put urn:2 x", "put urn:3 x"]);
    assert!(matches!(&result.incomplete[..], [only] if only.contains("loop")), "{:?}", result.incomplete);
}

#[test]
fn changed_rss_items_without_dates_are_newer() {
    let rss = |title: &str| {
        format!(
            "<rss version='2.0'><channel><title>f</title><ttl>90</ttl><item><guid>1</guid><title>{title}</title></item></channel></rss>"
        )
    };
    let mut site = site(&[(FEED, rss("a"))]);
    let mut follower =
        HistoryFollower::new(FEED, StartFrom::Beginning, None, HistoryFollowOptions::default()).unwrap();
    let mut now = start();
    assert_eq!(drive(&mut follower, &mut now, start(), serve(&site)).lines(), ["put 1 a"]);
    let wait = follower.poll_timeout().map(Monotonic::simulated_wall).unwrap().duration_since(start());
    assert_eq!(wait.as_mins(), 90, "ttl");
    site.insert(FEED.into(), SiteResponse::ok(rss("b")));
    let until = start() + wait;
    assert_eq!(drive(&mut follower, &mut now, until, serve(&site)).lines(), ["put 1 b"]);
}

#[test]
fn every_start_position_is_honoured() {
    let site = archived();
    let now = follow_from(FEED, StartFrom::Now, None, &site);
    assert_eq!((now.changes.len(), now.requests.len()), (0, 1));
    let mut moved = archived();
    moved.insert(FEED.into(), SiteResponse::ok(atom(&link("prev-archive", "/3"), &[("urn:a", "a4", 20)])));
    let result = follow(FEED, now.state, &moved);
    assert_eq!((result.lines(), result.requests.len()), (vec!["put urn:a a4".into()], 1));

    let time = StartFrom::Time("2025-01-05T00:00:00Z".parse().unwrap());
    let result = follow_from(FEED, time, None, &site);
    assert_eq!(result.lines(), ["put urn:b b2", "put urn:a a3", "put urn:d d"]);
    assert_eq!(result.requests.len(), 3, "document 2 is older: {:?}", result.requests);
    assert_eq!(follow(FEED, result.state, &site).lines().len(), 0);

    let position = StartFrom::Position(url("3"));
    let result = follow_from(FEED, position, None, &site);
    assert!(result.changes[0].position.starts_with(&(url("3") + "#")), "{}", result.changes[0].position);
    assert_eq!(result.lines(), ["put urn:a a0", "put urn:b b2", "put urn:a a3", "put urn:d d"]);
    // Also where headers have the links, and the walk back uses HEAD.
    let mut by_head = archived();
    for (name, prev) in [("feed", "3"), ("3", "2"), ("2", "1")] {
        let answer = by_head.remove(&url(name)).unwrap();
        by_head.insert(url(name), answer.with("link", &format!("</{prev}>; rel=prev-archive")));
    }
    for name in ["2", "3"] {
        let from = || StartFrom::Position(url(name));
        let (expected, result) =
            (follow_from(FEED, from(), None, &site), follow_from(FEED, from(), None, &by_head));
        assert!(result.requests.iter().any(|(method, _)| method == Method::HEAD));
        assert_eq!(result.lines(), expected.lines(), "{:?}", result.requests);
        assert_eq!(follow(FEED, result.state, &by_head).lines().len(), 0);
    }
    // The newest document is the start.
    let mut newest = archived();
    let head = link("prev-archive", "/3") + &link("this", "/4");
    newest.insert(FEED.into(), SiteResponse::ok(atom(&head, &[("urn:d", "d", 9)])));
    let result = follow_from(FEED, StartFrom::Position(url("4")), None, &newest);
    assert_eq!((result.lines(), result.requests.len()), (vec!["put urn:d d".to_owned()], 1));
    assert_eq!(follow(FEED, result.state, &newest).lines().len(), 0);
    let result = follow_from(FEED, StartFrom::Position(url("9")), None, &site);
    assert!(result.warnings[0].contains("/9 is not among"), "{:?}", result.warnings);
}

#[test]
fn conditional_requests_and_freshness() {
    let answer = SiteResponse::ok(atom("<fh:Stateful>1</fh:Stateful>", &[("urn:a", "a", 1)]));
    let answer = answer.with("etag", "\"x\"").with("cache-control", "public, max-age=300");
    let mut follower =
        HistoryFollower::new(FEED, StartFrom::Beginning, None, HistoryFollowOptions::default()).unwrap();
    let mut now = start();
    let mut asked = 0;
    let result = drive(&mut follower, &mut now, start() + std::time::Duration::from_secs(3599), |request| {
        asked += 1;
        let known = request.headers.get("if-none-match").is_some_and(|etag| etag == "\"x\"");
        assert_eq!(known, asked > 1);
        Some(if known { SiteResponse::status(304) } else { answer.clone() })
    });
    assert_eq!(result.changes.len(), 1);
    assert_eq!(asked, 12, "every five minutes");
    let busy = |_: &_| Some(SiteResponse::status(503).with("retry-after", "1000"));
    let before = now;
    let until = now + std::time::Duration::from_secs(2000);
    let result = drive(&mut follower, &mut now, until, busy);
    // With waits of 1,000 seconds two attempts fit into 2,000.
    assert!(result.failed.len() <= 2 && now > before, "{:?}", result.failed);
}

#[test]
fn failures_of_the_newest_document() {
    for answer in [
        None,
        Some(SiteResponse::status(500)),
        Some(SiteResponse::ok("<feed")),
        Some(SiteResponse::status(410)),
    ] {
        let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, once()).unwrap();
        let result = drive(&mut follower, &mut start(), start(), |_| answer.clone());
        assert_eq!((result.failed.len(), result.changes.len()), (1, 0));
    }
    let usage = HistoryFollower::new("no address", StartFrom::Beginning, None, once());
    assert!(matches!(usage, Err(FollowError::Usage(_))));
}

/// A window that turned over exactly has missed nothing, and looks like one that has.
#[test]
fn each_window_of_unknown_entries_is_reported() {
    let window = |ids: &[&str]| {
        let entries: Vec<_> = ids.iter().map(|id| (*id, "x", 1)).collect();
        site(&[(FEED, atom("", &entries))])
    };
    let mut state = follow(FEED, None, &window(&["urn:0"])).state;
    for number in 1..4 {
        let result = follow(FEED, state, &window(&[&format!("urn:{number}")]));
        assert_eq!(result.lines().len(), 1);
        assert!(
            matches!(&result.incomplete[..], [only] if only.contains("may have")),
            "{:?}",
            result.incomplete
        );
        state = result.state;
    }
    // The same document again has no further gap, and neither has one that overlaps.
    assert_eq!(follow(FEED, state.clone(), &window(&["urn:3"])).incomplete.len(), 0);
    assert_eq!(follow(FEED, state, &window(&["urn:3", "urn:4"])).incomplete.len(), 0);
}

/// RFC 5005 and RFC 8288: links may stand in headers alone.
#[test]
fn links_in_headers_lead_to_archives() {
    let answer = |id: &str| SiteResponse::ok(atom("", &[(id, "x", 1)]));
    let site = HistorySite::from([
        (FEED.to_owned(), answer("urn:3").with("link", "</2>; rel=\"prev-archive\"")),
        (url("2"), answer("urn:2").with("link", "</1>; rel=Prev-Archive")),
        (url("1"), answer("urn:1")),
    ]);
    let result = follow(FEED, None, &site);
    assert_eq!(result.lines(), ["put urn:1 x", "put urn:2 x", "put urn:3 x"]);
    assert_eq!((result.warnings, result.incomplete), (vec![], vec![]));
    // Pages in headers, too.
    let site = HistorySite::from([
        (FEED.to_owned(), answer("urn:2").with("link", "</1>; rel=next")),
        (url("1"), answer("urn:1")),
    ]);
    assert_eq!(follow(FEED, None, &site).lines(), ["put urn:1 x", "put urn:2 x"]);
}

/// RFC 9110, section 15.4.5: 304 answers a conditional request.
#[test]
fn not_modified_without_a_condition_is_a_failure() {
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, once()).unwrap();
    let result = drive(&mut follower, &mut start(), start(), |_| Some(SiteResponse::status(304)));
    assert!(matches!(&result.failed[..], [only] if only.contains("304")), "{:?}", result.failed);
}

/// A JSON Feed item needs an id (JSON Feed 1.1, "Items"). One that has none is missing, and named.
#[test]
fn an_item_without_an_id_is_missing() {
    let feed = |items: &str| {
        let version = r#""version": "https://jsonfeed.org/version/1.1""#;
        site(&[(FEED, format!(r#"{{{version}, "title": "t", "items": [{items}]}}"#))])
    };
    let result =
        follow(FEED, None, &feed(r#"{"id": "a", "date_published": "soon"}, {"title": "t"}, {"id": "b"}"#));
    assert_eq!(result.changes.len(), 2);
    let text = "item 2: an item without id and url was left out (and 1 more)";
    assert_eq!(result.incomplete, [format!("{FEED}: {text}")]);
    // A malformed date loses no item.
    let result = follow(FEED, None, &feed(r#"{"id": "a", "date_published": "soon"}"#));
    assert!(result.warnings.iter().any(|text| text.contains("is not a date")), "{:?}", result.warnings);
    assert_eq!(result.incomplete, [""; 0]);
}
