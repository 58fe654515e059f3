//! Output that ends the follows of many feeds in one sink.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;
use towpath_proto::follow::{FeedReset, Followed};

use super::output::{checkpoint_bytes, parse_checkpoint};
use super::{SinkEvent, SinkFailure, SinkOpener};
use crate::discover::Offer;
use crate::drive::FollowNotice;
use crate::fleet::{FeedRoute, FleetOutput, SavedFeed};
use crate::follow::Checkpoint;

/// Receiver of a fleet's messages.
pub trait FleetObserver: Send + Sync + 'static {
    /// See [`FleetOutput::notice`].
    fn notice(&self, feed: &str, notice: FollowNotice);
    /// See [`FleetOutput::discovered`].
    fn discovered(&self, feed: &str, offer: &Offer);
}

/// Delivers the changes of a fleet to a sink's queue. The sink keeps the position of each feed.
pub struct FleetSink<O> {
    opener: SinkOpener,
    observer: O,
}

impl<O: FleetObserver> FleetSink<O> {
    /// Creates the output.
    pub fn new(opener: SinkOpener, observer: O) -> Self {
        Self { opener, observer }
    }
}

impl<O: FleetObserver> FleetOutput for FleetSink<O> {
    type Error = SinkFailure;

    async fn load(&self, feed: &str) -> Result<Option<SavedFeed>, SinkFailure> {
        // Behind the deliveries of the last poll in the queue, so it sees what they stored.
        let Some(bytes) = self.opener.open(&feed.into()).await? else { return Ok(None) };
        let Checkpoint { protocol, url, state } = parse_checkpoint(feed, &bytes)?;
        let follows = (url != feed).then(|| url.into());
        Ok(Some(SavedFeed { route: FeedRoute { protocol, follows }, state }))
    }

    async fn deliver(
        &self,
        feed: &Arc<str>,
        route: &FeedRoute,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), SinkFailure> {
        let events = changes.into_iter().map(|change| SinkEvent::Change(Box::new(change))).collect();
        let url = route.follows.as_deref().unwrap_or(feed).to_owned();
        let checkpoint =
            checkpoint.map(|state| checkpoint_bytes(&Checkpoint { protocol: route.protocol, url, state }));
        self.opener.write(feed, events, checkpoint).await
    }

    async fn reset(&self, feed: &Arc<str>, reset: FeedReset) -> Result<(), SinkFailure> {
        self.opener.write(feed, vec![SinkEvent::Reset(reset)], None).await
    }

    async fn save_schedule(&self, _schedule: Box<RawValue>) -> Result<(), SinkFailure> {
        // Without a schedule the next start polls every feed once more, which costs requests and nothing else.
        Ok(())
    }

    fn notice(&self, feed: &str, notice: FollowNotice) {
        self.observer.notice(feed, notice);
    }

    fn discovered(&self, feed: &str, offer: &Offer) {
        self.observer.discovered(feed, offer);
    }
}
