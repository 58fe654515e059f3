//! Positions of errors in a document.

use super::error::FormatError;

/// Returns line and column (in bytes) of a byte offset, both from 1.
pub(crate) fn line_and_column(text: &[u8], offset: usize) -> (usize, usize) {
    let before = &text[..offset.min(text.len())];
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let line_start = memchr::memrchr(b'\n', before).map_or(0, |n| n + 1);
    (line, before.len() - line_start + 1)
}

/// Returns the error for a malformed document at `offset`.
pub(crate) fn malformed(text: &[u8], offset: usize, reason: impl Into<String>) -> FormatError {
    let (line, column) = line_and_column(text, offset);
    FormatError::Malformed { line, column, reason: reason.into() }
}

/// Returns the error for a truncated document; `offset` is the start of the open construct.
pub(crate) fn truncated(text: &[u8], offset: usize, reason: impl Into<String>) -> FormatError {
    let (line, column) = line_and_column(text, offset);
    FormatError::Truncated { line, column, reason: reason.into() }
}

/// Shortens a name from the document for an error.
pub(crate) fn shortened(name: &str) -> String {
    name.chars().take(40).collect()
}
