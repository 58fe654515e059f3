//! SUP documents: parsed documents survive a round trip, and a consumer handles any sequence of them.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::Timestamp;
use towpath_proto::sup::discovery::{Discovery, SupLink};
use towpath_proto::sup::follow::{PolledContent, SupFollower, SupPollIntervals};
use towpath_proto::sup::wire::SupDocument;
use towpath_proto::follow::Now;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(parsed) = SupDocument::parse(bytes) {
        let text = parsed.document.write();
        let again = SupDocument::parse(text.as_bytes()).expect("what is written can be read");
        assert_eq!(again.document.write(), text);
        assert_eq!(again.document.updates, parsed.document.updates);
    }
    let now = Timestamp::from_second(1_700_000_000).expect("a time");
    let mut consumer = SupFollower::new(SupPollIntervals::default());
    consumer.add_feed("https://a.example/feed", Now::simulated(now));
    let ask = consumer.poll_feed(Now::simulated(now)).expect("every feed is asked at first");
    let link = SupLink { url: "https://a.example/sup.json".into(), id: "4496672d".into() };
    consumer.handle_success(Now::simulated(now), ask.feed, Discovery { links: vec![link], warnings: vec![] }, PolledContent::Changed);
    follow::follow(&mut consumer, bytes, drop);
    // A state that cannot be restored would lose the schedule at every restart.
    SupFollower::restore(SupPollIntervals::default(), consumer.state(Now::simulated(now)), Now::simulated(now))
        .expect("a persisted state can be restored");
});
