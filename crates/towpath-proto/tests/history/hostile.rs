//! Broken and malicious documents.

use towpath_proto::follow::StartFrom;
use towpath_proto::history::follow::{CrawlLimits, HistoryFollowOptions, HistoryFollower};

use crate::web::{SiteResponse, atom, drive, follow, link, once, site, start};

const FEED: &str = "http://a.example/feed";

fn failure(body: impl Into<bytes::Bytes>) -> String {
    let site = [(FEED.to_owned(), SiteResponse::ok(body))].into();
    let result = follow(FEED, None, &site);
    assert_eq!((result.changes.len(), result.failed.len()), (0, 1));
    result.failed[0].clone()
}

#[test]
fn malformed_documents_fail() {
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
        // Many sites send their error page with status 200.
        ("<html><body>404</body></html>".to_owned(), "HTML"),
        (String::new(), "empty"),
        ("{\"version\": 3".to_owned(), ""),
    ] {
        let result = failure(body);
        assert!(result.starts_with(FEED) && result.contains(reason), "{result}");
    }
    failure(vec![0xFF; 1000]);
}

#[test]
fn invalid_dates_are_reported_and_skipped() {
    let body = atom("", &[("urn:a", "a", 1), ("urn:b", "b", 99)]);
    let result = follow(FEED, None, &site(&[(FEED, body)]));
    assert_eq!(result.lines().len(), 2);
    assert!(result.warnings.iter().any(|text| text.contains("2025-01-99")), "{:?}", result.warnings);
}

/// RFC 4287, section 4.1.1.
#[test]
fn two_entries_with_one_id() {
    for entries in [[("urn:a", "new", 2), ("urn:a", "old", 1)], [("urn:a", "old", 1), ("urn:a", "new", 2)]] {
        let result = follow(FEED, None, &site(&[(FEED, atom("", &entries))]));
        assert_eq!(result.lines(), ["put urn:a new"]);
    }
}

#[test]
fn loops_are_reported() {
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
        let result = follow(FEED, None, &site(&documents));
        assert_eq!(result.changes.len(), documents.len());
        assert_eq!(result.incomplete.len(), 1);
        assert!(result.incomplete[0].contains(named), "{:?}", result.incomplete);
        // At the next poll the loop must not pass for new documents.
        let again = follow(FEED, result.state, &site(&documents));
        assert_eq!(again.changes.len(), 0);
    }
}

#[test]
fn endless_chains_end_at_the_limit() {
    for by_head in [false, true] {
        let limits = CrawlLimits { documents: 50, ..CrawlLimits::default() };
        let options = HistoryFollowOptions { limits, ..once() };
        let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options).unwrap();
        let result = drive(&mut follower, &mut start(), start(), |request| {
            let number: u32 = request.url.rsplit('/').next().unwrap().parse().unwrap_or_default();
            let next = format!("http://a.example/{}", number + 1);
            let answer =
                SiteResponse::ok(atom(&link("prev-archive", &next), &[(&format!("urn:{number}"), "x", 1)]));
            let header = format!("<{next}>; rel=\"prev-archive\"");
            Some(if by_head { answer.with("link", &header) } else { answer })
        });
        // The newest document, and 50 of the past.
        assert_eq!(result.changes.len(), 51);
        assert_eq!(result.incomplete.len(), 1, "{:?}", result.incomplete);
        assert!(result.incomplete[0].contains("limit of 50 documents"), "{:?}", result.incomplete);
        assert!(result.state.is_some());
    }
    let limits = CrawlLimits { bytes: 1000, document: 2000, ..CrawlLimits::default() };
    let options = HistoryFollowOptions { limits, ..once() };
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options.clone()).unwrap();
    let result = drive(&mut follower, &mut start(), start(), |request| {
        Some(SiteResponse::ok(atom(
            // Every address is new: no loop is found, and only the bytes end it.
            &link("prev-archive", &format!("{}/1", request.url)),
            &[("urn:a", "x", 1)],
        )))
    });
    assert!(result.incomplete[0].contains("limit of 1000 bytes"), "{:?}", result.incomplete);
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options).unwrap();
    let result = drive(&mut follower, &mut start(), start(), |_| Some(SiteResponse::ok(vec![b' '; 3000])));
    assert!(result.failed[0].contains("larger than 2000"), "{:?}", result.failed);
}

#[test]
fn other_hosts_and_schemes() {
    let newest = |prev: &str| (FEED, atom(&link("prev-archive", prev), &[("urn:b", "b", 2)]));
    let old = ("http://b.example/1", atom("", &[("urn:a", "a", 1)]));
    let documents = site(&[newest("http://b.example/1"), old]);
    assert_eq!(follow(FEED, None, &documents).lines().len(), 2);
    // Archives often lie on another host, so refusing them is an option and no default.
    let options = HistoryFollowOptions {
        limits: CrawlLimits { other_hosts: false, ..CrawlLimits::default() },
        ..once()
    };
    let mut follower = HistoryFollower::new(FEED, StartFrom::Beginning, None, options).unwrap();
    let result = drive(&mut follower, &mut start(), start(), crate::web::serve(&documents));
    assert!(
        result.lines().len() == 1 && result.incomplete[0].contains("another host"),
        "{:?}",
        result.incomplete
    );
    // A publisher must not make the client open files or speak other protocols.
    for bad in ["file:///etc/passwd", "javascript:alert(1)", "gopher://a.example/1", "http://"] {
        let result = follow(FEED, None, &site(&[newest(bad)]));
        assert_eq!(result.requests.len(), 1, "{:?}", result.requests);
        assert!(result.incomplete[0].contains("not an http or https URL"), "{:?}", result.incomplete);
    }
}
