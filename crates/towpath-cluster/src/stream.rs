//! The JetStream stream that is the log of record: created if needed, and checked.

use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, RetentionPolicy, State, StorageType, Stream,
};
use async_nats::jetstream::{Context, ErrorCode};
use bytes::Bytes;

use crate::address::ClusterAddress;
use crate::checkpoint::{LogMark, ReplicaPosition};
use crate::frame::{FrameHeader, LogId};

/// Format of the stream. What its messages contain has levels of its own.
const FORMAT: u8 = 1;
/// Prefix of the description of a towpath stream; format and id follow.
const DESCRIPTION: &str = "towpath log, format ";

/// Failure to use the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamError {
    /// A retry may succeed.
    Later(String),
    /// Only an operator can fix it.
    Never(String),
    /// Messages that the replica needs were removed from the log. A snapshot has their effect.
    Removed(String),
}

impl StreamError {
    /// Returns the reason.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Later(reason) | Self::Never(reason) | Self::Removed(reason) => reason,
        }
    }
}

/// Extent of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogExtent {
    pub(crate) first_sequence: u64,
    pub(crate) last_sequence: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl LogExtent {
    pub(crate) fn of(state: &State) -> Self {
        let State { first_sequence, last_sequence, messages, bytes, .. } = *state;
        Self { first_sequence, last_sequence, messages, bytes }
    }

    /// Returns true where the log has all messages after a position, or no later ones at all.
    pub(crate) fn continues(&self, position: u64) -> bool {
        self.first_sequence <= position + 1 || self.last_sequence <= position
    }
}

/// Returns the subject of the log.
pub(crate) fn subject(name: &str) -> String {
    format!("{name}.log")
}

/// Opens the log's stream, which this node followed before.
pub(crate) async fn open_existing(
    context: &Context,
    address: &ClusterAddress,
) -> Result<(Stream, LogId), StreamError> {
    open(context, address, false).await
}

/// Opens the log's stream, which is created if needed and `may_create` allows it.
pub(crate) async fn open(
    context: &Context,
    address: &ClusterAddress,
    may_create: bool,
) -> Result<(Stream, LogId), StreamError> {
    let found = match context.get_stream(&address.name).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                if !may_create {
                    return Err(StreamError::Never(format!(
                        "the stream {:?} that this node followed is gone",
                        address.name
                    )));
                }
                create(context, address).await?
            }
            GetStreamErrorKind::JetStream(error) => return Err(refused(&error)),
            _ => return Err(StreamError::Later(format!("it does not answer: {error}"))),
        },
    };
    let log = check(address, found.cached_info())?;
    Ok((found, log))
}

async fn create(context: &Context, address: &ClusterAddress) -> Result<Stream, StreamError> {
    let info = context.client().server_info();
    let clustered = info.cluster.is_some();
    let config = Config {
        name: address.name.clone(),
        subjects: vec![subject(&address.name)],
        description: Some(format!("{DESCRIPTION}{FORMAT}, id {:016x}", fastrand::u64(..))),
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        // A full stream refuses new messages. Discarding old ones would lose parts of the log.
        discard: DiscardPolicy::New,
        max_bytes: address.max_bytes.unwrap_or(-1),
        // Three survive the loss of one server, and a single server can have only one.
        num_replicas: address.replicas.unwrap_or(if clustered { 3 } else { 1 }),
        // Deduplication and preconditions depend on every message: a log with a hole is another log.
        deny_delete: true,
        ..Config::default()
    };
    match context.create_stream(config).await {
        Ok(_) => {}
        Err(error) => match error.kind() {
            // Another node created it at the same time.
            CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST => {
            }
            CreateStreamErrorKind::JetStream(error) => return Err(refused(&error)),
            _ => return Err(StreamError::Later(format!("it does not answer: {error}"))),
        },
    }
    let made = context.get_stream(&address.name).await;
    made.map_err(|e| StreamError::Later(format!("the stream was created but cannot be read: {e}")))
}

/// Classifies an error of JetStream.
fn refused(error: &async_nats::jetstream::Error) -> StreamError {
    let reason = format!("JetStream refused: {error}");
    let later = [
        ErrorCode::CLUSTER_NOT_AVAILABLE,
        ErrorCode::CLUSTER_NO_PEERS,
        ErrorCode::INSUFFICIENT_RESOURCES,
        ErrorCode::CLUSTER_NOT_LEADER,
    ];
    if later.contains(&error.error_code()) { StreamError::Later(reason) } else { StreamError::Never(reason) }
}

/// Checks that the stream is one of towpath, and returns its id.
fn check(address: &ClusterAddress, info: &Info) -> Result<LogId, StreamError> {
    let name = &address.name;
    let description = info.config.description.as_deref().unwrap_or_default();
    let Some((format, id)) = description.strip_prefix(DESCRIPTION).and_then(|rest| rest.split_once(", id "))
    else {
        return Err(StreamError::Never(format!(
            "its stream {name:?} belongs to another program; choose another stream with ?name="
        )));
    };
    if format != FORMAT.to_string() {
        return Err(StreamError::Never(format!(
            "its stream {name:?} has format {format}, and this program reads {FORMAT}; use the version that created it"
        )));
    }
    let subjects = &info.config.subjects;
    if *subjects != [subject(name)] || info.config.retention != RetentionPolicy::Limits {
        return Err(StreamError::Never(format!(
            "the configuration of the stream {name:?} was changed: its subjects are {subjects:?}"
        )));
    }
    LogId::from_str_radix(id, 16)
        .map_err(|_| StreamError::Never(format!("the stream {name:?} has an invalid id {id:?}")))
}

/// Ways out for a node that the log does not continue.
pub(crate) const BEGIN_ANEW: &str = "set [cluster.snapshots] to the place of the cluster's snapshots, or stop this node and replace its data folder by a \
     copy of another node's";

/// Returns that messages are gone, and why if the stream's configuration tells.
pub(crate) fn deleted(info: &Info) -> String {
    let limits = own_limits(&info.config).map(|limits| format!(" ({limits})")).unwrap_or_default();
    format!("what is between was deleted{limits}")
}

/// Returns limits of the stream by which JetStream removes messages by itself, with the remedy.
///
/// Nodes create the stream without them, so an operator has set them.
pub(crate) fn own_limits(config: &Config) -> Option<String> {
    let mut limits = Vec::new();
    if !config.max_age.is_zero() {
        limits.push(format!("max_age is {} s", config.max_age.as_secs()));
    }
    if config.discard == DiscardPolicy::Old {
        let bounds = [("max_bytes", config.max_bytes), ("max_msgs", config.max_messages)];
        limits.extend(bounds.iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} is {n}")));
    }
    if config.max_messages_per_subject > 0 {
        limits.push(format!("max_msgs_per_subject is {}", config.max_messages_per_subject));
    }
    let name = &config.name;
    (!limits.is_empty()).then(|| {
        format!(
            "the stream {name:?} removes messages by limits of its own: {}; remove these limits with `nats stream edit`, \
             and bound the log with [cluster.snapshots]",
            limits.join(", ")
        )
    })
}

/// Checks that the log continues a replica: it has the last applied message, and the next one.
pub(crate) async fn check_position(
    stream: &Stream,
    info: &Info,
    log: LogId,
    position: &ReplicaPosition,
) -> Result<(), StreamError> {
    let state = &info.state;
    let name = &info.config.name;
    // A deleted stream that was created again has the same name, but another id.
    if position.log != log {
        return Err(StreamError::Never(format!(
            "this node's replica is of another log than the stream {name:?}; use an empty folder for a new replica"
        )));
    }
    if !LogExtent::of(state).continues(position.at) {
        return Err(StreamError::Removed(format!(
            "the log begins at {} and this node's replica ends at {}: {}; {BEGIN_ANEW}",
            state.first_sequence,
            position.at,
            deleted(info)
        )));
    }
    if state.last_sequence < position.at {
        return Err(StreamError::Never(format!(
            "the log ends at {} and this node's replica at {}: the cluster has lost what it acknowledged",
            state.last_sequence, position.at
        )));
    }
    match &position.mark {
        Some(mark) => check_mark(stream, info, mark).await,
        None => Ok(()),
    }
}

/// Checks that the log still has a message that a replica applied.
pub(crate) async fn check_mark(stream: &Stream, info: &Info, mark: &LogMark) -> Result<(), StreamError> {
    let (state, at) = (&info.state, mark.at);
    if state.last_sequence < at {
        return Err(StreamError::Never(format!(
            "the log ends at {}, and this node's replica has message {at} of it: the cluster has lost what it acknowledged",
            state.last_sequence
        )));
    }
    if at < state.first_sequence {
        // Removed from the beginning of the log, which is allowed.
        return Ok(());
    }
    let is_time = |time: i128| mark.time == 0 || i128::from(mark.time) == time;
    // The info has the time of the last message: usually no further request is needed.
    if state.last_sequence == at && mark.time != 0 && is_time(state.last_timestamp.unix_timestamp_nanos()) {
        return Ok(());
    }
    let message = stream.get_raw_message(at).await;
    let message = message.map_err(|e| StreamError::Later(format!("cannot read message {at}: {e}")))?;
    let header = FrameHeader::decode(&mut Bytes::clone(&message.payload));
    let is_same = |header: &FrameHeader| (header.session, header.number) == (mark.session, mark.number);
    if header.is_ok_and(|header| is_same(&header)) && is_time(message.time.unix_timestamp_nanos()) {
        return Ok(());
    }
    Err(StreamError::Never(format!(
        "message {at} of the log differs from the one that this node's replica has: the cluster has lost what it acknowledged"
    )))
}
