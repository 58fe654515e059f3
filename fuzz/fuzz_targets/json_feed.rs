//! JSON Feed: whatever the bytes, reading ends; and what was read can be written and comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::format::document::{Entry, Head};
use towpath_proto::format::{Format, ReadOptions, json_feed, read};

fuzz_target!(|bytes: &[u8]| {
    let options = ReadOptions { format: Some(Format::JsonFeed), ..ReadOptions::default() };
    let Ok(feed) = read(bytes, &options) else { return };
    let head = Head::new("urn:feed", "feed", Timestamp::UNIX_EPOCH);
    let entries = feed.items.iter().map(|item| Entry::new(item, Timestamp::UNIX_EPOCH));
    let again =
        read(json_feed::write(&head, entries).as_bytes(), &options).expect("what is written can be read");
    assert_eq!(again.items, feed.items);
});
