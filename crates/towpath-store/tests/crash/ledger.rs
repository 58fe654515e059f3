//! Acknowledgements of a writer, and the check that all of them are kept.

use std::collections::HashMap;
use std::path::Path;

use towpath_proto::change::Op;
use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::EmbeddedStore;
use towpath_store::{Store, Table};

use crate::writer::{number, options};

/// Acknowledged writes of all runs.
#[derive(Default)]
pub(crate) struct CrashLedger {
    /// Id and mark by feed and position.
    pub(crate) changes: HashMap<(String, u64), (String, String)>,
    pub(crate) count: u64,
    /// Number of runs that opened the store.
    pub(crate) opened: usize,
}

impl CrashLedger {
    /// Adds a writer's output, whose last line may be cut off.
    pub(crate) fn add_output(&mut self, output: &[u8]) {
        // After a whole line, the last one is empty.
        let lines: Vec<String> = String::from_utf8_lossy(output).split('\n').map(str::to_owned).collect();
        self.add(&lines);
    }

    pub(crate) fn add(&mut self, lines: &[String]) {
        for line in lines {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["open"] => self.opened += 1,
                // The kill may truncate the last line within its mark: the last line is ignored.
                ["ack", feed, seq, id, mark] if line != lines.last().unwrap() => {
                    let place = (feed.to_owned(), seq.parse().unwrap());
                    let before = self.changes.insert(place.clone(), (id.to_owned(), mark.to_owned()));
                    assert_eq!(before, None, "position {place:?} was given twice");
                }
                ["count", count] if line != lines.last().unwrap() => {
                    let count = number(count.as_bytes());
                    assert_eq!(count, self.count.max(count - 1) + 1, "the count never goes back");
                    self.count = count;
                }
                _ => {}
            }
        }
    }

    /// Checks that every acknowledged write is stored.
    pub(crate) async fn check(&self, folder: &Path) {
        let store = EmbeddedStore::open(folder, options()).unwrap();
        let found = store.verify().await.unwrap();
        assert!(found.is_sound(), "{:#?}", found.problems);
        for ((feed, seq), (id, mark)) in &self.changes {
            let change = store.change(&FeedId::new(feed).unwrap(), *seq).await.unwrap();
            let Some(change) = change else { panic!("change {seq} of {feed} was acknowledged and is lost") };
            assert_eq!(
                (&change.item.id, change.entry_id.as_ref()),
                (id, Some(mark)),
                "change {seq} of {feed}"
            );
            if change.op == Op::Patch {
                let content = change.item.content.unwrap();
                assert!(content.text().unwrap().contains(mark.as_str()));
            }
        }
        let count = store.get(Table::Chains, b"count").await.unwrap();
        // A later count may have been stored without its acknowledgement.
        assert!(count.as_deref().map_or(0, number) >= self.count, "a write to a table is lost");
        store.close().await;
    }
}
