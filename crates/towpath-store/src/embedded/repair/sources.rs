//! Feeds of a damaged store: names, numbers and ends of logs, each from the place that is still sound.

use std::collections::{BTreeMap, BTreeSet};

use fjall::{Keyspace, Readable as _};
use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;

use super::{LostChange, Salvage};
use crate::embedded::engine_error::read_error;
use crate::embedded::keys::{self, FeedNumber, FeedRow};
use crate::embedded::read;
use crate::error::StorageError;

/// A feed whose log is read.
pub(super) struct FeedSource {
    pub(super) name: FeedId,
    pub(super) number: FeedNumber,
    /// Its row, where it can be read.
    pub(super) row: Option<FeedRow>,
    /// Last position of its log.
    pub(super) end: Seq,
}

impl FeedSource {
    /// Returns the horizon that its row has; `None` if it has none that can be.
    pub(super) fn horizon(&self) -> Option<Seq> {
        self.row.map(|row| row.head.horizon).filter(|horizon| *horizon < self.end)
    }
}

impl Salvage<'_> {
    pub(super) fn sources(&mut self) -> Vec<FeedSource> {
        let rows = self.feed_rows();
        let names = self.feed_names();
        let claimed: BTreeSet<FeedNumber> = rows.values().flatten().map(|row| row.number).collect();
        let mut numbers: BTreeMap<FeedNumber, (FeedId, Option<FeedRow>)> = BTreeMap::new();
        for (name, row) in &rows {
            // The second place of its name counts where no other feed's row has that number.
            let own = row.map(|row| row.number);
            let second = names.get(name).copied().filter(|n| Some(*n) == own || !claimed.contains(n));
            match second.or(own) {
                Some(number) => drop(numbers.insert(number, (name.clone(), *row))),
                None => self.lose_feed(name, "its number is in no row"),
            }
        }
        for (name, number) in names {
            if !rows.contains_key(&name) {
                numbers.entry(number).or_insert((name, None));
            }
        }
        let mut sources = Vec::new();
        for (number, (name, row)) in numbers {
            match self.end_of_log(number, row) {
                Ok(0) => self.lose_feed(&name, "its log is missing"),
                Ok(end) => sources.push(FeedSource { name, number, row, end }),
                Err(error) => self.lose_feed(&name, &error.to_string()),
            }
        }
        sources
    }

    fn lose_feed(&mut self, name: &FeedId, reason: &str) {
        let reason = format!("all of the feed: {reason}");
        self.report.lost.push(LostChange { feed: name.clone(), position: 0, item: None, reason });
    }

    /// Returns the names that the list of feeds has, with the rows that can be read.
    fn feed_rows(&self) -> BTreeMap<FeedId, Option<FeedRow>> {
        let mut rows = BTreeMap::new();
        // From both ends: what is behind a damaged block is in the second place as well.
        for entry in self.snapshot.iter(&self.old.feeds).map_while(|entry| entry.into_inner().ok()) {
            if let Ok(name) = read::name(&entry.0) {
                rows.insert(name, FeedRow::decode(&entry.1).ok());
            }
        }
        for entry in self.snapshot.iter(&self.old.feeds).rev().map_while(|entry| entry.into_inner().ok()) {
            if let Ok(name) = read::name(&entry.0) {
                rows.entry(name).or_insert_with(|| FeedRow::decode(&entry.1).ok());
            }
        }
        rows
    }

    /// Returns the numbers of feeds that the tables have.
    fn feed_names(&self) -> BTreeMap<FeedId, FeedNumber> {
        let entries = self.snapshot.prefix(&self.old.tables, keys::FEED_NAMES);
        let rows = entries.map_while(|entry| entry.into_inner().ok());
        let named = rows.filter_map(|(key, name)| {
            let number = key[keys::FEED_NAMES.len()..].try_into().ok().map(u32::from_be_bytes)?;
            Some((read::name(&name).ok()?, number))
        });
        named.collect()
    }

    /// Returns the last position of a log, as two of its row, the log and the index of latest versions have it.
    fn end_of_log(&self, number: FeedNumber, row: Option<FeedRow>) -> Result<Seq, StorageError> {
        let last = |keyspace: &Keyspace| {
            let range = keys::position_key(number, 0)..=keys::position_key(number, Seq::MAX);
            let last = self.snapshot.range(keyspace, range).next_back();
            last.map_or(Ok(0), |entry| keys::read_position(&entry.key().map_err(|e| read_error(&e))?))
        };
        let (log, latest) = (last(&self.old.log), last(&self.old.modified));
        let head = row.map(|row| row.head.seq);
        match (log, latest) {
            (_, Ok(latest)) if head == Some(latest) => Ok(latest),
            (Ok(log), _) => Ok(log),
            (Err(_), Ok(latest)) => Ok(latest),
            (Err(error), Err(_)) => head.ok_or(error),
        }
    }
}
