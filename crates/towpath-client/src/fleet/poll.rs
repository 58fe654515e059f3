//! A single poll of one feed of a fleet.

use std::sync::Arc;

use serde_json::Value;
use towpath_proto::follow::{FeedReset, FollowError, FollowMode, Followed, ReadLimits, StartFrom};

use super::{FeedRoute, FleetOutput, SavedFeed};
use crate::clock::SystemClock;
use crate::drive::{FollowNotice, FollowSummary, Output};
use crate::fetch::Fetcher;
use crate::protocol::{FollowPace, FollowerOptions, Protocol};
use crate::response_hints::ResponseHints;
use crate::route::{FindRouteError, FollowRoute, RouteFollower, RouteRequest};
use crate::stop::Stop;

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
        let route = match self.find_route(&fetcher, &feed, saved, route).await {
            Ok(route) => route,
            Err(error) => {
                let retry_after = match &error {
                    FindRouteError::Discover(error) => error.retry_after(),
                    FindRouteError::OtherProtocol { .. } => None,
                };
                let mut poll = self.fail(&feed, None, error.into());
                // Discovery runs without the driver, so its Retry-After is passed on here.
                poll.hints.retry_after = retry_after;
                return Ok(poll);
            }
        };
        let kept = FeedRoute::of(&feed, &route);
        let follower = match RouteFollower::new(route, self.options(&feed)) {
            Ok(follower) => follower,
            Err(error) => return Ok(self.fail(&feed, Some(kept), error)),
        };
        let mut output = FeedOutput { fleet: &*self.output, feed, route: kept, has_changed: false };
        let driven = follower.drive_by_clock(&fetcher, Arc::new(SystemClock), &mut output, &self.stop);
        let (summary, hints) = driven.await?;
        let FeedOutput { route, has_changed, .. } = output;
        Ok(FeedPoll { route: Some(route), hints, has_changed, summary })
    }

    fn options(&self, feed: &str) -> FollowerOptions {
        FollowerOptions {
            from: self.from.clone(),
            // A fleet tells its feeds apart by their URLs: servers may give one name to different feeds.
            fixed_name: Some(feed.to_owned()),
            mode: FollowMode::CatchUp,
            every: None,
            limits: self.limits,
            large_folder: self.large_folder.clone(),
        }
    }

    /// Finds the route of a feed: the saved one, else the one of an earlier poll, else as for any follow.
    async fn find_route(
        &self,
        fetcher: &Fetcher,
        feed: &str,
        saved: Option<SavedFeed>,
        known: Option<FeedRoute>,
    ) -> Result<FollowRoute, FindRouteError> {
        let held = match (saved, known) {
            (Some(SavedFeed { route, state }), _) => Some(route.held(feed, Some(state))),
            // A URL that no poll has turned to may still be that of a page.
            (None, Some(route)) if self.protocol.is_none() || route.follows.is_some() => {
                Some(route.held(feed, None))
            }
            (None, _) => None,
        };
        let request =
            RouteRequest { protocol: self.protocol, pace: FollowPace::Polled, ..RouteRequest::default() };
        let route = FollowRoute::find(fetcher, feed, held, request).await?;
        if let Some(offer) = route.offer() {
            self.output.discovered(feed, &offer);
        }
        Ok(route)
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

    fn located(&mut self, route: &FollowRoute, _page: &str) {
        self.route = FeedRoute::of(&self.feed, route);
    }

    fn notice(&mut self, notice: FollowNotice) {
        self.fleet.notice(&self.feed, notice);
    }
}
