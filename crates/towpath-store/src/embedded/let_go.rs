//! Retention of a feed's log: letting go of old versions and deletions.
//!
//! The *horizon* of a log is the position up to which it is no longer whole. Up to there each id has one record, that of
//! its latest version as of the horizon, at its old position; and a deleted id has none, nor a row in any index. Behind
//! the horizon nothing is missing. So whoever begins at 0 gets every live item, whoever begins behind the horizon gets
//! every change, and a reader in between may miss deletions: protocols tell it to begin anew.
//!
//! A step goes over the changes between the old horizon and the new one. Each names the version that it replaced, which
//! goes. A deletion goes with its id, unless the id has come back since. So a step costs what its changes cost, and none
//! of it grows with the log.

use fjall::Readable as _;
use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;

use super::engine_error::read_error;
use super::keys::{self, FeedRow, IdRow};
use super::record::{self, bytes_of};
use super::storage_engine::StorageEngine;
use crate::error::{ReadTarget, StorageError};
use crate::{LogHead, WriteError};

/// Positions of one step. Appends wait for it.
const STEP: Seq = 2000;

/// Failure of a step, which leaves everything as it was.
pub(crate) enum LetGoError {
    Read(StorageError),
    /// The engine accepts no further write.
    Write(String),
}

impl LetGoError {
    pub(crate) fn of(self, feed: &FeedId) -> WriteError {
        match self {
            Self::Read(error) => WriteError::Read(error.of(ReadTarget::Feed(feed.clone()))),
            Self::Write(reason) => WriteError::Storage { reason },
        }
    }
}

impl StorageEngine {
    /// Returns the horizon after one step towards `to`.
    pub(crate) fn end_of_step(head: LogHead, to: Seq) -> Seq {
        // The last change stays: it carries the position and the time of the log's end.
        to.min(head.seq.saturating_sub(1)).min(head.horizon.saturating_add(STEP))
    }

    /// Moves the horizon of a feed to `end`, which is [`Self::end_of_step`]. Returns the feed's row after it.
    pub(crate) fn let_go(&self, name: &FeedId, feed: FeedRow, end: Seq) -> Result<FeedRow, LetGoError> {
        let read = LetGoError::Read;
        let (snapshot, number) = (self.db.snapshot(), feed.number);
        // One batch for records, indexes and horizon. After a crash between them, a reader could take a log
        // with holes for whole.
        let mut batch = self.durable_batch();
        let mut forgotten = 0;
        let range = keys::position_key(number, feed.head.horizon + 1)..=keys::position_key(number, end);
        for entry in snapshot.range(&self.log, range) {
            let (key, value) = entry.into_inner().map_err(|e| read(read_error(&e)))?;
            let links = record::links(&value).map_err(read)?;
            if let Some(previous) = links.previous {
                batch.remove(&self.log, keys::position_key(number, previous));
            }
            if !links.is_deletion {
                continue;
            }
            let seq = keys::read_position(&key).map_err(read)?;
            let id = record::decode(seq, &bytes_of(value)).map_err(read)?.item.id;
            let id = keys::id(number, &id);
            let row = snapshot.get(&self.ids, &id).map_err(|e| read(read_error(&e)))?;
            let row = row.as_deref().map(IdRow::decode).transpose().map_err(read)?;
            // An id that came back later has its deletion until the horizon passes that, which names it.
            if let Some(row) = row.filter(|row| row.latest == seq) {
                batch.remove(&self.log, key);
                batch.remove(&self.ids, id);
                batch.remove(&self.modified, keys::position_key(number, seq));
                batch.remove(&self.created, keys::position_key(number, row.first));
                forgotten += 1;
            }
        }
        for key in self.old_times(number, end).map_err(read)? {
            batch.remove(&self.times, key);
        }
        let head = LogHead { horizon: end, items: feed.head.items.saturating_sub(forgotten), ..feed.head };
        let feed = FeedRow { head, ..feed };
        batch.insert(&self.feeds, name.as_str(), feed.encode());
        self.commit_durably(batch).map_err(LetGoError::Write)?;
        Ok(feed)
    }

    /// Returns the keys of the time index up to a position, but the last, which tells where the time after it begins.
    fn old_times(&self, number: keys::FeedNumber, end: Seq) -> Result<Vec<fjall::Slice>, StorageError> {
        let mut keys = Vec::new();
        for entry in self.db.snapshot().prefix(&self.times, number.to_be_bytes()) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            if keys::read_seq(&value)? > end {
                break;
            }
            keys.push(key);
        }
        keys.pop();
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::change::{Change, NewChange, Op};
    use towpath_proto::item::Item;

    use super::*;
    use crate::embedded::{EmbeddedOptions, EmbeddedStore};
    use crate::{Expected, ItemOrder, ReadLimit, SeqRange, Store as _};

    fn put(id: &str, title: u32) -> NewChange {
        NewChange::put(Item { title: Some(title.to_string()), ..Item::new(id) })
    }

    fn open(folder: &std::path::Path) -> EmbeddedStore {
        let options = EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() };
        EmbeddedStore::open(folder, options).unwrap()
    }

    /// Live items of a log as a reader has them who began at its start.
    fn live(changes: &[Change]) -> Vec<(String, Option<String>)> {
        let mut items = std::collections::BTreeMap::new();
        for change in changes {
            match change.op {
                Op::Delete => drop(items.remove(&change.item.id)),
                _ => drop(items.insert(change.item.id.clone(), change.item.title.clone())),
            }
        }
        items.into_iter().collect()
    }

    /// Random logs and horizons: what is live stays, what is behind the horizon stays whole, and the store is sound.
    #[tokio::test]
    async fn live_items_and_everything_behind_the_horizon_stay() {
        let feed = FeedId::new("f1").unwrap();
        for seed in 0..12 {
            let folder = tempfile::tempdir().unwrap();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut store = open(folder.path());
            for _ in 0..4 {
                for _ in 0..random.u32(1..40) {
                    let id = random.u32(0..12).to_string();
                    let change =
                        if random.u8(0..4) == 0 { NewChange::delete(&id) } else { put(&id, random.u32(..)) };
                    store.append(&feed, Expected::Any, vec![change]).await.unwrap();
                }
                let all = ReadLimit::items(10_000);
                let before = store.read(&feed, 0, all).await.unwrap();
                let old = store.head(&feed).await.unwrap();
                let to = random.u64(0..=old.seq + 1);
                let head = store.let_go(&feed, to).await.unwrap();
                assert_eq!(head.horizon, to.min(old.seq - 1).max(old.horizon));
                let after = store.read(&feed, 0, all).await.unwrap();
                assert_eq!(live(&after), live(&before));
                let behind = |changes: &[Change]| -> Vec<Change> {
                    changes.iter().filter(|change| change.seq > head.horizon).cloned().collect()
                };
                assert_eq!(behind(&after), behind(&before));
                let old_versions = after.iter().filter(|change| change.seq <= head.horizon);
                for change in old_versions {
                    let replaced = after
                        .iter()
                        .any(|later| later.previous == Some(change.seq) && later.seq <= head.horizon);
                    assert!(!replaced, "{} is an old version", change.seq);
                }
                let found = store.verify().await.unwrap();
                assert!(found.is_sound(), "{found:?}");
                let items = store.items(&feed, ItemOrder::Created, SeqRange::default(), all).await.unwrap();
                assert_eq!(items.len() as u64, head.items);
                if random.bool() {
                    store.close().await;
                    drop(store);
                    store = open(folder.path());
                    assert_eq!(store.head(&feed).await.unwrap(), head);
                }
            }
        }
    }

    /// A deleted id that is published again after its deletion was let go is a new item.
    #[tokio::test]
    async fn an_id_that_was_let_go_can_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let (store, feed) = (open(folder.path()), FeedId::new("f1").unwrap());
        let batch = vec![put("a", 1), put("b", 1), NewChange::delete("a"), put("c", 1)];
        store.append(&feed, Expected::Any, batch).await.unwrap();
        let head = store.let_go(&feed, 3).await.unwrap();
        assert_eq!((head.horizon, head.items, head.live), (3, 2, 2));
        assert_eq!(store.latest(&feed, "a").await.unwrap(), None);
        store.append(&feed, Expected::Version(None), vec![put("a", 2)]).await.unwrap();
        let back = store.latest(&feed, "a").await.unwrap().unwrap();
        assert_eq!((back.seq, back.first_seq, back.previous), (5, 5, None));
        assert!(store.verify().await.unwrap().is_sound());
        let before = store.last_before(&feed, back.modified).await.unwrap();
        assert!(before <= 4);
    }
}
