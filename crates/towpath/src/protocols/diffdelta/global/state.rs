//! State of the global feed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use towpath_proto::FeedId;
use towpath_proto::diffdelta::global::{GlobalChain, PendingDeltas};
use towpath_proto::diffdelta::publish::DocumentChain;
use towpath_proto::diffdelta::wire::FetchStatus;
use towpath_store::Table;

use crate::engine::Engine;
use crate::engine::roles::Lease;
use crate::protocols::diffdelta::global_included::IncludedDifference;

/// State of the global feed, under its lock.
#[derive(Default)]
pub(super) struct GlobalState {
    /// True after the stored state was read.
    pub(super) loaded: bool,
    pub(super) global: GlobalChain,
    /// Chain after the last mint, and that mint's snapshot, from which a carry is built.
    pub(super) minted: DocumentChain,
    pub(super) snapshot: Bytes,
    /// Path of that snapshot.
    pub(super) path: String,
    /// Status of each source in that snapshot; none after a restart.
    pub(super) minted_status: Option<BTreeMap<FeedId, FetchStatus>>,
    /// Current chain, `head.json` and `latest.json`.
    pub(super) current: Option<(DocumentChain, Bytes, Bytes)>,
    /// Chain of each source after its last run.
    // Shared, so that a document over all of them is made without a copy.
    pub(super) sources: Arc<BTreeMap<FeedId, DocumentChain>>,
    pub(super) pending: PendingDeltas,
    /// True if a source ran since the last document.
    pub(super) dirty: bool,
    /// True if the status of a source changed since the last document.
    pub(super) has_new_status: bool,
    /// Stored row of this state with its table, and the lease under which it is written.
    pub(super) stored: Option<(Table, Bytes)>,
    pub(super) lease: Option<Lease>,
    /// Difference of the included snapshots from their stored list. Unused in a cluster, which stores them whole.
    pub(super) difference: IncludedDifference,
    /// Bytes that were written since the last call of [`run`](super::GlobalFeed::run).
    pub(super) written: u64,
}

impl GlobalState {
    /// Returns the number of a source's snapshots that are published or pending.
    pub(super) fn known_snapshots(&self, source: &FeedId) -> u64 {
        self.sources.get(source).map_or(0, |known| known.snapshots)
    }

    /// Sets the chain of a source after a run.
    pub(super) fn set_source(&mut self, source: &FeedId, chain: DocumentChain) {
        let status = chain.health.status();
        let before = Arc::make_mut(&mut self.sources).insert(source.clone(), chain);
        self.has_new_status |= before.is_some_and(|before| before.health.status() != status);
    }

    /// Notes for the next write which sources the new chain includes otherwise than the current one.
    pub(super) fn note_included(&mut self, engine: &Engine, new: &GlobalChain) {
        if !engine.is_shared() {
            self.difference.add(&self.global.included, &new.included);
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_proto::Timestamp;
    use towpath_proto::diffdelta::wire::StatusError;

    use super::*;

    #[test]
    fn only_a_changed_status_is_news() {
        let (mut state, id) = (GlobalState::default(), FeedId::new("news").unwrap());
        let mut chain = DocumentChain::default();
        chain.health.last_ok_at = Some(Timestamp::UNIX_EPOCH);
        state.set_source(&id, chain.clone());
        chain.snapshots = 1;
        state.set_source(&id, chain.clone());
        assert!(!state.has_new_status);
        chain.health.error = Some(StatusError { code: "TIMEOUT".into(), http_status: None });
        state.set_source(&id, chain);
        assert!(state.has_new_status);
    }
}
