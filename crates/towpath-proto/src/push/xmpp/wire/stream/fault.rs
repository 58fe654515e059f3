//! Errors of a stream.

/// Error that ends a stream, with its offset. The peer's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (byte {offset} of the stream)")]
pub struct StreamError {
    /// Reason.
    pub reason: StreamErrorReason,
    /// Number of bytes before the error.
    pub offset: u64,
}

/// Reason of a stream error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamErrorReason {
    /// XML feature that RFC 6120, 11.1, forbids.
    #[error("{0} in a stream")]
    Restricted(&'static str),
    /// Not well-formed XML with namespaces.
    #[error("not well-formed: {0}")]
    Malformed(&'static str),
    /// Not UTF-8 (RFC 6120, 11.6).
    #[error("not UTF-8")]
    Encoding,
    /// The stream's start tag, or an end tag, exceeds the limit of a stanza.
    #[error("a tag of more than {0} bytes")]
    TooLarge(usize),
}

impl StreamErrorReason {
    /// Returns the condition of the stream error (RFC 6120, 4.9.3).
    pub fn condition(&self) -> &'static str {
        match self {
            Self::Restricted(_) => "restricted-xml",
            Self::Malformed(_) => "not-well-formed",
            Self::Encoding => "unsupported-encoding",
            Self::TooLarge(_) => "policy-violation",
        }
    }
}
