//! DiffDelta follower: no response makes it panic or loop, and it resumes from its persisted state.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::diffdelta::{DiffDeltaChecker, DiffDeltaFollower, FollowOptions};

fuzz_target!(|bytes: &[u8]| {
    let start = |state| {
        let options = FollowOptions { state, ..FollowOptions::default() };
        DiffDeltaFollower::new("https://a.example/diff/ab", options).expect("a follower")
    };
    follow::follow(&mut start(None), bytes, |state| drop(start(Some(state))));
    let mut checker = DiffDeltaChecker::new("https://a.example/diff/ab").expect("a checker");
    follow::answer(&mut checker, bytes, |_| {});
});
