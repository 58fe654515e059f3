//! The mirrors of a shard, and the subscriptions of polled sources: which of them run, and when they begin anew.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use towpath_client::Fetcher;
use towpath_proto::FeedId;

use super::super::metrics::SourceMetrics;
use super::super::poll::fingerprint;
use super::super::pushed::{self, is_pushed};
use super::super::state::SourceState;
use super::{MirrorTarget, mirror};
use crate::engine::roles::{self, Lease, Shard};
use crate::engine::source_control::{self, SourceControl};
use crate::engine::{Engine, Feed};
use crate::stop::{Stop, stopped};

/// Follows every mirrored feed of a shard, and subscribes to its pushed sources, until the stop signal is set.
///
/// A feed that is added or changed meanwhile begins anew from its saved state, and one that is removed or paused ends.
pub async fn run(engine: Arc<Engine>, fetcher: Arc<Fetcher>, shard: Shard, lease: Lease, stop: Stop) {
    let mut follows = tokio::task::JoinSet::new();
    let mut running: HashMap<FeedId, RunningMirror> = HashMap::new();
    let mut changes = engine.feed_changes();
    // Before the rows are read: a request that is written meanwhile must not be missed.
    let mut requests = source_control::requests(&engine);
    loop {
        changes.mark_unchanged();
        let wanted = wanted(&engine, shard, &running).await;
        let current: HashMap<&FeedId, &RunningMirror> =
            wanted.iter().map(|mirror| (mirror.feed.id(), mirror)).collect();
        running.retain(|id, mirror| {
            let stays = current.get(id).is_some_and(|current| mirror.is_same(current));
            // A follow that ends here has appended each batch whole or not at all, with its position.
            if let Some(follow) = mirror.follow.as_ref().filter(|_| !stays) {
                follow.abort();
            }
            stays
        });
        for mirror in wanted {
            if !running.contains_key(mirror.feed.id()) {
                let target = (engine.clone(), mirror.feed.clone(), lease.clone());
                let (fetcher, stop) = (fetcher.clone(), stop.clone());
                let following = async move {
                    let name = format!("mirror {}", target.1.id());
                    let follow = || follow_feed(target.clone(), fetcher.clone(), stop.clone());
                    // A fault must not end a mirror until the next restart.
                    roles::to_the_end(&name, follow).await;
                };
                let follow = follows.spawn(following.boxed());
                let running_mirror = RunningMirror { follow: Some(follow), ..mirror };
                running.insert(running_mirror.feed.id().clone(), running_mirror);
            }
        }
        tokio::select! {
            () = stopped(&stop) => break,
            _ = changes.changed() => {}
            // A receiver that missed requests looks at all mirrors, as after each request.
            _ = requests.recv() => {}
            // Those that ended leave room.
            Some(_) = follows.join_next(), if !follows.is_empty() => {}
        }
    }
    while follows.join_next().await.is_some() {}
}

/// A mirror that runs, or should.
struct RunningMirror {
    feed: Arc<Feed>,
    /// Time of the last request to sync at once, after which the follow begins anew.
    asked: Option<Timestamp>,
    follow: Option<AbortHandle>,
}

impl RunningMirror {
    fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.feed, &other.feed) && self.asked == other.asked
    }
}

/// Returns the mirrors and pushed sources of a shard that are on and not paused. Where that cannot be read now, those that
/// run go on.
async fn wanted(
    engine: &Engine,
    shard: Shard,
    running: &HashMap<FeedId, RunningMirror>,
) -> Vec<RunningMirror> {
    let mut wanted = Vec::new();
    for feed in engine.feeds() {
        if !shard.has(feed.id().as_str()) || !(is_mirror(&feed) || is_pushed(&feed)) {
            continue;
        }
        let asked = match SourceControl::load_or_announce(engine, &feed).await {
            Some(control) if control.paused.is_some() => continue,
            // A source that is to be polled at once keeps its subscription.
            Some(control) => control.poll.filter(|_| is_mirror(&feed)),
            None => match running.get(feed.id()) {
                Some(mirror) => mirror.asked,
                None => continue,
            },
        };
        wanted.push(RunningMirror { feed, asked, follow: None });
    }
    wanted
}

fn is_mirror(feed: &Feed) -> bool {
    feed.config.mirrored().is_some_and(|(source, _)| source.enabled)
}

/// Follows one mirrored feed, or subscribes to a source.
async fn follow_feed(
    (engine, feed, lease): (Arc<Engine>, Arc<Feed>, Lease),
    fetcher: Arc<Fetcher>,
    stop: Stop,
) {
    if let Some((source, url)) = feed.config.mirrored() {
        let (configured, url) = (fingerprint(source), url.to_owned());
        let fetcher = crate::source::fetcher_of(&fetcher, source, &url);
        let state = SourceState::load(engine.store.as_ref(), feed.id(), &configured).await;
        // A damaged status must not keep the mirror from running.
        let state = state.unwrap_or_else(|e| {
            tracing::error!(feed = %feed.id(), error = %e, "cannot read the state of a source");
            SourceState { configured, ..SourceState::default() }
        });
        SourceMetrics::load(&feed, &state);
        let target = MirrorTarget { engine, feed, lease, state: Arc::new(Mutex::new(state)) };
        mirror(target, fetcher, url, stop).await;
    } else {
        pushed::subscribe(engine, feed, lease, &fetcher, stop).await;
    }
}
