//! An item as its page shows it.

use std::sync::Arc;

use towpath_proto::change::Change;

use super::super::feed_head::FeedHead;
use super::versions::Versions;

/// An item as its page shows it.
pub(super) struct ItemPage {
    pub(super) head: FeedHead,
    /// The version that is shown, which may be a deletion.
    pub(super) shown: Arc<Change>,
    /// The version with content before a deletion.
    pub(super) last_seen: Option<Change>,
    /// The latest version.
    pub(super) latest: Arc<Change>,
    pub(super) versions: Versions,
    /// The version to compare with.
    pub(super) with: Option<Arc<Change>>,
}

impl ItemPage {
    /// Returns the version whose content is shown: for a deletion the one before it.
    pub(super) fn last_seen(&self) -> &Change {
        self.last_seen.as_ref().unwrap_or(&self.shown)
    }
}
