//! The thread that applies messages of the log to this node's replica, in groups.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use towpath_store::ReplicaError;
use towpath_store::embedded::command::{CommandResult, DecodeError, LogCommand};
use towpath_store::embedded::replica::{ReplicaGroup, ReplicaWriter};

use crate::checkpoint::{self, LogMark, ReplicaPosition};
use crate::frame::{ForeignMessage, FrameHeader, LogId, PayloadKind, SessionId};
use crate::health::{NodeHealth, ProblemOrigin};
use crate::level;
use crate::sessions::{SequenceCheck, Sessions};

/// Number of messages at which a group is applied.
pub(crate) const GROUP_MESSAGES: usize = 65_536;
/// Bytes at which a group is applied. Only a replica that catches up reaches it.
const GROUP_BYTES: usize = 64 << 20;

/// Pause between checks of a full disk.
const FULL_DISK_PAUSE: Duration = Duration::from_secs(1);

/// Message of the log.
#[derive(Debug)]
pub(crate) struct LogMessage {
    /// Sequence number in the stream.
    at: u64,
    /// Time at which the stream stored it, in nanoseconds since 1970.
    time: u64,
    bytes: usize,
    message: Result<(FrameHeader, MessageBody), ForeignMessage>,
    /// Permit of the read-ahead budget, released once a group has the message.
    _permit: OwnedSemaphorePermit,
}

/// Body of a message, after its header.
#[derive(Debug)]
enum MessageBody {
    /// Commands, or the error of decoding them.
    Commands(Result<Vec<LogCommand>, DecodeError>),
    /// Part of a command.
    Part(Bytes),
}

impl LogMessage {
    /// Decodes a message of the stream.
    ///
    /// A message of a level above `supported` is one of a newer version, and only its level is read.
    pub(crate) fn decode(
        at: u64,
        time: u64,
        mut payload: Bytes,
        supported: u8,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let bytes = payload.len();
        let header = FrameHeader::decode(&mut payload).and_then(|header| match header.level {
            level if level > supported => Err(ForeignMessage::Newer(level)),
            _ => Ok(header),
        });
        let message = header.map(|header| {
            let content = match header.payload {
                PayloadKind::Commands => MessageBody::Commands(commands(payload)),
                PayloadKind::Part | PayloadKind::LastPart => MessageBody::Part(payload),
            };
            (header, content)
        });
        Self { at, time, bytes, message, _permit: permit }
    }

    /// Returns the mark that identifies the message, if it belongs to `log`.
    pub(crate) fn mark(&self, log: LogId) -> Option<LogMark> {
        let (header, _) = self.message.as_ref().ok().filter(|(header, _)| header.log == log)?;
        Some(LogMark::of(header, self.at, self.time))
    }

    /// Returns header and body if the message belongs to `log`, else `None`.
    fn into_parts_of(self, log: LogId) -> Result<Option<(FrameHeader, MessageBody)>, ApplyError> {
        let at = self.at;
        match self.message {
            Ok((header, content)) if header.log == log => Ok(Some((header, content))),
            // Fatal: this node cannot know the effect, and would diverge from newer nodes.
            Err(ForeignMessage::Newer(level)) => Err(ApplyError::TooOld { at, level }),
            // Skipped, not fatal: anybody with access to the server can publish to the subject.
            Ok(_) | Err(ForeignMessage::Unknown) => {
                tracing::warn!(at, "skipped a message of the log that towpath did not write");
                Ok(None)
            }
        }
    }
}

fn commands(mut payload: Bytes) -> Result<Vec<LogCommand>, DecodeError> {
    let mut commands = Vec::new();
    while !payload.is_empty() {
        // All or none: every node decides a message as a whole, so half of one must not take effect.
        commands.push(LogCommand::decode(&mut payload)?);
    }
    Ok(commands)
}

/// Reason why a replica cannot go on.
#[derive(Debug)]
enum ApplyError {
    /// The replica cannot be read or written.
    Replica(ReplicaError),
    /// A message has a feature level that this program does not have.
    TooOld { at: u64, level: u8 },
}

impl From<ReplicaError> for ApplyError {
    fn from(error: ReplicaError) -> Self {
        Self::Replica(error)
    }
}

/// Result of a message that this node published, for its producer.
#[derive(Debug)]
pub(crate) enum ApplyEvent {
    /// The replica applied its commands.
    Applied { session: SessionId, number: u64, results: Vec<CommandResult> },
    /// It was skipped, because the messages from `expected` on are missing.
    Skipped { header: FrameHeader, expected: u64 },
}

/// State of the applying thread.
pub(crate) struct Applier {
    /// True once the store closes.
    pub(crate) closing: Arc<AtomicBool>,
    pub(crate) replica: ReplicaWriter,
    pub(crate) position: ReplicaPosition,
    pub(crate) sessions: Sessions,
    /// Session of this node's producer: callers wait for the results of its messages.
    pub(crate) own_session: Arc<AtomicU64>,
    pub(crate) events: mpsc::UnboundedSender<ApplyEvent>,
    pub(crate) health: Arc<NodeHealth>,
    /// Highest feature level that this node supports.
    pub(crate) supported: u8,
}

/// Group of messages that is being decided.
struct ApplyGroup<'a> {
    replica: &'a ReplicaWriter,
    /// Session of this node's producer.
    own_session: SessionId,
    commands: ReplicaGroup<'a>,
    /// Feature level to which the group raises the cluster.
    raised: Option<u8>,
    events: Vec<ApplyEvent>,
    /// Parts of this group, by session and number.
    parts: HashMap<(SessionId, u64), Bytes>,
}

impl Applier {
    /// Runs until the consumer ends, or the replica cannot continue.
    pub(crate) fn run(mut self, mut messages: mpsc::Receiver<LogMessage>) {
        while let Some(first) = messages.blocking_recv() {
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            let group = gather(first, &mut messages);
            let writable = self.wait_until_writable(&messages).map_err(ApplyError::from);
            match writable.and_then(|()| self.apply(group)) {
                Ok(()) => {}
                Err(ApplyError::Replica(error)) => {
                    tracing::error!(%error, "this node's replica cannot apply the log any more");
                    return self.health.fail(format!("this node's replica cannot be written: {error}"));
                }
                Err(ApplyError::TooOld { at, level }) => {
                    let reason = level::too_old(level, self.supported);
                    return self.health.outdate(format!("this node stopped before message {at}: {reason}"));
                }
            }
        }
    }

    /// Waits while the disk is nearly full. Fails once the store is being closed.
    fn wait_until_writable(&self, messages: &mpsc::Receiver<LogMessage>) -> Result<(), ReplicaError> {
        while let Err(error) = self.replica.check_writable() {
            let problem = format!("this node's replica waits for disk space: {error}");
            self.health.set_problem(ProblemOrigin::Disk, problem);
            // Without this a store on a full disk could not be closed.
            if messages.is_closed() || self.replica.has_failed() {
                return Err(error);
            }
            std::thread::sleep(FULL_DISK_PAUSE);
        }
        self.health.clear_problem(ProblemOrigin::Disk);
        Ok(())
    }

    fn apply(&mut self, messages: Vec<LogMessage>) -> Result<(), ApplyError> {
        let Self { replica, sessions, own_session, .. } = self;
        let mut group = ApplyGroup {
            replica,
            // Read once for the group. Messages of an earlier session have no callers left who would wait for
            // results.
            own_session: own_session.load(Ordering::Acquire),
            commands: replica.begin_group(),
            raised: None,
            events: Vec::new(),
            parts: HashMap::new(),
        };
        // A copy: if the commit fails, the position must not advance.
        let mut position = self.position;
        let mut too_old = None;
        for message in messages {
            let LogMessage { at, time, .. } = message;
            let parts = match message.into_parts_of(position.log) {
                Ok(parts) => parts,
                Err(error) => {
                    // What is before it is applied: readers see as much of the log as this node understands.
                    too_old = Some(error);
                    break;
                }
            };
            // Foreign messages count as well: the position is that of the stream.
            position.at = at;
            if let Some((header, body)) = parts {
                position.mark = Some(LogMark::of(&header, at, time));
                group.add(sessions, at, header, body)?;
            }
        }
        let encoded = checkpoint::encode_position(&position);
        group.commands.set_metadata(checkpoint::POSITION.to_vec(), Some(encoded));
        let ApplyGroup { commands, events, raised, .. } = group;
        // Before the events: a caller that gets its result must read its own write here.
        replica.commit(commands)?;
        self.position = position;
        if let Some(level) = raised {
            tracing::info!(level, "the cluster has a new feature level");
            self.health.set_level(level);
        }
        // After the commit: who waits for this position reads what is stored.
        self.health.applied(position.at, position.mark);
        for event in events {
            // The producer may have ended before, because the store is being closed.
            drop(self.events.send(event));
        }
        too_old.map_or(Ok(()), Err)
    }
}

impl ApplyGroup<'_> {
    /// Adds a message of this log.
    fn add(
        &mut self,
        sessions: &mut Sessions,
        at: u64,
        header: FrameHeader,
        body: MessageBody,
    ) -> Result<(), ReplicaError> {
        let (check, changes) = sessions.check(at, &header);
        for (session, progress) in changes.forgotten {
            self.commands.set_metadata(checkpoint::session_key(session), None);
            let place = Bytes::copy_from_slice(&progress.at.to_be_bytes());
            self.commands.set_metadata(checkpoint::ended_key(session), Some(place));
            for number in progress.number + 1 - u64::from(progress.parts)..=progress.number {
                self.drop_part(session, number);
            }
        }
        for session in changes.dropped {
            self.commands.set_metadata(checkpoint::ended_key(session), None);
        }
        match check {
            SequenceCheck::Next => {
                let progress = sessions.get(header.session).map(checkpoint::encode_session);
                self.commands.set_metadata(checkpoint::session_key(header.session), progress);
            }
            SequenceCheck::Gap { expected } => {
                if header.session == self.own_session {
                    self.events.push(ApplyEvent::Skipped { header, expected });
                }
                return Ok(());
            }
            SequenceCheck::Duplicate => return Ok(()),
        }
        let commands = match body {
            MessageBody::Commands(commands) => commands,
            MessageBody::Part(part) if header.payload == PayloadKind::Part => {
                self.store_part(header.session, header.number, part);
                return Ok(());
            }
            MessageBody::Part(last) => commands(self.join(&header, changes.done.clone(), &last)?),
        };
        // In the batch that applies the command: a crash leaves either its parts or its effect.
        changes.done.for_each(|number| self.drop_part(header.session, number));
        self.decide(&header, commands)
    }

    /// Decides all commands of a message, or none where the message cannot be decoded.
    fn decide(
        &mut self,
        header: &FrameHeader,
        commands: Result<Vec<LogCommand>, DecodeError>,
    ) -> Result<(), ReplicaError> {
        let is_own = header.session == self.own_session;
        let commands = match commands {
            Ok(commands) => commands,
            Err(error) => {
                // Every node skips the same message, so that replicas do not diverge.
                tracing::error!(%error, "skipped a message of the log that cannot be decoded");
                return Ok(());
            }
        };
        let mut results = Vec::with_capacity(if is_own { commands.len() } else { 0 });
        for command in commands {
            let result = self.commands.apply(header.now, command)?;
            if let CommandResult::Level(level) = result {
                self.raised = Some(level);
            }
            if is_own {
                results.push(result);
            }
        }
        if is_own {
            self.events.push(ApplyEvent::Applied { session: header.session, number: header.number, results });
        }
        Ok(())
    }

    fn store_part(&mut self, session: SessionId, number: u64, part: Bytes) {
        self.commands.set_metadata(checkpoint::part_key(session, number), Some(part.clone()));
        self.parts.insert((session, number), part);
    }

    fn drop_part(&mut self, session: SessionId, number: u64) {
        self.commands.set_metadata(checkpoint::part_key(session, number), None);
        self.parts.remove(&(session, number));
    }

    /// Joins the parts of a command, of which `last` is the last one.
    fn join(
        &self,
        header: &FrameHeader,
        parts: std::ops::Range<u64>,
        last: &[u8],
    ) -> Result<Bytes, ReplicaError> {
        let mut whole = Vec::new();
        for number in parts {
            let key = (header.session, number);
            let part = match self.parts.get(&key) {
                Some(part) => Some(part.clone()),
                None => self.replica.metadata(&checkpoint::part_key(header.session, number))?,
            };
            let part = part.ok_or_else(|| ReplicaError::Damaged("a part of a command is missing".into()))?;
            whole.extend_from_slice(&part);
        }
        whole.extend_from_slice(last);
        Ok(whole.into())
    }
}

/// Takes the messages that wait behind `first`, up to the size of one group.
fn gather(first: LogMessage, messages: &mut mpsc::Receiver<LogMessage>) -> Vec<LogMessage> {
    let mut bytes = first.bytes;
    let mut group = vec![first];
    while group.len() < GROUP_MESSAGES && bytes < GROUP_BYTES {
        let Ok(next) = messages.try_recv() else { break };
        bytes += next.bytes;
        group.push(next);
    }
    group
}

#[cfg(test)]
mod tests;
