//! Reading ranges of a feed's log.

use towpath_proto::change::{Change, Seq};
use towpath_proto::replication::pages::{PageLimits, PageSpan};
use towpath_proto::replication::publish::{self, MultipartPage};
use towpath_store::ReadLimit;

use crate::engine::work::blocking;
use crate::engine::{Engine, Feed};
use crate::store_error::StoreError;

/// Limits of one read of the log.
pub(crate) const READ: ReadLimit = ReadLimit { items: 1000, bytes: 8 << 20 };

/// Logs an error of a feed's upkeep, and records it for health and metrics.
pub(crate) fn report(engine: &Engine, feed: &Feed, what: &'static str, done: Result<(), StoreError>) {
    engine.failures.record(feed.id().as_str(), what, &done);
    if let Err(e) = done {
        tracing::error!(feed = %feed.id(), work = what, error = %e, "the upkeep of a feed failed");
    }
}

/// Returns the limits of a feed's pages.
pub(crate) fn limits(feed: &Feed) -> PageLimits {
    let PageLimits { bytes, entities } = PageLimits::default();
    PageLimits {
        bytes: feed.config.page_bytes.map_or(bytes, |bytes| bytes.get() as u64),
        entities: feed.config.page_items.map_or(entities, |items| items.get() as u64),
    }
}

/// Reads the changes `first` to `last` of a log.
pub(crate) async fn read_range(
    engine: &Engine,
    feed: &Feed,
    first: Seq,
    last: Seq,
) -> Result<Vec<Change>, StoreError> {
    let mut changes: Vec<Change> = Vec::new();
    let mut after = first - 1;
    while after < last {
        let items = usize::try_from(last - after).unwrap_or(usize::MAX).min(READ.items);
        let read = engine.store.read(feed.id(), after, ReadLimit { items, ..READ }).await?;
        let Some(reached) = read.last().map(|change| change.seq) else {
            // Callers ask for changes that exist, so a shorter log is damage. Else the loop would spin.
            return Err(StoreError::Damaged(format!("the log of {} ends at {after}", feed.id())));
        };
        after = reached;
        changes.extend(read);
    }
    Ok(changes)
}

/// Builds a page's body. `changes` are used if they are all of the page's changes, else the log is read.
pub(crate) async fn build_page(
    engine: &Engine,
    feed: &Feed,
    span: &PageSpan,
    changes: Vec<Change>,
) -> Result<MultipartPage, StoreError> {
    let PageSpan { number, first, last, .. } = *span;
    // The caller reads in order, so a page's first change means that the others follow.
    let is_whole = changes.first().is_some_and(|change| change.seq == first);
    let changes = if is_whole { changes } else { read_range(engine, feed, first, last).await? };
    let id = feed.id().clone();
    let page = blocking(move || publish::page(&id, number, &changes)).await?;
    page.ok_or_else(|| StoreError::Damaged(format!("page {number} of {} has no changes", feed.id())))
}
