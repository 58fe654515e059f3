//! A message of the log.
//!
//! ```text
//! offset length
//!      0      4  "twp" and the format: 1
//!      4      8  which log it is for
//!     12      8  which session of which node published it
//!     20      8  its number in that session, from 1
//!     28      4  how often the session had begun again to publish what it did not see, then
//!     32     16  when it was made: nanoseconds since 1970
//!     48      1  0: commands; 1: a part of one command, not the last; 2: its last part
//!     49      4  how many parts came before this one
//!     53         commands one after another, or a part
//! ```
//!
//! Numbers are big endian.

use bytes::Bytes;
use jiff::Timestamp;

/// What stands before the commands.
pub(crate) const HEADER: usize = 53;

const MAGIC: &[u8; 3] = b"twp";
pub(crate) const FORMAT: u8 = 1;

/// Which log: a random number, made with the stream.
pub(crate) type LogId = u64;
/// Who published: a random number, made when a node starts and whenever it gives up on what it published.
pub(crate) type Session = u64;

/// What a message holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Whole commands.
    Commands,
    /// A part of one command that is too large for one message.
    Part,
    /// Its last part.
    LastPart,
}

/// What stands at the beginning of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) log: LogId,
    pub(crate) session: Session,
    pub(crate) number: u64,
    pub(crate) attempt: u32,
    pub(crate) now: Timestamp,
    pub(crate) holds: Holds,
    /// How many parts of the same command came before.
    pub(crate) parts: u32,
}

/// Why a message is none of ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// Something else was published to our subject.
    Unknown,
    /// A later version of this program wrote it.
    Newer(u8),
}

impl Header {
    /// The header as bytes.
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..3].copy_from_slice(MAGIC);
        bytes[3] = FORMAT;
        bytes[4..12].copy_from_slice(&self.log.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.session.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.number.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.attempt.to_be_bytes());
        bytes[32..48].copy_from_slice(&self.now.as_nanosecond().to_be_bytes());
        bytes[48] = match self.holds {
            Holds::Commands => 0,
            Holds::Part => 1,
            Holds::LastPart => 2,
        };
        bytes[49..53].copy_from_slice(&self.parts.to_be_bytes());
        bytes
    }

    /// Takes the header off a message.
    pub(crate) fn decode(message: &mut Bytes) -> Result<Self, Foreign> {
        let header: [u8; HEADER] = message.first_chunk().copied().ok_or(Foreign::Unknown)?;
        if header[..3] != MAGIC[..] {
            return Err(Foreign::Unknown);
        }
        if header[3] != FORMAT {
            return Err(if header[3] > FORMAT { Foreign::Newer(header[3]) } else { Foreign::Unknown });
        }
        let number = |at: usize| header[at..at + 8].iter().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
        let nanoseconds = i128::from(number(32) as i64) << 64 | i128::from(number(40));
        let decoded = Self {
            log: number(4),
            session: number(12),
            number: number(20),
            attempt: number(24) as u32,
            now: Timestamp::from_nanosecond(nanoseconds).map_err(|_| Foreign::Unknown)?,
            holds: match header[48] {
                0 => Holds::Commands,
                1 => Holds::Part,
                2 => Holds::LastPart,
                _ => return Err(Foreign::Unknown),
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
        fn headers_come_back(log: u64, session: u64, number: u64, attempt: u32, nanos in -1i128 << 70..1 << 70, parts: u32, holds in 0..3) {
            let now = Timestamp::from_nanosecond(nanos.clamp(-(1 << 64), 1 << 64)).unwrap();
            let holds = [Holds::Commands, Holds::Part, Holds::LastPart][holds as usize];
            let header = Header { log, session, number, attempt, now, holds, parts };
            let mut message = Bytes::from([&header.encode()[..], b"rest"].concat());
            prop_assert_eq!(Header::decode(&mut message).unwrap(), header);
            prop_assert_eq!(&message[..], b"rest");
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, place in 0usize..HEADER, byte: u8) {
            drop(Header::decode(&mut bytes.into()));
            let header = Header { log: 1, session: 2, number: 3, attempt: 0, now: Timestamp::MAX, holds: Holds::Part, parts: 0 };
            let mut message = header.encode();
            message[place] = byte;
            drop(Header::decode(&mut Bytes::copy_from_slice(&message)));
        }
    }

    #[test]
    fn a_later_format_is_told_from_something_else() {
        let decode = |text: &[u8]| Header::decode(&mut Bytes::copy_from_slice(&[text, &[0; 60]].concat()));
        assert_eq!(decode(b"twp\x02"), Err(Foreign::Newer(2)));
        assert_eq!(decode(b"hello"), Err(Foreign::Unknown));
        assert_eq!(Header::decode(&mut Bytes::from_static(b"twp\x01")), Err(Foreign::Unknown));
    }
}
