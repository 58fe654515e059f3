//! What a node published and has not seen applied yet. Pure: time is an argument.
//!
//! Messages go out in the order of their numbers, several at a time. What was lost on the way leaves a gap, behind
//! which nothing counts (see [`crate::sessions`]); so whatever is missing is published again together with all that
//! came after it. When a message is given up, so is its session: what is left of it behind that message never
//! counts, and what comes next has a session of its own.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;

use crate::frame::{HEADER, Header, Holds, LogId, Session};

/// How many messages, and how many bytes, are on their way at once.
const MAX_MESSAGES: usize = 16;
const MAX_BYTES: usize = 8 << 20;

/// After which time a message whose acknowledgement did not come is published again.
const PATIENCE: Duration = Duration::from_millis(1500);

/// A message that is to be published.
#[derive(Debug)]
pub(crate) struct Piece<R> {
    pub(crate) holds: Holds,
    /// How many parts of the same command came before.
    pub(crate) parts: u32,
    /// Room for the header, then commands or a part.
    pub(crate) payload: Vec<u8>,
    /// Who waits for its commands, in their order.
    pub(crate) replies: Vec<R>,
    pub(crate) deadline: Instant,
}

/// A message to hand to the server.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) session: Session,
    pub(crate) number: u64,
    pub(crate) payload: Bytes,
}

#[derive(Debug)]
struct Sent<R> {
    header: Header,
    payload: Bytes,
    replies: Vec<R>,
    deadline: Instant,
    /// When it was last published.
    at: Instant,
    /// Whether the log has it.
    stored: bool,
}

/// See the module's text. `R` is who waits for a command's outcome.
#[derive(Debug)]
pub(crate) struct Window<R> {
    log: LogId,
    session: Session,
    next: u64,
    attempt: u32,
    sent: VecDeque<Sent<R>>,
    /// When the log or this node last took one of them.
    progress: Option<Instant>,
}

impl<R> Window<R> {
    /// An empty window on a log.
    pub(crate) fn new(log: LogId, session: Session) -> Self {
        Self { log, session, next: 1, attempt: 0, sent: VecDeque::new(), progress: None }
    }

    /// The session whose messages are looked for in the log.
    pub(crate) fn session(&self) -> Session {
        self.session
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether nothing more may be on its way.
    pub(crate) fn is_full(&self) -> bool {
        // Parts that the log has wait only for their command's last.
        let under_way = self.sent.iter().filter(|sent| !(sent.stored && sent.header.holds == Holds::Part));
        let (count, bytes) = under_way.fold((0, 0), |(n, bytes), sent| (n + 1, bytes + sent.payload.len()));
        count >= MAX_MESSAGES || bytes >= MAX_BYTES
    }

    /// Adds a message; it is to be published.
    pub(crate) fn push(&mut self, piece: Piece<R>, made: Timestamp, now: Instant) -> Message {
        let Piece { holds, parts, mut payload, replies, deadline } = piece;
        let (log, session, number, attempt) = (self.log, self.session, self.next, self.attempt);
        let header = Header { log, session, number, attempt, now: made, holds, parts };
        payload[..HEADER].copy_from_slice(&header.encode());
        let payload = Bytes::from(payload);
        self.next += 1;
        let message = Message { session, number, payload: payload.clone() };
        self.sent.push_back(Sent { header, payload, replies, deadline, at: now, stored: false });
        message
    }

    /// The log has a message.
    pub(crate) fn stored(&mut self, session: Session, number: u64, now: Instant) {
        if session == self.session
            && let Some(sent) = self.sent.iter_mut().find(|sent| sent.header.number == number)
        {
            sent.stored = true;
            self.progress = Some(now);
        }
    }

    /// A message was applied. Returns who waits for its commands.
    pub(crate) fn applied(&mut self, session: Session, number: u64, now: Instant) -> Vec<R> {
        self.stored(session, number, now);
        // Parts stay until their command is whole: they may have to be published again in another session.
        let done = |sent: &Sent<R>| sent.header.number == number && sent.header.holds != Holds::Part;
        let Some(place) = self.sent.iter().position(done).filter(|_| session == self.session) else {
            return Vec::new();
        };
        self.sent.drain(..=place).flat_map(|sent| sent.replies).collect()
    }

    /// A message was found in the log and does not count, since the ones from `due` on are missing. Returns what is
    /// to be published again.
    pub(crate) fn skipped(&mut self, header: &Header, due: u64, now: Instant) -> Vec<Message> {
        if (header.session, header.attempt) != (self.session, self.attempt) {
            return Vec::new();
        }
        match self.sent.iter().position(|sent| sent.header.number == due) {
            Some(place) => self.publish_from(place, now),
            // The log has forgotten this session: it is begun anew. What was published in it counts nowhere.
            None => {
                self.begin(fastrand::u64(..));
                for sent in &mut self.sent {
                    sent.header.session = self.session;
                    sent.header.number = self.next;
                    self.next += 1;
                }
                self.publish_from(0, now)
            }
        }
    }

    /// Whether a message has waited too long for its acknowledgement.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        self.sent.iter().any(|sent| !sent.stored && now.duration_since(sent.at) > PATIENCE)
    }

    /// What is to be published again, because its acknowledgement may not come any more: the first message that
    /// the log is not known to have, and all that came after it.
    pub(crate) fn again(&mut self, now: Instant) -> Vec<Message> {
        let first = self.sent.iter().position(|sent| !sent.stored);
        first.map(|first| self.publish_from(first, now)).unwrap_or_default()
    }

    fn publish_from(&mut self, place: usize, now: Instant) -> Vec<Message> {
        self.attempt += 1;
        let (session, attempt) = (self.session, self.attempt);
        let again = self.sent.iter_mut().skip(place).map(|sent| {
            (sent.header.attempt, sent.at, sent.stored) = (attempt, now, false);
            let mut payload = sent.payload.to_vec();
            payload[..HEADER].copy_from_slice(&sent.header.encode());
            sent.payload = payload.into();
            Message { session, number: sent.header.number, payload: sent.payload.clone() }
        });
        again.collect()
    }

    /// Whether a deadline has passed, and nothing goes on: what is large takes its time.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let goes_on = self.progress.is_some_and(|progress| now.duration_since(progress) < PATIENCE);
        !goes_on && self.sent.iter().any(|sent| sent.deadline <= now)
    }

    /// Gives up all that is on its way. Returns who waits for it.
    pub(crate) fn give_up(&mut self) -> Vec<R> {
        self.begin(fastrand::u64(..));
        self.sent.drain(..).flat_map(|sent| sent.replies).collect()
    }

    fn begin(&mut self, session: Session) {
        (self.session, self.next, self.attempt) = (session, 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sessions::{Sessions, Verdict};

    fn piece(reply: u32, holds: Holds, parts: u32, deadline: Instant) -> Piece<u32> {
        let replies = if holds == Holds::Part { vec![] } else { vec![reply] };
        Piece {
            holds,
            parts,
            payload: [vec![0; HEADER], reply.to_be_bytes().to_vec()].concat(),
            replies,
            deadline,
        }
    }

    /// What the network does with the next message.
    #[derive(Debug, Clone, Copy)]
    enum Way {
        Arrives,
        Lost,
        Twice,
        Late,
    }

    fn way() -> impl Strategy<Value = Way> {
        prop_oneof![5 => Just(Way::Arrives), 2 => Just(Way::Lost), 1 => Just(Way::Twice), 1 => Just(Way::Late)]
    }

    /// A window, a network and a replica.
    struct World {
        window: Window<u32>,
        sessions: Sessions,
        log: Vec<Message>,
        late: Vec<Message>,
        applied: Vec<u32>,
        answered: Vec<u32>,
    }

    impl World {
        fn travel(&mut self, messages: Vec<Message>, ways: &mut impl Iterator<Item = Way>) {
            for message in messages {
                match ways.next().unwrap_or(Way::Arrives) {
                    Way::Arrives => self.log.push(message),
                    Way::Lost => {}
                    Way::Twice => self.log.extend([message.clone(), message]),
                    Way::Late => self.late.push(message),
                }
            }
        }

        /// The replica takes a message of the log; the node hears of it.
        fn apply(&mut self, at: u64, message: &Message, now: Instant) -> Vec<Message> {
            let mut payload = message.payload.clone();
            let header = Header::decode(&mut payload).unwrap();
            match self.sessions.take(at, &header).0 {
                Verdict::Counts => {
                    if header.holds != Holds::Part {
                        self.applied.push(u32::from_be_bytes(payload[..].try_into().unwrap()));
                    }
                    self.answered.extend(self.window.applied(header.session, header.number, now));
                    Vec::new()
                }
                Verdict::Again => Vec::new(),
                Verdict::Gap { due } => self.window.skipped(&header, due, now),
            }
        }
    }

    proptest! {
        /// Whatever the network does, every command is applied once, in its order, and answered then.
        #[test]
        fn every_command_is_applied_once_and_in_order(
            ways in prop::collection::vec(way(), 0..200),
            parts in prop::collection::vec(1..4u32, 1..30),
            forget in prop::option::of(0..40u64),
        ) {
            let now = Instant::now();
            let mut ways = ways.into_iter();
            let mut world = World {
                window: Window::new(1, 2), sessions: Sessions::default(), log: vec![], late: vec![],
                applied: vec![], answered: vec![],
            };
            let mut pieces: VecDeque<_> = (0..).zip(&parts).flat_map(|(command, count)| (0..*count).map(move |part| {
                let holds = if *count == 1 { Holds::Commands } else if part + 1 == *count { Holds::LastPart } else { Holds::Part };
                piece(command, holds, part, now)
            })).collect();
            let mut at = 0;
            for _ in 0..10_000 {
                while !world.window.is_full() && let Some(piece) = pieces.pop_front() {
                    let message = world.window.push(piece, Timestamp::UNIX_EPOCH, now);
                    world.travel(vec![message], &mut ways);
                }
                if world.log.is_empty() {
                    if world.window.is_empty() { break; }
                    let again = world.window.again(now);
                    world.travel(again, &mut ways);
                    let late = std::mem::take(&mut world.late);
                    world.log.extend(late);
                }
                for message in std::mem::take(&mut world.log) {
                    at += 1;
                    if forget == Some(at) && world.sessions.get(world.window.session()).is_none_or(|seen| seen.parts == 0) {
                        world.sessions = Sessions::default();
                        // Only a session of which no message is on its way twice may be forgotten safely.
                        world.late.clear();
                        world.log.clear();
                        break;
                    }
                    let again = world.apply(at, &message, now);
                    world.travel(again, &mut ways);
                }
            }
            let all: Vec<u32> = (0..parts.len() as u32).collect();
            prop_assert_eq!(&world.answered, &all);
            prop_assert_eq!(&world.applied, &all);
        }
    }

    #[test]
    fn what_was_given_up_never_counts_later() {
        let now = Instant::now();
        let mut window = Window::new(1, 2);
        let first = window.push(piece(0, Holds::Commands, 0, now), Timestamp::UNIX_EPOCH, now);
        let second = window.push(piece(1, Holds::Commands, 0, now), Timestamp::UNIX_EPOCH, now);
        assert!(window.is_overdue(now) && !window.is_stalled(now) && window.is_stalled(now + PATIENCE * 2));
        assert_eq!(window.give_up(), [0, 1]);
        let third = window.push(piece(2, Holds::Commands, 0, now), Timestamp::UNIX_EPOCH, now);
        // The second comes without the first.
        let mut sessions = Sessions::default();
        let mut take = |at, message: &Message| {
            sessions.take(at, &Header::decode(&mut message.payload.clone()).unwrap()).0
        };
        assert_eq!(take(1, &second), Verdict::Gap { due: 1 });
        assert_eq!(take(2, &third), Verdict::Counts);
        assert_eq!(take(3, &first), Verdict::Counts, "what is not known may still come");
        assert_eq!(window.applied(third.session, 1, now), [2]);
        assert!(window.applied(first.session, 1, now).is_empty(), "and nobody waits for it any more");
    }
}
