//! The thread that applies the log to this node's replica, in groups.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use towpath_store::StoreError;
use towpath_store::embedded::command::{Command, Outcome};
use towpath_store::embedded::replica::{Applying, Replica};

use crate::frame::{Foreign, Header, Holds, LogId, Session};
use crate::health::Health;
use crate::notes::{self, Mark, Position};
use crate::sessions::{Sessions, Verdict};

/// At which size a group takes no more messages.
const GROUP_MESSAGES: usize = 65_536;
const GROUP_BYTES: usize = 64 << 20;

/// How long the thread waits before it tries again to write where the disk is full.
const PAUSE: Duration = Duration::from_secs(1);

/// A message of the log.
#[derive(Debug)]
pub(crate) struct Delivered {
    /// Its place in the stream.
    at: u64,
    /// When the stream took it, in nanoseconds since 1970.
    time: u64,
    bytes: usize,
    message: Result<(Header, Content), Foreign>,
    /// Its share of the room for what is not applied yet; free again once a group has it.
    _room: OwnedSemaphorePermit,
}

/// What stands behind a message's header.
#[derive(Debug)]
enum Content {
    /// Commands, or why they cannot be read.
    Commands(Result<Vec<Command>, StoreError>),
    /// A part of a command.
    Part(Bytes),
}

impl Delivered {
    /// Reads what is at a place of the stream.
    pub(crate) fn read(at: u64, time: u64, mut payload: Bytes, room: OwnedSemaphorePermit) -> Self {
        let bytes = payload.len();
        let message = Header::decode(&mut payload).map(|header| {
            let content = match header.holds {
                Holds::Commands => Content::Commands(commands(payload)),
                Holds::Part | Holds::LastPart => Content::Part(payload),
            };
            (header, content)
        });
        Self { at, time, bytes, message, _room: room }
    }

    /// What tells it from any other message in its place, where it is one of a log's.
    pub(crate) fn mark(&self, log: LogId) -> Option<Mark> {
        let (header, _) = self.message.as_ref().ok().filter(|(header, _)| header.log == log)?;
        Some(Mark::of(header, self.at, self.time))
    }

    /// What it has for a log; `None` where it is none of that log's messages.
    fn of(self, log: LogId) -> Result<Option<(Header, Content)>, StoreError> {
        let at = self.at;
        match self.message {
            Ok((header, content)) if header.log == log => Ok(Some((header, content))),
            Err(Foreign::Newer(format)) => Err(StoreError::Damaged(format!(
                "message {at} of the log has format {format}: a newer version of this program wrote it"
            ))),
            Ok(_) | Err(Foreign::Unknown) => {
                tracing::warn!(at, "the log has a message that is none of towpath's; it is passed over");
                Ok(None)
            }
        }
    }
}

fn commands(mut payload: Bytes) -> Result<Vec<Command>, StoreError> {
    let mut commands = Vec::new();
    while !payload.is_empty() {
        commands.push(Command::decode(&mut payload)?);
    }
    Ok(commands)
}

/// What became of a message of this node.
#[derive(Debug)]
pub(crate) enum Event {
    /// Its commands were decided and applied.
    Applied { session: Session, number: u64, outcomes: Vec<Outcome> },
    /// It does not count: those from `due` on are missing.
    Skipped { header: Header, due: u64 },
}

/// See the module's text.
pub(crate) struct Applier {
    pub(crate) replica: Replica,
    pub(crate) position: Position,
    pub(crate) sessions: Sessions,
    /// The session of this node, whose outcomes somebody waits for.
    pub(crate) ours: Arc<AtomicU64>,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) health: Arc<Health>,
}

/// A group as it is being decided.
struct Group<'a> {
    replica: &'a Replica,
    /// The session of this node.
    ours: Session,
    applying: Applying<'a>,
    events: Vec<Event>,
    /// Parts that came with this group, by session and number.
    parts: HashMap<(Session, u64), Bytes>,
}

impl Applier {
    /// Runs until nobody brings messages any more, or the replica cannot go on.
    pub(crate) fn run(mut self, mut messages: mpsc::Receiver<Delivered>) {
        while let Some(first) = messages.blocking_recv() {
            let group = gather(first, &mut messages);
            if let Err(error) = self.wait_until_writable(&messages).and_then(|()| self.apply(group)) {
                tracing::error!(%error, "this node's replica cannot follow the log any more");
                self.health.stop(format!("this node's replica cannot be written: {error}"));
                return;
            }
        }
    }

    /// Waits where the disk is nearly full, and fails once the store is being closed.
    fn wait_until_writable(&self, messages: &mpsc::Receiver<Delivered>) -> Result<(), StoreError> {
        while let Err(error) = self.replica.check_writable() {
            self.health.set_problem(format!("this node's replica waits: {error}"));
            if messages.is_closed() || self.replica.has_failed() {
                return Err(error);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn apply(&mut self, messages: Vec<Delivered>) -> Result<(), StoreError> {
        let Self { replica, sessions, ours, .. } = self;
        let mut group = Group {
            replica,
            ours: ours.load(Ordering::Acquire),
            applying: replica.begin(),
            events: Vec::new(),
            parts: HashMap::new(),
        };
        let mut position = self.position;
        for message in messages {
            let Delivered { at, time, .. } = message;
            position.at = at;
            if let Some((header, content)) = message.of(position.log)? {
                position.mark = Some(Mark::of(&header, at, time));
                group.take(sessions, at, header, content)?;
            }
        }
        group.applying.keep(notes::POSITION.to_vec(), Some(notes::encode_position(&position)));
        let Group { applying, events, .. } = group;
        replica.commit(applying)?;
        self.position = position;
        self.health.applied(position.at, position.mark);
        for event in events {
            // Nobody listens any more once the store is being closed.
            drop(self.events.send(event));
        }
        Ok(())
    }
}

impl Group<'_> {
    /// Takes a message of this log.
    fn take(
        &mut self,
        sessions: &mut Sessions,
        at: u64,
        header: Header,
        content: Content,
    ) -> Result<(), StoreError> {
        let (verdict, changed) = sessions.take(at, &header);
        for (session, seen) in changed.forgotten {
            self.applying.keep(notes::session(session), None);
            for number in seen.number + 1 - u64::from(seen.parts)..=seen.number {
                self.drop_part(session, number);
            }
        }
        match verdict {
            Verdict::Counts => {
                let seen = sessions.get(header.session);
                self.applying.keep(notes::session(header.session), seen.map(notes::encode_session));
            }
            Verdict::Gap { due } => {
                if header.session == self.ours {
                    self.events.push(Event::Skipped { header, due });
                }
                return Ok(());
            }
            Verdict::Again => return Ok(()),
        }
        let commands = match content {
            Content::Commands(commands) => commands,
            Content::Part(part) if header.holds == Holds::Part => {
                self.keep_part(header.session, header.number, part);
                return Ok(());
            }
            Content::Part(last) => commands(self.join(&header, changed.done.clone(), &last)?),
        };
        changed.done.for_each(|number| self.drop_part(header.session, number));
        self.decide(&header, commands)
    }

    /// Decides the commands of a message: all of it, or, where it cannot be read, nothing.
    fn decide(
        &mut self,
        header: &Header,
        commands: Result<Vec<Command>, StoreError>,
    ) -> Result<(), StoreError> {
        let ours = header.session == self.ours;
        let commands = match commands {
            Ok(commands) => commands,
            Err(error) => {
                // Every node comes to the same: what is in a message does not depend on who reads it.
                tracing::error!(%error, "a message of the log cannot be read; it is passed over");
                return Ok(());
            }
        };
        let mut outcomes = Vec::with_capacity(if ours { commands.len() } else { 0 });
        for command in commands {
            let outcome = self.applying.apply(header.now, command)?;
            if ours {
                outcomes.push(outcome);
            }
        }
        if ours {
            self.events.push(Event::Applied { session: header.session, number: header.number, outcomes });
        }
        Ok(())
    }

    fn keep_part(&mut self, session: Session, number: u64, part: Bytes) {
        self.applying.keep(notes::part(session, number), Some(part.clone()));
        self.parts.insert((session, number), part);
    }

    fn drop_part(&mut self, session: Session, number: u64) {
        self.applying.keep(notes::part(session, number), None);
        self.parts.remove(&(session, number));
    }

    /// The whole command of which this is the last part.
    fn join(&self, header: &Header, parts: std::ops::Range<u64>, last: &[u8]) -> Result<Bytes, StoreError> {
        let mut whole = Vec::new();
        for number in parts {
            let key = (header.session, number);
            let part = match self.parts.get(&key) {
                Some(part) => Some(part.clone()),
                None => self.replica.note(&notes::part(header.session, number))?,
            };
            let part = part.ok_or_else(|| StoreError::Damaged("a part of a command is missing".into()))?;
            whole.extend_from_slice(&part);
        }
        whole.extend_from_slice(last);
        Ok(whole.into())
    }
}

/// The messages that wait behind `first`, as many as make one group.
fn gather(first: Delivered, messages: &mut mpsc::Receiver<Delivered>) -> Vec<Delivered> {
    let mut bytes = first.bytes;
    let mut group = vec![first];
    while group.len() < GROUP_MESSAGES && bytes < GROUP_BYTES {
        let Ok(next) = messages.try_recv() else { break };
        bytes += next.bytes;
        group.push(next);
    }
    group
}
