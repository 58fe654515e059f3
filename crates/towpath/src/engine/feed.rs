//! One feed of a running towpath.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use towpath_proto::FeedId;

use super::replication::FeedPages;
use crate::config::FeedConfig;

/// One feed: what the configuration says of it, and where its log ends. Small, for there may be a million.
pub struct Feed {
    /// What the configuration says.
    pub config: FeedConfig,
    /// The last place of its log, as it moves.
    pub head: Arc<AtomicU64>,
    /// Held while the feed's documents are being made, so that chains grow one link at a time.
    pub publishing: tokio::sync::Mutex<()>,
    /// Data Replication's pages of it.
    pub(super) pages: FeedPages,
}

impl Feed {
    /// A feed of which the log is empty, as far as is known.
    pub fn new(config: FeedConfig) -> Self {
        Self {
            config,
            head: Arc::default(),
            publishing: tokio::sync::Mutex::default(),
            pages: FeedPages::default(),
        }
    }

    /// Its name.
    pub fn id(&self) -> &FeedId {
        self.config.id()
    }

    /// Whether its items come from a source that is polled (and not over HTTP, or from a feed it mirrors).
    pub fn is_polled(&self) -> bool {
        self.config.polled().is_some()
    }
}
