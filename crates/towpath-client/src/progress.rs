//! Progress of a consumer: the changes that it was given, and how far it has finished them.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::sink::acks::LineDigest;

/// Maximum number of finished changes that are saved beside a state. A kill repeats those beyond it.
pub(crate) const MAX_ACKNOWLEDGED: usize = 10_000;
/// Maximum number of changes of a unit that are recognised when it comes again: 16 MB of digests.
const MAX_UNIT: usize = 1_000_000;

/// Changes that were given to the consumer, and the state that its acknowledgements move.
///
/// A unit is what lies between two checkpoints. A follower sends a unit again from its start when an attempt fails in
/// its middle, or after a restart. What was given of it is recognised by its digest and not given twice.
#[derive(Debug, Default)]
pub struct FollowProgress {
    given: u64,
    /// Given changes that are not acknowledged, and the checkpoints between them.
    open: VecDeque<OpenEntry>,
    /// The last checkpoint all of whose changes are acknowledged.
    state: Option<Value>,
    /// Acknowledged changes after that checkpoint.
    acknowledged: Vec<LineDigest>,
    /// Changes of the unit that is being received.
    unit: Vec<LineDigest>,
    /// Changes of that unit that come again. Counted, because two resets are equal.
    repeated: HashMap<LineDigest, u32>,
    is_changed: bool,
}

#[derive(Debug)]
enum OpenEntry {
    Change { number: u64, digest: LineDigest },
    Checkpoint(Value),
}

impl FollowProgress {
    /// Continues an earlier follow, of which these changes after its state were acknowledged.
    pub fn resume(state: Option<Value>, acknowledged: &[String]) -> Self {
        let acknowledged: Vec<LineDigest> = acknowledged.iter().filter_map(|key| key.parse().ok()).collect();
        let unit = acknowledged.clone();
        let mut progress = Self { state, acknowledged, unit, ..Self::default() };
        progress.unit_restarts();
        progress
    }

    /// Gives a change to the consumer; returns its number, or `None` if the consumer has it already.
    ///
    /// The digest is that of the change's [line](crate::sink::acks::line_digest).
    pub fn give(&mut self, digest: LineDigest) -> Option<u64> {
        if let Some(count) = self.repeated.get_mut(&digest).filter(|count| **count > 0) {
            *count -= 1;
            return None;
        }
        self.given += 1;
        if self.unit.len() < MAX_UNIT {
            self.unit.push(digest);
        }
        self.open.push_back(OpenEntry::Change { number: self.given, digest });
        Some(self.given)
    }

    /// Ends the unit with a checkpoint that covers all changes so far.
    pub fn end_unit(&mut self, checkpoint: Value) {
        self.unit.clear();
        self.repeated.clear();
        match self.open.back_mut() {
            None => self.cover(checkpoint),
            // Nothing was given between the two: only the later one counts.
            Some(OpenEntry::Checkpoint(last)) => *last = checkpoint,
            Some(OpenEntry::Change { .. }) => self.open.push_back(OpenEntry::Checkpoint(checkpoint)),
        }
    }

    /// Tells that the follower sends the unit again.
    pub fn unit_restarts(&mut self) {
        self.repeated.clear();
        for digest in &self.unit {
            *self.repeated.entry(*digest).or_default() += 1;
        }
    }

    /// Takes the acknowledgement of a change and of all before it.
    pub fn acknowledge(&mut self, through: u64) {
        while let Some(entry) = self.open.pop_front() {
            match entry {
                OpenEntry::Change { number, .. } if number > through => {
                    self.open.push_front(entry);
                    return;
                }
                OpenEntry::Change { digest, .. } => {
                    if self.acknowledged.len() < MAX_ACKNOWLEDGED {
                        self.acknowledged.push(digest);
                        self.is_changed = true;
                    }
                }
                OpenEntry::Checkpoint(state) => self.cover(state),
            }
        }
    }

    fn cover(&mut self, state: Value) {
        self.state = Some(state);
        self.acknowledged.clear();
        self.is_changed = true;
    }

    /// Returns true if something was acknowledged since the last [`take_unsaved`](Self::take_unsaved).
    pub fn is_unsaved(&self) -> bool {
        self.is_changed
    }

    /// Returns the state to save, `None` before the first checkpoint, and the keys of the changes after it that are acknowledged.
    pub fn take_unsaved(&mut self) -> Option<(Option<Value>, Vec<String>)> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        Some((self.state.clone(), self.acknowledged.iter().map(LineDigest::to_string).collect()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use towpath_proto::follow::FeedReset;

    use super::*;
    use crate::sink::SinkEvent;
    use crate::sink::acks::line_digest;

    fn reset(name: &str) -> LineDigest {
        line_digest(&SinkEvent::Reset(FeedReset { feed: name.into(), reason: String::new() }))
    }

    fn put(id: &str) -> LineDigest {
        let item = towpath_proto::Item::new(id);
        line_digest(&SinkEvent::Change(Box::new(towpath_proto::follow::Followed {
            feed: "f".into(),
            op: towpath_proto::Op::Put,
            position: id.into(),
            item,
            patch: None,
            modified: None,
            entry_id: None,
        })))
    }

    #[test]
    fn only_acknowledgements_move_the_state() {
        let mut progress = FollowProgress::default();
        assert_eq!([put("a"), put("b")].map(|digest| progress.give(digest)), [Some(1), Some(2)]);
        progress.end_unit(json!(1));
        assert_eq!(progress.give(put("c")), Some(3));
        progress.end_unit(json!(2));
        progress.acknowledge(1);
        let (state, keys) = progress.take_unsaved().unwrap();
        assert_eq!((state, keys.len()), (None, 1), "no checkpoint is covered yet");
        progress.acknowledge(2);
        assert_eq!(progress.take_unsaved(), Some((Some(json!(1)), Vec::new())));
        assert_eq!(progress.take_unsaved(), None);
        progress.acknowledge(3);
        assert_eq!(progress.take_unsaved(), Some((Some(json!(2)), Vec::new())));
        progress.end_unit(json!(3));
        assert_eq!(progress.take_unsaved(), Some((Some(json!(3)), Vec::new())), "nothing waits before it");
    }

    #[test]
    fn a_unit_that_comes_again_is_given_once() {
        let mut first = FollowProgress::resume(Some(json!(0)), &[]);
        assert_eq!(["a", "b", "c"].map(|id| first.give(put(id))), [Some(1), Some(2), Some(3)]);
        first.unit_restarts();
        assert_eq!(["a", "b", "c", "d"].map(|id| first.give(put(id))), [None, None, None, Some(4)]);
        first.acknowledge(2);
        let (state, keys) = first.take_unsaved().unwrap();
        assert_eq!((&state, keys.len()), (&Some(json!(0)), 2));
        let mut second = FollowProgress::resume(state, &keys);
        assert_eq!(["a", "b", "c"].map(|id| second.give(put(id))), [None, None, Some(1)]);
        second.end_unit(json!(1));
        // The same change may come again later, and is a new one then.
        assert_eq!(second.give(put("a")), Some(2));
        second.acknowledge(1);
        assert_eq!(second.take_unsaved(), Some((Some(json!(1)), Vec::new())));
        let mut resets = FollowProgress::default();
        assert_eq!([reset("f"), reset("f")].map(|digest| resets.give(digest)), [Some(1), Some(2)]);
    }
}
