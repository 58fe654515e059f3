//! End of a journal that a lost power left with holes.
//!
//! The engine drops a last batch without its end. Disks write the blocks of a file in any order, so the end may be there
//! and a block before it not: zeros in the midst of a large value, which the engine takes for damage and refuses.
//!
//! Such a batch was never acknowledged: a sync writes all of its blocks first. So it is cut off like one without its end.
//! Any other difference stays an error, because a flipped bit of an acknowledged batch looks like it. Batches of a replica
//! are not synced one by one, so whole ones may follow it; the cluster's log has them all, and they go with it.
//!
//! ```text
//! batch:  start, entries, end
//! start:  1, number of entries (4), sequence number (8)
//! value:  2, kind (1), compression (1), keyspace (8), key length (2), value length (4), stored length (4), key, value
//! clear:  4, keyspace (8)
//! end:    3, XXH3 of the entries (8), "FJL" 3
//! ```
//!
//! Numbers are little-endian.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::journal_mark::journals;

/// Bytes that a disk writes whole or not at all.
const BLOCK: usize = 4096;
const START: u8 = 1;
const VALUE: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const MAGIC: &[u8] = b"FJL\x03";

/// Durability of a journal's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JournalBatches {
    /// Each is synced before the next is written.
    Synced,
    /// Those of a replica, which reads them from the cluster's log again.
    Replayed,
}

/// Cuts a batch with holes off the end of the engine's journal, and returns true. A journal with other damage is left as it
/// is.
///
/// # Errors
///
/// If the file cannot be read or written.
pub(super) fn cut_torn_batch(engine: &Path, batches: JournalBatches) -> io::Result<bool> {
    // The engine syncs a journal before it begins the next.
    let Some(number) = journals(engine)?.pop() else { return Ok(false) };
    let journal = engine.join(format!("{number}.jnl"));
    let bytes = fs::read(&journal)?;
    let Some(at) = torn_batch(&bytes, batches) else { return Ok(false) };
    let file = OpenOptions::new().write(true).open(&journal)?;
    file.set_len(at as u64)?;
    file.sync_all()?;
    tracing::warn!(
        journal = %journal.display(),
        "dropped the end of the journal, which a lost power cut off before it was acknowledged"
    );
    Ok(true)
}

/// Returns where the first batch begins that differs from its checksum, if that is for its holes and it may be dropped.
fn torn_batch(journal: &[u8], batches: JournalBatches) -> Option<usize> {
    let mut at = 0;
    let torn = loop {
        let batch = Batch::read(journal, at)?;
        if !batch.is_whole {
            break batch;
        }
        at = batch.end;
    };
    // Zeros are the space that the engine reserved.
    let is_last = || journal[torn.end..].iter().all(|byte| *byte == 0);
    let may_go = batches == JournalBatches::Replayed || is_last();
    (may_go && has_hole(journal, &(torn.start..torn.end))).then_some(torn.start)
}

/// Returns true if a block of the file has only zeros of the batch, as if it had never been written.
fn has_hole(journal: &[u8], batch: &Range<usize>) -> bool {
    let first = batch.start / BLOCK * BLOCK;
    (first..batch.end).step_by(BLOCK).any(|block| {
        let part = block.max(batch.start)..(block + BLOCK).min(batch.end);
        journal[part].iter().all(|byte| *byte == 0)
    })
}

/// Batch of a journal.
struct Batch {
    start: usize,
    /// Position behind its end.
    end: usize,
    /// True if the entries have the checksum that the end names.
    is_whole: bool,
}

impl Batch {
    /// Reads the batch at a position; `None` if it is not one.
    fn read(journal: &[u8], start: usize) -> Option<Self> {
        if journal.get(start) != Some(&START) {
            return None;
        }
        let begin = start + 1 + 4 + 8;
        let mut at = begin;
        loop {
            match *journal.get(at)? {
                VALUE => {
                    let (key, value) = (number::<2>(journal, at + 11)?, number::<4>(journal, at + 17)?);
                    at = at.checked_add(21)?.checked_add(key)?.checked_add(value)?;
                }
                CLEAR => at += 1 + 8,
                END => break,
                _ => return None,
            }
        }
        let checksum = journal.get(at + 1..at + 9)?;
        let end = at + 9 + MAGIC.len();
        if journal.get(at + 9..end)? != MAGIC {
            return None;
        }
        let is_whole = xxh3_64(journal.get(begin..at)?).to_le_bytes() == *checksum;
        Some(Self { start, end, is_whole })
    }
}

/// Returns the number of so many bytes at a position.
fn number<const BYTES: usize>(journal: &[u8], at: usize) -> Option<usize> {
    let mut wide = [0; 8];
    wide[..BYTES].copy_from_slice(journal.get(at..at + BYTES)?);
    usize::try_from(u64::from_le_bytes(wide)).ok()
}
