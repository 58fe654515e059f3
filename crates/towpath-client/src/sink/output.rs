//! Output that ends the follow of one feed in a sink.

use std::sync::Arc;

use serde_json::Value;
use towpath_proto::follow::{FeedReset, Followed};

use super::{SinkEvent, SinkFailure, SinkOpener};
use crate::drive::{FollowNotice, Output};
use crate::follow::Checkpoint;
use crate::protocol::Protocol;
use crate::route::FollowRoute;

/// Receiver of a follow's messages.
pub trait FollowObserver: Send {
    /// See [`Output::notice`].
    fn notice(&mut self, notice: FollowNotice);

    /// See [`Output::located`].
    fn located(&mut self, _route: &FollowRoute, _page: &str) {}

    /// See [`Output::progress`].
    fn progress(&mut self, _text: &str) {}

    /// See [`Output::caught_up`]. What was delivered before may still wait in the sink's queue.
    fn caught_up(&mut self) {}
}

/// Delivers the changes of one follow to a sink's queue.
///
/// A delivery returns once it is queued. The sink keeps the position itself, so nothing is lost if the program ends
/// before it is applied; [`SinkQueue::finish`](super::SinkQueue::finish) waits for it.
pub struct SinkOutput<O> {
    opener: SinkOpener,
    source: Arc<str>,
    protocol: Protocol,
    url: String,
    observer: O,
    /// Set when an attempt failed: the unit that it cut off comes again.
    has_failed: bool,
}

impl<O: FollowObserver> SinkOutput<O> {
    /// Creates the output of a follow. `source` is the name of its checkpoints.
    pub fn new(opener: SinkOpener, source: Arc<str>, route: &FollowRoute, observer: O) -> Self {
        let (protocol, url) = (route.protocol, route.url.clone());
        Self { opener, source, protocol, url, observer, has_failed: false }
    }

    fn checkpoint(&self, state: Value) -> Vec<u8> {
        checkpoint_bytes(&Checkpoint { protocol: self.protocol, url: self.url.clone(), state })
    }
}

/// Serialises a checkpoint for [`SinkBatch::checkpoint`](super::SinkBatch::checkpoint).
pub fn checkpoint_bytes(checkpoint: &Checkpoint) -> Vec<u8> {
    // The state is JSON already: writing it to memory cannot fail.
    serde_json::to_vec(checkpoint).unwrap_or_default()
}

/// Parses a checkpoint that a sink kept.
///
/// # Errors
///
/// [`SinkFailure::Refused`] if it is damaged.
pub fn parse_checkpoint(source: &str, bytes: &[u8]) -> Result<Checkpoint, SinkFailure> {
    serde_json::from_slice(bytes).map_err(|error| {
        let why = "restore the destination, or remove its position to follow the feed from the start";
        SinkFailure::Refused(format!(
            "the position that the destination keeps for {source} is damaged ({error}); {why}"
        ))
    })
}

impl<O: FollowObserver> Output for SinkOutput<O> {
    type Error = SinkFailure;

    async fn deliver(
        &mut self,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), SinkFailure> {
        if std::mem::take(&mut self.has_failed) {
            // Lets the sink recognise what it has of an unfinished unit.
            self.opener.open(&self.source).await?;
        }
        let events = changes.into_iter().map(|change| SinkEvent::Change(Box::new(change))).collect();
        let checkpoint = checkpoint.map(|state| self.checkpoint(state));
        self.opener.write(&self.source, events, checkpoint).await
    }

    async fn reset(&mut self, reset: FeedReset) -> Result<(), SinkFailure> {
        self.opener.write(&self.source, vec![SinkEvent::Reset(reset)], None).await
    }

    fn notice(&mut self, notice: FollowNotice) {
        self.has_failed |= matches!(notice, FollowNotice::Failed(_));
        self.observer.notice(notice);
    }

    fn located(&mut self, route: &FollowRoute, page: &str) {
        self.url.clone_from(&route.url);
        self.observer.located(route, page);
    }

    fn progress(&mut self, text: &str) {
        self.observer.progress(text);
    }

    async fn caught_up(&mut self) {
        self.observer.caught_up();
    }
}
