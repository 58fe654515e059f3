//! A log in memory, to answer reads from in tests.

use jiff::Timestamp;

use super::filter::FilterView;
use super::plan::{Answer, Head, Read};
use super::pull::{Page, Pull, PullError, Step};
use super::spec::By;
use crate::change::{Change, NewChange, Op, Seq};
use crate::item::Item;

/// Every change of one feed, and what a store would answer of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryLog {
    pub(crate) changes: Vec<Change>,
    /// How many items reads have returned so far.
    pub(crate) read: usize,
}

impl MemoryLog {
    pub(crate) fn append(&mut self, new: NewChange, now: Timestamp) {
        let seq = self.changes.len() as Seq + 1;
        let last = self.changes.last().map_or(now, |change| change.modified);
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

    /// The latest versions, along an order.
    pub(crate) fn items(&self, by: By) -> Vec<Change> {
        let mut seen = std::collections::HashSet::new();
        let mut items: Vec<_> =
            self.changes.iter().rev().filter(|c| seen.insert(c.item.id.as_str())).cloned().collect();
        items.sort_by_key(|change| by.position(change));
        items
    }

    pub(crate) fn head(&self) -> Head {
        let modified = self.changes.last().map_or(Timestamp::UNIX_EPOCH, |change| change.modified);
        Head { seq: self.changes.len() as Seq, modified, items: self.items(By::Modified).len() as u64 }
    }

    pub(crate) fn answer(&mut self, read: &Read) -> Answer {
        match read {
            Read::Head => Answer::Head(self.head()),
            Read::LastBefore(time) => {
                Answer::Place(self.changes.partition_point(|change| change.modified < *time) as Seq)
            }
            Read::Latest(id) => Answer::Item(self.latest(id).cloned().map(Box::new)),
            Read::Items { by, after, before, descending, items, .. } => {
                let mut list = self.items(*by);
                let within = |p: Seq| after.is_none_or(|a| p > a) && before.is_none_or(|b| p < b);
                list.retain(|change| within(by.position(change)));
                if *descending {
                    list.reverse();
                }
                list.truncate(*items);
                self.read += list.len();
                Answer::Items(list)
            }
        }
    }

    /// Runs a pull until it has a page, or waits: then the page of its deadline.
    pub(crate) fn run(&mut self, pull: &mut Pull) -> Result<Page, PullError> {
        self.run_through(None, pull)
    }

    /// The same, through a filter.
    pub(crate) fn run_through(
        &mut self,
        view: Option<&FilterView>,
        pull: &mut Pull,
    ) -> Result<Page, PullError> {
        let mut step = pull.begin();
        loop {
            step = match step {
                Step::Read(read) => pull.handle_answer(self.answer(&read), view)?,
                Step::Wait { .. } => pull.handle_timeout(),
                Step::Page(page) => return Ok(*page),
            };
        }
    }
}
