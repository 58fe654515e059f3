//! Exact check of a feed: every change and every entry is looked up, and each that is wrong is named.

use fjall::{Keyspace, Readable as _};
use jiff::Timestamp;
use towpath_proto::change::{Change, Op, Seq};

use super::scan::is_patch_without_patch;
use super::{StoreProblem, VerifiedFeed, VerifiedStore, VerifyReport};
use crate::embedded::engine_error::read_error;
use crate::embedded::keys::{self, IdRow};
use crate::embedded::record::{self, bytes_of};
use crate::error::StorageError;

impl VerifiedStore<'_> {
    /// Adds every problem of a feed.
    pub(super) fn check_exactly(&self, feed: &VerifiedFeed, report: &mut VerifyReport) {
        let mut check = FeedCheck { store: self, feed, report };
        check.check_log();
        check.check_indexes();
    }
}

/// Check of one feed.
struct FeedCheck<'a> {
    store: &'a VerifiedStore<'a>,
    feed: &'a VerifiedFeed,
    report: &'a mut VerifyReport,
}

/// Numbers of a log, as its changes have them.
#[derive(Default)]
struct LogNumbers {
    last: Seq,
    modified: Option<Timestamp>,
    items: u64,
    live: u64,
    times: u64,
}

impl FeedCheck<'_> {
    fn problem(&mut self, position: Option<Seq>, problem: impl Into<String>) {
        let feed = Some(self.feed.name.clone());
        self.report.add_problem(StoreProblem { feed, position, problem: problem.into() });
    }

    fn expect(&mut self, holds: bool, seq: Seq, problem: &str) {
        if !holds {
            self.problem(Some(seq), problem);
        }
    }

    /// Checks every change of the log, and its index entries.
    fn check_log(&mut self) {
        let head = self.feed.row.head;
        let mut numbers = LogNumbers::default();
        // A damaged head may have any position, so the log itself says where it ends.
        let end = self.last_position().unwrap_or_else(|error| {
            self.problem(None, format!("the end of its log: {error}"));
            0
        });
        // Position by position: behind a damaged block, the changes after it can be read.
        for seq in 1..=end.min(head.seq) {
            match self.record(seq) {
                Ok(Some(change)) => self.check_at(&change, &mut numbers),
                Ok(None) if seq <= head.horizon => {}
                Ok(None) => self.problem(Some(seq), "it is missing in the log"),
                Err(error) => {
                    numbers.last = seq;
                    self.problem(Some(seq), error.to_string());
                }
            }
        }
        let LogNumbers { last, modified, items, live, times } = numbers;
        self.expect(last == head.seq, last, &format!("the log ends here, but the head says {}", head.seq));
        let same_time = modified.is_none_or(|modified| modified == head.modified);
        self.expect(same_time, last, "the head has a different time");
        let counts = (head.items, head.live);
        self.expect((items, live) == counts, last, &format!("{items} items, {live} live; head: {counts:?}"));
        self.check_end(last);
        self.check_times(last, times);
        self.report.items += items;
    }

    /// Returns the last position that the log has, or the index of latest versions if the log's end is damaged.
    fn last_position(&self) -> Result<Seq, StorageError> {
        let number = self.feed.row.number;
        let last = |keyspace: &Keyspace| {
            let range = keys::position_key(number, 0)..=keys::position_key(number, Seq::MAX);
            let last = self.store.snapshot.range(keyspace, range).next_back();
            last.map_or(Ok(0), |entry| {
                let key = entry.key().map_err(|e| read_error(&e))?;
                keys::read_position(&key)
            })
        };
        last(&self.store.engine.log).or_else(|_| last(&self.store.engine.modified))
    }

    /// Checks that the log has nothing behind its head.
    fn check_end(&mut self, last: Seq) {
        let Some(next) = self.feed.row.head.seq.checked_add(1).filter(|_| !self.store.is_replica) else {
            return;
        };
        let number = self.feed.row.number;
        let range = keys::position_key(number, next)..=keys::position_key(number, Seq::MAX);
        let behind = self.store.snapshot.range(&self.store.engine.log, range).next();
        self.expect(behind.is_none(), last, "the log goes on behind its head");
    }

    fn check_at(&mut self, change: &Change, numbers: &mut LogNumbers) {
        let (seq, horizon) = (change.seq, self.feed.row.head.horizon);
        self.report.changes += 1;
        numbers.last = seq;
        let before = numbers.modified.unwrap_or(Timestamp::MIN);
        self.expect(change.modified >= before, seq, "its time is before that of the change before it");
        // The time index has one entry per distinct time.
        if seq > horizon && (numbers.modified != Some(change.modified) || seq == horizon + 1) {
            numbers.times += 1;
        }
        numbers.modified = Some(change.modified);
        match self.check_change(change) {
            Ok(is_latest) => {
                numbers.items += u64::from(is_latest);
                numbers.live += u64::from(is_latest && change.op != Op::Delete);
            }
            Err(error) => self.problem(Some(seq), format!("its index entries: {error}")),
        }
    }

    /// Checks one change. Returns whether it is its item's latest version.
    fn check_change(&mut self, change: &Change) -> Result<bool, StorageError> {
        let (engine, number, seq) = (self.store.engine, self.feed.row.number, change.seq);
        let lives = change.op != Op::Delete;
        // A tombstone has the default hash.
        let hash = if lives { change.item.content_hash() } else { Default::default() };
        self.expect(hash == change.hash, seq, "its hash does not match its item");
        self.expect(!is_patch_without_patch(change), seq, "it is a patch without its patch");
        if seq > self.feed.row.head.horizon {
            let last = self.get(&engine.times, &keys::time_key(number, change.modified))?;
            let last = last.as_deref().map(keys::read_seq).transpose()?;
            // The entry names the last change of its time, which may be a later one.
            self.expect(last.is_some_and(|last| last >= seq), seq, "the time index does not have it");
        }
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
        let is_between = (change.first_seq..seq).contains(&previous);
        self.expect(is_between, seq, "its previous version is not between its first one and itself");
        let before = self.record(previous)?;
        if before.is_none() && previous <= self.feed.row.head.horizon {
            return Ok(());
        }
        let fits = previous < seq
            && before.is_some_and(|before| {
                before.item.id == change.item.id
                    && (before.first_seq, before.created) == (change.first_seq, change.created)
            });
        self.expect(fits, seq, "its previous version belongs to another item");
        Ok(())
    }

    /// Checks the time index: its order, and the number of its entries behind the horizon.
    fn check_times(&mut self, last: Seq, times: u64) {
        let (mut count, mut before) = (0, 0);
        for entry in self.store.snapshot.prefix(&self.store.engine.times, self.prefix()) {
            let seq = entry.value().map_err(|e| read_error(&e)).and_then(|value| keys::read_seq(&value));
            match seq {
                Ok(seq) => {
                    self.expect(seq > before, seq, "the time index is out of order");
                    before = seq;
                    count += u64::from(seq > self.feed.row.head.horizon);
                }
                Err(error) => return self.problem(None, format!("the time index: {error}")),
            }
        }
        self.expect(count == times, last, &format!("{count} times in the index, {times} in the log"));
    }

    /// Checks that the indexes have no entry that the log does not explain.
    fn check_indexes(&mut self) {
        let engine = self.store.engine;
        // `check_change` found every expected entry. A surplus entry shows in the count only.
        for (index, index_name) in
            [(&engine.ids, "ids"), (&engine.created, "created"), (&engine.modified, "modified")]
        {
            let mut count = 0;
            for entry in self.store.snapshot.prefix(index, self.prefix()) {
                if let Err(e) = entry.key() {
                    self.problem(None, format!("the index {index_name}: {}", read_error(&e)));
                    break;
                }
                count += 1;
            }
            let head = self.feed.row.head;
            let problem = format!("the index {index_name} has {count} entries");
            self.expect(count == head.items, head.seq, &problem);
        }
    }

    fn prefix(&self) -> [u8; 4] {
        self.feed.row.number.to_be_bytes()
    }

    fn record(&self, seq: Seq) -> Result<Option<Change>, StorageError> {
        let key = keys::position_key(self.feed.row.number, seq);
        let record = self.get(&self.store.engine.log, &key)?;
        record.map(|record| record::decode(seq, &bytes_of(record))).transpose()
    }

    fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Result<Option<fjall::Slice>, StorageError> {
        self.store.snapshot.get(keyspace, key).map_err(|e| read_error(&e))
    }
}
