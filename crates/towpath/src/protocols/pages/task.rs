//! The task of paging: sealing and retention.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::protocols::pages::log_range::report;
use crate::protocols::pages::state::Pages;
use crate::protocols::pages::{paging, retention};
use crate::stop::{Stop, stopped};

/// Shortest time between two rounds of sealing.
const SEAL_INTERVAL: Duration = Duration::from_millis(250);

/// Seals full pages after appends, and removes old pages, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    Pages::of(&engine).set_sealing(true);
    tokio::join!(seal(&engine, stop.clone()), retention::run(&engine, &lease, stop));
    // A single process keeps marking: its role never goes to another node.
    if engine.is_shared() {
        Pages::of(&engine).set_sealing(false);
        Pages::of(&engine).take_dirty();
    }
}

async fn seal(engine: &Arc<Engine>, stop: Stop) {
    // Appends that no task sealed: those of another process, or just before a crash.
    for feed in engine.feeds() {
        report(engine, &feed, "seal pages", paging::recover(engine, &feed).await);
        // Checked for each feed: a large log may take long.
        if *stop.borrow() {
            return;
        }
    }
    loop {
        tokio::select! {
            () = Pages::of(engine).feed_dirty.notified() => {}
            () = stopped(&stop) => return,
        }
        for id in Pages::of(engine).take_dirty() {
            if let Some(feed) = engine.feed(id.as_str()) {
                report(engine, &feed, "seal pages", paging::catch_up(engine, &feed).await);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(SEAL_INTERVAL) => {}
            () = stopped(&stop) => return,
        }
    }
}
