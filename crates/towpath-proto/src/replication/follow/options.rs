//! Options of the follower.

use std::sync::Arc;
use std::time::Duration;

use super::large::LargeContents;
use crate::follow::FollowMode;

/// Options of a [`ReplicationFollower`](super::ReplicationFollower).
#[derive(Debug, Clone)]
pub struct ReplicationOptions {
    /// Name of the feed in its changes; its URL if `None`.
    pub feed: Option<String>,
    /// [`FollowMode::CatchUp`] finishes at the end of the feed, or at the first failure.
    pub mode: FollowMode,
    /// Poll interval at the end of the feed.
    pub poll: Duration,
    /// Let the publisher's hints replace the interval: its event stream, its `Cache-Control`, its SUP document.
    pub follow_hints: bool,
    /// Backoff after a failure. Doubles with each further one, up to 64 times.
    pub retry: Duration,
    /// Largest body of an entity in memory, in bytes. Bounds the memory for each page in flight.
    pub max_entity: usize,
    /// URL of a folder for larger bodies, with a slash at its end: see [`Event::Large`](crate::follow::Event::Large). Without one a larger body ends
    /// the attempt.
    pub large_base: Option<Arc<str>>,
    /// Largest page, in bytes. Pages are never held in memory.
    pub max_page: u64,
    /// URL of a snapshot's index to read first, if there is no state.
    pub snapshot: Option<String>,
    /// Number of concurrent requests for snapshot pages; at least 1.
    pub parallel: usize,
}

impl ReplicationOptions {
    /// Returns where the large contents of a response go; `number` is the response's.
    pub(super) fn large(&self, number: u64) -> Option<LargeContents> {
        let base = self.large_base.clone()?;
        Some(LargeContents { base, number, limit: self.max_entity })
    }
}

impl Default for ReplicationOptions {
    /// Continuous, every 30 seconds; entities up to 72 MiB, pages up to 64 GiB, two concurrent snapshot pages.
    fn default() -> Self {
        Self {
            feed: None,
            mode: FollowMode::Continuous,
            poll: Duration::from_secs(30),
            follow_hints: true,
            retry: Duration::from_secs(5),
            max_entity: 72 << 20,
            large_base: None,
            max_page: 64 << 30,
            snapshot: None,
            parallel: 2,
        }
    }
}
