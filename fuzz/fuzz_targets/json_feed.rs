//! JSON Feed: parsing terminates for any bytes, and parsed documents survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::format::document::{DocumentEntry, DocumentHead};
use towpath_proto::format::{Format, ReadOptions, json_feed, read};

fuzz_target!(|bytes: &[u8]| {
    let options = ReadOptions { format: Some(Format::JsonFeed), ..ReadOptions::default() };
    let Ok(feed) = read(bytes, &options) else { return };
    let head = DocumentHead::new("urn:feed", "feed", Timestamp::UNIX_EPOCH);
    let entries = feed.items.iter().map(|item| DocumentEntry::new(item, Timestamp::UNIX_EPOCH));
    let again =
        read(json_feed::write(&head, entries).as_bytes(), &options).expect("what is written can be read");
    assert_eq!(again.items, feed.items);
});
