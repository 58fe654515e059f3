//! Stored format of a replica's checkpoint: its position in the log, and the state of sessions.
//!
//! It is written in the batch of the group that it describes. So after a crash the replica continues at exactly
//! the message after the last applied one.
//!
//! ```text
//! position                        log:8 sequence:8 [mark: sequence:8 session:8 number:8 time:8]
//! session·s  session:8            number:8 sequence:8 parts:4
//! ended·e    session:8            sequence:8, the place in their order
//! part·p     session:8 number:8   a part of a command that is not complete yet
//! ```

use bytes::Bytes;
use towpath_store::ReplicaError;
use towpath_store::embedded::replica::ReplicaWriter;

use crate::frame::{FrameHeader, LogId, SessionId};
use crate::sessions::{SessionProgress, Sessions};

pub(crate) const POSITION: &[u8] = b"position";
const SESSION: &[u8] = b"s";
const ENDED: &[u8] = b"e";

/// Position of a replica in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReplicaPosition {
    pub(crate) log: LogId,
    /// Sequence number of the last applied message.
    pub(crate) at: u64,
    pub(crate) mark: Option<LogMark>,
}

/// Identity of the last applied message of this log, which the log must still have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogMark {
    pub(crate) at: u64,
    pub(crate) session: SessionId,
    pub(crate) number: u64,
    /// Time at which the log stored it, in nanoseconds since 1970; zero in checkpoints of the first versions.
    ///
    /// It tells a lost message from its copy, which a producer published again to the restored log.
    pub(crate) time: u64,
}

impl LogMark {
    /// Returns the mark of a message.
    pub(crate) fn of(header: &FrameHeader, at: u64, time: u64) -> Self {
        Self { at, session: header.session, number: header.number, time }
    }
}

pub(crate) fn session_key(session: SessionId) -> Vec<u8> {
    [SESSION, &session.to_be_bytes()].concat()
}

/// Key of a forgotten session.
pub(crate) fn ended_key(session: SessionId) -> Vec<u8> {
    [ENDED, &session.to_be_bytes()].concat()
}

pub(crate) fn part_key(session: SessionId, number: u64) -> Vec<u8> {
    [&b"p"[..], &session.to_be_bytes(), &number.to_be_bytes()].concat()
}

pub(crate) fn encode_position(position: &ReplicaPosition) -> Bytes {
    // Fixed words, without a tag: the length tells which fields exist.
    let mut words = vec![position.log, position.at];
    words.extend(position.mark.iter().flat_map(|mark| [mark.at, mark.session, mark.number, mark.time]));
    words.into_iter().flat_map(u64::to_be_bytes).collect()
}

pub(crate) fn encode_session(progress: SessionProgress) -> Bytes {
    [&progress.number.to_be_bytes()[..], &progress.at.to_be_bytes(), &progress.parts.to_be_bytes()]
        .concat()
        .into()
}

/// Loads the checkpoint; no position for a new replica.
pub(crate) fn load(replica: &ReplicaWriter) -> Result<(Option<ReplicaPosition>, Sessions), ReplicaError> {
    let position = replica.metadata(POSITION)?.map(|value| decode_position(&value)).transpose()?;
    let mut sessions = Vec::new();
    for (key, value) in replica.scan_metadata(SESSION)? {
        let session = number(key.get(SESSION.len()..).unwrap_or_default())?;
        sessions.push((session, decode_session(&value)?));
    }
    let mut ended = Vec::new();
    for (key, value) in replica.scan_metadata(ENDED)? {
        ended.push((number(key.get(ENDED.len()..).unwrap_or_default())?, number(&value)?));
    }
    Ok((position, Sessions::restore(sessions, ended)))
}

/// Decodes the position of a checkpoint.
pub(crate) fn decode_position(value: &[u8]) -> Result<ReplicaPosition, ReplicaError> {
    let words = value.chunks(8).map(number).collect::<Result<Vec<_>, _>>()?;
    match words[..] {
        // A replica that has applied no message of this log yet.
        [log, at] => Ok(ReplicaPosition { log, at, mark: None }),
        // Checkpoints of the first versions have no time of the mark.
        [log, at, mark, session, number] => {
            Ok(ReplicaPosition { log, at, mark: Some(LogMark { at: mark, session, number, time: 0 }) })
        }
        [log, at, mark, session, number, time] => {
            Ok(ReplicaPosition { log, at, mark: Some(LogMark { at: mark, session, number, time }) })
        }
        _ => Err(damaged()),
    }
}

fn decode_session(value: &[u8]) -> Result<SessionProgress, ReplicaError> {
    let (words, parts) = value.split_at_checked(16).ok_or_else(damaged)?;
    let parts = parts.try_into().map(u32::from_be_bytes).map_err(|_| damaged())?;
    Ok(SessionProgress { number: number(&words[..8])?, at: number(&words[8..])?, parts })
}

fn number(bytes: &[u8]) -> Result<u64, ReplicaError> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged())
}

fn damaged() -> ReplicaError {
    ReplicaError::Damaged("a value of the checkpoint has an unexpected length".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_roundtrip_and_truncated_ones_are_damaged() {
        let position = ReplicaPosition {
            log: 1,
            at: 2,
            mark: Some(LogMark { at: 2, session: 3, number: u64::MAX, time: 5 }),
        };
        let value = encode_position(&position);
        assert_eq!(decode_position(&value).unwrap(), position);
        let unmarked = ReplicaPosition { mark: None, ..position };
        assert_eq!(decode_position(&encode_position(&unmarked)).unwrap(), unmarked);
        let untimed =
            ReplicaPosition { mark: position.mark.map(|mark| LogMark { time: 0, ..mark }), ..position };
        assert_eq!(decode_position(&value[..40]).unwrap(), untimed, "the format of the first versions");
        let progress = SessionProgress { number: 7, at: 9, parts: 2 };
        assert_eq!(decode_session(&encode_session(progress)).unwrap(), progress);
        for cut in (0..value.len()).filter(|cut| ![16, 40].contains(cut)) {
            assert!(decode_position(&value[..cut]).is_err(), "{cut}");
            assert!(decode_session(&value[..cut.min(19)]).is_err(), "{cut}");
        }
    }
}
