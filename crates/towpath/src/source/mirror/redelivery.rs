//! Changes that a mirror appended and the publisher delivers again, after a crash between an append and its checkpoint.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use towpath_proto::change::Seq;
use towpath_proto::{Change, Content, ContentHash, Item, NewChange, Op};

/// Identity of an appended change, to recognise its redelivery without holding the item in memory.
#[derive(Debug, PartialEq)]
struct AppendedChange {
    op: Op,
    // Shared with the counts: there may be a million.
    id: Arc<str>,
    /// Hash of the item for a put, of the patch for a patch, zero for a deletion.
    hash: ContentHash,
    entry_id: Option<String>,
}

impl AppendedChange {
    /// Identity of a delivered change.
    fn from_delivery(change: &NewChange) -> Self {
        let hash = match change.op {
            Op::Put => change.hash.unwrap_or_else(|| change.item.content_hash()),
            Op::Patch => hash_of_patch(change.patch.clone()),
            Op::Delete => ContentHash::default(),
        };
        let id = change.item.id.as_str().into();
        Self { op: change.op, id, hash, entry_id: change.entry_id.clone() }
    }
}

/// Hashes a patch as an item that has only the patch as content.
fn hash_of_patch(patch: Option<Content>) -> ContentHash {
    Item { content: patch, ..Item::default() }.content_hash()
}

/// Changes after the saved checkpoint, oldest first, with their positions.
#[derive(Debug, Default)]
pub(super) struct UnconfirmedChanges {
    changes: VecDeque<(Seq, AppendedChange)>,
    /// Number of changes of each item.
    // Each delivery asks for its ids: without the counts, it would look at all changes.
    counts: HashMap<Arc<str>, usize>,
}

impl UnconfirmedChanges {
    /// Adds a change of the log.
    pub(super) fn push(&mut self, change: Change) {
        let Change { seq, op, item, patch, entry_id, hash, .. } = change;
        // The hash of a patch's change is that of the resulting item.
        let hash = if op == Op::Patch { hash_of_patch(patch) } else { hash };
        let id = match self.counts.get_key_value(item.id.as_str()) {
            Some((id, _)) => id.clone(),
            None => item.id.into(),
        };
        *self.counts.entry(id.clone()).or_default() += 1;
        self.changes.push_back((seq, AppendedChange { op, id, hash, entry_id }));
    }

    /// Returns the position of the oldest.
    pub(super) fn first(&self) -> Option<Seq> {
        self.changes.front().map(|(seq, _)| *seq)
    }

    /// Returns true if a change is the redelivery of the next one.
    pub(super) fn is_next(&self, change: &NewChange) -> bool {
        self.changes.front().is_some_and(|(_, next)| *next == AppendedChange::from_delivery(change))
    }

    /// Takes the next one if a change is its redelivery. Returns false if the change is new.
    pub(super) fn take(&mut self, change: &NewChange) -> bool {
        if !self.is_next(change) {
            // The publisher's history differs from the log. From here on every change is new.
            self.truncate(0);
            return false;
        }
        if let Some((_, taken)) = self.changes.pop_front() {
            self.uncount(&taken.id);
        }
        true
    }

    /// Forgets changes that may only look like those of a delivery.
    ///
    /// A publisher that collapses its history delivers the last change of an item alone. It may have set the item back to
    /// what it was before a later unconfirmed change.
    pub(super) fn forget_ambiguous(&mut self, changes: &[NewChange]) {
        if self.changes.is_empty() {
            return;
        }
        let pairs = changes.iter().zip(&self.changes);
        let same =
            pairs.take_while(|(change, (_, known))| AppendedChange::from_delivery(change) == *known).count();
        let mut among_same: HashMap<&str, usize> = HashMap::new();
        for change in &changes[..same] {
            *among_same.entry(change.item.id.as_str()).or_default() += 1;
        }
        let has_later = |id: &str| self.counts.get(id) > among_same.get(id);
        let new: HashSet<&str> = changes[same..].iter().map(|change| change.item.id.as_str()).collect();
        let is_ambiguous = |change: &NewChange| {
            let id = change.item.id.as_str();
            change.entry_id.is_none() && has_later(id) && !new.contains(id)
        };
        if let Some(first) = changes[..same].iter().position(is_ambiguous) {
            self.truncate(first);
        }
    }

    /// Keeps the oldest ones only.
    fn truncate(&mut self, length: usize) {
        if length == 0 {
            *self = Self::default();
            return;
        }
        while self.changes.len() > length {
            if let Some((_, gone)) = self.changes.pop_back() {
                self.uncount(&gone.id);
            }
        }
    }

    fn uncount(&mut self, id: &Arc<str>) {
        if let Some(count) = self.counts.get_mut(id) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn deletion(seq: Seq, id: String) -> Change {
        Change {
            seq,
            op: Op::Delete,
            modified: Timestamp::UNIX_EPOCH,
            created: Timestamp::UNIX_EPOCH,
            first_seq: seq,
            previous: None,
            item: Item::new(id),
            patch: None,
            entry_id: None,
            hash: ContentHash::default(),
        }
    }

    /// A look at all changes for each delivery would take longer than any test may run.
    #[test]
    fn many_changes_are_recognised_one_by_one() {
        let mut unconfirmed = UnconfirmedChanges::default();
        (1..=300_000).for_each(|seq| unconfirmed.push(deletion(seq, seq.to_string())));
        for seq in 1..=300_000_u64 {
            assert_eq!(unconfirmed.first(), Some(seq));
            let delivered = [NewChange::delete(seq.to_string())];
            unconfirmed.forget_ambiguous(&delivered);
            assert!(unconfirmed.take(&delivered[0]), "{seq}");
        }
        assert!(unconfirmed.first().is_none() && unconfirmed.counts.is_empty());
    }

    /// Of the second change nothing is known any more once it is forgotten.
    #[test]
    fn what_is_forgotten_is_not_counted() {
        let mut unconfirmed = UnconfirmedChanges::default();
        for (seq, id) in [(1, "a"), (2, "b"), (3, "b"), (4, "c")] {
            unconfirmed.push(deletion(seq, id.into()));
        }
        unconfirmed.forget_ambiguous(&[NewChange::delete("a"), NewChange::delete("b")]);
        assert_eq!(
            unconfirmed.counts.iter().map(|(id, count)| (&**id, *count)).collect::<Vec<_>>(),
            [("a", 1)]
        );
        assert!(unconfirmed.take(&NewChange::delete("a")) && !unconfirmed.take(&NewChange::delete("b")));
    }
}
