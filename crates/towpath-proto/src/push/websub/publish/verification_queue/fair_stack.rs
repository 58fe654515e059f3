//! Stack of verifications in which requesters take turns.

use std::collections::{HashMap, VecDeque};

use super::{VerificationClient, VerificationId};

/// Requesters take turns; within a requester, the newest comes first.
///
/// The newest first, because under a flood a queue has only entries that waited too long: its end would never be
/// reached, while a stack still serves the client that asks now.
#[derive(Debug, Default)]
pub(super) struct FairStack {
    turns: VecDeque<VerificationClient>,
    stacks: HashMap<VerificationClient, VecDeque<VerificationId>>,
    len: usize,
}

impl FairStack {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn stack(&mut self, requester: VerificationClient) -> &mut VecDeque<VerificationId> {
        self.len += 1;
        self.stacks.entry(requester).or_insert_with(|| {
            // Ahead of those who had a turn already.
            self.turns.push_front(requester);
            VecDeque::new()
        })
    }

    pub(super) fn push_new(&mut self, requester: VerificationClient, id: VerificationId) {
        self.stack(requester).push_back(id);
    }

    /// Pushes an entry that had its turn, below the new ones.
    pub(super) fn push_again(&mut self, requester: VerificationClient, id: VerificationId) {
        self.stack(requester).push_front(id);
    }

    pub(super) fn pop(&mut self) -> Option<(VerificationClient, VerificationId)> {
        let requester = self.turns.pop_front()?;
        let stack = self.stacks.get_mut(&requester)?;
        let id = stack.pop_back()?;
        self.len -= 1;
        if stack.is_empty() {
            self.stacks.remove(&requester);
        } else {
            self.turns.push_back(requester);
        }
        Some((requester, id))
    }

    /// Returns the oldest entry of the requester that has most.
    pub(super) fn oldest_of_most(&self) -> Option<VerificationId> {
        self.stacks.values().max_by_key(|stack| stack.len())?.front().copied()
    }

    pub(super) fn remove(&mut self, requester: VerificationClient, id: VerificationId) {
        let Some(stack) = self.stacks.get_mut(&requester) else { return };
        let Some(index) = stack.iter().position(|known| *known == id) else { return };
        stack.remove(index);
        self.len -= 1;
        if stack.is_empty() {
            self.stacks.remove(&requester);
            self.turns.retain(|known| *known != requester);
        }
    }
}
