//! RSS, Atom and feed lists: parsing terminates for any bytes, and parsed documents survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::format::document::{DocumentEntry, DocumentHead};
use towpath_proto::format::peek::peek;
use towpath_proto::format::{ReadOptions, atom, opml, read, rss};

fuzz_target!(|bytes: &[u8]| {
    let head = peek(bytes, None, Some("https://a.example/b"));
    let listed = opml::read(bytes);
    assert!(head.is_some() || listed.is_err(), "a list has a document element");
    let Ok(feed) =
        read(bytes, &ReadOptions { base_url: Some("https://a.example/b"), repair: true, ..ReadOptions::default() })
    else {
        return;
    };
    let head = DocumentHead::new("urn:feed", "feed", Timestamp::UNIX_EPOCH);
    let entries = || feed.items.iter().map(|item| DocumentEntry::new(item, Timestamp::UNIX_EPOCH));
    for document in [atom::write(&head, entries()), rss::write(&head, entries())] {
        let again = read(document.as_bytes(), &ReadOptions::default()).expect("what is written can be read");
        assert_eq!(again.items.len(), feed.items.len());
    }
});
