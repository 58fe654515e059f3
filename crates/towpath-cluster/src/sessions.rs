//! Deduplication: every message of a session takes effect once, in the order of its numbers.
//!
//! A producer numbers its messages, and publishes again those that it does not see in the log. So the log may hold
//! a message twice, or one after a gap. A message takes effect only if its number is the next one of its session;
//! a session starts with 1. Every replica decides this from the log alone, and so alike. There is no clock here:
//! the state is bounded by the number of later sessions and messages.

use std::collections::{BTreeMap, HashMap};

use crate::frame::{FrameHeader, PayloadKind, SessionId};

/// Number of remembered sessions, the most recent ones. A forgotten session starts again with a new id.
const MAX_SESSIONS: usize = 256;

/// Number of forgotten sessions whose ids are kept: a late copy of such a session's first message would look like the
/// first message of a new session, and count again.
const MAX_ENDED: usize = 4096;

/// Number of later messages after which a session with an incomplete command is considered dead.
const MAX_IDLE_MESSAGES: u64 = 10_000;

/// Progress of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionProgress {
    /// Number of its last message that took effect.
    pub(crate) number: u64,
    /// Sequence number of that message.
    pub(crate) at: u64,
    /// Number of stored parts of an incomplete command.
    pub(crate) parts: u32,
}

/// Check of a message's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SequenceCheck {
    /// The next message of its session: it takes effect.
    Next,
    /// A copy of an earlier message.
    Duplicate,
    /// The messages from `expected` on are missing.
    Gap { expected: u64 },
}

/// Sessions of the log, up to one message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    progress: HashMap<SessionId, SessionProgress>,
    /// Sessions by the sequence number of their last message.
    by_sequence: BTreeMap<u64, SessionId>,
    /// Number of sessions with an incomplete command.
    incomplete: usize,
    /// Forgotten sessions by the sequence number at which they were forgotten, and the other way round.
    ended: BTreeMap<u64, SessionId>,
    ended_at: HashMap<SessionId, u64>,
}

/// Changes of the sessions by one message, to be stored with its effect.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionChanges {
    /// Forgotten sessions, with their stored parts.
    pub(crate) forgotten: Vec<(SessionId, SessionProgress)>,
    /// Forgotten sessions whose ids are not kept any longer.
    pub(crate) dropped: Vec<SessionId>,
    /// Numbers of the parts that are not needed any more, because their command is complete.
    pub(crate) done: std::ops::Range<u64>,
}

impl Sessions {
    /// Restores the sessions of a checkpoint, and the forgotten ones with the place of each in their order.
    pub(crate) fn restore(
        stored: impl IntoIterator<Item = (SessionId, SessionProgress)>,
        ended: impl IntoIterator<Item = (SessionId, u64)>,
    ) -> Self {
        let mut sessions = Self::default();
        for (session, place) in ended {
            sessions.ended.insert(place, session);
            sessions.ended_at.insert(session, place);
        }
        for (session, progress) in stored {
            sessions.insert(session, progress);
        }
        sessions
    }

    /// Returns the progress of a session.
    pub(crate) fn get(&self, session: SessionId) -> Option<SessionProgress> {
        self.progress.get(&session).copied()
    }

    /// Checks the next message of the log, and updates its session.
    pub(crate) fn check(&mut self, at: u64, header: &FrameHeader) -> (SequenceCheck, SessionChanges) {
        let mut changes = SessionChanges::default();
        self.forget_dead(at, &mut changes);
        self.keep_ended(&mut changes);
        let known = self.get(header.session);
        let expected = known.map_or(1, |progress| progress.number + 1);
        let parts = known.map_or(0, |progress| progress.parts);
        // A producer never begins a session twice.
        let is_late = known.is_none() && header.number == 1 && self.ended_at.contains_key(&header.session);
        if header.number < expected || is_late {
            return (SequenceCheck::Duplicate, changes);
        }
        // A part whose predecessors were forgotten must not complete another command.
        let follows = header.payload == PayloadKind::Commands || header.parts == parts;
        if header.number > expected || !follows {
            return (SequenceCheck::Gap { expected }, changes);
        }
        let parts_now = if header.payload == PayloadKind::Part { parts + 1 } else { 0 };
        if parts_now == 0 {
            // Parts have the numbers right before the last one, because a session takes its messages in their
            // order.
            changes.done = header.number - u64::from(parts)..header.number;
        }
        // Removed first: its old sequence number is a key of the second map.
        self.remove(header.session);
        self.insert(header.session, SessionProgress { number: header.number, at, parts: parts_now });
        // Every replica forgets the same session at the same message: the limit is part of the protocol.
        if self.progress.len() > MAX_SESSIONS
            && let Some((_, oldest)) = self.by_sequence.first_key_value()
        {
            let oldest = *oldest;
            changes.forgotten.extend(self.remove(oldest).map(|progress| (oldest, progress)));
        }
        self.keep_ended(&mut changes);
        (SequenceCheck::Next, changes)
    }

    fn forget_dead(&mut self, at: u64, changes: &mut SessionChanges) {
        // The usual case: without it, every message would scan all sessions.
        if self.incomplete == 0 {
            return;
        }
        let dead = |progress: &SessionProgress| progress.parts > 0 && at - progress.at > MAX_IDLE_MESSAGES;
        // Rare: only producers that died within a large command leave such sessions.
        let dead: Vec<_> =
            self.progress.iter().filter(|(_, progress)| dead(progress)).map(|(s, _)| *s).collect();
        for session in dead {
            changes.forgotten.extend(self.remove(session).map(|progress| (session, progress)));
        }
    }

    /// Keeps the ids of forgotten sessions, the most recent ones.
    fn keep_ended(&mut self, changes: &mut SessionChanges) {
        for (session, progress) in &changes.forgotten {
            // The place of its last message: every replica gives it the same one.
            self.ended.insert(progress.at, *session);
            self.ended_at.insert(*session, progress.at);
        }
        while self.ended.len() > MAX_ENDED
            && let Some((_, session)) = self.ended.pop_first()
        {
            self.ended_at.remove(&session);
            changes.dropped.push(session);
        }
    }

    fn insert(&mut self, session: SessionId, progress: SessionProgress) {
        self.incomplete += usize::from(progress.parts > 0);
        // Sequence numbers of messages are unique, so one key never stands for two sessions.
        self.by_sequence.insert(progress.at, session);
        self.progress.insert(session, progress);
    }

    fn remove(&mut self, session: SessionId) -> Option<SessionProgress> {
        let progress = self.progress.remove(&session)?;
        self.incomplete -= usize::from(progress.parts > 0);
        self.by_sequence.remove(&progress.at);
        Some(progress)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn header(session: SessionId, number: u64, payload: PayloadKind, parts: u32) -> FrameHeader {
        FrameHeader {
            level: 1,
            log: 1,
            session,
            number,
            attempt: 0,
            now: Timestamp::UNIX_EPOCH,
            payload,
            parts,
        }
    }

    fn whole(session: SessionId, number: u64) -> FrameHeader {
        header(session, number, PayloadKind::Commands, 0)
    }

    #[test]
    fn a_message_takes_effect_once_and_in_order() {
        let mut sessions = Sessions::default();
        let log = [(7, 1), (7, 1), (7, 3), (8, 2), (8, 1), (7, 2), (7, 3), (7, 2), (8, 1)];
        let checks: Vec<_> = (1..).zip(log).map(|(at, (s, n))| sessions.check(at, &whole(s, n)).0).collect();
        use SequenceCheck::{Duplicate, Gap, Next};
        let gap = |expected| Gap { expected };
        assert_eq!(checks, [Next, Duplicate, gap(2), gap(1), Next, Next, Next, Duplicate, Duplicate]);
    }

    #[test]
    fn parts_are_consecutive_and_done_together() {
        let mut sessions = Sessions::default();
        sessions.check(1, &whole(7, 1));
        for (at, number, holds, parts) in [(2, 2, PayloadKind::Part, 0), (3, 3, PayloadKind::Part, 1)] {
            assert_eq!(
                sessions.check(at, &header(7, number, holds, parts)),
                (SequenceCheck::Next, SessionChanges::default())
            );
        }
        assert_eq!(sessions.get(7), Some(SessionProgress { number: 3, at: 3, parts: 2 }));
        let (check, changes) = sessions.check(4, &header(7, 4, PayloadKind::LastPart, 1));
        assert_eq!(
            (check, changes),
            (SequenceCheck::Gap { expected: 4 }, SessionChanges::default()),
            "a part is missing"
        );
        let (check, changes) = sessions.check(5, &header(7, 4, PayloadKind::LastPart, 2));
        assert_eq!((check, changes.done), (SequenceCheck::Next, 2..4));
        assert_eq!(sessions.get(7).unwrap().parts, 0);
    }

    #[test]
    fn parts_of_a_dead_producer_are_forgotten() {
        let mut sessions = Sessions::default();
        sessions.check(1, &header(7, 1, PayloadKind::Part, 0));
        let (_, changes) = sessions.check(1 + MAX_IDLE_MESSAGES, &whole(8, 1));
        assert_eq!(changes.forgotten, []);
        let (_, changes) = sessions.check(2 + MAX_IDLE_MESSAGES, &whole(8, 2));
        assert_eq!(changes.forgotten, [(7, SessionProgress { number: 1, at: 1, parts: 1 })]);
        assert_eq!(
            sessions.check(3 + MAX_IDLE_MESSAGES, &header(7, 2, PayloadKind::Part, 1)).0,
            SequenceCheck::Gap { expected: 1 }
        );
    }

    #[test]
    fn the_most_recent_sessions_are_remembered() {
        let mut sessions = Sessions::default();
        for session in 0..MAX_SESSIONS as u64 {
            sessions.check(session + 1, &whole(session, 1));
        }
        sessions.check(1000, &whole(0, 2));
        let (_, changes) = sessions.check(1001, &whole(9999, 1));
        assert_eq!(changes.forgotten.iter().map(|(s, _)| *s).collect::<Vec<_>>(), [1]);
        assert_eq!(sessions.progress.len(), MAX_SESSIONS);
        let again = Sessions::restore(sessions.progress.clone(), sessions.ended_at.clone());
        assert_eq!(again, sessions);
    }

    /// A copy of a first message that was on its way while 256 other sessions began.
    #[test]
    fn a_first_message_that_comes_late_does_not_count_again() {
        let mut sessions = Sessions::default();
        sessions.check(1, &whole(7, 1));
        for other in 0..MAX_SESSIONS as u64 {
            sessions.check(2 + other, &whole(1000 + other, 1));
        }
        assert_eq!(sessions.get(7), None);
        let mut restored = Sessions::restore(sessions.progress.clone(), sessions.ended_at.clone());
        for sessions in [&mut sessions, &mut restored] {
            assert_eq!(sessions.check(500, &whole(7, 1)).0, SequenceCheck::Duplicate);
            assert_eq!(sessions.check(501, &whole(7, 2)).0, SequenceCheck::Gap { expected: 1 });
        }
        // The ids are bounded as well.
        let mut dropped = Vec::new();
        for other in 0..2 * MAX_ENDED as u64 {
            dropped.extend(sessions.check(1000 + other, &whole(10_000 + other, 1)).1.dropped);
        }
        assert_eq!((sessions.ended.len(), sessions.ended_at.len()), (MAX_ENDED, MAX_ENDED));
        assert_eq!(dropped[0], 7);
    }
}
