//! What a replica keeps in the same batch as what it applies, so that after a crash it goes on where it was.
//!
//! ```text
//! position                    log:8 place in the stream:8 [mark: place:8 session:8 number:8 time:8]
//! session·s  session:8        number:8 place:8 parts:4
//! part·p     session:8 number:8   a part of a command that is not whole yet
//! ```

use bytes::Bytes;
use towpath_store::StoreError;
use towpath_store::embedded::replica::Replica;

use crate::frame::{Header, LogId, Session};
use crate::sessions::{Seen, Sessions};

pub(crate) const POSITION: &[u8] = b"position";
const SESSION: &[u8] = b"s";

/// Where a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) log: LogId,
    /// The place in the stream of the last message that was applied.
    pub(crate) at: u64,
    pub(crate) mark: Option<Mark>,
}

/// The last message of the log that was one of ours: what the log must still have there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) at: u64,
    pub(crate) session: Session,
    pub(crate) number: u64,
    /// When the log took it, in nanoseconds since 1970: what is published again to a log that has lost it is told from
    /// it so. Zero where a replica does not say.
    pub(crate) time: u64,
}

impl Mark {
    /// That of a message, at its place and time.
    pub(crate) fn of(header: &Header, at: u64, time: u64) -> Self {
        Self { at, session: header.session, number: header.number, time }
    }
}

pub(crate) fn session(session: Session) -> Vec<u8> {
    [SESSION, &session.to_be_bytes()].concat()
}

pub(crate) fn part(session: Session, number: u64) -> Vec<u8> {
    [&b"p"[..], &session.to_be_bytes(), &number.to_be_bytes()].concat()
}

pub(crate) fn encode_position(position: &Position) -> Bytes {
    let mut words = vec![position.log, position.at];
    words.extend(position.mark.iter().flat_map(|mark| [mark.at, mark.session, mark.number, mark.time]));
    words.into_iter().flat_map(u64::to_be_bytes).collect()
}

pub(crate) fn encode_session(seen: Seen) -> Bytes {
    [&seen.number.to_be_bytes()[..], &seen.at.to_be_bytes(), &seen.parts.to_be_bytes()].concat().into()
}

/// Reads what was kept; no position where nothing was.
pub(crate) fn load(replica: &Replica) -> Result<(Option<Position>, Sessions), StoreError> {
    let position = replica.note(POSITION)?.map(|note| decode_position(&note)).transpose()?;
    let mut seen = Vec::new();
    for (key, value) in replica.notes(SESSION)? {
        let session = number(key.get(SESSION.len()..).unwrap_or_default())?;
        seen.push((session, decode_seen(&value)?));
    }
    Ok((position, Sessions::restore(seen)))
}

fn decode_position(note: &[u8]) -> Result<Position, StoreError> {
    let words = note.chunks(8).map(number).collect::<Result<Vec<_>, _>>()?;
    match words[..] {
        [log, at] => Ok(Position { log, at, mark: None }),
        // As version 0.1 wrote it first.
        [log, at, place, session, number] => {
            Ok(Position { log, at, mark: Some(Mark { at: place, session, number, time: 0 }) })
        }
        [log, at, place, session, number, time] => {
            Ok(Position { log, at, mark: Some(Mark { at: place, session, number, time }) })
        }
        _ => Err(damaged()),
    }
}

fn decode_seen(value: &[u8]) -> Result<Seen, StoreError> {
    let (words, parts) = value.split_at_checked(16).ok_or_else(damaged)?;
    let parts = parts.try_into().map(u32::from_be_bytes).map_err(|_| damaged())?;
    Ok(Seen { number: number(&words[..8])?, at: number(&words[8..])?, parts })
}

fn number(bytes: &[u8]) -> Result<u64, StoreError> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged())
}

fn damaged() -> StoreError {
    StoreError::Damaged("a note of this replica has another length than was written".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_come_back_and_others_are_damaged() {
        let position =
            Position { log: 1, at: 2, mark: Some(Mark { at: 2, session: 3, number: u64::MAX, time: 5 }) };
        let note = encode_position(&position);
        assert_eq!(decode_position(&note).unwrap(), position);
        let unmarked = Position { mark: None, ..position };
        assert_eq!(decode_position(&encode_position(&unmarked)).unwrap(), unmarked);
        let untimed = Position { mark: position.mark.map(|mark| Mark { time: 0, ..mark }), ..position };
        assert_eq!(decode_position(&note[..40]).unwrap(), untimed, "as replicas were first written");
        let seen = Seen { number: 7, at: 9, parts: 2 };
        assert_eq!(decode_seen(&encode_session(seen)).unwrap(), seen);
        for cut in (0..note.len()).filter(|cut| ![16, 40].contains(cut)) {
            assert!(decode_position(&note[..cut]).is_err(), "{cut}");
            assert!(decode_seen(&note[..cut.min(19)]).is_err(), "{cut}");
        }
    }
}
