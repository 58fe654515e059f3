//! Where in a document an error is.

use crate::format::FormatError;

/// Line and column (in bytes) of a byte offset, both from 1.
pub(crate) fn place(text: &[u8], offset: usize) -> (usize, usize) {
    let before = &text[..offset.min(text.len())];
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let line_start = memchr::memrchr(b'\n', before).map_or(0, |n| n + 1);
    (line, before.len() - line_start + 1)
}

/// The document is not well-formed at `offset`.
pub(crate) fn malformed(text: &[u8], offset: usize, reason: impl Into<String>) -> FormatError {
    let (line, column) = place(text, offset);
    FormatError::Malformed { line, column, reason: reason.into() }
}

/// The document ends with `reason` still open; `offset` is where that began.
pub(crate) fn truncated(text: &[u8], offset: usize, reason: impl Into<String>) -> FormatError {
    let (line, column) = place(text, offset);
    FormatError::Truncated { line, column, reason: reason.into() }
}
