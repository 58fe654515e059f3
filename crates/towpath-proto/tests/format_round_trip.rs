//! Round trips: for each format, the reader finds exactly the items that the writer was given, for any items.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod common;

use common::items::{any_item, head_links};
use proptest::prelude::*;
use serde_json::{Value, json};
use towpath_proto::format::document::{DocumentEntry, DocumentHead, EntryIds};
use towpath_proto::format::{DeletedEntry, FeedDocument, ReadOptions, SmartHead, atom, json_feed, read, rss};
use towpath_proto::{Content, Item, Timestamp};

fn modified() -> Timestamp {
    "2025-01-24T09:00:00Z".parse().unwrap()
}

fn head() -> DocumentHead<'static> {
    let mut head = DocumentHead::new("https://a.example/feeds/x", "Locks & <canals>", modified());
    head.ids = EntryIds { base: "https://a.example/feeds/x/items/", always_own_id: false };
    head.home = Some("https://a.example/");
    head.lang = Some("en");
    head.links = head_links();
    head.stateful = Some(true);
    head.archive = true;
    // Ids that are no IRIs, or that XML cannot hold, need a form of their own.
    head.deleted = ["plain id", "tag:a.example,2025:gone", "con\u{1}trol"]
        .map(|id| DeletedEntry { id: id.into(), when: Some(modified()) })
        .to_vec();
    head
}

fn read_back(text: &str) -> FeedDocument {
    // Without a base: the writers make all URLs absolute.
    let feed = read(text.as_bytes(), &ReadOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert!(feed.problems.is_empty(), "{:?}\n{text}", feed.problems);
    feed
}

fn check(write: fn(&DocumentHead<'_>, &[Item]) -> String, items: &[Item]) {
    let text = write(&head(), items);
    let feed = read_back(&text);
    assert_eq!(feed.items.len(), items.len(), "{text}");
    for (found, expected) in feed.items.iter().zip(items) {
        assert_eq!(found, expected, "{text}");
    }
    let again = write(&head(), &feed.items);
    assert_eq!(again, text, "writing what was read gives the same bytes");
    assert_eq!(feed.deleted, head().deleted);
    assert_eq!(feed.title.as_deref(), Some("Locks & <canals>"));
    assert_eq!(feed.id.as_deref(), Some("https://a.example/feeds/x"));
    assert_eq!((feed.home.as_deref(), feed.lang.as_deref()), (Some("https://a.example/"), Some("en")));
    assert_eq!((feed.stateful, feed.archive, feed.updated), (Some(true), true, Some(modified())));
    for link in head().links {
        assert!(feed.links.contains(&link), "{link:?} in {:?}", feed.links);
    }
}

fn entries(items: &[Item]) -> impl Iterator<Item = DocumentEntry<'_>> {
    items.iter().map(|item| DocumentEntry::new(item, modified()))
}

fn write_atom(head: &DocumentHead<'_>, items: &[Item]) -> String {
    atom::write(head, entries(items))
}

fn write_rss(head: &DocumentHead<'_>, items: &[Item]) -> String {
    rss::write(head, entries(items))
}

fn write_json_feed(head: &DocumentHead<'_>, items: &[Item]) -> String {
    json_feed::write(head, entries(items))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn atom_comes_back(items in prop::collection::vec(any_item(), 0..4)) {
        check(write_atom, &items);
    }

    #[test]
    fn rss_comes_back(items in prop::collection::vec(any_item(), 0..4)) {
        check(write_rss, &items);
    }

    #[test]
    fn json_feed_comes_back(items in prop::collection::vec(any_item(), 0..4)) {
        check(write_json_feed, &items);
    }

    #[test]
    fn an_atom_entry_alone_comes_back(item in any_item()) {
        let ids = EntryIds { base: "https://a.example/", always_own_id: true };
        let text = atom::write_entry(&DocumentEntry::new(&item, modified()), &ids, "The feed");
        let feed = read_back(&text);
        // RFC 4287, section 4.1.2: a standalone entry needs an author with a meaningful name.
        prop_assert_eq!(text.contains("<name>The feed</name>"), item.authors.is_empty(), "{}", text);
        prop_assert_eq!(&feed.items, &[item], "{}", text);
    }

    /// Characters that XML forbids become U+FFFD in texts; ids and contents survive.
    #[test]
    fn texts_with_control_characters_stay_valid(text in "[a\u{0}-\u{1f}<&\u{fffe}]{1,8}") {
        let mut item = Item::new(format!("id{text}"));
        item.title = Some(format!("t{text}t"));
        item.content = Some(towpath_proto::Content::new("text/plain", text));
        // JSON can hold these characters; only XML has to replace them.
        for write in [write_atom, write_rss] {
            let feed = read_back(&write(&head(), std::slice::from_ref(&item)));
            prop_assert_eq!(&feed.items[0].id, &item.id);
            prop_assert_eq!(&feed.items[0].content, &item.content);
            let allowed = |c: char| if c < ' ' && !"\t\n\r".contains(c) || c == '\u{fffe}' { '\u{fffd}' } else { c };
            let title: String = item.title.iter().flat_map(|t| t.chars()).map(allowed).collect();
            prop_assert_eq!(feed.items[0].title.as_ref(), Some(&title));
        }
    }
}

/// Each golden document gives identical items after a round trip through every format.
#[test]
fn polled_documents_go_out_again() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats");
    for name in
        ["atom-prefixed.xml", "atom-0.3.xml", "rss-2.0.xml", "rss-1.0.rdf", "rss-0.92.xml", "feed.json"]
    {
        let options = ReadOptions { base_url: Some("https://from.example/"), ..ReadOptions::default() };
        let feed = read(&std::fs::read(folder.join(name)).unwrap(), &options).unwrap();
        for write in [write_atom, write_rss, write_json_feed] {
            check(write, &feed.items);
        }
    }
}

/// Extension elements are written with their namespaces, not hidden in JSON.
#[test]
fn extension_elements_go_out_as_elements() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats");
    let feed = read(&std::fs::read(folder.join("rss-2.0.xml")).unwrap(), &ReadOptions::default()).unwrap();
    let text = write_atom(&head(), &feed.items);
    assert!(
        text.contains("<slash:comments xmlns:slash=\"http://purl.org/rss/1.0/modules/slash/\">7</"),
        "{text}"
    );
    assert!(text.contains("rel=\"enclosure\""), "{text}");
    let text = write_rss(&head(), &feed.items);
    assert!(
        text.contains("<enclosure url=\"https://blog.example/media/lock.mp3\" length=\"12216320\" type="),
        "{text}"
    );
    assert!(text.contains("<comments>https://blog.example/2025/lock-14/#comments</comments>"), "{text}");
    // Nothing is left that only our own readers understand.
    assert!(!text.contains("tp:extra"), "{text}");
}

/// Smart Feeds, HTTP pull: "Each entry also MUST have a fo:id value", and the head's elements.
#[test]
fn smart_feeds_elements() {
    let mut head = head();
    head.ids.always_own_id = true;
    head.smart = SmartHead {
        total: Some(427),
        last_cursor: Some("8f4a1546".into()),
        prev_cursor: Some("f4ac5920".into()),
    };
    let item = Item::new("tag:a.example,2025:1");
    for text in
        [write_atom(&head, std::slice::from_ref(&item)), write_rss(&head, std::slice::from_ref(&item))]
    {
        assert!(text.contains("<fo:id>tag:a.example,2025:1</fo:id>"), "{text}");
        assert_eq!(read_back(&text).smart, head.smart);
    }
}

/// JSON Feed allows HTML in `content_html` only. An item without content shows its summary there.
#[test]
fn a_summary_in_html_is_plain_text_in_json_feed() {
    let content = |text: &str| Some(Content::new("text/html", text.to_owned()));
    let image = Some(Content::new("image/png", vec![0x89, 0xFF]));
    let html = "<p>Ten &amp; <b>boats</b></p>";
    let linked = "See <a href=\"/lock\">the lock</a>";
    for (summary, content, expected) in [
        ("Ten < boats", None, json!({"summary": "Ten < boats", "content_text": "Ten < boats"})),
        ("Ten", content("<p>x</p>"), json!({"summary": "Ten", "content_html": "<p>x</p>"})),
        (html, None, json!({"content_html": html})),
        (html, content("<p>x</p>"), json!({"summary": "Ten & boats", "content_html": "<p>x</p>"})),
        (html, image, json!({"summary": "Ten & boats", "content_html": html})),
        (
            linked,
            None,
            json!({"summary": "See the lock",
                "content_html": "See <a href=\"https://a.example/lock\">the lock</a>"}),
        ),
    ] {
        let item = Item {
            summary: Some(summary.into()),
            url: Some("https://a.example/1".into()),
            content,
            ..Item::new("1")
        };
        let items = [item];
        let written = write_json_feed(&head(), &items);
        let shown: Value = serde_json::from_str(&written).unwrap();
        let shown = &shown["items"][0];
        for member in ["summary", "content_html", "content_text"] {
            assert_eq!(shown[member], expected[member], "{member}: {written}");
        }
        let read = read(written.as_bytes(), &ReadOptions::default()).unwrap();
        assert_eq!(read.items, items, "{written}");
    }
}

/// Enclosures, images and attachments, from whatever format or publisher, are shown in each format's own form, and
/// items come back as they were.
#[test]
fn attachments_and_images_cross_every_format() {
    let rss = read(
        b"<rss version='2.0' xmlns:m='http://search.yahoo.com/mrss/'><channel><item><guid>1</guid>\
          <enclosure url='https://a.example/a.mp3' type='audio/mpeg' length='3'/>\
          <m:thumbnail url='https://a.example/i.png'/></item></channel></rss>",
        &ReadOptions::default(),
    );
    let json = read(
        br#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1","content_text":"x",
          "image":"https://a.example/i.png","attachments":[{"url":"https://a.example/a.mp3",
          "mime_type":"audio/mpeg","size_in_bytes":3,"title":"T"}]}]}"#,
        &ReadOptions::default(),
    );
    let line = br#"{"id":"1","item":{"image":"https://a.example/i.png","attachments":
        [{"url":"https://a.example/a.mp3","media_type":"audio/mpeg","size":3}]}}"#;
    let published = towpath_proto::line::Line::parse(line).unwrap().into_change().unwrap().item;
    for item in [rss.unwrap().items.remove(0), json.unwrap().items.remove(0), published] {
        let items = [item];
        let atom = write_atom(&head(), &items);
        let link = atom.split("<link ").find(|link| link.contains("rel=\"enclosure\"")).unwrap();
        let link = link.split('>').next().unwrap();
        for part in ["href=\"https://a.example/a.mp3\"", "type=\"audio/mpeg\"", "length=\"3\""] {
            assert!(link.contains(part), "{atom}");
        }
        let rss = write_rss(&head(), &items);
        let enclosure = "<enclosure url=\"https://a.example/a.mp3\" length=\"3\" type=\"audio/mpeg\"";
        assert_eq!(rss.matches(enclosure).count(), 1, "{rss}");
        for xml in [&atom, &rss] {
            assert!(xml.contains(":thumbnail ") && xml.contains("https://a.example/i.png"), "{xml}");
        }
        let json: serde_json::Value = serde_json::from_str(&write_json_feed(&head(), &items)).unwrap();
        let attachment = &json["items"][0]["attachments"][0];
        assert_eq!(attachment["url"], "https://a.example/a.mp3");
        assert_eq!(
            (&attachment["mime_type"], &attachment["size_in_bytes"]),
            (&"audio/mpeg".into(), &3.into())
        );
        assert_eq!(json["items"][0]["image"], "https://a.example/i.png");
        for write in [write_atom, write_rss, write_json_feed] {
            check(write, &items);
        }
    }
}

/// A category with a scheme or domain stands once, in the place of its tag.
#[test]
fn categories_are_written_once() {
    let atom = "<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>1</id><category term='a' scheme='urn:s'/>\
        <category term='b'/><category term='c' label='C'/></entry></feed>";
    let items = read(atom.as_bytes(), &ReadOptions::default()).unwrap().items;
    let written = write_atom(&head(), &items);
    assert_eq!(written.matches("<category").count(), 3, "{written}");
    check(write_atom, &items);
    let rss = "<rss version='2.0'><channel><item><guid>1</guid><category domain='d'>a</category>\
        <category>b</category></item></channel></rss>";
    let items = read(rss.as_bytes(), &ReadOptions::default()).unwrap().items;
    let written = write_rss(&head(), &items);
    assert_eq!(written.matches("<category").count(), 2, "{written}");
    check(write_rss, &items);
}

/// Two JavaScript parsers take a date with an attribute for an object, and lose it.
#[test]
fn an_assigned_date_has_no_attribute() {
    let text = write_atom(&head(), &[Item::new("1")]);
    assert!(
        !text.contains("<updated ") && text.matches("<updated>2025-01-24T09:00:00Z<").count() == 2,
        "{text}"
    );
    let old = text.replace("</updated><tp:assigned>updated</tp:assigned>", "</updated>");
    let old = old.replace("<title/><updated>", "<title/><updated tp:assigned=\"1\">");
    assert_ne!(old, text);
    assert_eq!(read_back(&old).items, [Item::new("1")], "documents of earlier versions are read");
}
