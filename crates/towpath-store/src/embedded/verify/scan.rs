//! Fast check of a feed: every keyspace is read once, in order, and the sums of what they say are compared.
//!
//! Sums of the log, with `h` a hash of id, position and first version:
//!
//! - A chain of versions: the sum of `h` over all changes, less the sum of `h` of the version that each change names as
//!   the one before, is the sum of `h` over the latest versions. A change that names none, or another item's, breaks it.
//! - The latest versions are those that the index of latest versions lists. Their sum, with their content hashes, is that
//!   of the id index.
//! - The entries of the created index are those that the id index implies. The time index has the last position of each
//!   time.
//!
//! Up to the horizon a change may name a version that was let go: that one is looked up.

use std::thread;

use fjall::Readable as _;
use jiff::Timestamp;
use towpath_proto::change::{Change, Op, Seq};

use super::sum::{self, HashSum};
use super::{VerifiedFeed, VerifiedStore, VerifyProgress};
use crate::embedded::engine_error::read_error;
use crate::embedded::keys::{self, IdRow};
use crate::embedded::record::{self, bytes_of};
use crate::error::StorageError;

/// Changes of a feed from which several threads read it.
const LARGE: Seq = 20_000;
/// Most threads that read one feed's log.
const MAX_THREADS: usize = 8;
/// Changes between two steps of the progress.
const TICK: u64 = 1000;

/// The feed is not as it should be.
pub(super) struct Differs;

impl From<StorageError> for Differs {
    fn from(_: StorageError) -> Self {
        // Met again, with its place, by the exact check.
        Self
    }
}

/// Numbers of a sound feed.
pub(super) struct FeedCounts {
    pub(super) changes: u64,
    pub(super) items: u64,
}

/// Sums over a part of a log.
#[derive(Debug, Default)]
struct LogSums {
    changes: u64,
    items: u64,
    live: u64,
    chain: HashSum,
    versions: HashSum,
    latest: HashSum,
    times: HashSum,
    /// Position and time of the first and the last change.
    ends: Option<[(Seq, Timestamp); 2]>,
}

/// Sums over the id index.
#[derive(Debug, Default, PartialEq)]
struct IdSums {
    items: u64,
    live: u64,
    latest: HashSum,
    created: HashSum,
}

impl VerifiedStore<'_> {
    /// Checks a feed, and returns its numbers if it is sound.
    pub(super) fn scan_feed(
        &self,
        feed: &VerifiedFeed,
        progress: &VerifyProgress,
    ) -> Result<FeedCounts, Differs> {
        let head = feed.row.head;
        let threads =
            if head.seq < LARGE { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
        let parts = parts(head.seq, threads.min(MAX_THREADS));
        let (sums, ids) = if let [part] = parts[..] {
            (self.scan_log(feed, part, progress)?, self.scan_ids(feed)?)
        } else {
            self.scan_in_parallel(feed, &parts, progress)?
        };
        let counts = (head.items, head.live);
        let [first, last] = sums.ends.unwrap_or([(0, head.modified); 2]);
        let is_sound = last == (head.seq, head.modified)
            // Up to the horizon anything may be gone, so the log begins right behind it at the latest.
            && first.0 <= head.horizon + 1
            && (sums.items, sums.live) == counts
            && (ids.items, ids.live) == counts
            && sums.chain == sums.versions
            && sums.latest == ids.latest
            && self.scan_created(feed)? == (ids.created, head.items)
            && self.count_latest(feed)? == head.items
            && self.scan_times(feed)? == sums.times;
        if is_sound { Ok(FeedCounts { changes: sums.changes, items: sums.items }) } else { Err(Differs) }
    }

    fn scan_in_parallel(
        &self,
        feed: &VerifiedFeed,
        parts: &[(Seq, Seq)],
        progress: &VerifyProgress,
    ) -> Result<(LogSums, IdSums), Differs> {
        thread::scope(|scope| {
            let ids = scope.spawn(|| self.scan_ids(feed));
            let logs: Vec<_> =
                parts.iter().map(|part| scope.spawn(|| self.scan_log(feed, *part, progress))).collect();
            let mut sums = LogSums::default();
            for log in logs {
                // In the order of the parts, because each checks that it follows the one before.
                sums.join(feed, &log.join().map_err(|_| Differs)??)?;
            }
            Ok((sums, ids.join().map_err(|_| Differs)??))
        })
    }

    /// Reads the changes from one position to another, and which of them are latest versions.
    fn scan_log(
        &self,
        feed: &VerifiedFeed,
        (first, last): (Seq, Seq),
        progress: &VerifyProgress,
    ) -> Result<LogSums, Differs> {
        let number = feed.row.number;
        let range = || keys::position_key(number, first)..=keys::position_key(number, last);
        let mut listed = self.snapshot.range(&self.engine.modified, range()).map(|entry| {
            let key = entry.key().map_err(|e| read_error(&e))?;
            keys::read_position(&key)
        });
        let mut next_latest = listed.next().transpose()?;
        let mut sums = LogSums::default();
        for entry in self.snapshot.range(&self.engine.log, range()) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let seq = keys::read_position(&key)?;
            // Records that a replica bulk-loaded before a crash: they are not part of the log until a head
            // covers them.
            if self.is_replica && seq > feed.row.head.seq {
                break;
            }
            let change = record::decode(seq, &bytes_of(value))?;
            let is_latest = next_latest == Some(seq);
            if is_latest {
                next_latest = listed.next().transpose()?;
            }
            self.add(feed, &change, is_latest, &mut sums)?;
            if sums.changes.is_multiple_of(TICK) {
                progress.add(TICK);
            }
        }
        // A latest version that the log does not have.
        if next_latest.is_some() { Err(Differs) } else { Ok(sums) }
    }

    fn add(
        &self,
        feed: &VerifiedFeed,
        change: &Change,
        is_latest: bool,
        sums: &mut LogSums,
    ) -> Result<(), Differs> {
        let horizon = feed.row.head.horizon;
        let is_live = change.op != Op::Delete;
        // A deletion has the default hash.
        let hash = if is_live { change.item.content_hash() } else { Default::default() };
        // The hash is made again from the item, so a single flipped bit of the content is found.
        if hash != change.hash || is_patch_without_patch(change) {
            return Err(Differs);
        }
        let (id, origin) = (change.item.id.as_bytes(), (change.first_seq, change.created));
        let version = sum::version(id, change.seq, origin);
        sums.chain.add(version);
        match change.previous {
            // The first version of an item is its own origin.
            None if origin != (change.seq, change.modified) => return Err(Differs),
            None => {}
            Some(previous) if !(change.first_seq..change.seq).contains(&previous) => return Err(Differs),
            Some(previous) if previous <= horizon && !self.has_record(feed, previous)? => {}
            Some(previous) => sums.chain.remove(sum::version(id, previous, origin)),
        }
        if is_latest {
            sums.items += 1;
            sums.live += u64::from(is_live);
            sums.versions.add(version);
            sums.latest.add(sum::latest(version, is_live.then_some(&change.hash)));
        }
        sums.follow(feed, (change.seq, change.modified))
    }

    fn has_record(&self, feed: &VerifiedFeed, seq: Seq) -> Result<bool, StorageError> {
        let key = keys::position_key(feed.row.number, seq);
        self.snapshot.contains_key(&self.engine.log, key).map_err(|e| read_error(&e))
    }

    fn scan_ids(&self, feed: &VerifiedFeed) -> Result<IdSums, Differs> {
        let mut sums = IdSums::default();
        for entry in self.snapshot.prefix(&self.engine.ids, feed.row.number.to_be_bytes()) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let (id, row) = (keys::read_id(&key)?, IdRow::decode(&value)?);
            let version = sum::version(id.as_bytes(), row.latest, (row.first, row.created));
            sums.items += 1;
            sums.live += u64::from(row.hash.is_some());
            sums.latest.add(sum::latest(version, row.hash.as_ref()));
            sums.created.add(sum::entry(&row.first.to_be_bytes(), row.latest));
        }
        Ok(sums)
    }

    fn scan_created(&self, feed: &VerifiedFeed) -> Result<(HashSum, u64), Differs> {
        let (mut sum, mut count) = (HashSum::default(), 0);
        for entry in self.snapshot.prefix(&self.engine.created, feed.row.number.to_be_bytes()) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            sum.add(sum::entry(&keys::read_position(&key)?.to_be_bytes(), keys::read_seq(&value)?));
            count += 1;
        }
        Ok((sum, count))
    }

    /// Counts the index of latest versions. Its entries were compared beside the log, but for those behind its end.
    fn count_latest(&self, feed: &VerifiedFeed) -> Result<u64, Differs> {
        let mut count = 0;
        for entry in self.snapshot.prefix(&self.engine.modified, feed.row.number.to_be_bytes()) {
            entry.key().map_err(|e| read_error(&e))?;
            count += 1;
        }
        Ok(count)
    }

    /// Sums the entries of the time index that lead behind the horizon. Others must lead up to it.
    fn scan_times(&self, feed: &VerifiedFeed) -> Result<HashSum, Differs> {
        let (mut sum, mut last) = (HashSum::default(), 0);
        for entry in self.snapshot.prefix(&self.engine.times, feed.row.number.to_be_bytes()) {
            let (key, value) = entry.into_inner().map_err(|e| read_error(&e))?;
            let seq = keys::read_seq(&value)?;
            // Times and positions rise together. Up to the horizon this is all that can be checked: those
            // entries are in no sum.
            if seq <= last {
                return Err(Differs);
            }
            last = seq;
            if seq > feed.row.head.horizon {
                sum.add(sum::entry(&key[4..], seq));
            }
        }
        Ok(sum)
    }
}

impl LogSums {
    /// Checks that a change follows the one before, and adds the end of that one's time.
    fn follow(&mut self, feed: &VerifiedFeed, at: (Seq, Timestamp)) -> Result<(), Differs> {
        self.changes += 1;
        let horizon = feed.row.head.horizon;
        let [first, last] = self.ends.unwrap_or([at, at]);
        if self.ends.is_some() {
            self.step_over(horizon, last, at)?;
        }
        // The end of the log ends a time as well.
        if at.0 == feed.row.head.seq && at.0 > horizon {
            self.times.add(sum::entry(&keys::time(at.1), at.0));
        }
        self.ends = Some([first, at]);
        Ok(())
    }

    fn step_over(
        &mut self,
        horizon: Seq,
        last: (Seq, Timestamp),
        at: (Seq, Timestamp),
    ) -> Result<(), Differs> {
        // Up to the horizon anything may be missing, and nothing behind it.
        let is_due = at.0 <= horizon || at.0 == last.0.max(horizon).saturating_add(1);
        if !is_due || at.1 < last.1 {
            return Err(Differs);
        }
        if at.1 != last.1 && last.0 > horizon {
            self.times.add(sum::entry(&keys::time(last.1), last.0));
        }
        Ok(())
    }

    /// Adds the part of the log that follows.
    fn join(&mut self, feed: &VerifiedFeed, next: &Self) -> Result<(), Differs> {
        let Some([begin, end]) = next.ends else { return Ok(()) };
        let [first, last] = self.ends.unwrap_or([begin, begin]);
        if self.ends.is_some() {
            self.step_over(feed.row.head.horizon, last, begin)?;
        }
        self.ends = Some([first, end]);
        self.changes += next.changes;
        self.items += next.items;
        self.live += next.live;
        for (sum, other) in [
            (&mut self.chain, next.chain),
            (&mut self.versions, next.versions),
            (&mut self.latest, next.latest),
            (&mut self.times, next.times),
        ] {
            sum.join(other);
        }
        Ok(())
    }
}

/// Returns true for a patch that lacks what was patched.
pub(super) fn is_patch_without_patch(change: &Change) -> bool {
    change.op == Op::Patch && change.patch.is_none()
}

/// Divides the positions of a log into parts. The last has no end: what is behind the head must be found.
fn parts(seq: Seq, count: usize) -> Vec<(Seq, Seq)> {
    let count = count.max(1) as Seq;
    let begin = |part: Seq| if part == 0 { 0 } else { seq / count * part + 1 };
    (0..count)
        .map(|part| (begin(part), if part + 1 == count { Seq::MAX } else { begin(part + 1) - 1 }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_position_once() {
        for (seq, count) in [(0, 1), (1, 4), (20_000, 2), (100_001, 8)] {
            let parts = parts(seq, count);
            assert_eq!((parts[0].0, parts[parts.len() - 1].1), (0, Seq::MAX));
            assert!(parts.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{parts:?}");
        }
    }
}
