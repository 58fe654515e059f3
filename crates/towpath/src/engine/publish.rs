//! Appends of what people and programs publish.

use std::collections::HashSet;

use towpath_proto::diff::{KnownItems, without_unchanged};
use towpath_proto::{FeedId, NewChange, Op};
use towpath_store::{AppendError, Appended, Expected, Store};
use tracing::Instrument as _;

use crate::spans::span;

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
    let changes = without_unchanged(known, changes);
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
    let appended = store.append(feed, expected, changes).instrument(span).await?;
    Ok(Published { appended, unchanged, changed })
}
