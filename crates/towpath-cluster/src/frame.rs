//! Stored format of a message of the log.
//!
//! ```text
//! offset length
//!      0      4  "twp" and the feature level of the cluster, without which the rest must not be read
//!      4      8  id of the log
//!     12      8  session of the producer
//!     20      8  number in that session, from 1
//!     28      4  attempt: number of times the session had published again before
//!     32     16  time of its changes: nanoseconds since 1970
//!     48      1  0: commands; 1: a part of one command, not the last; 2: its last part
//!     49      4  number of parts before this one
//!     53         commands in sequence, or a part
//! ```
//!
//! Numbers are big endian.

use bytes::Bytes;
use jiff::Timestamp;

use crate::level::SUPPORTED;

/// Length of the header.
pub(crate) const HEADER: usize = 53;

const MAGIC: &[u8; 3] = b"twp";

/// Id of a log: a random number, drawn when its stream is created.
pub(crate) type LogId = u64;
/// Id of a producer's session: a random number, drawn when a node starts and whenever it abandons messages.
pub(crate) type SessionId = u64;

/// Kind of a message's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadKind {
    /// Whole commands.
    Commands,
    /// Part of a command that is too large for one message.
    Part,
    /// Last part of such a command.
    LastPart,
}

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Feature level of the cluster.
    pub(crate) level: u8,
    pub(crate) log: LogId,
    pub(crate) session: SessionId,
    pub(crate) number: u64,
    pub(crate) attempt: u32,
    pub(crate) now: Timestamp,
    pub(crate) payload: PayloadKind,
    /// Number of parts of the same command before this one.
    pub(crate) parts: u32,
}

/// Error of a message that is not in the known format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ForeignMessage {
    /// Another program published it to the log's subject.
    Unknown,
    /// A newer version of towpath wrote it, at this feature level.
    Newer(u8),
}

impl FrameHeader {
    /// Encodes the header.
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..3].copy_from_slice(MAGIC);
        bytes[3] = self.level;
        bytes[4..12].copy_from_slice(&self.log.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.session.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.number.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.attempt.to_be_bytes());
        bytes[32..48].copy_from_slice(&self.now.as_nanosecond().to_be_bytes());
        bytes[48] = match self.payload {
            PayloadKind::Commands => 0,
            PayloadKind::Part => 1,
            PayloadKind::LastPart => 2,
        };
        // With the parts, a replica knows without the earlier message whether this one follows.
        bytes[49..53].copy_from_slice(&self.parts.to_be_bytes());
        bytes
    }

    /// Decodes the header of a message, and removes it from `message`.
    pub(crate) fn decode(message: &mut Bytes) -> Result<Self, ForeignMessage> {
        let header: [u8; HEADER] = message.first_chunk().copied().ok_or(ForeignMessage::Unknown)?;
        if header[..3] != MAGIC[..] {
            return Err(ForeignMessage::Unknown);
        }
        match header[3] {
            // A level below the first does not exist: then it is not ours.
            0 => return Err(ForeignMessage::Unknown),
            // Before anything else, which may be in another place at that level.
            level if level > SUPPORTED => return Err(ForeignMessage::Newer(level)),
            _ => {}
        }
        // Fields of 4 bytes are the low half of the 8 bytes that end with them.
        let number = |at: usize| header[at..at + 8].iter().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
        let nanoseconds = i128::from(number(32) as i64) << 64 | i128::from(number(40));
        let decoded = Self {
            level: header[3],
            log: number(4),
            session: number(12),
            number: number(20),
            attempt: number(24) as u32,
            now: Timestamp::from_nanosecond(nanoseconds).map_err(|_| ForeignMessage::Unknown)?,
            payload: match header[48] {
                0 => PayloadKind::Commands,
                1 => PayloadKind::Part,
                2 => PayloadKind::LastPart,
                _ => return Err(ForeignMessage::Unknown),
            },
            parts: number(45) as u32,
        };
        *message = message.slice(HEADER..);
        Ok(decoded)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_roundtrip(log: u64, session: u64, number: u64, attempt: u32, nanos in -1i128 << 70..1 << 70, parts: u32, kind in 0..3, level in 1..=SUPPORTED) {
            let now = Timestamp::from_nanosecond(nanos.clamp(-(1 << 64), 1 << 64)).unwrap();
            let payload = [PayloadKind::Commands, PayloadKind::Part, PayloadKind::LastPart][kind as usize];
            let header = FrameHeader { level, log, session, number, attempt, now, payload, parts };
            let mut message = Bytes::from([&header.encode()[..], b"rest"].concat());
            prop_assert_eq!(FrameHeader::decode(&mut message).unwrap(), header);
            prop_assert_eq!(&message[..], b"rest");
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>, place in 0usize..HEADER, byte: u8) {
            drop(FrameHeader::decode(&mut bytes.into()));
            let header = FrameHeader { level: 1, log: 1, session: 2, number: 3, attempt: 0, now: Timestamp::MAX, payload: PayloadKind::Part, parts: 0 };
            let mut message = header.encode();
            message[place] = byte;
            drop(FrameHeader::decode(&mut Bytes::copy_from_slice(&message)));
        }
    }

    #[test]
    fn a_newer_level_differs_from_a_foreign_message() {
        let decode =
            |text: &[u8]| FrameHeader::decode(&mut Bytes::copy_from_slice(&[text, &[0; 60]].concat()));
        let newer = SUPPORTED + 1;
        assert_eq!(decode(&[b't', b'w', b'p', newer]), Err(ForeignMessage::Newer(newer)));
        assert_eq!(decode(b"twp\0"), Err(ForeignMessage::Unknown));
        assert_eq!(decode(b"hello"), Err(ForeignMessage::Unknown));
        assert_eq!(FrameHeader::decode(&mut Bytes::from_static(b"twp\x01")), Err(ForeignMessage::Unknown));
    }
}
