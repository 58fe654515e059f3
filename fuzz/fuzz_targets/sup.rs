//! SUP documents: what can be read can be written and comes back, and a consumer survives any sequence of them.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::sup::discovery::{Discovery, SupLink};
use towpath_proto::sup::follow::{Consumer, Settings};
use towpath_proto::sup::wire::SupDocument;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(parsed) = SupDocument::parse(bytes) {
        let text = parsed.document.write();
        let again = SupDocument::parse(text.as_bytes()).expect("what is written can be read");
        assert_eq!(again.document.write(), text);
        assert_eq!(again.document.updates, parsed.document.updates);
    }
    let now = Timestamp::from_second(1_700_000_000).expect("a time");
    let mut consumer = Consumer::new(Settings::default());
    consumer.add_feed("https://a.example/feed", now);
    let ask = consumer.poll_ask(now).expect("every feed is asked at first");
    let link = SupLink { url: "https://a.example/sup.json".into(), id: "4496672d".into() };
    consumer.handle_answer(now, ask.feed, Discovery { links: vec![link], warnings: vec![] }, true);
    follow::follow(&mut consumer, bytes, drop);
    Consumer::restore(Settings::default(), consumer.state()).expect("what is kept can be gone on from");
});
