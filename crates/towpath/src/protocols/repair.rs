//! Repair of what the protocols keep beside the logs, after the store was rebuilt.

use towpath_proto::FeedId;
use towpath_proto::change::Seq;
use towpath_store::{LogHead, Store};

use crate::engine::finding::Findings;
use crate::engine::{attachments, change_counts};
use crate::protocols::{pages, replication};
use crate::store_error::StoreError;

/// Removes what the logs do not give any more. Pages, snapshots and counts are made again from what is left. Files that are
/// damaged are removed, and returned as lines of text.
///
/// `moved` has the feeds that lost changes, and their horizons.
///
/// # Errors
///
/// [`StoreError`] if the store cannot be read, or the rebuilt rows cannot be written.
pub(crate) async fn repair(store: &dyn Store, moved: &[(FeedId, Seq)]) -> Result<Vec<String>, StoreError> {
    for feed in store.heads().await? {
        let (id, head) = (&feed.feed, feed.head);
        if let Some((_, horizon)) = moved.iter().find(|(moved, _)| moved == id) {
            pages::table::end_pages(store, id, LogHead { horizon: *horizon, ..head }).await?;
        }
        let mut findings = Findings::default();
        replication::verify::verify(store, &feed, &mut findings).await?;
        if !findings.0.is_empty() {
            replication::stored::remove_snapshots(store, id).await?;
        }
        let mut findings = Findings::default();
        change_counts::verify(store, &feed, &mut findings).await?;
        // Behind a horizon the log does not give the counts of before.
        if !findings.0.is_empty() && head.horizon == 0 {
            change_counts::forget(store, id).await?;
        }
    }
    attachments::repair(store).await
}
