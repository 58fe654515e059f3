//! What may be wrong with a stream.

/// Why a stream cannot be read on. The peer's fault; says where in the stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} (byte {offset} of the stream)")]
pub struct StreamFault {
    /// What is wrong.
    pub reason: Fault,
    /// Bytes before it.
    pub offset: u64,
}

/// What is wrong with a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// RFC 6120, 11.1.
    #[error("{0} in a stream")]
    Restricted(&'static str),
    /// Not XML, or not with namespaces.
    #[error("not well-formed: {0}")]
    Malformed(&'static str),
    /// RFC 6120, 11.6.
    #[error("not UTF-8")]
    Encoding,
    /// A start tag of the stream, or an end tag, of more bytes than a stanza.
    #[error("a tag of more than {0} bytes")]
    TooLarge(usize),
}

impl Fault {
    /// The condition of the stream error (RFC 6120, 4.9.3).
    pub fn condition(&self) -> &'static str {
        match self {
            Self::Restricted(_) => "restricted-xml",
            Self::Malformed(_) => "not-well-formed",
            Self::Encoding => "unsupported-encoding",
            Self::TooLarge(_) => "policy-violation",
        }
    }
}
