//! How each feed's log is divided into pages: what Data Replication and Feed History both serve.
//!
//! Bodies of pages are not stored. What is kept of a sealed page is its stretch of the log; a body is made again
//! from the log when somebody asks, the same bytes each time, and stays in memory as long as it is asked for. A
//! stored copy would double the size of the data folder and save the one read of the log that a page costs. That
//! needs the log whole.

pub mod paging;
mod retention;
pub(in crate::engine) mod table;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use towpath_proto::FeedId;
use towpath_proto::change::{Change, Seq};
use towpath_proto::replication::pages::{Cleanup, PageLimits};
use towpath_store::{Limit, StoreError};

use super::roles::Lease;
use super::{Engine, Feed, record};
use crate::stop::{Stop, stopped};

use paging::Paging;
use table::Tidied;

/// The shortest time between two looks at what moved.
const SHORTEST: Duration = Duration::from_millis(250);
/// How much of the log is read at a time.
pub(in crate::engine) const READ: Limit = Limit { items: 1000, bytes: 8 << 20 };

/// What the engine holds to divide logs into pages.
pub struct Pages {
    moved: Mutex<HashSet<FeedId>>,
    bell: Notify,
    /// Whether somebody takes what moved.
    is_watched: AtomicBool,
}

/// What a feed holds of its pages. Small: there may be a million feeds.
#[derive(Default)]
pub struct FeedPages {
    /// How far the log is divided into pages; none before somebody needed to know.
    paging: tokio::sync::Mutex<Option<Box<Paging>>>,
    /// What retention did; none before it was read.
    cleanup: Mutex<Option<Cleanup>>,
    /// Counts what retention did: a page that was built before and kept after it may have a link too many.
    pub(in crate::engine) tidied: Arc<AtomicU64>,
    /// Held while a document of Feed History is made.
    pub(in crate::engine) making: tokio::sync::Mutex<()>,
    /// Held while a snapshot is made.
    pub(in crate::engine) snapshot: tokio::sync::Mutex<()>,
}

impl Pages {
    /// Nothing noted; `is_watched` where what moves is to be noted from the start.
    pub(super) fn new(is_watched: bool) -> Self {
        Self { moved: Mutex::default(), bell: Notify::new(), is_watched: is_watched.into() }
    }

    /// Notes that a feed's log moved. Called on the store's thread.
    pub(super) fn note(&self, feed: &Feed) {
        if !self.is_watched.load(Ordering::Acquire) {
            return;
        }
        self.moved.lock().insert(feed.id().clone());
        self.bell.notify_one();
    }

    fn take(&self) -> Vec<FeedId> {
        self.moved.lock().drain().collect()
    }
}

/// Seals pages as feeds move, and lets old pages go, until `stop` turns true.
pub async fn run(engine: Arc<Engine>, lease: Lease, stop: Stop) {
    engine.pages.is_watched.store(true, Ordering::Release);
    tokio::join!(seal(&engine, stop.clone()), retention::run(&engine, &lease, stop));
    if engine.is_shared() {
        engine.pages.is_watched.store(false, Ordering::Release);
        engine.pages.take();
    }
}

async fn seal(engine: &Arc<Engine>, stop: Stop) {
    // What was appended while nobody sealed: by another process, or just before a crash.
    for feed in engine.feeds() {
        report(&feed, "seal pages", paging::begin(engine, &feed).await);
        if *stop.borrow() {
            return;
        }
    }
    loop {
        tokio::select! {
            () = engine.pages.bell.notified() => {}
            () = stopped(&stop) => return,
        }
        for id in engine.pages.take() {
            if let Some(feed) = engine.feed(id.as_str()) {
                report(&feed, "seal pages", paging::catch_up(engine, &feed).await);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(SHORTEST) => {}
            () = stopped(&stop) => return,
        }
    }
}

pub(in crate::engine) fn report(feed: &Feed, what: &str, done: Result<(), StoreError>) {
    if let Err(e) = done {
        tracing::error!(feed = %feed.id(), "cannot {what}: {e}");
    }
}

pub(in crate::engine) fn limits(feed: &Feed) -> PageLimits {
    let PageLimits { bytes, entities } = PageLimits::default();
    PageLimits {
        bytes: feed.config.page_bytes.map_or(bytes, |bytes| bytes.get() as u64),
        entities: feed.config.page_items.map_or(entities, |items| items.get() as u64),
    }
}

/// The changes of a stretch of the log, both ends included.
pub(in crate::engine) async fn stretch(
    engine: &Engine,
    feed: &Feed,
    first: Seq,
    last: Seq,
) -> Result<Vec<Change>, StoreError> {
    let mut changes: Vec<Change> = Vec::new();
    let mut after = first - 1;
    while after < last {
        let items = usize::try_from(last - after).unwrap_or(usize::MAX).min(READ.items);
        let read = engine.store.read(feed.id(), after, Limit { items, ..READ }).await?;
        let Some(reached) = read.last().map(|change| change.seq) else {
            return Err(StoreError::Damaged(format!("the log of {} ends at {after}", feed.id())));
        };
        after = reached;
        changes.extend(read);
    }
    Ok(changes)
}

/// What retention did to a feed.
pub(in crate::engine) async fn cleanup(engine: &Engine, feed: &Feed) -> Result<Cleanup, StoreError> {
    loop {
        if let Some(cleanup) = *feed.pages.cleanup.lock() {
            return Ok(cleanup);
        }
        let before = feed.pages.tidied.load(Ordering::Acquire);
        let tidied: Option<Tidied> =
            record::load(engine.store.as_ref(), &table::tidied_key(feed.id())).await?;
        let loaded = tidied.unwrap_or_default().cleanup;
        let mut cleanup = feed.pages.cleanup.lock();
        // Another node may have gone on meanwhile.
        if feed.pages.tidied.load(Ordering::Acquire) == before {
            return Ok(*cleanup.get_or_insert(loaded));
        }
    }
}

impl FeedPages {
    /// Notes that another node did more; returns what was known before, if anything was.
    pub(in crate::engine) fn tidied(&self) -> Option<Cleanup> {
        let mut cleanup = self.cleanup.lock();
        self.tidied.fetch_add(1, Ordering::AcqRel);
        cleanup.take()
    }
}
