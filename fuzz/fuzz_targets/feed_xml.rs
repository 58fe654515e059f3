//! RSS, Atom, lists of feeds: whatever the bytes, reading ends; and what was read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::format::document::{Entry, Head};
use towpath_proto::format::skim::skim;
use towpath_proto::format::{ReadOptions, atom, opml, read, rss};

fuzz_target!(|bytes: &[u8]| {
    let head = skim(bytes, None, Some("https://a.example/b"));
    let listed = opml::read(bytes);
    assert!(head.is_some() || listed.is_err(), "a list has a document element");
    let Ok(feed) =
        read(bytes, &ReadOptions { base_url: Some("https://a.example/b"), ..ReadOptions::default() })
    else {
        return;
    };
    let head = Head::new("urn:feed", "feed", Timestamp::UNIX_EPOCH);
    let entries = || feed.items.iter().map(|item| Entry::new(item, Timestamp::UNIX_EPOCH));
    for document in [atom::write(&head, entries()), rss::write(&head, entries())] {
        let again = read(document.as_bytes(), &ReadOptions::default()).expect("what is written can be read");
        assert_eq!(again.items.len(), feed.items.len());
    }
});
