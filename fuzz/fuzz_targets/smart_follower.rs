//! Smart Feeds follower: no response makes it panic or loop, and it resumes from its persisted state.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::follow::{FollowMode, StartFrom};
use towpath_proto::smart::follow::SmartFollower;

fuzz_target!(|bytes: &[u8]| {
    let start = |state| {
        SmartFollower::new("https://a.example/feed?a=b", &StartFrom::Beginning, state, FollowMode::Continuous)
            .expect("a follower")
    };
    follow::follow(&mut start(None), bytes, |state| drop(start(Some(state))));
});
