//! A log in memory for tests, and builders of its changes.

use jiff::Timestamp;

use super::cursor::{CursorKind, LogTag};
use super::filter::FilterView;
use super::log_read::{LogRead, LogReadHead, LogReadResult};
use super::pull::{FeedSettings, Pull, PullError, PullPage, PullStep};
use super::query::{PullLimits, PullQuery};
use crate::change::{Change, NewChange, Op, Seq};
use crate::item::{ContentHash, Item};
use crate::smart::wire::spec::OrderBy;

/// Every change of one feed, read as a store would.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryLog {
    pub(crate) changes: Vec<Change>,
    /// Position up to which deletions were let go.
    pub(crate) horizon: Seq,
    /// Number of items that reads have returned so far.
    pub(crate) read: usize,
}

impl MemoryLog {
    pub(crate) fn append(&mut self, new: NewChange, now: Timestamp) {
        let seq = self.changes.len() as Seq + 1;
        let last = self.changes.last().map_or(now, |change| change.modified);
        // Times never decrease along the log, as in a store.
        let modified = now.max(last);
        let before = self.latest(&new.item.id);
        let (created, first_seq) = before.map_or((modified, seq), |b| (b.created, b.first_seq));
        let previous = before.map(|b| b.seq);
        let item = match (new.op, before) {
            (Op::Delete, Some(b)) => {
                Item { published: b.item.published, updated: b.item.updated, ..Item::new(new.item.id) }
            }
            _ => new.item,
        };
        let (op, hash) = (new.op, item.content_hash());
        self.changes.push(Change {
            seq,
            op,
            modified,
            created,
            first_seq,
            previous,
            item,
            patch: None,
            entry_id: None,
            hash,
        });
    }

    pub(crate) fn latest(&self, id: &str) -> Option<&Change> {
        self.changes.iter().rev().find(|change| change.item.id == id)
    }

    /// Returns the latest versions, in an order.
    pub(crate) fn items(&self, by: OrderBy) -> Vec<Change> {
        let mut seen = std::collections::HashSet::new();
        let mut items: Vec<_> =
            self.changes.iter().rev().filter(|c| seen.insert(c.item.id.as_str())).cloned().collect();
        items.retain(|change| change.op != Op::Delete || change.seq > self.horizon);
        items.sort_by_key(|change| by.position(change));
        items
    }

    pub(crate) fn head(&self) -> LogReadHead {
        let modified = self.changes.last().map_or(Timestamp::UNIX_EPOCH, |change| change.modified);
        LogReadHead {
            seq: self.changes.len() as Seq,
            modified,
            items: self.items(OrderBy::Modified).len() as u64,
            horizon: self.horizon,
        }
    }

    pub(crate) fn answer(&mut self, read: &LogRead) -> LogReadResult {
        match read {
            LogRead::Head => LogReadResult::Head(self.head()),
            LogRead::LastBefore(time) => {
                LogReadResult::Position(self.changes.partition_point(|change| change.modified < *time) as Seq)
            }
            LogRead::Latest(id) => LogReadResult::Item(self.latest(id).cloned().map(Box::new)),
            LogRead::Items { by, after, before, descending, items, .. } => {
                let mut list = self.items(*by);
                let within = |p: Seq| after.is_none_or(|a| p > a) && before.is_none_or(|b| p < b);
                list.retain(|change| within(by.position(change)));
                if *descending {
                    list.reverse();
                }
                list.truncate(*items);
                self.read += list.len();
                LogReadResult::Items(list)
            }
        }
    }

    /// Runs a pull to its page. If it waits, its deadline passes at once.
    pub(crate) fn run(&mut self, pull: &mut Pull) -> Result<PullPage, PullError> {
        self.run_through(None, pull)
    }

    /// Runs a pull through a filter.
    pub(crate) fn run_through(
        &mut self,
        view: Option<&FilterView>,
        pull: &mut Pull,
    ) -> Result<PullPage, PullError> {
        let mut step = pull.begin();
        loop {
            step = match step {
                PullStep::Read(read) => pull.handle_read(self.answer(&read), view)?,
                PullStep::Wait { .. } => pull.handle_timeout(),
                PullStep::Page(page) => return Ok(*page),
            };
        }
    }
}

pub(crate) fn time(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// Returns the first version of an item.
pub(crate) fn change(seq: Seq, id: &str, seconds: i64) -> Change {
    let (modified, item) = (time(seconds), Item::new(id));
    Change {
        seq,
        op: Op::Put,
        modified,
        created: modified,
        first_seq: seq,
        previous: None,
        item,
        patch: None,
        entry_id: None,
        hash: ContentHash::default(),
    }
}

pub(crate) fn settings(kind: CursorKind) -> FeedSettings {
    FeedSettings {
        name: "a".into(),
        base: "http://example.com/feeds/a/items".into(),
        title: "A".into(),
        tag: LogTag::new("http://example.com/feeds/a#1"),
        kind,
        limits: PullLimits::default(),
        links: Vec::new(),
        hub: None,
    }
}

/// Builds a log of puts (`a`) and deletions (`-a`), each with its second.
pub(crate) fn log(changes: &[(&str, i64)]) -> MemoryLog {
    let mut log = MemoryLog::default();
    for (id, seconds) in changes {
        let new = match id.strip_prefix('-') {
            Some(id) => NewChange::delete(id),
            None => NewChange::put(Item::new(*id)),
        };
        log.append(new, time(*seconds));
    }
    log
}

pub(crate) fn pull(log: &mut MemoryLog, kind: CursorKind, query: &str) -> Result<PullPage, PullError> {
    let feed = settings(kind);
    let query = PullQuery::parse(query, &feed.limits)?;
    let now = log.head().modified.max(time(1_000_000));
    log.run(&mut Pull::new(query, &feed, now))
}
