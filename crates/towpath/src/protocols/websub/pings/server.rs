//! Pings about the server's own documents, after appends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use towpath_client::Fetcher;

use super::{PingHealth, PingSite, Pinger};
use crate::engine::Engine;
use crate::engine::changed_feeds::ChangedFeeds;
use crate::engine::roles::Lease;
use crate::stop::{Stop, stopped};

/// Tells the hubs of the server's feeds until `stop` turns true.
pub(crate) async fn run(
    engine: Arc<Engine>,
    fetcher: Arc<Fetcher>,
    changes: Arc<ChangedFeeds>,
    lease: Lease,
    stop: Stop,
) {
    let pinger = Pinger::open(&engine, fetcher, PingSite::server(&engine), lease).await;
    let queuing = async {
        queue_changes(&engine, &pinger, &changes, &stop).await;
        changes.set_on(false);
        changes.take();
    };
    tokio::join!(queuing, pinger.clone().run(stop.clone()));
}

async fn queue_changes(engine: &Arc<Engine>, pinger: &Pinger, changes: &ChangedFeeds, stop: &Stop) {
    let mut reloads = engine.feed_changes();
    queue_all(engine, pinger, changes);
    loop {
        tokio::select! {
            () = stopped(stop) => return,
            () = changes.changed() => {
                for id in changes.take() {
                    if let Some(feed) = engine.feed(id.as_str()) {
                        pinger.handle_change(&id, feed.head.load(Ordering::Acquire));
                    }
                }
            }
            _ = reloads.changed() => {
                PingHealth::of(engine).forget_unnamed(engine);
                queue_all(engine, pinger, changes);
            }
        }
    }
}

/// Queues the heads of all feeds: what was not told before a restart is told after it.
fn queue_all(engine: &Engine, pinger: &Pinger, changes: &ChangedFeeds) {
    // Feeds that publishing creates have the hubs of the server.
    let (feeds, server) = (engine.feeds(), !engine.config.server.hubs.is_empty());
    // Before the heads are read, so that no append falls between. Without hubs, appends cost nothing here.
    changes.set_on(server || feeds.iter().any(|feed| !engine.hubs_of(feed).is_empty()));
    for feed in feeds {
        pinger.handle_change(feed.id(), feed.head.load(Ordering::Acquire));
    }
}
