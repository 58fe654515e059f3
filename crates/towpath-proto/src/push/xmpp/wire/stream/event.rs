//! Events and limits of a stream.

use crate::push::xmpp::wire::stanza::Element;

/// Limits of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimits {
    /// Maximum bytes of a stanza.
    pub stanza_bytes: usize,
    /// Maximum nesting depth of elements.
    pub depth: usize,
    /// Maximum attributes of an element, namespace declarations included.
    pub attributes: usize,
    /// Maximum elements and texts of a stanza.
    pub nodes: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { stanza_bytes: 1 << 20, depth: 64, attributes: 64, nodes: 20_000 }
    }
}

/// Event of the parser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// Start tag of the stream.
    Opened(Element),
    /// Complete stanza.
    Stanza(Element),
    /// Start tag of a stanza that exceeds a limit.
    TooLarge(Element),
    /// End tag of the stream.
    Closed,
}

impl Received {
    /// The stanza, if it is one.
    pub fn stanza(self) -> Option<Element> {
        match self {
            Self::Stanza(element) => Some(element),
            Self::Opened(_) | Self::TooLarge(_) | Self::Closed => None,
        }
    }
}
