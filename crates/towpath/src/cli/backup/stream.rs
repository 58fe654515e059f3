//! Stream of a copy's entries, from the server that has the store open to the command that keeps them.
//!
//! ```text
//! "towpath copy {format}\n"
//! frames: section (1 byte), length (4 bytes), entries: key length (4 bytes), value length (4 bytes), key, value
//! the end: 0xff, number of entries (8 bytes); an error: 0xfe, length (4 bytes), text
//! ```
//!
//! Numbers are big-endian. A stream without its end is cut off.

use std::io::{self, BufRead, Read, Write};

use towpath_store::backup::{CopyError, CopyPage, CopySource, encode_length, push_entry, split_entries};
use towpath_store::embedded::copy::{COPY_FORMAT, CopySection};

/// Maximum length of a frame that is read. An entry may be larger than a page.
const MAX_FRAME: u32 = 1 << 30;
const END: u8 = 0xff;
const FAILED: u8 = 0xfe;

/// Writes a whole copy to a stream.
///
/// # Errors
///
/// If the stream breaks. An unreadable store is told to the reader.
pub(super) fn send(source: &mut impl CopySource, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "towpath copy {COPY_FORMAT}")?;
    let mut count = 0_u64;
    loop {
        let page = match source.next() {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err(e) => {
                let text = e.to_string();
                out.write_all(&[FAILED])?;
                out.write_all(&encode_length(text.len()))?;
                return out.write_all(text.as_bytes());
            }
        };
        // Whole pages: the reader must know of each frame's length before its bytes come.
        let mut entries = Vec::new();
        page.entries.iter().for_each(|entry| push_entry(&mut entries, entry));
        out.write_all(&[number(page.section)])?;
        out.write_all(&encode_length(entries.len()))?;
        out.write_all(&entries)?;
        count += page.entries.len() as u64;
    }
    out.write_all(&[END])?;
    out.write_all(&count.to_be_bytes())?;
    out.flush()
}

fn number(section: CopySection) -> u8 {
    let at = CopySection::ALL.iter().position(|known| *known == section);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(FAILED)
}

/// Copy that a server sends.
pub(super) struct ReceivedCopy<R> {
    input: R,
    count: u64,
}

impl<R: BufRead> ReceivedCopy<R> {
    /// Reads the beginning of the stream.
    pub(super) fn begin(mut input: R) -> Result<Self, CopyError> {
        let mut line = String::new();
        // Bounded: something else may listen at the socket, and never end its line.
        input.by_ref().take(100).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if line.trim_end() != format!("towpath copy {COPY_FORMAT}") {
            return Err(CopyError::Version(format!("it sends {:?}", line.trim_end())));
        }
        Ok(Self { input, count: 0 })
    }

    fn number<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, CopyError> {
        let length = u32::from_be_bytes(self.number()?);
        if length > MAX_FRAME {
            return Err(CopyError::Version(format!("it sends a frame of {length} bytes")));
        }
        // Grows with what arrives, not with what is announced.
        let mut bytes = Vec::new();
        self.input.by_ref().take(length.into()).read_to_end(&mut bytes)?;
        if bytes.len() < length as usize {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(bytes)
    }
}

impl<R: BufRead> CopySource for ReceivedCopy<R> {
    fn next(&mut self) -> Result<Option<CopyPage>, CopyError> {
        match self.number::<1>()?[0] {
            END => {
                let announced = u64::from_be_bytes(self.number()?);
                // A stream that was cut within its last frames would otherwise look like a small store.
                if announced == self.count {
                    return Ok(None);
                }
                Err(CopyError::Store(format!("{} entries of {announced} arrived", self.count)))
            }
            FAILED => {
                let text = self.bytes()?;
                Err(CopyError::Store(String::from_utf8_lossy(&text).into_owned()))
            }
            number => {
                let section = CopySection::ALL.get(usize::from(number)).copied();
                let section =
                    section.ok_or_else(|| CopyError::Version(format!("it sends section {number}")))?;
                let entries = split_entries(&self.bytes()?.into());
                let entries = entries.ok_or_else(|| CopyError::Version("a frame is cut".into()))?;
                self.count += entries.len() as u64;
                Ok(Some(CopyPage { section, entries }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use towpath_store::embedded::copy::CopyEntry;

    use super::*;

    /// A copy of a few entries, with an error at its end if there is one.
    struct TestCopy(Vec<CopyPage>, Option<&'static str>);

    impl CopySource for TestCopy {
        fn next(&mut self) -> Result<Option<CopyPage>, CopyError> {
            match (self.0.pop(), self.1) {
                (None, Some(text)) => Err(CopyError::Store(text.into())),
                (page, _) => Ok(page),
            }
        }
    }

    fn stream(error: Option<&'static str>) -> Vec<u8> {
        let entries = vec![(Bytes::from("a"), Bytes::from("1")), (Bytes::from("b"), Bytes::new())];
        let page = CopyPage { section: CopySection::Log, entries };
        let mut bytes = Vec::new();
        send(&mut TestCopy(vec![page], error), &mut bytes).unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<CopyEntry>, CopyError> {
        let mut copy = ReceivedCopy::begin(bytes)?;
        let mut all = Vec::new();
        while let Some(page) = copy.next()? {
            assert_eq!(page.section, CopySection::Log);
            all.extend(page.entries);
        }
        Ok(all)
    }

    #[test]
    fn a_copy_comes_back_and_is_never_taken_for_whole_where_it_is_cut() {
        let whole = stream(None);
        assert_eq!(read(&whole).unwrap().len(), 2);
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "{end}");
        }
        assert!(matches!(read(&stream(Some("damaged"))), Err(CopyError::Store(text)) if text == "damaged"));
        assert!(matches!(read(b"towpath copy 999\n"), Err(CopyError::Version(_))));
    }
}
