//! Batches of the engine's journals, read without the engine.
//!
//! The engine opens no journal that has a damaged batch, and cuts one off where it does not find the next. What comes after
//! the damage would be gone, although it is whole.
//!
//! ```text
//! batch  start, items, end
//! start  1, number of items (4 bytes), sequence number (8)
//! item   2, kind (1), compression (1), keyspace (8), length of the key (2), of the value (4), of it on disk (4), key, value
//! clear  4, keyspace (8)
//! end    3, XXH3 of the items (8), "FJL" 3
//! ```
//!
//! Numbers are little-endian. Zeros follow the last batch.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3Default;

use super::journal_mark::journals;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const MAGIC: [u8; 4] = [b'F', b'J', b'L', 3];
/// Bytes that are searched at once.
const WINDOW: usize = 1 << 16;
static ZEROS: [u8; WINDOW] = [0; WINDOW];

/// A journal file.
struct JournalFile {
    file: BufReader<File>,
    /// Place of the next byte that is read.
    position: u64,
    length: u64,
}

/// Batch that stands somewhere.
struct FoundBatch {
    end: u64,
    /// True if its checksum is right.
    is_whole: bool,
}

/// Parts of a journal file, as ranges of its bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JournalParts {
    /// Whole batches; neighbours are one range.
    pub(super) whole: Vec<Range<u64>>,
    /// Everything else but zeros at the end.
    pub(super) damaged: Vec<Range<u64>>,
}

impl JournalParts {
    /// Reads a journal file.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut journal = JournalFile { file: BufReader::new(file), position: 0, length };
        let mut found = Self::default();
        let mut at = 0;
        while at < length {
            match journal.batch(at)? {
                Some(FoundBatch { end, is_whole }) => {
                    // A batch with a wrong checksum still ends where its lengths lead, at the marks of an end.
                    // So only it is lost, and the next one needs no search.
                    add(if is_whole { &mut found.whole } else { &mut found.damaged }, at..end);
                    at = end;
                }
                // Zeros up to the end are unused space and no damage.
                None if journal.is_zero_from(at)? => break,
                None => {
                    let next = journal.next_batch(at)?.unwrap_or(length);
                    add(&mut found.damaged, at..next);
                    at = next;
                }
            }
        }
        Ok(found)
    }
}

/// Adds a range behind those that there are.
fn add(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Returns the damage that keeps the engine from opening its journals.
pub(super) fn damaged_journal(engine: &Path) -> Option<String> {
    let damaged =
        |path: &PathBuf| Some((path.clone(), JournalParts::read(path).ok()?.damaged.into_iter().next()?));
    let (path, damage) = files(engine).iter().find_map(damaged)?;
    Some(described(&path, &damage))
}

/// Leaves what is damaged out of the journals. Returns each damage as text.
pub(super) fn leave_out_damage(engine: &Path) -> io::Result<Vec<String>> {
    let mut left_out = Vec::new();
    for path in files(engine) {
        let JournalParts { whole, damaged } = JournalParts::read(&path)?;
        if damaged.is_empty() {
            continue;
        }
        let new = path.with_extension("new");
        let (mut from, mut to) = (File::open(&path)?, File::create(&new)?);
        for range in whole {
            from.seek(SeekFrom::Start(range.start))?;
            io::copy(&mut (&from).take(range.end - range.start), &mut to)?;
        }
        to.flush()?;
        // Before the rename: after a power loss the name could otherwise lead to an empty file.
        to.sync_all()?;
        fs::rename(&new, &path)?;
        left_out.extend(damaged.iter().map(|damage| format!("the journal {}", described(&path, damage))));
    }
    Ok(left_out)
}

fn files(engine: &Path) -> Vec<PathBuf> {
    let numbers = journals(engine).unwrap_or_default();
    numbers.into_iter().map(|number| engine.join(format!("{number}.jnl"))).collect()
}

fn described(path: &Path, damage: &Range<u64>) -> String {
    let name = path.file_name().unwrap_or_default().display();
    format!("engine/{name} is damaged from byte {} to {}", damage.start, damage.end)
}

impl JournalFile {
    /// Reads the batch at a place. `None` if none begins there, or it is cut off.
    fn batch(&mut self, at: u64) -> io::Result<Option<FoundBatch>> {
        if at != self.position {
            self.file.seek(SeekFrom::Start(at))?;
            self.position = at;
        }
        match self.read_batch() {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                // How much was read is unknown.
                self.position = u64::MAX;
                Ok(None)
            }
            read => read,
        }
    }

    fn read_batch(&mut self) -> io::Result<Option<FoundBatch>> {
        let [tag] = self.array()?;
        if tag != START {
            return Ok(None);
        }
        let count = u32::from_le_bytes(self.array()?);
        // The sequence number, which no checksum covers: nothing here can judge it.
        let _: [u8; 8] = self.array()?;
        let mut hash = Xxh3Default::new();
        for _ in 0..count {
            if !self.item(&mut hash)? {
                return Ok(None);
            }
        }
        let [tag] = self.array()?;
        let checksum = u64::from_le_bytes(self.array()?);
        let magic: [u8; 4] = self.array()?;
        let is_whole = hash.digest() == checksum;
        Ok((tag == END && magic == MAGIC).then_some(FoundBatch { end: self.position, is_whole }))
    }

    /// Reads an item of a batch. Returns false where none stands.
    fn item(&mut self, hash: &mut Xxh3Default) -> io::Result<bool> {
        let [tag] = self.array()?;
        if tag == CLEAR {
            let keyspace: [u8; 8] = self.array()?;
            hash.update(&[tag]);
            hash.update(&keyspace);
            return Ok(true);
        }
        if tag != ITEM {
            return Ok(false);
        }
        let head: [u8; 20] = self.array()?;
        let [.., key_0, key_1, _, _, _, _, v0, v1, v2, v3] = head;
        let body =
            u64::from(u16::from_le_bytes([key_0, key_1])) + u64::from(u32::from_le_bytes([v0, v1, v2, v3]));
        // A damaged length must not lead behind the end.
        if self.position + body > self.length {
            return Ok(false);
        }
        hash.update(&[tag]);
        hash.update(&head);
        let (mut left, mut buffer) = (body, [0; 8192]);
        while left > 0 {
            let part = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            self.file.read_exact(&mut buffer[..part])?;
            hash.update(&buffer[..part]);
            left -= part as u64;
        }
        self.position += body;
        Ok(true)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact(&mut bytes)?;
        self.position += N as u64;
        Ok(bytes)
    }

    /// Returns the place after `at` where a whole batch begins, right behind the end of another one.
    fn next_batch(&mut self, at: u64) -> io::Result<Option<u64>> {
        let mut from = at;
        loop {
            let window = self.window(from)?;
            for (offset, bytes) in window.windows(MAGIC.len()).enumerate() {
                if bytes != MAGIC {
                    continue;
                }
                let next = from + (offset + MAGIC.len()) as u64;
                // The four bytes may stand within a value as well. Only a whole batch behind them proves that
                // one ended there.
                if self.batch(next)?.is_some_and(|batch| batch.is_whole) {
                    return Ok(Some(next));
                }
            }
            // The last bytes again: an end may stand across two windows.
            if window.len() < WINDOW {
                return Ok(None);
            }
            from += (WINDOW - MAGIC.len() + 1) as u64;
        }
    }

    fn window(&mut self, from: u64) -> io::Result<Vec<u8>> {
        self.file.seek(SeekFrom::Start(from))?;
        let mut window = Vec::new();
        (&mut self.file).take(WINDOW as u64).read_to_end(&mut window)?;
        self.position = from + window.len() as u64;
        Ok(window)
    }

    fn is_zero_from(&mut self, at: u64) -> io::Result<bool> {
        let mut from = at;
        loop {
            let window = self.window(from)?;
            if window != ZEROS[..window.len()] {
                return Ok(false);
            }
            if window.len() < WINDOW {
                return Ok(true);
            }
            from += WINDOW as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of items with these values.
    fn batch(values: &[&[u8]]) -> Vec<u8> {
        let items: Vec<u8> = values
            .iter()
            .flat_map(|value| {
                let length = (value.len() as u32).to_le_bytes();
                let head = [&[ITEM, 0, 0][..], &7_u64.to_le_bytes(), &2_u16.to_le_bytes(), &length, &length];
                [head.concat(), b"ky".to_vec(), value.to_vec()].concat()
            })
            .collect();
        let mut hash = Xxh3Default::new();
        hash.update(&items);
        let start = [&[START][..], &(values.len() as u32).to_le_bytes(), &9_u64.to_le_bytes()].concat();
        [start, items, vec![END], hash.digest().to_le_bytes().to_vec(), MAGIC.to_vec()].concat()
    }

    fn read(bytes: &[u8]) -> JournalParts {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        JournalParts::read(file.path()).unwrap()
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "lists of ranges, of which there is one")]
    fn whole_batches_after_the_damage_are_found() {
        let batches = [batch(&[b"one", b""]), batch(&[&[5; 20_000]]), batch(&[b"three"])];
        let ends: Vec<u64> = batches
            .iter()
            .scan(0, |end, batch| {
                *end += batch.len() as u64;
                Some(*end)
            })
            .collect();
        let all = [batches.concat(), vec![0; 5000]].concat();
        let whole = JournalParts { whole: vec![0..ends[2]], damaged: Vec::new() };
        assert_eq!(read(&all), whole);
        // Any byte of the second batch, but of its sequence number, which no checksum covers.
        for at in (ends[0]..ends[1]).filter(|at| !(ends[0] + 5..ends[0] + 13).contains(at)).step_by(7) {
            let mut bytes = all.clone();
            bytes[at as usize] ^= 0x41;
            let found = read(&bytes);
            let expected =
                JournalParts { whole: vec![0..ends[0], ends[1]..ends[2]], damaged: vec![ends[0]..ends[1]] };
            assert_eq!(found, expected, "{at}");
        }
        // A last batch that is cut off was perhaps never acknowledged.
        let cut = read(&all[..ends[2] as usize - 1]);
        assert_eq!(cut, JournalParts { whole: vec![0..ends[1]], damaged: vec![ends[1]..ends[2] - 1] });
    }
}
