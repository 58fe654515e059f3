//! Failing documents: no known entry is dropped, and missing entries are delivered once the document is available.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_proto::Timestamp;
use towpath_proto::follow::{FollowMode, StartFrom};
use towpath_proto::history::follow::{HistoryFollowOptions, HistoryFollower};

use crate::web::{
    FollowResult, HistorySite, SiteResponse, atom, drive, follow, follow_from, link, serve, site, start,
};

const FEED: &str = "http://a.example/feed";

fn chain(length: u32) -> HistorySite {
    let entry = |number: u32| (format!("urn:{number}"), number);
    let prev = |number: u32| match number {
        1 => String::new(),
        number => link("prev-archive", &format!("/{}", number - 1)),
    };
    let document = |number: u32| {
        let (id, day) = entry(number);
        // Every document has a version of the same entry.
        atom(&prev(number), &[(&id, "x", day), ("urn:all", &format!("v{number}"), day)])
    };
    let mut site = site(&[(FEED, document(length))]);
    for number in 1..length {
        site.insert(format!("http://a.example/{number}"), SiteResponse::ok(document(number)));
    }
    site
}

fn everything(length: u32) -> Vec<String> {
    (1..=length).map(|n| format!("urn:{n}")).chain(["urn:all".into()]).collect()
}

/// Follows a site from its beginning for a day. Returns the follower, its time, the end of the day, and the events.
fn follow_for_a_day(site: &HistorySite) -> (HistoryFollower, Timestamp, Timestamp, FollowResult) {
    let mut follower =
        HistoryFollower::new(FEED, StartFrom::Beginning, None, HistoryFollowOptions::default()).unwrap();
    let (mut now, day) = (start(), start() + Duration::from_secs(86_400));
    let result = drive(&mut follower, &mut now, day, serve(site));
    (follower, now, day, result)
}

/// RFC 9110, section 10.2.3, with a limit: after a Retry-After of three thousand years the request is repeated within
/// days.
#[test]
fn a_huge_retry_after_is_limited() {
    let whole = chain(6);
    let mut broken = whole.clone();
    let busy = SiteResponse::status(503).with("retry-after", "99999999999");
    broken.insert("http://a.example/3".into(), busy);
    let (mut follower, mut now, day, result) = follow_for_a_day(&broken);
    let mut items = BTreeMap::new();
    result.apply(&mut items);
    assert!(!items.contains_key("urn:3"), "{items:?}");
    let result = drive(&mut follower, &mut now, day + Duration::from_secs(2 * 86_400), serve(&whole));
    result.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
}

/// RFC 5005, section 4.2: "Clients SHOULD warn users when they are not able to reconstruct the entire logical
/// feed".
#[test]
fn an_archive_that_fails_for_a_day() {
    let whole = chain(6);
    let mut broken = whole.clone();
    broken.insert("http://a.example/3".into(), SiteResponse::status(500));
    let (mut follower, mut now, day, result) = follow_for_a_day(&broken);
    let mut items = BTreeMap::new();
    result.apply(&mut items);
    // The failing document is the only link to those before it.
    assert_eq!(items.keys().collect::<Vec<_>>(), ["urn:4", "urn:5", "urn:6", "urn:all"]);
    assert_eq!(result.incomplete.len(), 1, "named once: {:?}", result.incomplete);
    assert!(result.incomplete[0].contains("http://a.example/3") && result.incomplete[0].contains("500"));
    let asked = result.requests.iter().filter(|(_, url)| url.ends_with("/3")).count();
    assert!((5..30).contains(&asked), "with backoff: {asked}");
    // The document is available again.
    let result = drive(&mut follower, &mut now, day + Duration::from_secs(2 * 86_400), serve(&whole));
    result.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
    assert_eq!(
        items["urn:all"].title.as_deref(),
        Some("v6"),
        "a document that is read late has older versions"
    );
    assert!(result.warnings[0].contains("answers again"), "{:?}", result.warnings);
}

#[test]
fn a_gap_survives_a_restart_and_is_reported_in_every_run() {
    let whole = chain(4);
    let mut broken = whole.clone();
    broken.insert("http://a.example/2".into(), SiteResponse::ok("<feed>&nonsense;"));
    let first = follow(FEED, None, &broken);
    assert_eq!((first.changes.len(), first.incomplete.len()), (4, 1));
    let second = follow(FEED, first.state.clone(), &broken);
    assert_eq!((second.changes.len(), second.incomplete.len()), (0, 1));
    let third = follow(FEED, first.state, &whole);
    let ids: Vec<_> = third.changes.iter().map(|c| c.item.id.as_str()).collect();
    // Document 1 is linked from document 2 only, so it arrives after it.
    assert_eq!(ids, ["urn:2", "urn:1"]);
    assert_eq!(third.incomplete, Vec::<String>::new());
    let fourth = follow(FEED, third.state, &whole);
    assert_eq!((fourth.requests.len(), fourth.changes.len()), (1, 0));
}

/// RFC 5005, section 4.1: publishers "may refuse to serve (e.g., with HTTP status code 403 or 410)".
#[test]
fn removed_documents_are_reported_and_not_requested_again() {
    let mut site = chain(5);
    site.insert("http://a.example/2".into(), SiteResponse::status(410));
    let result = follow(FEED, None, &site);
    assert_eq!(result.incomplete.len(), 1);
    assert!(result.incomplete[0].contains("http://a.example/2 is gone"), "{:?}", result.incomplete);
    let again = follow(FEED, result.state, &site);
    assert_eq!((again.requests.len(), again.incomplete.len()), (1, 0));
}

/// RFC 5005, section 4.2: "Clients SHOULD warn users when they are not able to reconstruct the entire logical
/// feed". Here the link to the removed documents went with them.
#[test]
fn a_history_that_begins_after_what_is_known_is_incomplete() {
    let document = |head: &str, numbers: &[u32]| {
        let entries: Vec<_> = numbers.iter().map(|n| (format!("urn:{n}"), "x", *n)).collect();
        let entries: Vec<_> = entries.iter().map(|(id, title, day)| (id.as_str(), *title, *day)).collect();
        atom(head, &entries)
    };
    let newest = |this: &str, numbers: &[u32]| site(&[(FEED, document(&link("this", this), numbers))]);
    let state = follow(FEED, None, &newest("/1-2", &[2, 1])).state;
    // Continued: an entry is known. An emptied feed misses nothing.
    for numbers in [&[3, 2, 1][..], &[4, 2], &[]] {
        let result = follow(FEED, state.clone(), &newest("/next", numbers));
        assert_eq!(result.incomplete, Vec::<String>::new(), "{numbers:?}");
    }
    let lost = newest("/8-9", &[9, 8]);
    let result = follow(FEED, state.clone(), &lost);
    assert_eq!((result.lines().len(), result.incomplete.len()), (2, 1), "{:?}", result.incomplete);
    assert!(result.incomplete[0].contains("changes before them are missing"), "{:?}", result.incomplete);
    assert_eq!(follow(FEED, result.state, &lost).incomplete.len(), 0, "named once");
    // Along archives, and with headers that have the links.
    for links_in_headers in [false, true] {
        let head = link("this", "/8-9") + &link("prev-archive", "/7");
        let mut first = SiteResponse::ok(document(&head, &[9, 8]));
        let mut older = SiteResponse::ok(document("<fh:archive/>", &[7, 6]));
        if links_in_headers {
            first = first.with("link", "</7>; rel=prev-archive");
            older = older.with("link", "</feed>; rel=current");
        }
        let site = [(FEED.to_owned(), first), ("http://a.example/7".to_owned(), older)].into();
        let result = follow(FEED, state.clone(), &site);
        assert_eq!((result.lines().len(), result.incomplete.len()), (4, 1), "{:?}", result.incomplete);
        assert_eq!(follow(FEED, None, &site).incomplete, Vec::<String>::new(), "nothing was known");
    }
}

/// Documents that link to a removed one are delivered, whatever the link and the way back.
#[test]
fn a_link_to_a_removed_document_delivers_the_others() {
    for rel in ["prev-archive", "prev", "next"] {
        for links_in_headers in [false, true] {
            let mut site = HistorySite::new();
            for number in 2..=4 {
                let name = if number == 4 { "feed".to_owned() } else { number.to_string() };
                let older = format!("/{}", number - 1);
                let mut head = link(rel, &older);
                if rel == "prev" {
                    head += &link("this", &format!("/{number}"));
                }
                let mut answer = SiteResponse::ok(atom(&head, &[(&format!("urn:{number}"), "x", number)]));
                if links_in_headers {
                    answer = answer.with("link", &format!("<{older}>; rel={rel}, </{number}>; rel=this"));
                }
                site.insert(format!("http://a.example/{name}"), answer);
            }
            site.insert("http://a.example/1".into(), SiteResponse::status(410));
            for from in [StartFrom::Beginning, StartFrom::Time(start() - Duration::from_secs(365 * 86_400))] {
                let result = follow_from(FEED, from, None, &site);
                let what = format!("{rel} {links_in_headers}: {:?} {:?}", result.requests, result.incomplete);
                assert_eq!(result.lines(), ["put urn:2 x", "put urn:3 x", "put urn:4 x"], "{what}");
                assert_eq!((result.incomplete.len(), result.failed.len()), (1, 0), "{what}");
            }
        }
    }
}

/// Documents that succeed by HEAD and fail by GET.
#[test]
fn documents_that_fail_while_reading_forward() {
    let mut whole = chain(6);
    for number in 2..=6 {
        let url = if number == 6 { FEED.to_owned() } else { format!("http://a.example/{number}") };
        let answer = whole.remove(&url).unwrap();
        whole.insert(url, answer.with("link", &format!("</{}>; rel=prev-archive", number - 1)));
    }
    let fail = |site: &HistorySite, names: &'static [&'static str]| {
        let site = site.clone();
        move |request: &towpath_proto::follow::Request| {
            let fails = request.method == "GET" && names.iter().any(|name| request.url.ends_with(name));
            if fails { Some(SiteResponse::status(503)) } else { site.get(&request.url).cloned() }
        }
    };
    let options = HistoryFollowOptions { mode: FollowMode::CatchUp, ..HistoryFollowOptions::default() };
    let new = |state| HistoryFollower::new(FEED, StartFrom::Beginning, state, options.clone()).unwrap();
    let far = start() + Duration::from_secs(86_400);
    // One or two failing documents are requested again later.
    let result = drive(&mut new(None), &mut start(), far, fail(&whole, &["/2", "/4"]));
    let mut items = BTreeMap::new();
    result.apply(&mut items);
    assert_eq!(items.keys().collect::<Vec<_>>(), ["urn:1", "urn:3", "urn:5", "urn:6", "urn:all"]);
    assert_eq!(result.incomplete.len(), 2);
    let result = drive(&mut new(result.state), &mut start(), far, fail(&whole, &[]));
    result.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
    assert_eq!(items["urn:all"].title.as_deref(), Some("v6"));
    // If every document fails, the attempt fails, and earlier progress is kept.
    let result = drive(&mut new(None), &mut start(), far, fail(&whole, &["/2", "/3", "/4"]));
    assert_eq!((result.failed.len(), result.incomplete.len()), (1, 0));
    let mut items = BTreeMap::new();
    result.apply(&mut items);
    let result = drive(&mut new(result.state), &mut start(), far, fail(&whole, &[]));
    result.apply(&mut items);
    assert_eq!(items.keys().cloned().collect::<Vec<_>>(), everything(6));
}
