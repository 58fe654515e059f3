//! Ledger: what publishers sent, and what they were told. The logs and the copies are compared with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use towpath_proto::change::{Change, Op, Seq};

/// Outcome of a change, as far as the publisher that sent it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Sent, and no answer yet. It may be appended at any time.
    Unknown,
    /// Acknowledged.
    Acknowledged,
    /// Refused: it is never appended.
    Refused,
}

/// A change that was sent. Titles are unique in a simulation.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Title of the item; `None` for a deletion.
    pub title: Option<String>,
    /// Result.
    pub outcome: Outcome,
}

/// Feeds that are published to.
#[derive(Debug, Default)]
pub struct Ledger {
    feeds: BTreeMap<String, FeedLedger>,
}

/// Record of the changes that were sent to a feed, and of those that were seen.
#[derive(Debug, Default)]
pub struct FeedLedger {
    items: BTreeMap<String, Vec<Attempt>>,
    /// Log as it was seen last: id and title by position, from position 1.
    seen: Vec<(String, Option<String>)>,
    /// Titles that a reader got.
    read: BTreeSet<(String, String)>,
    /// Positions of the titles in the log.
    positions: HashMap<String, Seq>,
    /// Acknowledged additions to each counter.
    counted: BTreeMap<String, (u64, u64)>,
    /// Number of events that were noted.
    events: u64,
}

impl Ledger {
    /// Returns the ledger of a feed.
    pub fn feed(&mut self, feed: &str) -> &mut FeedLedger {
        self.feeds.entry(feed.to_owned()).or_default()
    }

    /// Returns the number of events that were noted in all feeds.
    pub fn events(&self) -> u64 {
        self.feeds.values().map(|feed| feed.events).sum()
    }
}

impl FeedLedger {
    /// Notes a change that is about to be sent. Returns its number.
    pub fn send(&mut self, id: &str, title: Option<String>) -> usize {
        self.events += 1;
        let attempts = self.items.entry(id.to_owned()).or_default();
        attempts.push(Attempt { title, outcome: Outcome::Unknown });
        attempts.len() - 1
    }

    /// Notes the answer to a change.
    pub fn answer(&mut self, id: &str, number: usize, outcome: Outcome) {
        self.events += 1;
        if let Some(attempt) = self.items.get_mut(id).and_then(|attempts| attempts.get_mut(number)) {
            attempt.outcome = outcome;
        }
    }

    /// Notes an addition to a counter, by whether it was acknowledged.
    pub fn count(&mut self, id: &str, is_acknowledged: bool) {
        self.events += 1;
        let (acknowledged, sent) = self.counted.entry(id.to_owned()).or_default();
        *acknowledged += u64::from(is_acknowledged);
        *sent += u64::from(!is_acknowledged);
    }

    /// Notes what a reader got.
    pub fn read(&mut self, id: &str, title: &str) {
        self.events += 1;
        self.read.insert((id.to_owned(), title.to_owned()));
    }

    /// Returns the position of a title in the log, as last compared.
    pub fn position(&self, title: &str) -> Option<Seq> {
        self.positions.get(title).copied()
    }

    /// Returns the titles of the live items, as last compared.
    pub fn live(&self) -> BTreeMap<String, String> {
        let mut live = BTreeMap::new();
        for (id, title) in &self.seen {
            match title {
                Some(title) => drop(live.insert(id.clone(), title.clone())),
                None => drop(live.remove(id)),
            }
        }
        live
    }

    /// Returns id and title of the changes of the log, as last compared.
    pub fn log(&self) -> &[(String, Option<String>)] {
        &self.seen
    }

    /// Compares the whole log with what was seen, read and acknowledged. Returns the first difference.
    pub fn compare(&mut self, log: &[Change]) -> Result<(), String> {
        let entry = |change: &Change| {
            let title = (change.op != Op::Delete).then(|| change.item.title.clone().unwrap_or_default());
            (change.item.id.clone(), title)
        };
        if let Some((at, change)) = log.iter().enumerate().find(|(at, change)| change.seq != *at as Seq + 1) {
            return Err(format!("the log has position {} in place {}", change.seq, at + 1));
        }
        if let Some(pair) = log.windows(2).find(|pair| pair[1].modified < pair[0].modified) {
            return Err(format!("the time of change {} is before that of the one before it", pair[1].seq));
        }
        let entries: Vec<_> = log.iter().map(entry).collect();
        for (at, seen) in self.seen.iter().enumerate() {
            match entries.get(at) {
                None => return Err(format!("change {} was seen ({seen:?}), and is gone", at + 1)),
                Some(now) if now != seen => {
                    return Err(format!("change {} was {seen:?}, and is {now:?}", at + 1));
                }
                Some(_) => {}
            }
        }
        for (at, (id, title)) in entries.iter().enumerate().skip(self.seen.len()) {
            let attempts = self.items.get(id).map_or(&[][..], Vec::as_slice);
            let is_sent = attempts.iter().any(|a| a.title == *title && a.outcome != Outcome::Refused);
            if !is_sent {
                return Err(format!("change {} of {id} ({title:?}) was not sent, or refused", at + 1));
            }
            if let Some(title) = title {
                self.positions.insert(title.clone(), at as Seq + 1);
            }
        }
        self.seen = entries;
        self.compare_acknowledged()
    }

    fn compare_acknowledged(&self) -> Result<(), String> {
        let stored: BTreeSet<(&str, &str)> =
            self.seen.iter().filter_map(|(id, title)| Some((id.as_str(), title.as_deref()?))).collect();
        let mut deletions: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, _) in self.seen.iter().filter(|(_, title)| title.is_none()) {
            *deletions.entry(id).or_default() += 1;
        }
        for (id, attempts) in &self.items {
            let acknowledged = attempts.iter().filter(|a| a.outcome == Outcome::Acknowledged);
            let mut deleted = 0;
            for attempt in acknowledged {
                match &attempt.title {
                    None => deleted += 1,
                    Some(title) if !stored.contains(&(id, title)) => {
                        return Err(format!("{title} of {id} was acknowledged, and is not in the log"));
                    }
                    Some(_) => {}
                }
            }
            let found = deletions.get(id.as_str()).copied().unwrap_or_default();
            if deleted > found {
                return Err(format!(
                    "{deleted} deletions of {id} were acknowledged, and {found} are in the log"
                ));
            }
        }
        if let Some((id, title)) =
            self.read.iter().find(|(id, title)| !stored.contains(&(id.as_str(), title.as_str())))
        {
            return Err(format!("a reader got {title} of {id}, which is not in the log"));
        }
        self.compare_counters()
    }

    fn compare_counters(&self) -> Result<(), String> {
        let live = self.live();
        for (at, (id, title)) in self.seen.iter().enumerate() {
            let is_counter = self.counted.contains_key(id);
            if is_counter
                && title.is_some()
                && self.seen[..at].iter().any(|seen| seen.0 == *id && seen.1 == *title)
            {
                return Err(format!("{title:?} of {id} was appended twice, and its condition held once"));
            }
        }
        for (id, (acknowledged, unknown)) in &self.counted {
            let value =
                live.get(id).and_then(|title| title.split('=').nth(1)?.split(' ').next()?.parse().ok());
            let value: u64 = value.unwrap_or_default();
            if value < *acknowledged || value > acknowledged + unknown {
                return Err(format!(
                    "counter {id} is {value}: {acknowledged} additions were acknowledged, {unknown} more were sent"
                ));
            }
        }
        Ok(())
    }
}
