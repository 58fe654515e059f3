//! A single poll of one feed of a fleet.

use std::sync::Arc;

use serde_json::Value;
use towpath_proto::follow::{
    FeedReset, FilteredFollower, FollowError, FollowMode, Followed, ReadLimits, StartFrom,
};

use super::{FeedRoute, FleetOutput, SavedFeed};
use crate::drive::{FollowNotice, FollowSummary, Output, drive_with_hints};
use crate::response_hints::ResponseHints;
use crate::stop::Stop;
use crate::{
    DiscoverError, Fetcher, FirstAttempt, FirstFailure, FollowPace, FollowerConfig, Protocol, discover,
    follower,
};

/// Polls feeds; shared by all polls of a fleet.
#[derive(Debug)]
pub(super) struct FeedPoller<O> {
    pub(super) output: Arc<O>,
    pub(super) fetcher: Fetcher,
    pub(super) protocol: Option<Protocol>,
    pub(super) from: StartFrom,
    pub(super) limits: ReadLimits,
    pub(super) large_folder: Option<String>,
    pub(super) stop: Stop,
}

/// Result of one poll.
#[derive(Debug, Default)]
pub(super) struct FeedPoll {
    /// The feed's route, once discovered.
    pub(super) route: Option<FeedRoute>,
    pub(super) hints: ResponseHints,
    pub(super) has_changed: bool,
    pub(super) summary: FollowSummary,
}

impl<O: FleetOutput> FeedPoller<O> {
    /// Follows a feed until it has caught up. Only its route stays in memory afterwards.
    pub(super) async fn poll(&self, feed: Arc<str>, route: Option<FeedRoute>) -> Result<FeedPoll, O::Error> {
        let saved = self.output.load(&feed).await?;
        // Only the feed's own address is the user's: what it links to may be anybody's.
        let fetcher = self.fetcher.with_named([feed.as_ref()]);
        let (route, state) = match saved {
            Some(SavedFeed { route, state }) => (route, Some(state)),
            None => match self.find_route(&fetcher, &feed, route).await {
                Ok(route) => (route, None),
                Err(error) => {
                    let retry_after = error.retry_after();
                    let mut poll = self.fail(&feed, None, error.into());
                    // Discovery runs without the driver, so its Retry-After is passed on here.
                    poll.hints.retry_after = retry_after;
                    return Ok(poll);
                }
            },
        };
        // Only a protocol that the user named may not be the URL's own. Discovery judges the response itself.
        let may_be_page = self.protocol.is_some() && state.is_none() && route.follows.is_none();
        let first_failure = if may_be_page { FirstFailure::Hold } else { FirstFailure::Report };
        let mut follower = match self.follower(&feed, &route, state, first_failure) {
            Ok(follower) => follower,
            Err(error) => return Ok(self.fail(&feed, Some(route), error)),
        };
        let mut output = FeedOutput { fleet: &*self.output, feed, route, has_changed: false };
        let (mut summary, mut hints) =
            drive_with_hints(&mut follower, &fetcher, &mut output, &self.stop).await?;
        if follower.filter.has_failed() {
            let found = follower.filter.find_feed(&fetcher, &output.feed, output.route.protocol).await;
            output.route.follows = found.map(Into::into);
            if output.route.follows.is_some() {
                follower = match self.follower(&output.feed, &output.route, None, FirstFailure::Report) {
                    Ok(follower) => follower,
                    Err(error) => return Ok(self.fail(&output.feed, Some(output.route), error)),
                };
            }
            (summary, hints) = drive_with_hints(&mut follower, &fetcher, &mut output, &self.stop).await?;
        }
        let FeedOutput { route, has_changed, .. } = output;
        Ok(FeedPoll { route: Some(route), hints, has_changed, summary })
    }

    fn follower(
        &self,
        feed: &str,
        route: &FeedRoute,
        state: Option<Value>,
        first_failure: FirstFailure,
    ) -> Result<FilteredFollower<FirstAttempt>, FollowError> {
        // The feed's own URL may be a web page that only links to the feed.
        let url = route.follows.as_deref().unwrap_or(feed).to_owned();
        let config = FollowerConfig {
            url,
            from: self.from.clone(),
            name: None,
            // A fleet tells its feeds apart by their URLs: servers may give one name to different feeds.
            fixed_name: Some(feed.to_owned()),
            state,
            mode: FollowMode::CatchUp,
            every: None,
            limits: self.limits,
            large_folder: self.large_folder.clone(),
        };
        Ok(FirstAttempt::of(follower(route.protocol, config)?, first_failure))
    }

    async fn find_route(
        &self,
        fetcher: &Fetcher,
        feed: &str,
        known: Option<FeedRoute>,
    ) -> Result<FeedRoute, DiscoverError> {
        if let Some(route) = known {
            return Ok(route);
        }
        if let Some(protocol) = self.protocol {
            return Ok(FeedRoute { protocol, follows: None });
        }
        let offer = discover(fetcher, feed, FollowPace::Polled).await?;
        self.output.discovered(feed, &offer);
        let follows = (offer.url != feed).then(|| offer.url.into());
        Ok(FeedRoute { protocol: offer.protocol, follows })
    }

    fn fail(&self, feed: &str, route: Option<FeedRoute>, error: FollowError) -> FeedPoll {
        self.output.notice(feed, FollowNotice::Failed(error.clone()));
        let summary = FollowSummary { failed: Some(error), ..FollowSummary::default() };
        FeedPoll { route, summary, ..FeedPoll::default() }
    }
}

/// Output of one poll: forwards changes to the fleet's output.
struct FeedOutput<'a, O> {
    fleet: &'a O,
    feed: Arc<str>,
    route: FeedRoute,
    has_changed: bool,
}

impl<O: FleetOutput> Output for FeedOutput<'_, O> {
    type Error = O::Error;

    async fn deliver(&mut self, changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), O::Error> {
        self.has_changed |= !changes.is_empty();
        self.fleet.deliver(&self.feed, &self.route, changes, checkpoint).await
    }

    async fn reset(&mut self, reset: FeedReset) -> Result<(), O::Error> {
        self.has_changed = true;
        self.fleet.reset(&self.feed, reset).await
    }

    fn notice(&mut self, notice: FollowNotice) {
        self.fleet.notice(&self.feed, notice);
    }
}
