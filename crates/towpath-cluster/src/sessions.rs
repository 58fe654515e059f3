//! Which messages of the log count: each once, and those of a session in the order of their numbers.
//!
//! A node numbers what it publishes, and publishes again what it does not see in the log: so the log may hold a
//! message twice, or one behind a gap. Every replica decides the same from the log alone: a message counts if its
//! number is the next one of its session, and a session begins with 1. Nothing here has a clock: what is kept is
//! bounded by how many sessions and messages came since.

use std::collections::{BTreeMap, HashMap};

use crate::frame::{Header, Holds, Session};

/// How many sessions are remembered: those seen last. One that was forgotten begins anew.
const MAX_SESSIONS: usize = 256;

/// After how many other messages a session that has begun a command in parts is taken for dead.
const MAX_PAUSE: u64 = 10_000;

/// What is remembered of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Its last message that counted.
    pub(crate) number: u64,
    /// The place of that in the log.
    pub(crate) at: u64,
    /// How many parts it has brought of a command that is not whole yet.
    pub(crate) parts: u32,
}

/// Whether a message counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It does.
    Counts,
    /// It came before.
    Again,
    /// The messages from `due` on are missing.
    Gap { due: u64 },
}

/// The sessions of a log up to a place.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sessions {
    seen: HashMap<Session, Seen>,
    /// The same by the place of their last message.
    by_place: BTreeMap<u64, Session>,
    /// How many of them have parts.
    open: usize,
}

/// What changed with a message, to be kept with what it does.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Sessions that were forgotten, with the parts that they had brought.
    pub(crate) forgotten: Vec<(Session, Seen)>,
    /// Parts of the message's session that are not needed any more: those with these numbers.
    pub(crate) done: std::ops::Range<u64>,
}

impl Sessions {
    /// The sessions as they were kept.
    pub(crate) fn restore(seen: impl IntoIterator<Item = (Session, Seen)>) -> Self {
        let mut sessions = Self::default();
        for (session, seen) in seen {
            sessions.insert(session, seen);
        }
        sessions
    }

    /// What is remembered of a session.
    pub(crate) fn get(&self, session: Session) -> Option<Seen> {
        self.seen.get(&session).copied()
    }

    /// Takes the message at a place of the log.
    pub(crate) fn take(&mut self, at: u64, header: &Header) -> (Verdict, Changed) {
        let mut changed = Changed::default();
        self.forget_dead(at, &mut changed);
        let known = self.get(header.session);
        let due = known.map_or(1, |seen| seen.number + 1);
        let parts = known.map_or(0, |seen| seen.parts);
        if header.number < due {
            return (Verdict::Again, changed);
        }
        let follows = header.holds == Holds::Commands || header.parts == parts;
        if header.number > due || !follows {
            return (Verdict::Gap { due }, changed);
        }
        let parts_now = if header.holds == Holds::Part { parts + 1 } else { 0 };
        if parts_now == 0 {
            changed.done = header.number - u64::from(parts)..header.number;
        }
        self.remove(header.session);
        self.insert(header.session, Seen { number: header.number, at, parts: parts_now });
        if self.seen.len() > MAX_SESSIONS
            && let Some((_, oldest)) = self.by_place.first_key_value()
        {
            let oldest = *oldest;
            changed.forgotten.extend(self.remove(oldest).map(|seen| (oldest, seen)));
        }
        (Verdict::Counts, changed)
    }

    fn forget_dead(&mut self, at: u64, changed: &mut Changed) {
        if self.open == 0 {
            return;
        }
        let dead = |seen: &Seen| seen.parts > 0 && at - seen.at > MAX_PAUSE;
        let dead: Vec<_> = self.seen.iter().filter(|(_, seen)| dead(seen)).map(|(s, _)| *s).collect();
        for session in dead {
            changed.forgotten.extend(self.remove(session).map(|seen| (session, seen)));
        }
    }

    fn insert(&mut self, session: Session, seen: Seen) {
        self.open += usize::from(seen.parts > 0);
        self.by_place.insert(seen.at, session);
        self.seen.insert(session, seen);
    }

    fn remove(&mut self, session: Session) -> Option<Seen> {
        let seen = self.seen.remove(&session)?;
        self.open -= usize::from(seen.parts > 0);
        self.by_place.remove(&seen.at);
        Some(seen)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn header(session: Session, number: u64, holds: Holds, parts: u32) -> Header {
        Header { log: 1, session, number, attempt: 0, now: Timestamp::UNIX_EPOCH, holds, parts }
    }

    fn whole(session: Session, number: u64) -> Header {
        header(session, number, Holds::Commands, 0)
    }

    #[test]
    fn a_message_counts_once_and_in_its_order() {
        let mut sessions = Sessions::default();
        let log = [(7, 1), (7, 1), (7, 3), (8, 2), (8, 1), (7, 2), (7, 3), (7, 2), (8, 1)];
        let verdicts: Vec<_> = (1..).zip(log).map(|(at, (s, n))| sessions.take(at, &whole(s, n)).0).collect();
        use Verdict::{Again, Counts, Gap};
        let due = |due| Gap { due };
        assert_eq!(verdicts, [Counts, Again, due(2), due(1), Counts, Counts, Counts, Again, Again]);
    }

    #[test]
    fn parts_follow_each_other_and_are_done_together() {
        let mut sessions = Sessions::default();
        sessions.take(1, &whole(7, 1));
        for (at, number, holds, parts) in [(2, 2, Holds::Part, 0), (3, 3, Holds::Part, 1)] {
            assert_eq!(
                sessions.take(at, &header(7, number, holds, parts)),
                (Verdict::Counts, Changed::default())
            );
        }
        assert_eq!(sessions.get(7), Some(Seen { number: 3, at: 3, parts: 2 }));
        let (verdict, changed) = sessions.take(4, &header(7, 4, Holds::LastPart, 1));
        assert_eq!((verdict, changed), (Verdict::Gap { due: 4 }, Changed::default()), "a part is missing");
        let (verdict, changed) = sessions.take(5, &header(7, 4, Holds::LastPart, 2));
        assert_eq!((verdict, changed.done), (Verdict::Counts, 2..4));
        assert_eq!(sessions.get(7).unwrap().parts, 0);
    }

    #[test]
    fn parts_of_a_dead_producer_are_forgotten() {
        let mut sessions = Sessions::default();
        sessions.take(1, &header(7, 1, Holds::Part, 0));
        let (_, changed) = sessions.take(1 + MAX_PAUSE, &whole(8, 1));
        assert_eq!(changed.forgotten, []);
        let (_, changed) = sessions.take(2 + MAX_PAUSE, &whole(8, 2));
        assert_eq!(changed.forgotten, [(7, Seen { number: 1, at: 1, parts: 1 })]);
        assert_eq!(sessions.take(3 + MAX_PAUSE, &header(7, 2, Holds::Part, 1)).0, Verdict::Gap { due: 1 });
    }

    #[test]
    fn the_sessions_seen_last_are_remembered() {
        let mut sessions = Sessions::default();
        for session in 0..MAX_SESSIONS as u64 {
            sessions.take(session + 1, &whole(session, 1));
        }
        sessions.take(1000, &whole(0, 2));
        let (_, changed) = sessions.take(1001, &whole(9999, 1));
        assert_eq!(changed.forgotten.iter().map(|(s, _)| *s).collect::<Vec<_>>(), [1]);
        assert_eq!(sessions.seen.len(), MAX_SESSIONS);
        let again = Sessions::restore(sessions.seen.clone());
        assert_eq!(again, sessions);
    }
}
