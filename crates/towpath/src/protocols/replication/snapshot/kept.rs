//! Snapshots that are kept: their list, their paths, and their removal.

use jiff::{SignedDuration, Timestamp};
use towpath_store::{Precondition, Table, WriteError};

use crate::engine::{Engine, Feed, json_record};
use crate::protocols::pages::table::{self, RECORDS};
use crate::protocols::replication::stored::{self, Snapshot};
use crate::store_error::StoreError;

/// Time without a further page after which a snapshot counts as left by a crash.
const UNFINISHED: SignedDuration = SignedDuration::from_secs(8);

/// Returns every complete snapshot, oldest first.
///
/// # Errors
///
/// [`StoreError`] if the snapshots' records cannot be read, or one is damaged.
pub async fn list(engine: &Engine, feed: &Feed) -> Result<Vec<Snapshot>, StoreError> {
    let key = stored::snapshot_key(feed.id(), 0);
    let records = engine.store.scan(Table::Chains, table::prefix(&key), None, usize::MAX).await?;
    records.iter().map(|(key, value)| json_record::parse(key, value)).collect()
}

pub(super) async fn drop_old(engine: &Engine, feed: &Feed) -> Result<(), StoreError> {
    let all = list(engine, feed).await?;
    let surplus = all.len().saturating_sub(feed.config.snapshots.keep);
    for old in &all[..surplus] {
        remove(engine, feed, old).await?;
    }
    Ok(())
}

/// Removes a snapshot.
pub(super) async fn remove(engine: &Engine, feed: &Feed, old: &Snapshot) -> Result<(), StoreError> {
    // The index is removed first: it must not lead to removed pages.
    let index = json_record::remove(stored::snapshot_key(feed.id(), old.id));
    engine.store.write(vec![index], Vec::new()).await?;
    engine.documents.forget(&index_path(feed, old.id));
    for number in 0..old.pages {
        engine.documents.forget(&page_path(feed, old.id, number));
    }
    remove_pages(engine, feed, old.id).await
}

/// Removes pages of snapshots that a crash left incomplete. Returns false if another node may still write one.
pub(super) async fn remove_unfinished(engine: &Engine, feed: &Feed) -> Result<bool, StoreError> {
    let key = stored::begun_key(feed.id(), 0);
    for (key, value) in engine.store.scan(Table::Chains, table::prefix(&key), None, usize::MAX).await? {
        let id = std::str::from_utf8(&key[key.len() - 20..]).ok().and_then(|digits| digits.parse().ok());
        let last: Option<Timestamp> = serde_json::from_slice(&value).ok();
        let goes_on = |last| engine.now().duration_since(last) < UNFINISHED;
        // A single process holds the lock of `make`, so there any mark is a crash's.
        if engine.is_shared() && last.is_some_and(goes_on) {
            return Ok(false);
        }
        // A node that still writes it after all fails at its next write, because the row is another one.
        let as_read = Precondition { table: Table::Chains, key: key.to_vec(), value: Some(value) };
        match engine.store.write(vec![json_record::put(key.to_vec(), &engine.now())], vec![as_read]).await {
            Err(WriteError::Precondition { .. }) => return Ok(false),
            written => written?,
        }
        if let Some(id) = id {
            remove_pages(engine, feed, id).await?;
        }
        engine.store.write(vec![json_record::remove(key.to_vec())], Vec::new()).await?;
    }
    Ok(true)
}

async fn remove_pages(engine: &Engine, feed: &Feed, id: u64) -> Result<(), StoreError> {
    let key = stored::snapshot_page_key(feed.id(), id, 0);
    loop {
        let records = engine.store.scan(Table::Chains, table::prefix(&key), None, RECORDS).await?;
        if records.is_empty() {
            return Ok(());
        }
        let writes = records.into_iter().map(|(key, _)| json_record::remove(key.to_vec())).collect();
        engine.store.write(writes, Vec::new()).await?;
    }
}

/// Path of a snapshot's index.
pub fn index_path(feed: &Feed, id: u64) -> String {
    format!("/feeds/{}/snapshots/{id}", feed.id())
}

/// Path of a snapshot's page.
pub(super) fn page_path(feed: &Feed, id: u64, number: u64) -> String {
    format!("{}/pages/{number}", index_path(feed, id))
}
