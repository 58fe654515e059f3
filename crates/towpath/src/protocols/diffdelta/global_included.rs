//! Snapshots of the sources that the global feed has published, as they are stored: a list of all, and what changed since.

use std::collections::BTreeMap;

use towpath_proto::FeedId;
use towpath_proto::diffdelta::global::IncludedSource;

/// Included snapshots of each source.
pub(super) type Included = BTreeMap<FeedId, IncludedSource>;
/// Sources whose included snapshots changed; without any for a source that is gone.
pub(super) type IncludedChanges = BTreeMap<FeedId, Option<IncludedSource>>;

/// Difference between the included snapshots and their stored list.
///
/// The list names every source. Written with each document it would be half as large as the document itself.
#[derive(Debug, Default)]
pub(super) struct IncludedDifference {
    changes: IncludedChanges,
    /// Entries of differences that were written since the list was; `None` if there is no list.
    written: Option<usize>,
}

impl IncludedDifference {
    /// Returns the difference that is stored beside a list.
    pub(super) fn stored(changes: IncludedChanges) -> Self {
        Self { written: Some(changes.len()), changes }
    }

    /// Adds the differences between two states.
    pub(super) fn add(&mut self, old: &Included, new: &Included) {
        let mut old = old.iter().peekable();
        for (source, included) in new {
            while let Some((gone, _)) = old.next_if(|(known, _)| *known < source) {
                self.changes.insert(gone.clone(), None);
            }
            let known = old.next_if(|(known, _)| *known == source);
            if known.is_none_or(|(_, known)| known != included) {
                self.changes.insert(source.clone(), Some(included.clone()));
            }
        }
        self.changes.extend(old.map(|(gone, _)| (gone.clone(), None)));
    }

    /// Returns true if the list of so many sources is to be written again.
    pub(super) fn is_list_due(&self, sources: usize) -> bool {
        // Then all differences since cost as much as the list: together at most twice the least.
        self.written.is_none_or(|written| written + self.changes.len() > sources)
    }

    /// Returns the changes since the list.
    pub(super) fn changes(&self) -> &IncludedChanges {
        &self.changes
    }

    /// Notes that the list was written, or the difference to it.
    pub(super) fn on_written(&mut self, has_list: bool) {
        if has_list {
            *self = Self::stored(IncludedChanges::new());
        } else if let Some(written) = &mut self.written {
            *written += self.changes.len();
        }
    }
}

/// Returns a list with changes applied.
pub(super) fn with_changes(mut list: Included, changes: &IncludedChanges) -> Included {
    for (source, included) in changes {
        match included {
            Some(included) => _ = list.insert(source.clone(), included.clone()),
            None => _ = list.remove(source),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use towpath_proto::diffdelta::cursor::Cursor;

    use super::*;

    fn included(sources: &[(&str, u64)]) -> Included {
        let entry = |(source, snapshots): &(&str, u64)| {
            let included = IncludedSource { cursor: Cursor::ZERO, snapshots: *snapshots };
            (FeedId::new(source).unwrap(), included)
        };
        sources.iter().map(entry).collect()
    }

    #[test]
    fn a_list_with_its_difference_is_the_state() {
        let states = [
            included(&[("aa", 1), ("bb", 1), ("cc", 1)]),
            included(&[("bb", 2), ("cc", 1), ("dd", 1)]),
            included(&[("aa", 3), ("bb", 2)]),
            included(&[]),
        ];
        let mut difference = IncludedDifference::default();
        for step in states.windows(2) {
            difference.add(&step[0], &step[1]);
            assert_eq!(with_changes(states[0].clone(), difference.changes()), step[1]);
        }
        let mut same = IncludedDifference::default();
        same.add(&states[0], &states[0]);
        assert!(same.changes().is_empty());
    }

    #[test]
    fn the_list_is_written_when_the_differences_cost_as_much() {
        let all: Vec<(String, u64)> = (0..100).map(|n| (format!("source-{n:03}"), 1)).collect();
        let all: Vec<(&str, u64)> = all.iter().map(|(name, snapshots)| (name.as_str(), *snapshots)).collect();
        let mut state = included(&all);
        let mut difference = IncludedDifference::default();
        let mut lists = Vec::new();
        for (write, (source, _)) in all.iter().enumerate() {
            let before = state.clone();
            state.entry(FeedId::new(source).unwrap()).and_modify(|included| included.snapshots += 1);
            difference.add(&before, &state);
            let is_due = difference.is_list_due(state.len());
            difference.on_written(is_due);
            lists.extend(is_due.then_some(write));
        }
        // 1 + 2 + … + 13 entries are less than 100, and one more is too many.
        assert_eq!(lists, [0, 14, 28, 42, 56, 70, 84, 98]);
    }
}
