//! Check of stored snapshots: all pages are there, and the log still gives their bytes.

use towpath_proto::replication::entity;
use towpath_proto::replication::publish::PageBuilder;
use towpath_store::{FeedSummary, Store, Table};

use crate::engine::finding::Findings;
use crate::engine::json_record;
use crate::protocols::pages::verify::changes_between;
use crate::protocols::pages::{PageHeaders, table};
use crate::protocols::replication::stored::{self, Snapshot, SnapshotPageRecord};
use crate::store_error::StoreError;

/// Checks the snapshots of a feed.
pub(crate) async fn verify(
    store: &dyn Store,
    feed: &FeedSummary,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let key = stored::snapshot_key(&feed.feed, 0);
    for (key, value) in store.scan(Table::Chains, table::prefix(&key), None, usize::MAX).await? {
        let checked = match json_record::parse::<Snapshot>(&key, &value) {
            Ok(snapshot) => check(store, feed, &snapshot, findings).await,
            Err(error) => Err(error),
        };
        match checked {
            Err(StoreError::Damaged(reason)) => findings.add(Some(feed.feed.as_str()), "snapshot", reason),
            checked => checked?,
        }
    }
    Ok(())
}

async fn check(
    store: &dyn Store,
    feed: &FeedSummary,
    snapshot: &Snapshot,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let (id, place) = (&feed.feed, format!("snapshot {}", snapshot.id));
    findings.expect(snapshot.seq <= feed.head.seq, id, &place, "it is of a position behind the log's end");
    let mut items = 0;
    for number in 0..snapshot.pages {
        let key = stored::snapshot_page_key(id, snapshot.id, number);
        let Some(page) = json_record::load::<SnapshotPageRecord>(store, &key).await? else {
            findings.add(Some(id.as_str()), &place, format!("its page {number} is missing"));
            continue;
        };
        let mut builder = PageBuilder::new(&format!("{}/{number}", snapshot.id));
        let mut is_whole = true;
        for (first, count) in page.places {
            items += count;
            let last = first.saturating_add(count).saturating_sub(1);
            if first == 0 || count == 0 || last > feed.head.seq {
                is_whole = false;
                continue;
            }
            let changes = changes_between(store, id, first, last).await?;
            is_whole &= changes.len() as u64 == count;
            for change in &changes {
                builder.push(entity::snapshot_entity(change), change.modified);
            }
        }
        let is_same = builder.finish().is_some_and(|built| PageHeaders::of(&built) == page.made);
        let problem = format!("the log does not give the bytes of its page {number}");
        findings.expect(is_whole && is_same, id, &place, &problem);
    }
    findings.expect(items == snapshot.items, id, &place, "its pages have another number of items");
    Ok(())
}
