//! Filtered views of logs, kept up to date with appends.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use parking_lot::{RwLock, RwLockReadGuard};
use towpath_proto::FeedId;
use towpath_proto::change::{Change, Seq};
use towpath_proto::risk::Scorer;
use towpath_proto::smart::filter::{Filter, FilterMatches, FilterView};
use towpath_store::ReadLimit;

use crate::engine::Engine;
use crate::engine::access::Access;
use crate::engine::work::blocking;
use crate::store_error::StoreError;

/// Limits of one read of the log for a filter.
// Small, because readers of the view wait while one read's matches are added.
const PAGE: ReadLimit = ReadLimit { items: 500, bytes: 4 << 20 };
/// Number of unfiltered changes from which a catch-up runs in a task of its own.
const MANY: Seq = 1000;
/// Bytes of content from which one read is filtered on a blocking thread.
const LARGE: usize = 256 << 10;

/// Views that were used at least once, by feed and reader.
pub(crate) type Views = HashMap<(FeedId, Access), Arc<View>>;

/// View of a log through one filter.
pub struct View {
    log: FeedId,
    filter: RwLock<FilterView>,
    catching_up: tokio::sync::Mutex<()>,
}

impl View {
    /// Makes a view of what all of these filters let through.
    pub(crate) fn new(log: FeedId, filters: Vec<Filter>, scorer: Scorer) -> Self {
        let risk = Box::new(move |item: &towpath_proto::Item| scorer.score(item).score);
        let filter = RwLock::new(FilterView::of_all(filters, risk));
        Self { log, filter, catching_up: tokio::sync::Mutex::default() }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, FilterView> {
        self.filter.read()
    }

    /// Filters the log up to `end`, or up to its head if that is earlier.
    pub(crate) async fn catch_up(self: &Arc<Self>, engine: &Arc<Engine>, end: Seq) -> Result<(), StoreError> {
        let filtered = self.read().applied();
        if filtered >= end {
            return Ok(());
        }
        if end - filtered < MANY {
            return self.filter_through(engine, end).await;
        }
        // On the engine's runtime: a long catch-up holds up no other connection of this worker thread, and goes on if
        // the client leaves.
        let (view, at) = (self.clone(), engine.clone());
        let done = engine.runtime.spawn(async move { view.filter_through(&at, end).await }.boxed()).await;
        done.map_err(|e| StoreError::Internal(format!("filtering was interrupted: {e}")))?
    }

    async fn filter_through(self: &Arc<Self>, engine: &Engine, end: Seq) -> Result<(), StoreError> {
        // One catch-up at a time: a second would add the same changes again.
        let _guard = self.catching_up.lock().await;
        loop {
            let filtered = self.read().applied();
            if filtered >= end {
                return Ok(());
            }
            let changes = engine.store.read(&self.log, filtered, PAGE).await?;
            // `end` may be `Seq::MAX`, and the log ends before that.
            if changes.is_empty() {
                return Ok(());
            }
            let judged = self.judge(changes).await?;
            self.filter.write().add_matches(judged);
            // A catch-up on a worker thread must let that thread's other connections run.
            tokio::task::yield_now().await;
        }
    }

    async fn judge(self: &Arc<Self>, changes: Vec<Change>) -> Result<FilterMatches, StoreError> {
        let length = |change: &Change| change.item.content.as_ref().map_or(0, |content| content.bytes.len());
        if changes.iter().map(length).sum::<usize>() < LARGE {
            return Ok(self.read().find_matches(&changes));
        }
        let view = self.clone();
        blocking(move || view.read().find_matches(&changes)).await
    }
}
