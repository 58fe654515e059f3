//! Feeds that are not served any more.

use std::sync::Arc;

/// A feed that is not served any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemovedFeed {
    /// False if its name is for its readers only.
    pub(crate) is_public: bool,
    /// True if it was removed over HTTP: publishing does not bring it back.
    pub(crate) is_deleted: bool,
    /// Words of the one who removed it.
    pub(crate) reason: Option<Arc<str>>,
}

impl RemovedFeed {
    /// Makes the note of a feed that left the configuration.
    pub(super) fn of_file(is_public: bool) -> Self {
        Self { is_public, is_deleted: false, reason: None }
    }
}
