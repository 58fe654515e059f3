//! Pages that retention removed from a feed.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use towpath_proto::FeedId;
use towpath_proto::replication::pages::Cleanup;

use crate::engine::{Engine, Feed, json_record};
use crate::protocols::pages::feed_cleanup::{FeedCleanup, VersionedCleanup, cleanup_version};
use crate::protocols::pages::state::Pages;
use crate::protocols::pages::table::{self, RetentionRecord};
use crate::store_error::StoreError;

/// Feeds whose pages another node removed, with the state before that.
#[derive(Default)]
struct RemoteCleanups(Mutex<HashMap<FeedId, Cleanup>>);

/// Returns the pages that retention removed from a feed, with their version.
pub(crate) async fn versioned_cleanup(engine: &Engine, feed: &Feed) -> Result<VersionedCleanup, StoreError> {
    // The version is read first: a removal between the two reads makes the result out of date, never falsely current.
    let version = cleanup_version(feed).load(Ordering::Acquire);
    Ok(VersionedCleanup { cleanup: cleanup(engine, feed).await?, version })
}

/// Returns the pages that retention removed from a feed.
pub(crate) async fn cleanup(engine: &Engine, feed: &Feed) -> Result<Cleanup, StoreError> {
    let state = FeedCleanup::of(feed);
    loop {
        if let Some(cleanup) = *state.cleanup.lock() {
            return Ok(cleanup);
        }
        let before = state.version.load(Ordering::Acquire);
        let record: Option<RetentionRecord> =
            json_record::load(engine.store.as_ref(), &table::retention_key(feed.id())).await?;
        let loaded = record.unwrap_or_default().cleanup;
        let mut cleanup = state.cleanup.lock();
        // Another node may have removed more pages since the read.
        if state.version.load(Ordering::Acquire) == before {
            return Ok(*cleanup.get_or_insert(loaded));
        }
    }
}

/// Sets the pages that retention removed. The record is stored before.
pub(super) fn set_cleanup(feed: &Feed, cleanup: Cleanup) {
    let state = FeedCleanup::of(feed);
    *state.cleanup.lock() = Some(cleanup);
    state.version.fetch_add(1, Ordering::AcqRel);
}

/// Notes that another node removed pages of a feed: the known state is out of date.
pub(crate) fn on_retention_written(engine: &Engine, feed: &str) {
    let Some(feed) = engine.feed(feed) else { return };
    let state = FeedCleanup::of(&feed);
    // The counter moves under the lock that `cleanup` stores its result under, so no old value stays.
    let before = {
        let mut cleanup = state.cleanup.lock();
        state.version.fetch_add(1, Ordering::AcqRel);
        cleanup.take()
    };
    if let Some(before) = before {
        // The earliest state counts: several writes may come before `apply_remote` runs.
        remote(engine).0.lock().entry(feed.id().clone()).or_insert(before);
    }
}

fn remote(engine: &Engine) -> &RemoteCleanups {
    engine.extensions.get_or_insert_with(RemoteCleanups::default)
}

/// Drops the documents of pages that other nodes removed. Returns false if that could not be read, which the next call
/// does again.
pub(crate) async fn apply_remote(engine: &Engine) -> bool {
    let mut is_done = true;
    let removed: Vec<(FeedId, Cleanup)> = remote(engine).0.lock().drain().collect();
    for (id, before) in removed {
        let Some(feed) = engine.feed(id.as_str()) else { continue };
        match cleanup(engine, &feed).await {
            Ok(after) => notify_removed(engine, &feed, before, after),
            Err(e) => {
                tracing::error!(feed = %id, error = %e, "cannot read which pages retention removed");
                remote(engine).0.lock().entry(id).or_insert(before);
                is_done = false;
            }
        }
    }
    is_done
}

/// Calls the listeners for every page from the first that was listed to the first that is now: each was removed, or
/// lost its link to the page before.
pub(super) fn notify_removed(engine: &Engine, feed: &Feed, before: Cleanup, after: Cleanup) {
    for number in before.gone_below.max(1)..=after.first_page {
        for listener in Pages::of(engine).listeners() {
            (listener.changed)(engine, feed, number);
        }
    }
}
