//! Data Replication follower: no response makes it panic or loop, and it resumes from its persisted state.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::follow::StartFrom;
use towpath_proto::replication::follow::{ReplicationOptions, ReplicationFollower};

fuzz_target!(|bytes: &[u8]| {
    for snapshot in [None, Some("https://a.example/index.json".to_owned())] {
        let start = |state| {
            let options = ReplicationOptions { snapshot: snapshot.clone(), ..ReplicationOptions::default() };
            ReplicationFollower::new("https://a.example/feed", StartFrom::Beginning, state, options)
                .expect("a follower")
        };
        follow::follow(&mut start(None), bytes, |state| drop(start(Some(state))));
    }
});
