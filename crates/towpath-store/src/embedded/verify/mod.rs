//! Verification: compares the indexes with the log, and the log with itself.
//!
//! `scan` reads every keyspace once, from its begin to its end, and compares sums of hashes: an index agrees with the log
//! if the hashes of what it says add up to those of what the log says. That takes constant memory and no seeks. Where a
//! sum differs, or something cannot be read, `exact` looks up every entry and names those that are wrong, and `files` names
//! the files that are damaged.

mod exact;
mod files;
mod progress;
mod scan;
mod sum;

use std::fmt;

use fjall::{Readable as _, Snapshot};
use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;

pub use self::progress::VerifyProgress;

use super::engine_error::read_error;
use super::keys::{self, FeedRow};
use super::read;
use super::record::bytes_of;
use super::storage_engine::StorageEngine;
use crate::error::StorageError;

/// Number of problems that a report lists in full.
const MAX_PROBLEMS: usize = 100;

/// Problem of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreProblem {
    /// The feed, where it is known.
    pub feed: Option<FeedId>,
    /// Position in its log.
    pub position: Option<Seq>,
    /// Difference from what should be there.
    pub problem: String,
}

impl fmt::Display for StoreProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { feed, position, problem } = self;
        match (feed, position) {
            (Some(feed), Some(position)) => write!(f, "feed {feed}, change {position}: {problem}"),
            (Some(feed), None) => write!(f, "feed {feed}: {problem}"),
            (None, _) => f.write_str(problem),
        }
    }
}

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
    /// The first hundred problems.
    pub problems: Vec<StoreProblem>,
}

impl VerifyReport {
    /// Returns true where no problem was found.
    pub fn is_sound(&self) -> bool {
        self.problem_count == 0
    }

    fn add_problem(&mut self, problem: StoreProblem) {
        self.problem_count += 1;
        // A lost index has a problem per change: the texts must not fill the memory.
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    /// Adds a damaged file, before what follows from it.
    fn add_file(&mut self, problem: String) {
        self.problem_count += 1;
        self.problems.insert(0, StoreProblem { feed: None, position: None, problem });
        self.problems.truncate(MAX_PROBLEMS);
    }

    /// Adds a problem of the store as a whole.
    fn add(&mut self, problem: impl Into<String>) {
        self.add_problem(StoreProblem { feed: None, position: None, problem: problem.into() });
    }
}

/// Snapshot of the store, for a check.
struct VerifiedStore<'a> {
    engine: &'a StorageEngine,
    snapshot: Snapshot,
    /// A replica may have records past the head, see `StorageEngine::load`: they are no problem.
    is_replica: bool,
}

/// A feed to check.
struct VerifiedFeed {
    name: FeedId,
    row: FeedRow,
}

impl StorageEngine {
    /// Reads everything from one snapshot, in constant memory.
    pub(crate) fn verify(&self, progress: &VerifyProgress) -> Result<VerifyReport, StorageError> {
        let store =
            VerifiedStore { engine: self, snapshot: self.db.snapshot(), is_replica: self.is_replica()? };
        let mut report = VerifyReport::default();
        let feeds = store.feeds(&mut report);
        let changes = feeds.iter().map(|feed| feed.row.head.seq - feed.row.head.horizon);
        progress.expect(changes.fold(0, u64::saturating_add));
        for feed in &feeds {
            report.feeds += 1;
            store.check_feed(feed, progress, &mut report);
        }
        store.check_numbers(&feeds, &mut report);
        if !report.is_sound() {
            files::check_files(self, &mut report);
        }
        Ok(report)
    }
}

impl VerifiedStore<'_> {
    /// Reads the list of feeds. What cannot be read is a problem like any other.
    fn feeds(&self, report: &mut VerifyReport) -> Vec<VerifiedFeed> {
        let mut feeds = Vec::new();
        for entry in self.snapshot.iter(&self.engine.feeds) {
            let (key, value) = match entry.into_inner() {
                Ok(entry) => entry,
                Err(e) => {
                    report.add(format!("the list of feeds: {}", read_error(&e)));
                    break;
                }
            };
            let feed = read::name(&key).and_then(|name| Ok((name, FeedRow::decode(&value)?)));
            match feed {
                Ok((name, row)) if row.head.horizon > row.head.seq => {
                    let problem = "its log ends before its horizon".into();
                    report.add_problem(StoreProblem { feed: Some(name), position: None, problem });
                }
                Ok((name, row)) => feeds.push(VerifiedFeed { name, row }),
                Err(e) => {
                    report.add(format!("the list of feeds, {:?}: {e}", String::from_utf8_lossy(&key)));
                }
            }
        }
        feeds
    }

    fn check_feed(&self, feed: &VerifiedFeed, progress: &VerifyProgress, report: &mut VerifyReport) {
        if let Ok(counts) = self.scan_feed(feed, progress) {
            report.changes += counts.changes;
            report.items += counts.items;
            return;
        }
        let before = report.problem_count;
        self.check_exactly(feed, report);
        if report.problem_count == before {
            // An entry of another feed, or one behind the head, that no change of this feed leads to.
            let problem = "its indexes have entries that no change explains".into();
            let feed = Some(feed.name.clone());
            report.add_problem(StoreProblem { feed, position: None, problem });
        }
    }

    /// Checks the numbers of the feeds, and the rows with their names.
    fn check_numbers(&self, feeds: &[VerifiedFeed], report: &mut VerifyReport) {
        let mut numbers: Vec<_> = feeds.iter().map(|feed| (feed.row.number, &feed.name)).collect();
        // Two feeds with one number would share all their keys.
        numbers.sort_unstable();
        for pair in numbers.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            report.add(format!("the feeds {} and {} have the same number", pair[0].1, pair[1].1));
        }
        for (number, name) in &numbers {
            let found = self.snapshot.get(&self.engine.tables, keys::feed_name(*number));
            if !found.is_ok_and(|found| found.is_some_and(|found| bytes_of(found) == name.as_str())) {
                let problem = "the row with its name is missing or wrong".into();
                report.add_problem(StoreProblem { feed: Some((*name).clone()), position: None, problem });
            }
        }
        for entry in self.snapshot.prefix(&self.engine.tables, keys::FEED_NAMES) {
            // What cannot be read is missing for its feed above.
            let Ok((key, name)) = entry.into_inner() else { break };
            let number = key[keys::FEED_NAMES.len()..].try_into().map(u32::from_be_bytes);
            if number.is_ok_and(|number| numbers.binary_search_by_key(&number, |(known, _)| *known).is_err())
            {
                let name = String::from_utf8_lossy(&name);
                report.add(format!("the list of feeds: the row of feed {name} is missing"));
            }
        }
        let next = self.snapshot.get(&self.engine.tables, keys::NEXT_FEED).ok().flatten();
        let next = next.and_then(|next| next[..].try_into().ok()).map_or(0, u32::from_be_bytes);
        if numbers.last().is_some_and(|(last, _)| *last >= next) {
            report.add("the number of the next feed is that of a feed");
        }
    }
}

#[cfg(test)]
mod tests;
