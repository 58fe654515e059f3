//! Round trips: for each format, the reader finds exactly the items that the writer was given, for any items.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod common;

use common::items::{any_item, head_links};
use proptest::prelude::*;
use towpath_proto::format::document::{DocumentEntry, DocumentHead, EntryIds};
use towpath_proto::format::{DeletedEntry, FeedDocument, ReadOptions, SmartHead, atom, json_feed, read, rss};
use towpath_proto::{Item, Timestamp};

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
