//! Whatever a Data Replication publisher answers, its follower goes on, and can go on from what it keeps.
#![no_main]

mod follow;

use libfuzzer_sys::fuzz_target;
use towpath_proto::follow::StartFrom;
use towpath_proto::replication::follow::{Options, ReplicationFollower};

fuzz_target!(|bytes: &[u8]| {
    for snapshot in [None, Some("https://a.example/index.json".to_owned())] {
        let start = |state| {
            let options = Options { snapshot: snapshot.clone(), ..Options::default() };
            ReplicationFollower::new("https://a.example/feed", StartFrom::Beginning, state, options)
                .expect("a follower")
        };
        follow::follow(&mut start(None), bytes, |state| drop(start(Some(state))));
    }
});
