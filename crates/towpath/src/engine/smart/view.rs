//! Logs as filters show them, kept up with what is appended.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard};
use towpath_proto::FeedId;
use towpath_proto::change::{Change, Seq};
use towpath_proto::risk::Scorer;
use towpath_proto::smart::filter::{Filter, FilterView, Judged};
use towpath_store::{Limit, StoreError};

use super::Access;
use crate::engine::{Engine, blocking};

/// How many changes a filter sees at a time.
const PAGE: Limit = Limit { items: 500, bytes: 4 << 20 };
/// From how many changes on they are read and seen in a task of their own.
const MANY: Seq = 1000;
/// From how many bytes on what is seen at a time is seen apart from the threads that serve.
const LARGE: usize = 256 << 10;

/// All filters that somebody looked through, by the feed that shows them and the reader.
pub(super) type Views = HashMap<(FeedId, Access), Arc<View>>;

/// A log as one filter shows it.
pub struct View {
    log: FeedId,
    filter: RwLock<FilterView>,
    catching_up: tokio::sync::Mutex<()>,
}

impl View {
    pub(super) fn new(log: FeedId, filter: Filter, scorer: Scorer) -> Self {
        let risk = Box::new(move |item: &towpath_proto::Item| scorer.score(item).score);
        let filter = RwLock::new(FilterView::new(filter, risk));
        Self { log, filter, catching_up: tokio::sync::Mutex::default() }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, FilterView> {
        self.filter.read()
    }

    /// Has the filter see the log up to a place, or as far as it reaches.
    pub(super) async fn catch_up(self: &Arc<Self>, engine: &Arc<Engine>, end: Seq) -> Result<(), StoreError> {
        let seen = self.read().through();
        if seen >= end {
            return Ok(());
        }
        if end - seen < MANY {
            return self.take_in(engine, end).await;
        }
        let (view, at) = (self.clone(), engine.clone());
        let done = engine.runtime.spawn(async move { view.take_in(&at, end).await }).await;
        done.map_err(|e| StoreError::Read(format!("filtering broke off: {e}")))?
    }

    async fn take_in(self: &Arc<Self>, engine: &Engine, end: Seq) -> Result<(), StoreError> {
        let _alone = self.catching_up.lock().await;
        loop {
            let seen = self.read().through();
            if seen >= end {
                return Ok(());
            }
            let changes = engine.store.read(&self.log, seen, PAGE).await?;
            if changes.is_empty() {
                return Ok(());
            }
            let judged = self.judge(changes).await?;
            self.filter.write().add(judged);
            tokio::task::yield_now().await;
        }
    }

    async fn judge(self: &Arc<Self>, changes: Vec<Change>) -> Result<Judged, StoreError> {
        let length = |change: &Change| change.item.content.as_ref().map_or(0, |content| content.bytes.len());
        if changes.iter().map(length).sum::<usize>() < LARGE {
            return Ok(self.read().judge(&changes));
        }
        let view = self.clone();
        blocking(move || view.read().judge(&changes)).await
    }
}
