//! Window of published messages that this node has not applied yet. Pure: time is an argument.
//!
//! Messages go out in the order of their numbers, several at a time. A lost message leaves a gap, after which no
//! message of the session takes effect (see [`crate::sessions`]). So the window goes back: it publishes the missing
//! message and all later ones again. Abandoning a message abandons its session. Later messages of that session can
//! never take effect, and new messages get a new session.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;

use crate::frame::{FrameHeader, HEADER, LogId, PayloadKind, SessionId};

/// Maximum number of messages in flight.
const MAX_MESSAGES: usize = 16;
/// Maximum number of bytes in flight.
const MAX_BYTES: usize = 8 << 20;

/// Time after which a message without an acknowledgement is published again.
const ACK_TIMEOUT: Duration = Duration::from_millis(1500);

/// Message that is not numbered yet. `R` is the reply of a command.
#[derive(Debug)]
pub(crate) struct MessageDraft<R> {
    /// Feature level of its commands, or of the cluster if that is higher.
    pub(crate) level: u8,
    pub(crate) kind: PayloadKind,
    /// Number of parts of the same command before this one.
    pub(crate) parts: u32,
    /// Room for the header, then commands or a part.
    pub(crate) payload: Vec<u8>,
    /// Replies of its commands, in their order.
    pub(crate) replies: Vec<R>,
    pub(crate) deadline: Instant,
}

/// Message to send to the server.
#[derive(Debug, Clone)]
pub(crate) struct OutgoingMessage {
    pub(crate) session: SessionId,
    pub(crate) number: u64,
    pub(crate) payload: Bytes,
}

#[derive(Debug)]
struct InFlightMessage<R> {
    header: FrameHeader,
    payload: Bytes,
    replies: Vec<R>,
    deadline: Instant,
    /// Time of its last publication.
    published: Instant,
    /// True once the log has it.
    stored: bool,
}

/// Window of one producer.
#[derive(Debug)]
pub(crate) struct InFlightWindow<R> {
    log: LogId,
    session: SessionId,
    next: u64,
    attempt: u32,
    sent: VecDeque<InFlightMessage<R>>,
    /// Time at which the log last stored, or this node last applied, one of them.
    progress: Option<Instant>,
}

impl<R> InFlightWindow<R> {
    /// Creates an empty window on a log.
    pub(crate) fn new(log: LogId, session: SessionId) -> Self {
        Self { log, session, next: 1, attempt: 0, sent: VecDeque::new(), progress: None }
    }

    /// Returns the current session.
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Returns true where nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns true where nothing more may be published.
    pub(crate) fn is_full(&self) -> bool {
        // Stored parts do not count: they only wait for the last part of their command, which needs room to go out.
        let in_flight =
            self.sent.iter().filter(|sent| !(sent.stored && sent.header.payload == PayloadKind::Part));
        let (count, bytes) = in_flight.fold((0, 0), |(n, bytes), sent| (n + 1, bytes + sent.payload.len()));
        count >= MAX_MESSAGES || bytes >= MAX_BYTES
    }

    /// Numbers a message and adds it. The caller publishes the result.
    pub(crate) fn push(&mut self, piece: MessageDraft<R>, time: Timestamp, now: Instant) -> OutgoingMessage {
        let MessageDraft { level, kind, parts, mut payload, replies, deadline } = piece;
        let (log, session, number, attempt) = (self.log, self.session, self.next, self.attempt);
        let header = FrameHeader { level, log, session, number, attempt, now: time, payload: kind, parts };
        // The draft has room for the header, so that a large payload is not copied.
        payload[..HEADER].copy_from_slice(&header.encode());
        let payload = Bytes::from(payload);
        self.next += 1;
        let message = OutgoingMessage { session, number, payload: payload.clone() };
        self.sent.push_back(InFlightMessage {
            header,
            payload,
            replies,
            deadline,
            published: now,
            stored: false,
        });
        message
    }

    /// Records that the log has a message.
    pub(crate) fn stored(&mut self, session: SessionId, number: u64, now: Instant) {
        if session == self.session
            && let Some(sent) = self.sent.iter_mut().find(|sent| sent.header.number == number)
        {
            sent.stored = true;
            self.progress = Some(now);
        }
    }

    /// Records that this node applied a message. Returns the replies of its commands.
    pub(crate) fn applied(&mut self, session: SessionId, number: u64, now: Instant) -> Vec<R> {
        self.stored(session, number, now);
        // Parts stay until their command is complete: they may have to be published again in another session.
        let done = |sent: &InFlightMessage<R>| {
            sent.header.number == number && sent.header.payload != PayloadKind::Part
        };
        // Results of an earlier session are of abandoned messages: their replies are already sent.
        let Some(place) = self.sent.iter().position(done).filter(|_| session == self.session) else {
            return Vec::new();
        };
        // Messages are applied in order, so the ones before this are done as well.
        self.sent.drain(..=place).flat_map(|sent| sent.replies).collect()
    }

    /// Records that replicas skipped a message, because the ones from `expected` on are missing. Returns the messages
    /// to publish again.
    pub(crate) fn skipped(
        &mut self,
        header: &FrameHeader,
        expected: u64,
        now: Instant,
    ) -> Vec<OutgoingMessage> {
        // Only the latest attempt counts: the messages behind one gap would otherwise each trigger a new attempt.
        if (header.session, header.attempt) != (self.session, self.attempt) {
            return Vec::new();
        }
        match self.sent.iter().position(|sent| sent.header.number == expected) {
            Some(place) => self.publish_from(place, now),
            // The replicas have forgotten this session, so its messages take effect nowhere: start a new one.
            None => {
                self.start_session(fastrand::u64(..));
                for sent in &mut self.sent {
                    sent.header.session = self.session;
                    sent.header.number = self.next;
                    self.next += 1;
                }
                self.publish_from(0, now)
            }
        }
    }

    /// Returns true where an acknowledgement is overdue.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        self.sent.iter().any(|sent| !sent.stored && now.duration_since(sent.published) > ACK_TIMEOUT)
    }

    /// Returns the messages to publish again: the first one without an acknowledgement, and all later ones.
    pub(crate) fn retransmit(&mut self, now: Instant) -> Vec<OutgoingMessage> {
        // All from there on, stored or not: if the first was lost, replicas have skipped the others.
        let first = self.sent.iter().position(|sent| !sent.stored);
        first.map(|first| self.publish_from(first, now)).unwrap_or_default()
    }

    fn publish_from(&mut self, place: usize, now: Instant) -> Vec<OutgoingMessage> {
        // The attempt is in the header, so that results of earlier attempts are recognized.
        self.attempt += 1;
        let (session, attempt) = (self.session, self.attempt);
        let messages = self.sent.iter_mut().skip(place).map(|sent| {
            // Not stored any more: what counts is that this attempt arrives.
            (sent.header.attempt, sent.published, sent.stored) = (attempt, now, false);
            // Copied: the client library may still have the bytes of the attempt before.
            let mut payload = sent.payload.to_vec();
            payload[..HEADER].copy_from_slice(&sent.header.encode());
            sent.payload = payload.into();
            OutgoingMessage { session, number: sent.header.number, payload: sent.payload.clone() }
        });
        messages.collect()
    }

    /// Returns true where a deadline has passed without progress. Progress counts, because large commands take long.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        let has_progress = self.progress.is_some_and(|progress| now.duration_since(progress) < ACK_TIMEOUT);
        !has_progress && self.sent.iter().any(|sent| sent.deadline <= now)
    }

    /// Abandons all messages in flight. Returns the replies of their commands.
    pub(crate) fn abandon(&mut self) -> Vec<R> {
        self.start_session(fastrand::u64(..));
        self.sent.drain(..).flat_map(|sent| sent.replies).collect()
    }

    fn start_session(&mut self, session: SessionId) {
        (self.session, self.next, self.attempt) = (session, 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sessions::{SequenceCheck, Sessions};

    fn draft(reply: u32, kind: PayloadKind, parts: u32, deadline: Instant) -> MessageDraft<u32> {
        let replies = if kind == PayloadKind::Part { vec![] } else { vec![reply] };
        MessageDraft {
            level: 1,
            kind,
            parts,
            payload: [vec![0; HEADER], reply.to_be_bytes().to_vec()].concat(),
            replies,
            deadline,
        }
    }

    /// Fate of the next message in the network.
    #[derive(Debug, Clone, Copy)]
    enum NetworkFate {
        Arrives,
        Lost,
        Twice,
        Late,
    }

    fn fate() -> impl Strategy<Value = NetworkFate> {
        prop_oneof![5 => Just(NetworkFate::Arrives), 2 => Just(NetworkFate::Lost), 1 => Just(NetworkFate::Twice), 1 => Just(NetworkFate::Late)]
    }

    /// Window, network and replica.
    struct NetworkSimulation {
        window: InFlightWindow<u32>,
        sessions: Sessions,
        log: Vec<OutgoingMessage>,
        late: Vec<OutgoingMessage>,
        applied: Vec<u32>,
        replied: Vec<u32>,
    }

    impl NetworkSimulation {
        fn travel(&mut self, messages: Vec<OutgoingMessage>, fates: &mut impl Iterator<Item = NetworkFate>) {
            for message in messages {
                match fates.next().unwrap_or(NetworkFate::Arrives) {
                    NetworkFate::Arrives => self.log.push(message),
                    NetworkFate::Lost => {}
                    NetworkFate::Twice => self.log.extend([message.clone(), message]),
                    NetworkFate::Late => self.late.push(message),
                }
            }
        }

        /// Applies a message to the replica, and tells the window the result.
        fn apply(&mut self, at: u64, message: &OutgoingMessage, now: Instant) -> Vec<OutgoingMessage> {
            let mut payload = message.payload.clone();
            let header = FrameHeader::decode(&mut payload).unwrap();
            match self.sessions.check(at, &header).0 {
                SequenceCheck::Next => {
                    if header.payload != PayloadKind::Part {
                        self.applied.push(u32::from_be_bytes(payload[..].try_into().unwrap()));
                    }
                    self.replied.extend(self.window.applied(header.session, header.number, now));
                    Vec::new()
                }
                SequenceCheck::Duplicate => Vec::new(),
                SequenceCheck::Gap { expected } => self.window.skipped(&header, expected, now),
            }
        }
    }

    proptest! {
        /// Runs random networks that lose, duplicate and delay messages.
        #[test]
        fn every_command_is_applied_once_and_in_order(
            fates in prop::collection::vec(fate(), 0..200),
            parts in prop::collection::vec(1..4u32, 1..30),
            forget in prop::option::of(0..40u64),
        ) {
            let now = Instant::now();
            let mut fates = fates.into_iter();
            let mut simulation = NetworkSimulation {
                window: InFlightWindow::new(1, 2), sessions: Sessions::default(), log: vec![], late: vec![],
                applied: vec![], replied: vec![],
            };
            let mut drafts: VecDeque<_> = (0..).zip(&parts).flat_map(|(command, count)| (0..*count).map(move |part| {
                let kind = if *count == 1 { PayloadKind::Commands } else if part + 1 == *count { PayloadKind::LastPart } else { PayloadKind::Part };
                draft(command, kind, part, now)
            })).collect();
            let mut at = 0;
            for _ in 0..10_000 {
                while !simulation.window.is_full() && let Some(draft) = drafts.pop_front() {
                    let message = simulation.window.push(draft, Timestamp::UNIX_EPOCH, now);
                    simulation.travel(vec![message], &mut fates);
                }
                if simulation.log.is_empty() {
                    if simulation.window.is_empty() { break; }
                    let again = simulation.window.retransmit(now);
                    simulation.travel(again, &mut fates);
                    let late = std::mem::take(&mut simulation.late);
                    simulation.log.extend(late);
                }
                for message in std::mem::take(&mut simulation.log) {
                    at += 1;
                    if forget == Some(at) && simulation.sessions.get(simulation.window.session()).is_none_or(|progress| progress.parts == 0) {
                        simulation.sessions = Sessions::default();
                        // A session may be forgotten safely only while no copy of its messages is in flight.
                        simulation.late.clear();
                        simulation.log.clear();
                        break;
                    }
                    let again = simulation.apply(at, &message, now);
                    simulation.travel(again, &mut fates);
                }
            }
            let all: Vec<u32> = (0..parts.len() as u32).collect();
            prop_assert_eq!(&simulation.replied, &all);
            prop_assert_eq!(&simulation.applied, &all);
        }
    }

    #[test]
    fn an_abandoned_session_skips_later_messages() {
        let now = Instant::now();
        let mut window = InFlightWindow::new(1, 2);
        let first = window.push(draft(0, PayloadKind::Commands, 0, now), Timestamp::UNIX_EPOCH, now);
        let second = window.push(draft(1, PayloadKind::Commands, 0, now), Timestamp::UNIX_EPOCH, now);
        assert!(
            window.is_overdue(now) && !window.is_stalled(now) && window.is_stalled(now + ACK_TIMEOUT * 2)
        );
        assert_eq!(window.abandon(), [0, 1]);
        let third = window.push(draft(2, PayloadKind::Commands, 0, now), Timestamp::UNIX_EPOCH, now);
        // The second message arrives without the first.
        let mut sessions = Sessions::default();
        let mut check = |at, message: &OutgoingMessage| {
            sessions.check(at, &FrameHeader::decode(&mut message.payload.clone()).unwrap()).0
        };
        assert_eq!(check(1, &second), SequenceCheck::Gap { expected: 1 });
        assert_eq!(check(2, &third), SequenceCheck::Next);
        assert_eq!(check(3, &first), SequenceCheck::Next, "an abandoned message may still take effect");
        assert_eq!(window.applied(third.session, 1, now), [2]);
        assert!(window.applied(first.session, 1, now).is_empty(), "its reply was already returned");
    }
}
