//! The examples of every text.

use towpath_proto::format::{self, FeedDocument, FormatError, ReadOptions};
use towpath_proto::history::wire::Way;

use crate::web::{Answer, Site, atom, follow, link, site};

fn text(name: &str) -> String {
    let path = format!("{}/tests/data/history/{name}.xml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

fn read(text: &str) -> Result<FeedDocument, FormatError> {
    format::read(text.as_bytes(), &ReadOptions::default())
}

fn way(name: &str) -> Way {
    Way::of(&read(&text(name)).unwrap())
}

fn archive(url: &str) -> Way {
    Way::Archive(url.to_owned())
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
        assert_eq!(way(&name("atom-subscription")), archive("http://example.org/2003/11/index.atom"));
        assert_eq!(way(&name("atom-archive")), archive("http://example.org/2003/10/index.atom"));
        for part in ["rss-2-0-subscription", "rss-2-0-archive"] {
            let printed = text(&name(part));
            assert!(matches!(read(&printed), Err(FormatError::Malformed { .. })), "as printed");
            let meant = printed.replace("feed.rss>", "feed.rss</history:prev>");
            let Way::Archive(prev) = Way::of(&read(&meant).unwrap()) else { panic!("no way back") };
            assert!(prev.ends_with("/feed.rss"), "{prev}");
        }
    }
}

/// -04, section 7: "the presense of the prev element indicates that the feed is incremental".
#[test]
fn draft_04() {
    assert_eq!(read(&text("draft-04-atom-subscription")).unwrap().stateful, Some(true));
    assert_eq!(way("draft-04-atom-subscription"), archive("http://example.org/2003/11/index.atom"));
    assert!(read(&text("draft-04-atom-archive")).unwrap().archive);
    assert_eq!(way("draft-04-atom-archive"), archive("http://example.org/2003/10/index.atom"));
    assert_eq!(way("draft-04-rss-2-0-archive"), archive("http://liftoff.nasa.gov/2003/04/feed"));
    let printed = text("draft-04-rss-2-0-subscription");
    assert!(read(&printed).is_err(), "as printed");
    let meant = printed.replace("feed<history:prev>", "feed</history:prev>");
    assert_eq!(Way::of(&read(&meant).unwrap()), archive("http://liftoff.nasa.gov/2003/05/feed"));
}

/// RFC 5005, sections 2 to 4 and appendix B.
#[test]
fn rfc_5005() {
    for format in ["atom", "rss-2-0"] {
        let name = |part: &str| format!("rfc5005-{format}-formatted-{part}");
        assert_eq!(way(&name("complete")), Way::Complete);
        assert!(matches!(way(&name("paged")), Way::Page(next) if next.ends_with("page=2")));
        assert!(matches!(way(&name("subscription")), Way::Archive(_)));
        assert!(matches!(way(&name("archive")), Way::Archive(_)));
        assert!(read(&text(&name("archive"))).unwrap().archive);
    }
}

/// RFC 5005, section 4.2, with the documents of section 4.
#[test]
fn rfc_5005_is_followed() {
    let last = text("rfc5005-atom-formatted-archive").replace("rel=\"prev-archive\"", "rel=\"other\"");
    let documents = [
        ("http://example.org/index.atom", text("rfc5005-atom-formatted-subscription")),
        ("http://example.org/2003/11/index.atom", last),
    ];
    let told = follow("http://example.org/index.atom", None, &site(&documents));
    let titles: Vec<_> = told.changes.iter().map(|c| c.item.title.as_deref().unwrap()).collect();
    assert_eq!(titles, ["Atom-Powered Robots Scheduled To Run Amok", "Atom-Powered Robots Run Amok"]);
    assert_eq!((told.incomplete, told.failed), (vec![], vec![]));
}

/// -04, section 6: each document's `fh:prev` leads to the one before.
#[test]
fn draft_04_is_followed_in_rss() {
    let base = "http://liftoff.nasa.gov";
    let newest = text("draft-04-rss-2-0-subscription").replace("feed<history:prev>", "feed</history:prev>");
    let mut site: Site = site(&[
        ("http://liftoff.nasa.gov/feed", newest),
        ("http://liftoff.nasa.gov/2003/05/feed", text("draft-04-rss-2-0-archive")),
    ]);
    site.insert(format!("{base}/2003/04/feed"), Answer::status(410));
    let told = follow("http://liftoff.nasa.gov/feed", None, &site);
    assert_eq!(told.changes.len(), 3);
    assert_eq!(told.changes[2].item.title.as_deref(), Some("Star City"));
    assert!(told.incomplete[0].contains("2003/04/feed is gone"), "{:?}", told.incomplete);
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
    let told = follow("http://a.example/feed", None, &site);
    assert_eq!(told.lines(), ["put urn:a a", "put urn:b b"]);
    site.insert("http://a.example/feed".into(), Answer::ok(third));
    let told = follow("http://a.example/feed", told.state, &site);
    assert_eq!(told.lines(), ["put urn:c c"]);
    assert_eq!(told.asked.len(), 1, "the last document's `this` was read: {:?}", told.asked);
}
