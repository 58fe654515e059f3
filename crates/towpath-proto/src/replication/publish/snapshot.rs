//! Writes the pages of a snapshot.

use super::page::{MultipartPage, PageBuilder};
use super::pages::PageLimits;
use crate::change::{Change, Op};
use crate::replication::wire::entity;

pub use crate::replication::wire::{Continuation, SnapshotIndex, floor_to_second};

/// Writes the pages of a snapshot. Memory holds a single page at a time.
#[derive(Debug)]
pub struct SnapshotWriter {
    id: String,
    limits: PageLimits,
    number: u64,
    bytes: u64,
    page: PageBuilder,
}

impl SnapshotWriter {
    /// Creates a writer for the snapshot with this id. Take `createdAt` before reading the first item.
    pub fn new(id: &str, limits: PageLimits) -> Self {
        Self { id: id.to_owned(), limits, number: 0, bytes: 0, page: PageBuilder::new(&format!("{id}/0")) }
    }

    /// Adds the latest version of an item. Returns the previous page if the item did not fit on it.
    ///
    /// Deleted items are skipped: a snapshot has live items only.
    pub fn push(&mut self, change: &Change) -> Option<MultipartPage> {
        if change.op == Op::Delete {
            return None;
        }
        let entity = entity::snapshot_entity(change);
        let size = entity.body.len() as u64;
        // The same rule as for feed pages: an oversize entity has a page of its own.
        let is_full = self.bytes + size > self.limits.bytes || self.page.len() as u64 >= self.limits.entities;
        let full = if is_full && !self.page.is_empty() { self.finish_page() } else { None };
        self.bytes += size;
        self.page.push(entity, change.modified);
        full
    }

    /// Returns the last page; `None` without items, when the index has `pages: []`.
    pub fn finish(mut self) -> Option<MultipartPage> {
        self.finish_page()
    }

    fn finish_page(&mut self) -> Option<MultipartPage> {
        self.number += 1;
        self.bytes = 0;
        let next = PageBuilder::new(&format!("{}/{}", self.id, self.number));
        std::mem::replace(&mut self.page, next).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Content, ContentHash, Item};
    use jiff::Timestamp;

    fn pages(words: &[&str], bytes: u64, entities: u64) -> Vec<usize> {
        let mut writer = SnapshotWriter::new("s", PageLimits { bytes, entities });
        let time = Timestamp::UNIX_EPOCH;
        let change = |(seq, word): (usize, &&str)| Change {
            seq: seq as u64 + 1,
            op: if *word == "-" { Op::Delete } else { Op::Put },
            modified: time,
            created: time,
            first_seq: 1,
            previous: None,
            item: Item { content: Some(Content::new("text/plain", (*word).to_owned())), ..Item::new(*word) },
            patch: None,
            entry_id: None,
            hash: ContentHash::default(),
        };
        let mut pages: Vec<MultipartPage> =
            words.iter().enumerate().filter_map(|w| writer.push(&change(w))).collect();
        pages.extend(writer.finish());
        let count =
            |page: &MultipartPage| String::from_utf8_lossy(&page.body).matches("Content-Type").count();
        pages.iter().map(count).collect()
    }

    #[test]
    fn case_k_pages_of_a_snapshot() {
        let hello = ["Hello", "World", "I", "am", "a", "Snapshot"];
        assert_eq!(pages(&[], 5, 5), [0; 0]);
        assert_eq!(pages(&["Hello"], 1, 5), [1]);
        assert_eq!(pages(&hello, 5, 100), [1, 1, 3, 1]);
        assert_eq!(pages(&hello, 1000, 2), [2, 2, 2]);
        assert_eq!(pages(&["Hello World!", "Test", "of", "a", "Snapshot"], 10, 3), [1, 3, 1]);
        assert_eq!(pages(&["Hello", "-", "World"], 1000, 2), [2], "live items only");
    }
}
