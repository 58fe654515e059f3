//! Whatever a publisher of a feed answers, its follower goes on, and can go on from what it keeps; the check of
//! the same answers comes to an end.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::follow::StartFrom;
use towpath_proto::history::check::{CheckOptions, HistoryChecker};
use towpath_proto::history::follow::{HistoryFollower, Options};

const URL: &str = "https://a.example/feed";

fuzz_target!(|bytes: &[u8]| {
    let start = |state| {
        HistoryFollower::new(URL, StartFrom::Beginning, state, Options::default()).expect("a follower")
    };
    follow::follow(&mut start(None), bytes, |state| drop(start(Some(state))));
    follow::answer(&mut HistoryChecker::new(URL, CheckOptions::default()), bytes, |_| {});
});
