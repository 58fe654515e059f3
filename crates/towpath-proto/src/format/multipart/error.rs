//! Errors of a multipart body, and the limits that they report.

/// Limits of the headers of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderLimits {
    /// Bytes of all header lines of a part.
    pub bytes: usize,
    /// Number of headers.
    pub count: usize,
}

impl Default for HeaderLimits {
    /// 1 MiB and 128 headers.
    fn default() -> Self {
        Self { bytes: 1 << 20, count: 128 }
    }
}

/// Error of a multipart body. The peer's fault. Offsets count bytes from the body's start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MultipartError {
    /// A delimiter is followed by something other than a line end, `--`, or padding and a line end.
    #[error("a delimiter is followed by something else at byte {0}")]
    InvalidDelimiter(u64),
    /// The body ends before its close delimiter.
    #[error("the body ends at byte {0}, before its close delimiter")]
    UnexpectedEndOfInput(u64),
    /// A header line without a colon, or with a carriage return or a zero byte.
    #[error("byte {offset}: not a header line: {line:?}")]
    InvalidHeader {
        /// Line without its end.
        line: String,
        /// Offset of the line.
        offset: u64,
    },
    /// A header line is not UTF-8.
    #[error("byte {0}: a header line is not UTF-8")]
    UndecodableHeader(u64),
    /// The headers of a part exceed a limit.
    #[error("byte {offset}: the part's headers are over the limit of {} bytes or {} lines", limits.bytes, limits.count)]
    HeaderTooLarge {
        /// Offset of the line that exceeds it.
        offset: u64,
        /// Limits.
        limits: HeaderLimits,
    },
}
