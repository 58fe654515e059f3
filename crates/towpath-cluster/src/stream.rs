//! The stream that is the log of record: made where it is not there, checked where it is.

use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{Context, ErrorCode};
use bytes::Bytes;

use crate::address::Address;
use crate::frame::{FORMAT, Header, LogId};
use crate::notes::{Mark, Position};

/// How a stream of ours begins to describe itself; its format and its id follow.
const DESCRIPTION: &str = "towpath log, format ";

/// Why the log cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It may be usable later.
    Later(String),
    /// It will not be until somebody does something about it.
    Never(String),
}

/// The subject that commands are published to.
pub(crate) fn subject(name: &str) -> String {
    format!("{name}.log")
}

/// The log's stream, made where there is none and `may_make` allows it.
pub(crate) async fn open(
    context: &Context,
    address: &Address,
    may_make: bool,
) -> Result<(Stream, LogId), Refusal> {
    let found = match context.get_stream(&address.name).await {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                if !may_make {
                    return Err(Refusal::Never(format!(
                        "the stream {:?} that this node followed is gone",
                        address.name
                    )));
                }
                make(context, address).await?
            }
            GetStreamErrorKind::JetStream(error) => return Err(refused(&error)),
            _ => return Err(Refusal::Later(format!("it does not answer: {error}"))),
        },
    };
    let log = check(address, found.cached_info())?;
    Ok((found, log))
}

async fn make(context: &Context, address: &Address) -> Result<Stream, Refusal> {
    let info = context.client().server_info();
    let clustered = info.cluster.is_some();
    let config = Config {
        name: address.name.clone(),
        subjects: vec![subject(&address.name)],
        description: Some(format!("{DESCRIPTION}{FORMAT}, id {:016x}", fastrand::u64(..))),
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        max_bytes: address.max_bytes.unwrap_or(-1),
        num_replicas: address.replicas.unwrap_or(if clustered { 3 } else { 1 }),
        deny_delete: true,
        ..Config::default()
    };
    match context.create_stream(config).await {
        Ok(_) => {}
        Err(error) => match error.kind() {
            // Another node was there first.
            CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST => {
            }
            CreateStreamErrorKind::JetStream(error) => return Err(refused(&error)),
            _ => return Err(Refusal::Later(format!("it does not answer: {error}"))),
        },
    }
    let made = context.get_stream(&address.name).await;
    made.map_err(|e| Refusal::Later(format!("the stream was made and cannot be read: {e}")))
}

/// An error that JetStream answered with.
fn refused(error: &async_nats::jetstream::Error) -> Refusal {
    let reason = format!("JetStream refuses: {error}");
    let later = [
        ErrorCode::CLUSTER_NOT_AVAILABLE,
        ErrorCode::CLUSTER_NO_PEERS,
        ErrorCode::INSUFFICIENT_RESOURCES,
        ErrorCode::CLUSTER_NOT_LEADER,
    ];
    if later.contains(&error.error_code()) { Refusal::Later(reason) } else { Refusal::Never(reason) }
}

/// Whether the stream is one of ours, and which.
fn check(address: &Address, info: &Info) -> Result<LogId, Refusal> {
    let name = &address.name;
    let description = info.config.description.as_deref().unwrap_or_default();
    let Some((format, id)) = description.strip_prefix(DESCRIPTION).and_then(|rest| rest.split_once(", id "))
    else {
        return Err(Refusal::Never(format!(
            "its stream {name:?} belongs to another program; give ours another name with ?name="
        )));
    };
    if format != FORMAT.to_string() {
        return Err(Refusal::Never(format!(
            "its stream {name:?} has format {format}, and this program knows {FORMAT}; use the version that made it"
        )));
    }
    let subjects = &info.config.subjects;
    if *subjects != [subject(name)] || info.config.retention != RetentionPolicy::Limits {
        return Err(Refusal::Never(format!(
            "somebody changed the configuration of the stream {name:?}: its subjects are {subjects:?}"
        )));
    }
    LogId::from_str_radix(id, 16)
        .map_err(|_| Refusal::Never(format!("the stream {name:?} has the id {id:?}")))
}

/// Whether the log still has what a replica took from it, and what comes next.
pub(crate) async fn check_position(
    stream: &Stream,
    info: &Info,
    log: LogId,
    position: &Position,
) -> Result<(), Refusal> {
    let state = &info.state;
    let name = &info.config.name;
    if position.log != log {
        return Err(Refusal::Never(format!(
            "this node's replica is of another log than the stream {name:?}; name an empty folder to begin anew"
        )));
    }
    if state.first_sequence > position.at + 1 && state.last_sequence > position.at {
        return Err(Refusal::Never(format!(
            "the log begins at {} and this node's replica ends at {}: what is between was deleted",
            state.first_sequence, position.at
        )));
    }
    if state.last_sequence < position.at {
        return Err(Refusal::Never(format!(
            "the log ends at {} and this node's replica at {}: the cluster has lost what it acknowledged",
            state.last_sequence, position.at
        )));
    }
    match &position.mark {
        Some(mark) => check_mark(stream, info, mark).await,
        None => Ok(()),
    }
}

/// Whether the log has a message that a replica took from it.
pub(crate) async fn check_mark(stream: &Stream, info: &Info, mark: &Mark) -> Result<(), Refusal> {
    let (state, at) = (&info.state, mark.at);
    if state.last_sequence < at {
        return Err(Refusal::Never(format!(
            "the log ends at {}, and this node's replica has message {at} of it: the cluster has lost what it acknowledged",
            state.last_sequence
        )));
    }
    if at < state.first_sequence {
        return Ok(());
    }
    let is_time = |time: i128| mark.time == 0 || i128::from(mark.time) == time;
    if state.last_sequence == at && mark.time != 0 && is_time(state.last_timestamp.unix_timestamp_nanos()) {
        return Ok(());
    }
    let message = stream.get_raw_message(at).await;
    let message = message.map_err(|e| Refusal::Later(format!("message {at} cannot be read: {e}")))?;
    let header = Header::decode(&mut Bytes::clone(&message.payload));
    let is_same = |header: &Header| (header.session, header.number) == (mark.session, mark.number);
    if header.is_ok_and(|header| is_same(&header)) && is_time(message.time.unix_timestamp_nanos()) {
        return Ok(());
    }
    Err(Refusal::Never(format!(
        "message {at} of the log is another than this node's replica has: the cluster has lost what it acknowledged"
    )))
}
