//! Part of a server that a task of alerts watches.

/// Part of a server that a task watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlertScope {
    /// Everything: this is the only process.
    All,
    /// Feeds, sources and sinks of a cluster.
    Shared,
    /// Disk, certificate, store and replica of one node of a cluster.
    Node,
}

impl AlertScope {
    pub(super) fn has_node(self) -> bool {
        self != Self::Shared
    }

    pub(super) fn has_feeds(self) -> bool {
        self != Self::Node
    }
}
