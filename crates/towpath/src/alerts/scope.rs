//! Part of a server that a task of alerts watches.

use super::kind::AlertKind;

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
    /// Kinds of events that the scope has, and no other scope on the same node.
    pub(super) fn kinds(self) -> impl Iterator<Item = AlertKind> {
        let is_covered = move |kind: &AlertKind| {
            if kind.is_of_node() { self.has_node() } else { self.has_feeds() }
        };
        AlertKind::ALL.into_iter().filter(is_covered)
    }

    pub(super) fn has_node(self) -> bool {
        self != Self::Shared
    }

    pub(super) fn has_feeds(self) -> bool {
        self != Self::Node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two tasks of a cluster's node share its metrics: neither may overwrite what the other shows.
    #[test]
    fn each_kind_is_of_one_scope() {
        let kinds = |scope: AlertScope| scope.kinds().collect::<Vec<_>>();
        let mut both = [kinds(AlertScope::Shared), kinds(AlertScope::Node)].concat();
        both.sort_unstable();
        let mut all = AlertKind::ALL.to_vec();
        all.sort_unstable();
        assert_eq!(both, all);
        assert_eq!(kinds(AlertScope::All).len(), all.len());
    }
}
