//! Feed History follower: no response makes it panic or loop, and it resumes from its persisted state. The
//! check of these responses terminates.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::follow::StartFrom;
use towpath_proto::history::check::{HistoryCheckOptions, HistoryChecker};
use towpath_proto::history::follow::{HistoryFollower, HistoryFollowOptions};

const URL: &str = "https://a.example/feed";

fuzz_target!(|bytes: &[u8]| {
    let start = |state| {
        HistoryFollower::new(URL, StartFrom::Beginning, state, HistoryFollowOptions::default()).expect("a follower")
    };
    follow::follow(&mut start(None), bytes, |state| drop(start(Some(state))));
    follow::answer(&mut HistoryChecker::new(URL, HistoryCheckOptions::default()), bytes, |_| {});
});
