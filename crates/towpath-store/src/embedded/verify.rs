//! Verification: compares the indexes with the log.

use fjall::{Readable, Snapshot};
use jiff::Timestamp;
use towpath_proto::change::{Change, Op, Seq};
use towpath_proto::feed_id::FeedId;

use super::apply::StorageEngine;
use super::engine_error::read_error;
use super::keys::{self, FeedRow, IdRow};
use super::read;
use super::record::{self, bytes_of};
use crate::error::StorageError;

/// Number of problems that a report lists in full.
const MAX_PROBLEMS: usize = 100;

/// Report of a check of the whole store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of feeds.
    pub feeds: u64,
    /// Number of changes in their logs.
    pub changes: u64,
    /// Number of their ids.
    pub items: u64,
    /// Number of problems.
    pub problem_count: u64,
    /// The first hundred problems, each with its feed and position.
    pub problems: Vec<String>,
}

impl VerifyReport {
    /// Returns true where no problem was found.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }
}

impl StorageEngine {
    /// Reads everything from one snapshot, in constant memory.
    pub(crate) fn verify(&self) -> Result<VerifyReport, StorageError> {
        let snapshot = self.db.snapshot();
        let mut report = VerifyReport::default();
        // A replica may have records past the head, see `StorageEngine::load`: they are no problem.
        let replica = self.is_replica()?;
        let mut numbers = Vec::new();
        for entry in snapshot.iter(&self.feeds) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let (name, feed) = (read::name(&key)?, FeedRow::decode(&value)?);
            numbers.push(feed.number);
            report.feeds += 1;
            let mut check = FeedCheck {
                engine: self,
                snapshot: &snapshot,
                replica,
                name: &name,
                feed,
                report: &mut report,
            };
            check.check_log()?;
            check.check_index_sizes()?;
        }
        // Two feeds with one number would share all their keys.
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            report.add_problem("two feeds have the same number".into());
        }
        Ok(report)
    }
}

impl VerifyReport {
    fn add_problem(&mut self, problem: String) {
        self.problem_count += 1;
        // A lost index has a problem per change: the texts must not fill the memory.
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }
}

/// Check of one feed.
struct FeedCheck<'a> {
    engine: &'a StorageEngine,
    snapshot: &'a Snapshot,
    replica: bool,
    name: &'a FeedId,
    feed: FeedRow,
    report: &'a mut VerifyReport,
}

impl FeedCheck<'_> {
    fn expect(&mut self, holds: bool, seq: Seq, problem: &str) {
        if !holds {
            self.report.add_problem(format!("feed {}, change {seq}: {problem}", self.name));
        }
    }

    /// Checks every change of the log, and its index entries.
    fn check_log(&mut self) -> Result<(), StorageError> {
        let head = self.feed.head;
        let (mut last, mut modified) = (0, Timestamp::MIN);
        let (mut items, mut live, mut moments) = (0, 0, 0);
        let prefix = self.feed.number.to_be_bytes();
        for entry in self.snapshot.prefix(&self.engine.log, prefix) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let seq = keys::read_position(&key)?;
            // Bulk-loaded before a crash; the next group overwrites it.
            if self.replica && seq > head.seq {
                break;
            }
            self.expect(seq == last + 1, seq, "positions before it are missing in the log");
            last = seq;
            self.report.changes += 1;
            let change = match record::decode(seq, &bytes_of(value)) {
                Ok(change) => change,
                // Reported like any problem: one damaged record must not hide those after it.
                Err(error) => {
                    self.expect(false, seq, &error.to_string());
                    continue;
                }
            };
            self.expect(change.modified >= modified, seq, "its time is before that of the change before it");
            // The time index has one entry per distinct time.
            if change.modified != modified || seq == 1 {
                moments += 1;
            }
            modified = change.modified;
            let is_latest = self.check_change(&change)?;
            items += u64::from(is_latest);
            live += u64::from(is_latest && change.op != Op::Delete);
        }
        self.expect(last == head.seq, last, &format!("the log ends here, but the head says {}", head.seq));
        self.expect(modified == head.modified, last, "the head has a different time");
        let counts = (head.items, head.live);
        self.expect((items, live) == counts, last, &format!("{items} items, {live} live; head: {counts:?}"));
        let times = self.snapshot.prefix(&self.engine.times, prefix).count() as u64;
        self.expect(times == moments, last, &format!("{times} times in the index, {moments} in the log"));
        self.report.items += items;
        Ok(())
    }

    /// Checks one change. Returns whether it is its item's latest version.
    fn check_change(&mut self, change: &Change) -> Result<bool, StorageError> {
        let (engine, number, seq) = (self.engine, self.feed.number, change.seq);
        let lives = change.op != Op::Delete;
        // A tombstone has the default hash.
        let hash = if lives { change.item.content_hash() } else { Default::default() };
        self.expect(hash == change.hash, seq, "its hash does not match its item");
        let last = self.get(&engine.times, &keys::time_key(number, change.modified))?;
        let last = last.as_deref().map(keys::read_seq).transpose()?;
        // The entry names the last change of its time, which may be a later one.
        self.expect(last.is_some_and(|last| last >= seq), seq, "the time index does not have it");
        self.check_previous(change)?;

        let key = keys::id(number, &change.item.id);
        let Some(version) = self.get(&engine.ids, &key)? else {
            self.expect(false, seq, "the id index does not have its id");
            return Ok(false);
        };
        let version = IdRow::decode(&version)?;
        let same = (version.first, version.created) == (change.first_seq, change.created);
        self.expect(same, seq, "the id index has a different first version");
        self.expect(version.latest >= seq, seq, "the id index has an earlier version as the latest");
        let is_latest = version.latest == seq;
        let listed = self.get(&engine.modified, &keys::position_key(number, seq))?.is_some();
        self.expect(listed == is_latest, seq, "the index of latest versions disagrees");
        if is_latest {
            self.expect(
                version.hash == lives.then_some(change.hash),
                seq,
                "the id index has a different hash",
            );
            let created = self.get(&engine.created, &keys::position_key(number, version.first))?;
            let created = created.as_deref().map(keys::read_seq).transpose()?;
            self.expect(created == Some(seq), seq, "the created index has a different version");
        }
        Ok(is_latest)
    }

    /// Checks the link to the version before a change.
    fn check_previous(&mut self, change: &Change) -> Result<(), StorageError> {
        let seq = change.seq;
        let Some(previous) = change.previous else {
            let first = (change.first_seq, change.created) == (seq, change.modified);
            self.expect(first, seq, "it is the first version of its item, but its header disagrees");
            return Ok(());
        };
        let key = keys::position_key(self.feed.number, previous);
        let before = self.get(&self.engine.log, &key)?.map(bytes_of);
        let before = before.map(|record| record::decode(previous, &record)).transpose()?;
        let fits = previous < seq
            && before.is_some_and(|before| {
                before.item.id == change.item.id
                    && (before.first_seq, before.created) == (change.first_seq, change.created)
            });
        self.expect(fits, seq, "its previous version belongs to another item");
        Ok(())
    }

    /// Checks that the indexes have no entry that the log does not explain.
    fn check_index_sizes(&mut self) -> Result<(), StorageError> {
        let prefix = self.feed.number.to_be_bytes();
        let engine = self.engine;
        // `check_change` found every expected entry. A surplus entry shows in the count only.
        for (index, index_name) in
            [(&engine.ids, "ids"), (&engine.created, "created"), (&engine.modified, "modified")]
        {
            let count = self.snapshot.prefix(index, prefix).count() as u64;
            let problem = format!("the index {index_name} has {count} entries");
            self.expect(count == self.feed.head.items, self.feed.head.seq, &problem);
        }
        Ok(())
    }

    fn get(&self, keyspace: &fjall::Keyspace, key: &[u8]) -> Result<Option<fjall::Slice>, StorageError> {
        self.snapshot.get(keyspace, key).map_err(|e| read_error(&e))
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::change::NewChange;
    use towpath_proto::item::Item;

    use super::*;
    use crate::embedded::{EmbeddedOptions, EmbeddedStore};
    use crate::{Expected, Store};

    fn put(id: &str, title: &str) -> NewChange {
        NewChange::put(Item { title: Some(title.into()), ..Item::new(id) })
    }

    /// Removes, adds and changes every entry of every index in turn.
    #[tokio::test]
    async fn every_difference_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let store =
            EmbeddedStore::open(folder.path(), EmbeddedOptions { reserve: 0, ..EmbeddedOptions::default() })
                .unwrap();
        let feed = FeedId::new("f1").unwrap();
        let batch = vec![put("a", "1"), put("b", "1"), put("a", "2"), NewChange::delete("b"), put("c", "1")];
        store.append(&feed, Expected::Any, batch).await.unwrap();
        assert_eq!(
            store.verify().await.unwrap(),
            VerifyReport { feeds: 1, changes: 5, items: 3, ..Default::default() }
        );

        let engine = store.engine().unwrap();
        let keyspaces = [&engine.log, &engine.ids, &engine.modified, &engine.created, &engine.times];
        for keyspace in keyspaces {
            let entries: Vec<_> = keyspace.iter().map(|entry| entry.into_inner().unwrap()).collect();
            assert!(!entries.is_empty());
            for (key, value) in entries {
                // Behind the store's back, as a bug or a damaged disk would.
                keyspace.remove(key.clone()).unwrap();
                assert!(!engine.verify().unwrap().is_sound(), "{} without {key:?}", keyspace.name());
                keyspace.insert(key, value).unwrap();
            }
            let more: Vec<u8> = match &**keyspace.name() {
                "times" => keys::time_key(0, Timestamp::MAX).to_vec(),
                "ids" => keys::id(0, "more").to_vec(),
                _ => keys::position_key(0, 9).to_vec(),
            };
            keyspace.insert(more.clone(), 9u64.to_be_bytes()).unwrap();
            assert!(!engine.verify().unwrap().is_sound(), "{} with more", keyspace.name());
            keyspace.remove(more).unwrap();
            assert!(engine.verify().unwrap().is_sound(), "{} as it was", keyspace.name());
        }
        let (key, value) = engine.feeds.iter().next().unwrap().into_inner().unwrap();
        // The bytes after 40 are the time of the last append, which no log record repeats.
        for place in 4..40 {
            let mut wrong = value.to_vec();
            wrong[place] ^= 1;
            engine.feeds.insert(key.clone(), wrong).unwrap();
            assert!(!engine.verify().is_ok_and(|found| found.is_sound()), "head with another byte {place}");
        }
    }
}
