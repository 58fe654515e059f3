//! One feed of a fleet, asked once.

use std::sync::Arc;

use serde_json::Value;
use towpath_proto::follow::{FollowError, Followed, StartFrom};

use super::{Kept, Ledger, Way};
use crate::client::drive::{Ended, Notice, Output, drive_and_hear};
use crate::client::heard::Heard;
use crate::client::{DiscoverError, Fetcher, Follow, Protocol, discover, follower};
use crate::stop::Stop;

/// What all feeds of a fleet are asked with.
#[derive(Debug)]
pub(super) struct Asker<L> {
    pub(super) ledger: Arc<L>,
    pub(super) fetcher: Fetcher,
    pub(super) protocol: Option<Protocol>,
    pub(super) from: StartFrom,
    pub(super) stop: Stop,
}

/// How a feed was asked.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// How it is followed, once that is known.
    pub(super) way: Option<Way>,
    pub(super) heard: Heard,
    pub(super) has_changed: bool,
    pub(super) ended: Ended,
}

impl<L: Ledger> Asker<L> {
    /// Follows a feed to the end of what there is now. Nothing of it stays in memory but its way.
    pub(super) async fn ask(&self, feed: Arc<str>, way: Option<Way>) -> Result<Asked, L::Error> {
        let kept = self.ledger.load(&feed).await?;
        let (way, state) = match kept {
            Some(Kept { way, state }) => (way, Some(state)),
            None => match self.find_way(&feed, way).await {
                Ok(way) => (way, None),
                Err(error) => {
                    let retry_after = error.retry_after();
                    let mut asked = self.fail(&feed, None, error.into());
                    asked.heard.retry_after = retry_after;
                    return Ok(asked);
                }
            },
        };
        let url = way.follows.as_deref().unwrap_or(&feed).to_owned();
        let follow = Follow { url, from: self.from.clone(), state, once: true, every: None };
        let mut follower = match follower(way.protocol, follow) {
            Ok(follower) => follower,
            Err(error) => return Ok(self.fail(&feed, Some(way), error)),
        };
        let mut output = FeedOutput { ledger: &*self.ledger, feed, way, has_changed: false };
        let (ended, heard) = drive_and_hear(&mut *follower, &self.fetcher, &mut output, &self.stop).await?;
        let FeedOutput { way, has_changed, .. } = output;
        Ok(Asked { way: Some(way), heard, has_changed, ended })
    }

    async fn find_way(&self, feed: &str, known: Option<Way>) -> Result<Way, DiscoverError> {
        if let Some(way) = known {
            return Ok(way);
        }
        if let Some(protocol) = self.protocol {
            return Ok(Way { protocol, follows: None });
        }
        let offer = discover(&self.fetcher, feed).await?;
        self.ledger.chosen(feed, &offer);
        let follows = (offer.url != feed).then(|| offer.url.into());
        Ok(Way { protocol: offer.protocol, follows })
    }

    fn fail(&self, feed: &str, way: Option<Way>, error: FollowError) -> Asked {
        self.ledger.notice(feed, Notice::Failed(error.clone()));
        let ended = Ended { failed: Some(error), ..Ended::default() };
        Asked { way, ended, ..Asked::default() }
    }
}

/// A feed's changes on their way to the ledger, under the feed's address.
struct FeedOutput<'a, L> {
    ledger: &'a L,
    feed: Arc<str>,
    way: Way,
    has_changed: bool,
}

impl<L: Ledger> Output for FeedOutput<'_, L> {
    type Error = L::Error;

    async fn deliver(
        &mut self,
        mut changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), L::Error> {
        self.has_changed |= !changes.is_empty();
        for change in &mut changes {
            self.feed.as_ref().clone_into(&mut change.feed);
        }
        self.ledger.deliver(&self.feed, &self.way, changes, checkpoint).await
    }

    fn notice(&mut self, notice: Notice) {
        self.ledger.notice(&self.feed, notice);
    }
}
