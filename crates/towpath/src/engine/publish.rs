//! Appends of what people and programs publish.

use std::collections::HashSet;
use std::sync::Arc;

use towpath_proto::diff::{KnownItems, indexed_without_unchanged};
use towpath_proto::{FeedId, NewChange, Op};
use towpath_store::{AppendError, Appended, Expected, Store};
use tracing::Instrument as _;

use super::attachments::{self, SavedFiles};
use super::work::run_detached;
use super::{Engine, scheduled};
use crate::spans::span;
use crate::store_error::StoreError;

/// Result of publishing a batch.
#[derive(Debug, Clone, Copy)]
pub struct Published {
    /// Result of the append.
    pub appended: Appended,
    /// Number of changes that were left out, since they change nothing.
    pub unchanged: usize,
    /// Number of appended changes to items that were there.
    pub changed: usize,
}

/// Appends a batch without the changes that change nothing: a file that is imported again appends nothing.
///
/// # Errors
///
/// As [`Store::append`].
pub async fn publish(
    store: &dyn Store,
    feed: &FeedId,
    expected: Expected,
    changes: Vec<NewChange>,
) -> Result<Published, AppendError> {
    let count = changes.len();
    let ids: Vec<String> = changes.iter().map(|change| change.item.id.clone()).collect();
    let known = match store.head(feed).await?.seq {
        // A new feed has no items: its first import looks up none.
        0 => KnownItems::new(),
        _ => store.content_hashes(feed, Some(&ids)).await?,
    };
    let live = known.iter().filter(|(_, hash)| hash.is_some());
    let mut live: HashSet<String> = live.map(|(id, _)| id.clone()).collect();
    // An item that others change between the read and the append counts as unchanged at the time of the read.
    let (indexes, changes): (Vec<usize>, Vec<NewChange>) =
        indexed_without_unchanged(known, changes).into_iter().unzip();
    let unchanged = count - changes.len();
    let is_of_live_item = |change: &&NewChange| match change.op {
        Op::Delete => {
            live.remove(&change.item.id);
            false
        }
        Op::Put | Op::Patch => !live.insert(change.item.id.clone()),
    };
    let changed = changes.iter().filter(is_of_live_item).count();
    let span = span!("append", feed = %feed, changes = changes.len());
    let appended = store.append(feed, expected, changes).instrument(span).await;
    let appended = appended.map_err(|e| of_whole_batch(e, &indexes))?;
    Ok(Published { appended, unchanged, changed })
}

/// Names the change that an append refused by its index in the batch as it was published.
fn of_whole_batch(mut error: AppendError, indexes: &[usize]) -> AppendError {
    if let AppendError::Invalid { index, .. } | AppendError::Patch { index, .. } = &mut error {
        *index = indexes.get(*index).copied().unwrap_or(*index);
    }
    error
}

/// Publishes a batch as [`publish`], and does what goes with it: cancels what is scheduled for its items, and removes the
/// files of those that it deletes. If it is refused, what was scheduled stays. It goes on if this future is dropped.
///
/// # Errors
///
/// Errors of [`Store::append`], and [`StoreError`] if what is scheduled or the files' records cannot be read or written.
pub(crate) async fn publish_changes(
    engine: &Arc<Engine>,
    feed: &FeedId,
    expected: Expected,
    changes: Vec<NewChange>,
) -> Result<Published, StoreError> {
    let (at, feed) = (engine.clone(), feed.clone());
    let publishing = async move { publish_with(&at, &feed, expected, changes, SavedFiles::default()).await };
    run_detached(engine, publishing).await?
}

/// As [`publish_changes`], for changes that name files. If they are refused, the files go that were not there before.
///
/// It has several writes. A caller whose future may be dropped runs it, with the saving of its files, by [`run_detached`].
pub(crate) async fn publish_with(
    engine: &Engine,
    feed: &FeedId,
    expected: Expected,
    changes: Vec<NewChange>,
    files: SavedFiles,
) -> Result<Published, StoreError> {
    let store = engine.store.as_ref();
    // A patch goes on from what is there, so what comes later stays.
    let replaced =
        changes.iter().filter(|change| change.op != Op::Patch).map(|change| change.item.id.as_str());
    let cancellation = scheduled::cancel(engine, feed, replaced).await?;
    let deletions = changes.iter().filter(|change| change.op == Op::Delete);
    let deleted: Vec<String> = deletions.map(|change| change.item.id.clone()).collect();
    let published = publish(store, feed, expected, changes).await;
    match &published {
        Err(e) if is_refusal(e) => {
            cancellation.withdraw(engine, feed).await?;
            files.refuse(store, feed).await?;
        }
        Ok(_) => {
            // Released: the files of deleted items need a hold of their own.
            drop(files);
            cancellation.confirm(engine, feed).await?;
        }
        // What became of the append tells whether the cancellation counts.
        Err(_) => {}
    }
    let published = published?;
    attachments::forget(engine, feed, &deleted).await?;
    Ok(published)
}

/// Returns true if nothing of the batch can be there, now or later.
fn is_refusal(error: &AppendError) -> bool {
    !matches!(error, AppendError::UnknownOutcome { .. } | AppendError::Storage { .. } | AppendError::Closed)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use tokio::time::timeout;
    use towpath_proto::Item;

    use super::*;
    use crate::protocols::failing_store;

    /// A form's request is dropped between the cancellation and the append, and the append is refused or not.
    #[tokio::test]
    async fn what_was_scheduled_is_replaced_or_stays() {
        for (expected, is_refused) in [(Expected::Any, false), (Expected::Last(9), true)] {
            let (engine, store) = failing_store::engine("[[feed]]\nid = \"notes\"\n").await;
            let feed = FeedId::new("notes").unwrap();
            let put = || vec![NewChange::put(Item::new("a"))];
            let later = put().into_iter().map(|change| (change, "2999-01-01T00:00:00Z".parse().unwrap()));
            scheduled::schedule(&engine, &feed, later.collect()).await.unwrap();
            let held = store.hold("publish-at/item/");
            {
                let publishing = publish_changes(&engine, &feed, expected, put());
                tokio::select! {
                    biased;
                    published = publishing => panic!("{published:?}"),
                    () = held.made.notified() => {}
                }
            }
            let written = store.hold("publish-at/item/");
            held.released.notify_one();
            let limit = Duration::from_secs(30);
            timeout(limit, written.made.notified()).await.expect("the publish goes on to its end");
            assert_eq!(store.head(&feed).await.unwrap().seq, u64::from(!is_refused));
            let left = scheduled::list(store.as_ref(), &feed, 10).now_or_never().unwrap().unwrap();
            assert_eq!(left.len(), usize::from(is_refused));
        }
    }
}
