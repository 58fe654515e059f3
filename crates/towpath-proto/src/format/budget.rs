//! How much repetition may make of a document.

use super::FormatError;

/// What repetition may add to any document, in bytes.
const FREE: usize = 16 << 20;
/// What it may add besides, as a multiple of the document's length.
const TIMES: usize = 4;

/// What may still be added to a document's own text by repeating parts of it: a feed's authors with every entry that
/// has none, a base address with every relative one, a namespace's name with every element that is kept.
///
/// Without a bound, one long name in a small document would fill the memory.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    /// For a document of `length` bytes.
    pub(crate) fn new(length: usize) -> Self {
        Self { left: length.saturating_mul(TIMES).saturating_add(FREE) }
    }

    /// Takes what one repetition of `bytes` costs, or refuses it for a reason.
    pub(crate) fn spend(&mut self, bytes: usize, reason: impl FnOnce() -> String) -> Result<(), FormatError> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| FormatError::Limit(reason()))?;
        Ok(())
    }
}
