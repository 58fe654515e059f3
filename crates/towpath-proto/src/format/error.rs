//! Errors of reading a document.

/// Error of reading a document. The publisher's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The document has none of the requested formats.
    #[error("not a feed: {0}")]
    Unknown(String),
    /// The document is truncated.
    #[error("cut off at line {line}, column {column}: {reason}")]
    Truncated {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// Construct that was still open.
        reason: String,
    },
    /// The document is malformed, or violates its format.
    #[error("line {line}, column {column}: {reason}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// Explanation.
        reason: String,
    },
    /// The document exceeds a limit: nesting, entities, or repeated long names.
    #[error("refused: {0}")]
    Limit(String),
    /// The document is well-formed JSON, but the pointers match nothing.
    #[error("{place}: {reason}")]
    Mapping {
        /// Pointer, with the item's index if there is one.
        place: String,
        /// Explanation of the mismatch.
        reason: String,
    },
}
