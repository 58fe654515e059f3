//! End of a journal that a lost power left with holes.
//!
//! The engine drops a last batch without its end. Disks write the blocks of a file in any order, so the end may be there
//! and a block before it not: zeros in the midst of a large value, which the engine takes for damage and refuses.
//!
//! Such a batch was never acknowledged: a sync writes all of its blocks first. So it is cut off like one without its end.
//! Any other difference stays an error, because a flipped bit of an acknowledged batch looks like it. Batches of a replica
//! are not synced one by one, so whole ones may follow it; the cluster's log has them all, and they go with it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::Path;

use super::journal_batches::JournalParts;
use super::journal_mark::journals;

/// Bytes that a disk writes whole or not at all.
const BLOCK: u64 = 4096;

/// Durability of a journal's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchDurability {
    /// Each is synced before the next is written.
    Synced,
    /// A replica reads them from the cluster's log again.
    Replayed,
}

/// Cuts a batch with holes off the end of the engine's journal, and returns true. A journal with other damage is left as it
/// is.
///
/// # Errors
///
/// If the file cannot be read or written.
pub(super) fn cut_torn_batch(engine: &Path, durability: BatchDurability) -> io::Result<bool> {
    // The engine syncs a journal before it begins the next.
    let Some(number) = journals(engine)?.pop() else { return Ok(false) };
    let path = engine.join(format!("{number}.jnl"));
    let JournalParts { whole, damaged } = JournalParts::read(&path)?;
    let Some(torn) = damaged.first() else { return Ok(false) };
    let is_last = || damaged.len() == 1 && whole.last().is_none_or(|last| last.end <= torn.start);
    let may_go = durability == BatchDurability::Replayed || is_last();
    let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
    if !may_go || !has_hole(&mut file, torn)? {
        return Ok(false);
    }
    file.set_len(torn.start)?;
    file.sync_all()?;
    tracing::warn!(
        journal = %path.display(),
        "dropped the end of the journal, which a lost power cut off before it was acknowledged"
    );
    Ok(true)
}

/// Returns true if a block of the file has only zeros in this range, as if it had never been written.
fn has_hole(file: &mut File, range: &Range<u64>) -> io::Result<bool> {
    let mut at = range.start;
    file.seek(SeekFrom::Start(at))?;
    while at < range.end {
        let end = ((at / BLOCK + 1) * BLOCK).min(range.end);
        let mut part = Vec::new();
        file.take(end - at).read_to_end(&mut part)?;
        if part.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        at = end;
    }
    Ok(false)
}
