//! Documents that are broken, or made to do harm.

use towpath_proto::follow::StartFrom;
use towpath_proto::history::follow::{HistoryFollower, Limits, Options};

use crate::web::{Answer, atom, drive, follow, link, once, site, start};

const FEED: &str = "http://a.example/feed";

fn failure(body: impl Into<bytes::Bytes>) -> String {
    let site = [(FEED.to_owned(), Answer::ok(body))].into();
    let told = follow(FEED, None, &site);
    assert_eq!((told.changes.len(), told.failed.len()), (0, 1));
    told.failed[0].clone()
}

#[test]
fn xml_that_is_none() {
    let head = "<feed xmlns='http://www.w3.org/2005/Atom'>";
    for (body, reason) in [
        (format!("{head}<entry><g:point>1</g:point></entry></feed>"), "prefix"),
        (format!("{head}<entry></feed>"), ""),
        (format!("{head}<entry>"), "cut off"),
        (
            format!(
                "<!DOCTYPE f [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]>{head}<title>&b;</title></feed>"
            ),
            "entity",
        ),
        (format!("{head}{}{}</feed>", "<a>".repeat(10_000), "</a>".repeat(10_000)), "deep"),
        ("<html><body>404</body></html>".to_owned(), "HTML"),
        (String::new(), "empty"),
        ("{\"version\": 3".to_owned(), ""),
    ] {
        let told = failure(body);
        assert!(told.starts_with(FEED) && told.contains(reason), "{told}");
    }
    failure(vec![0xFF; 1000]);
}

#[test]
fn dates_that_are_none_are_told_and_left_out() {
    let body = atom("", &[("urn:a", "a", 1), ("urn:b", "b", 99)]);
    let told = follow(FEED, None, &site(&[(FEED, body)]));
    assert_eq!(told.lines().len(), 2);
    assert!(told.warnings.iter().any(|text| text.contains("2025-01-99")), "{:?}", told.warnings);
}

/// RFC 4287, section 4.1.1.
#[test]
fn two_entries_with_one_id() {
    for entries in [[("urn:a", "new", 2), ("urn:a", "old", 1)], [("urn:a", "old", 1), ("urn:a", "new", 2)]] {
        let told = follow(FEED, None, &site(&[(FEED, atom("", &entries))]));
        assert_eq!(told.lines(), ["put urn:a new"]);
    }
}

#[test]
fn loops_are_named() {
    let to = |name: &str| link("prev-archive", name);
    for (documents, named) in [
        (vec![(FEED, atom(&to("/feed"), &[("urn:a", "a", 1)]))], "/feed was"),
        (
            vec![
                (FEED, atom(&to("/1"), &[("urn:a", "a", 3)])),
                ("http://a.example/1", atom(&to("/2"), &[("urn:b", "b", 2)])),
                ("http://a.example/2", atom(&to("/1"), &[("urn:c", "c", 1)])),
            ],
            "/1 was",
        ),
    ] {
        let told = follow(FEED, None, &site(&documents));
        assert_eq!(told.changes.len(), documents.len());
        assert_eq!(told.incomplete.len(), 1);
        assert!(told.incomplete[0].contains(named), "{:?}", told.incomplete);
        let again = follow(FEED, told.state, &site(&documents));
        assert_eq!(again.changes.len(), 0);
    }
}

#[test]
fn chains_without_end_end_at_the_limit() {
    for by_head in [false, true] {
        let limits = Limits { documents: 50, ..Limits::default() };
        let options = Options { limits, ..once() };
        let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options).unwrap();
        let told = drive(&mut follower, &mut start(), start(), |request| {
            let number: u32 = request.url.rsplit('/').next().unwrap().parse().unwrap_or_default();
            let next = format!("http://a.example/{}", number + 1);
            let answer =
                Answer::ok(atom(&link("prev-archive", &next), &[(&format!("urn:{number}"), "x", 1)]));
            let header = format!("<{next}>; rel=\"prev-archive\"");
            Some(if by_head { answer.with("link", &header) } else { answer })
        });
        assert_eq!(told.changes.len(), 51);
        assert_eq!(told.incomplete.len(), 1, "{:?}", told.incomplete);
        assert!(told.incomplete[0].contains("limit of 50 documents"), "{:?}", told.incomplete);
        assert!(told.state.is_some());
    }
    let limits = Limits { bytes: 1000, document: 2000, ..Limits::default() };
    let options = Options { limits, ..once() };
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options.clone()).unwrap();
    let told = drive(&mut follower, &mut start(), start(), |request| {
        Some(Answer::ok(atom(&link("prev-archive", &format!("{}/1", request.url)), &[("urn:a", "x", 1)])))
    });
    assert!(told.incomplete[0].contains("limit of 1000 bytes"), "{:?}", told.incomplete);
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options).unwrap();
    let told = drive(&mut follower, &mut start(), start(), |_| Some(Answer::ok(vec![b' '; 3000])));
    assert!(told.failed[0].contains("larger than 2000"), "{:?}", told.failed);
}

#[test]
fn other_hosts_and_schemes() {
    let newest = |prev: &str| (FEED, atom(&link("prev-archive", prev), &[("urn:b", "b", 2)]));
    let old = ("http://b.example/1", atom("", &[("urn:a", "a", 1)]));
    let documents = site(&[newest("http://b.example/1"), old]);
    assert_eq!(follow(FEED, None, &documents).lines().len(), 2);
    let options = Options { limits: Limits { other_hosts: false, ..Limits::default() }, ..once() };
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options).unwrap();
    let told = drive(&mut follower, &mut start(), start(), crate::web::serve(&documents));
    assert!(told.lines().len() == 1 && told.incomplete[0].contains("another host"), "{:?}", told.incomplete);
    for bad in ["file:///etc/passwd", "javascript:alert(1)", "gopher://a.example/1", "http://"] {
        let told = follow(FEED, None, &site(&[newest(bad)]));
        assert_eq!(told.asked.len(), 1, "{:?}", told.asked);
        assert!(told.incomplete[0].contains("no address"), "{:?}", told.incomplete);
    }
}
