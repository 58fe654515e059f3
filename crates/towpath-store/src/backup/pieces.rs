//! Pieces of a backup: runs of entries, named by the SHA-256 of their bytes.
//!
//! The end of a piece depends on its keys, not on a count of bytes. So an entry that comes, goes or changes alters one
//! piece, and the pieces around it are the same in the next backup.

use super::entries::{CopyPage, push_entry, split_entries};
use crate::embedded::copy::{CopyEntry, CopySection};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

/// Bytes below which no piece ends, unless its section does.
const MIN_BYTES: usize = 1 << 20;
/// Bytes at which a piece ends whatever its keys are.
const MAX_BYTES: usize = 16 << 20;
/// One key of so many ends a piece that is long enough.
const END_EVERY: u32 = 64;
/// Level of compression. A backup is read rarely, and made beside a server.
const LEVEL: i32 = 1;

/// Piece of a section, not compressed.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) section: CopySection,
    /// SHA-256 of the bytes, in hex.
    pub(crate) sha256: String,
    pub(crate) entries: u64,
    pub(crate) bytes: Vec<u8>,
}

impl Piece {
    pub(crate) fn compressed(&self) -> Result<Vec<u8>, String> {
        zstd::bulk::compress(&self.bytes, LEVEL).map_err(|e| format!("cannot compress: {e}"))
    }
}

/// Reads the entries of a piece that was stored.
///
/// # Errors
///
/// The damage, as text.
pub(crate) fn read_piece(stored: &[u8], sha256: &str, bytes: u64) -> Result<Vec<CopyEntry>, String> {
    let length = usize::try_from(bytes).map_err(|_| "it is too long for this machine".to_owned())?;
    let raw = zstd::bulk::decompress(stored, length).map_err(|e| format!("it is damaged: {e}"))?;
    if hex::encode(Sha256::digest(&raw)) != sha256 {
        return Err("it is damaged: its content is not what its name says".into());
    }
    split_entries(&Bytes::from(raw)).ok_or_else(|| "it is damaged: its last entry is cut".into())
}

/// Cuts the pages of a copy into pieces.
#[derive(Default)]
pub(crate) struct PieceCutter {
    section: Option<CopySection>,
    bytes: Vec<u8>,
    entries: u64,
}

impl PieceCutter {
    /// Takes a page; passes each piece that is complete to `done`.
    pub(crate) fn push<E>(
        &mut self,
        page: &CopyPage,
        mut done: impl FnMut(Piece) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.section != Some(page.section) {
            self.finish().map_or(Ok(()), &mut done)?;
            self.section = Some(page.section);
        }
        for entry in &page.entries {
            push_entry(&mut self.bytes, entry);
            self.entries += 1;
            let is_end = self.bytes.len() >= MIN_BYTES && crc32fast::hash(&entry.0).is_multiple_of(END_EVERY);
            if is_end || self.bytes.len() >= MAX_BYTES {
                self.cut().map_or(Ok(()), &mut done)?;
            }
        }
        Ok(())
    }

    /// Ends the last section, and returns its last piece.
    pub(crate) fn finish(&mut self) -> Option<Piece> {
        let last = self.cut();
        self.section = None;
        last
    }

    fn cut(&mut self) -> Option<Piece> {
        let section = self.section.filter(|_| !self.bytes.is_empty())?;
        let bytes = std::mem::take(&mut self.bytes);
        let sha256 = hex::encode(Sha256::digest(&bytes));
        Some(Piece { section, sha256, entries: std::mem::take(&mut self.entries), bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn pieces(entries: &[CopyEntry]) -> Vec<Piece> {
        let mut cutter = PieceCutter::default();
        let mut all = Vec::new();
        for chunk in entries.chunks(777) {
            let page = CopyPage { section: CopySection::Log, entries: chunk.to_vec() };
            let taken = cutter.push(&page, |piece| {
                all.push(piece);
                Ok::<_, ()>(())
            });
            assert_eq!(taken, Ok(()));
        }
        all.extend(cutter.finish());
        all
    }

    fn entry(number: usize, value: &str) -> CopyEntry {
        (Bytes::from(format!("{number:08}")), Bytes::from(value.repeat(100)))
    }

    #[test]
    fn a_change_alters_the_pieces_around_it_only() {
        let before: Vec<CopyEntry> = (0..20_000).map(|number| entry(number * 2, "0123456789")).collect();
        let first = pieces(&before);
        assert!(first.len() > 10, "{}", first.len());
        let mut after = before;
        after.insert(10_000, entry(19_999, "new"));
        after.push(entry(100_000, "appended"));
        let known: HashSet<&str> = first.iter().map(|piece| piece.sha256.as_str()).collect();
        let second = pieces(&after);
        let new = second.iter().filter(|piece| !known.contains(piece.sha256.as_str())).count();
        assert!((2..=6).contains(&new), "{new} of {}", second.len());
        let read: Vec<CopyEntry> = second
            .iter()
            .flat_map(|piece| {
                let stored = piece.compressed().unwrap();
                read_piece(&stored, &piece.sha256, piece.bytes.len() as u64).unwrap()
            })
            .collect();
        assert!(read == after);
    }

    #[test]
    fn damage_is_found() {
        let piece = &pieces(&[entry(1, "x")])[0];
        let stored = piece.compressed().unwrap();
        let bytes = piece.bytes.len() as u64;
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 1;
            // A flipped bit that decompresses to the same bytes is no damage.
            if let Ok(read) = read_piece(&damaged, &piece.sha256, bytes) {
                assert_eq!(read, [entry(1, "x")]);
            }
            assert!(read_piece(&stored[..at], &piece.sha256, bytes).is_err());
        }
    }
}
