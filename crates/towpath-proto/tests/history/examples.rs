//! The examples of every draft and of RFC 5005.

use towpath_proto::format::{self, FeedDocument, FormatError, ReadOptions};
use towpath_proto::history::wire::Predecessor;

use crate::web::{HistorySite, SiteResponse, atom, follow, link, site};

fn text(name: &str) -> String {
    let path = format!("{}/tests/data/history/{name}.xml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn read(text: &str) -> Result<FeedDocument, FormatError> {
    format::read(text.as_bytes(), &ReadOptions::default())
}

fn predecessor(name: &str) -> Predecessor {
    Predecessor::of(&read(&text(name)).unwrap())
}

fn archive(url: &str) -> Predecessor {
    Predecessor::Archive(url.to_owned())
}

/// -00, section 3: "Whitespace in its content MUST be ignored by processors."
#[test]
fn draft_00_the_flag() {
    for (content, flag) in [("1", Some(true)), (" \n0\t", Some(false)), ("yes", None)] {
        let feed = read(&atom(&format!("<fh:Stateful>{content}</fh:Stateful>"), &[])).unwrap();
        assert_eq!(feed.stateful, flag);
    }
}

/// -01, section 6; -02, section 6.
#[test]
fn drafts_01_and_02() {
    for draft in ["draft-01", "draft-02"] {
        let name = |part: &str| format!("{draft}-{part}");
        let feed = read(&text(&name("atom-subscription"))).unwrap();
        assert_eq!(feed.stateful, Some(true));
        assert_eq!(predecessor(&name("atom-subscription")), archive("http://example.org/2003/11/index.atom"));
        assert_eq!(predecessor(&name("atom-archive")), archive("http://example.org/2003/10/index.atom"));
        for part in ["rss-2-0-subscription", "rss-2-0-archive"] {
            // The drafts print their RSS examples with a broken end tag.
            let printed = text(&name(part));
            assert!(matches!(read(&printed), Err(FormatError::Malformed { .. })), "as printed");
            let meant = printed.replace("feed.rss>", "feed.rss</history:prev>");
            let Predecessor::Archive(prev) = Predecessor::of(&read(&meant).unwrap()) else {
                panic!("no link to older entries")
            };
            assert!(prev.ends_with("/feed.rss"), "{prev}");
        }
    }
}

/// -04, section 7: "the presense of the prev element indicates that the feed is incremental".
#[test]
fn draft_04() {
    assert_eq!(read(&text("draft-04-atom-subscription")).unwrap().stateful, Some(true));
    assert_eq!(predecessor("draft-04-atom-subscription"), archive("http://example.org/2003/11/index.atom"));
    assert!(read(&text("draft-04-atom-archive")).unwrap().archive);
    assert_eq!(predecessor("draft-04-atom-archive"), archive("http://example.org/2003/10/index.atom"));
    assert_eq!(predecessor("draft-04-rss-2-0-archive"), archive("http://liftoff.nasa.gov/2003/04/feed"));
    let printed = text("draft-04-rss-2-0-subscription");
    assert!(read(&printed).is_err(), "as printed");
    let meant = printed.replace("feed<history:prev>", "feed</history:prev>");
    assert_eq!(Predecessor::of(&read(&meant).unwrap()), archive("http://liftoff.nasa.gov/2003/05/feed"));
}

/// RFC 5005, sections 2 to 4 and appendix B.
#[test]
fn rfc_5005() {
    for format in ["atom", "rss-2-0"] {
        let name = |part: &str| format!("rfc5005-{format}-formatted-{part}");
        assert_eq!(predecessor(&name("complete")), Predecessor::Complete);
        assert!(matches!(predecessor(&name("paged")), Predecessor::Page(next) if next.ends_with("page=2")));
        assert!(matches!(predecessor(&name("subscription")), Predecessor::Archive(_)));
        assert!(matches!(predecessor(&name("archive")), Predecessor::Archive(_)));
        assert!(read(&text(&name("archive"))).unwrap().archive);
    }
}

/// RFC 5005, section 4.2, with the documents of section 4.
#[test]
fn rfc_5005_is_followed() {
    // The example's chain leads on to a document that the RFC does not print.
    let last = text("rfc5005-atom-formatted-archive").replace("rel=\"prev-archive\"", "rel=\"other\"");
    let documents = [
        ("http://example.org/index.atom", text("rfc5005-atom-formatted-subscription")),
        ("http://example.org/2003/11/index.atom", last),
    ];
    let result = follow("http://example.org/index.atom", None, &site(&documents));
    let titles: Vec<_> = result.changes.iter().map(|c| c.item.title.as_deref().unwrap()).collect();
    assert_eq!(titles, ["Atom-Powered Robots Scheduled To Run Amok", "Atom-Powered Robots Run Amok"]);
    assert_eq!((result.incomplete, result.failed), (vec![], vec![]));
}

/// -04, section 6: each document's `fh:prev` leads to the one before.
#[test]
fn draft_04_is_followed_in_rss() {
    let base = "http://liftoff.nasa.gov";
    let newest = text("draft-04-rss-2-0-subscription").replace("feed<history:prev>", "feed</history:prev>");
    let mut site: HistorySite = site(&[
        ("http://liftoff.nasa.gov/feed", newest),
        ("http://liftoff.nasa.gov/2003/05/feed", text("draft-04-rss-2-0-archive")),
    ]);
    site.insert(format!("{base}/2003/04/feed"), SiteResponse::status(410));
    let result = follow("http://liftoff.nasa.gov/feed", None, &site);
    assert_eq!(result.changes.len(), 3);
    assert_eq!(result.changes[2].item.title.as_deref(), Some("Star City"));
    assert!(result.incomplete[0].contains("2003/04/feed is gone"), "{:?}", result.incomplete);
}

/// -00, section 4: `this` and `prev`, each the last document's `this`.
#[test]
fn draft_00_is_followed() {
    let flag = "<fh:Stateful> 1 </fh:Stateful>";
    let at = |this: &str, prev: &str| format!("{flag}{}{}", link("this", this), link("prev", prev));
    let first = atom(&format!("{flag}{}", link("this", "/1")), &[("urn:a", "a", 1)]);
    let second = atom(&at("/2", "/1"), &[("urn:b", "b", 2), ("urn:a", "a", 1)]);
    let third = atom(&at("/3", "/2"), &[("urn:c", "c", 3)]);
    let mut site = site(&[
        ("http://a.example/feed", second.clone()),
        ("http://a.example/1", first),
        ("http://a.example/2", second),
        ("http://a.example/3", third.clone()),
    ]);
    let result = follow("http://a.example/feed", None, &site);
    assert_eq!(result.lines(), ["put urn:a a", "put urn:b b"]);
    site.insert("http://a.example/feed".into(), SiteResponse::ok(third));
    let result = follow("http://a.example/feed", result.state, &site);
    assert_eq!(result.lines(), ["put urn:c c"]);
    assert_eq!(result.requests.len(), 1, "the last document's `this` was read: {:?}", result.requests);
}
