//! Beginning of a follow: its protocol, URL and position, and the turn from a page to the feed that it names.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use towpath_proto::FeedId;
use towpath_proto::follow::{Backoff, FilteredFollower, FollowError};

use crate::clock::{DriverClock, SystemClock};
use crate::discover::{DiscoverError, Offer, discover, discover_pushed};
use crate::drive::{FollowNotice, FollowSummary, Output, drive_with_hints};
use crate::fetch::Fetcher;
use crate::first_attempt::{FirstAttempt, FirstFailure};
use crate::follow::Checkpoint;
use crate::protocol::{FollowPace, FollowerOptions, Protocol, follower};
use crate::redact;
use crate::response_hints::ResponseHints;
use crate::stop::{Stop, unless_stopped};

/// Waits between attempts to find what a feed offers.
const DISCOVERY: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(5 * 60));
/// Longest `Retry-After` that is heard then.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Protocol, URL and position with which a follow begins.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FollowRoute {
    /// The protocol.
    pub protocol: Protocol,
    /// URL that is followed.
    pub url: String,
    /// The feed's own name, if its description tells it.
    pub name: Option<FeedId>,
    /// Last checkpoint of the protocol's follower.
    pub state: Option<Value>,
    /// Reason for the protocol and the URL.
    pub origin: RouteOrigin,
}

/// Reason for the protocol and the URL of a follow.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteOrigin {
    /// An earlier follow, which goes on.
    Held,
    /// A protocol that the user named. The URL may be that of a page that names the feed.
    Requested,
    /// Discovery. Its evidence is a phrase that fits after "because".
    Discovered(String),
    /// Nothing. A hub may push what discovery does not know, such as an empty Smart Feed.
    Assumed,
}

/// Wishes for a follow that has no position yet.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct RouteRequest {
    /// Protocol that the user named; `None` discovers the strongest.
    pub protocol: Option<Protocol>,
    /// Way of waiting for changes, which decides between equally strong protocols.
    pub pace: FollowPace,
    /// True if a hub is to push: then only protocols with hubs count.
    pub push: bool,
}

impl RouteRequest {
    /// Sets [`protocol`](Self::protocol).
    #[must_use]
    pub fn with_protocol(mut self, protocol: impl Into<Option<Protocol>>) -> Self {
        self.protocol = protocol.into();
        self
    }

    /// Sets [`pace`](Self::pace).
    #[must_use]
    pub fn with_pace(mut self, pace: FollowPace) -> Self {
        self.pace = pace;
        self
    }

    /// Sets [`push`](Self::push).
    #[must_use]
    pub fn with_push(mut self, push: bool) -> Self {
        self.push = push;
        self
    }
}

impl Default for RouteRequest {
    /// The strongest protocol, and of equal ones that which tells changes the soonest.
    fn default() -> Self {
        Self { protocol: None, pace: FollowPace::Held, push: false }
    }
}

/// No route was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindRouteError {
    /// Discovery failed.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The position is another protocol's, which the requested one cannot read.
    #[error(
        "{} was followed by the protocol {held} so far, not {requested}: leave the protocol out, or begin without the position",
        redact::url(url)
    )]
    OtherProtocol {
        /// URL of the feed.
        url: String,
        /// Protocol of the position.
        held: Protocol,
        /// Protocol that the user named.
        requested: Protocol,
    },
}

impl From<FindRouteError> for FollowError {
    fn from(error: FindRouteError) -> Self {
        match error {
            FindRouteError::Discover(error) => error.into(),
            FindRouteError::OtherProtocol { .. } => Self::Usage(error.to_string()),
        }
    }
}

impl FollowRoute {
    fn new(protocol: Protocol, url: impl Into<String>, origin: RouteOrigin) -> Self {
        Self { protocol, url: url.into(), name: None, state: None, origin }
    }

    /// Returns the route of a follow that began earlier. `state` is its last checkpoint, if it had one.
    pub fn held(protocol: Protocol, url: impl Into<String>, state: Option<Value>) -> Self {
        Self { state, ..Self::new(protocol, url, RouteOrigin::Held) }
    }

    /// Returns the route to a feed by the protocol that a user named.
    pub fn requested(protocol: Protocol, url: impl Into<String>) -> Self {
        Self::new(protocol, url, RouteOrigin::Requested)
    }

    /// Finds the route to the feed at `url`: the one that is held from an earlier follow, else by the requested protocol,
    /// else by the strongest that the feed offers.
    ///
    /// Only discovery sends requests. [`RouteFollower`] judges a URL for which a protocol was requested.
    ///
    /// # Errors
    ///
    /// [`FindRouteError`] if the feed cannot be reached or recognised, or the held route is not by the requested protocol.
    pub async fn find(
        fetcher: &Fetcher,
        url: &str,
        held: Option<Self>,
        request: RouteRequest,
    ) -> Result<Self, FindRouteError> {
        match Self::known(url, held, request.protocol)? {
            Some(route) => Ok(route),
            None => Ok(Self::discovered(fetcher, url, request).await?),
        }
    }

    /// Like [`find`](Self::find), and tries again after failures that may pass: at a boot, the publisher may come later.
    ///
    /// `failed` is told each such failure, and the wait after it.
    ///
    /// # Errors
    ///
    /// [`FindRouteError`], as `find`, but none that may pass.
    pub async fn find_with_retries(
        fetcher: &Fetcher,
        url: &str,
        held: Option<Self>,
        request: RouteRequest,
        mut failed: impl FnMut(&DiscoverError, Duration),
    ) -> Result<Self, FindRouteError> {
        if let Some(route) = Self::known(url, held, request.protocol)? {
            return Ok(route);
        }
        let mut failures = 0;
        loop {
            let error = match Self::discovered(fetcher, url, request).await {
                Err(error) if error.may_pass() => error,
                found => return Ok(found?),
            };
            failures += 1;
            let asked = error.retry_after();
            let wait =
                DISCOVERY.jittered_or_retry_after(failures, asked, LONGEST_RETRY_AFTER, fastrand::u64(..));
            failed(&error, wait);
            tokio::time::sleep(wait).await;
        }
    }

    /// Returns the route as far as it needs no request.
    fn known(
        url: &str,
        held: Option<Self>,
        requested: Option<Protocol>,
    ) -> Result<Option<Self>, FindRouteError> {
        match (held, requested) {
            (Some(held), Some(requested)) if held.protocol != requested => {
                Err(FindRouteError::OtherProtocol { url: url.to_owned(), held: held.protocol, requested })
            }
            (Some(held), _) => Ok(Some(held)),
            (None, requested) => Ok(requested.map(|protocol| Self::requested(protocol, url))),
        }
    }

    async fn discovered(fetcher: &Fetcher, url: &str, request: RouteRequest) -> Result<Self, DiscoverError> {
        let offer = match request.push {
            true => discover_pushed(fetcher, url).await?,
            false => Some(discover(fetcher, url, request.pace).await?),
        };
        Ok(match offer {
            Some(Offer { protocol, url, why, feed }) => {
                Self { name: feed, ..Self::new(protocol, url, RouteOrigin::Discovered(why)) }
            }
            None => Self::new(Protocol::Smart, url, RouteOrigin::Assumed),
        })
    }

    /// Returns what discovery found, if the route comes from it.
    pub fn offer(&self) -> Option<Offer> {
        let RouteOrigin::Discovered(why) = &self.origin else { return None };
        let (url, why, feed) = (self.url.clone(), why.clone(), self.name.clone());
        Some(Offer { protocol: self.protocol, url, why, feed })
    }
}

impl From<Checkpoint> for FollowRoute {
    fn from(checkpoint: Checkpoint) -> Self {
        let Checkpoint { protocol, url, state } = checkpoint;
        Self::held(protocol, url, Some(state))
    }
}

/// Follow of a route, which turns from a page to the feed that it names.
///
/// A URL for which a protocol was requested is followed at once, so a right one costs no request more. If the first answer
/// shows a page instead, the page is searched for the feed.
pub struct RouteFollower {
    route: FollowRoute,
    options: FollowerOptions,
    follower: FilteredFollower<FirstAttempt>,
}

impl RouteFollower {
    /// Creates the follower.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] if the state or start position does not fit, or the protocol cannot be followed.
    pub fn new(route: FollowRoute, options: FollowerOptions) -> Result<Self, FollowError> {
        // Discovery judges the response itself, and a follow that goes on was right before.
        let may_be_page = route.origin == RouteOrigin::Requested;
        let first_failure = if may_be_page { FirstFailure::Hold } else { FirstFailure::Report };
        let follower = FirstAttempt::of(follower(route.clone(), options.clone())?, first_failure);
        Ok(Self { route, options, follower })
    }

    /// Protocol and URL, before a turn to another URL.
    pub fn route(&self) -> &FollowRoute {
        &self.route
    }

    /// Follows until the follower is finished, the stop signal is set, or the output fails.
    ///
    /// # Errors
    ///
    /// Errors of [`Output::deliver`].
    pub async fn drive<O: Output>(
        self,
        fetcher: &Fetcher,
        output: &mut O,
        stop: &Stop,
    ) -> Result<FollowSummary, O::Error> {
        let (summary, _) = self.drive_by_clock(fetcher, Arc::new(SystemClock), output, stop).await?;
        Ok(summary)
    }

    /// Like [`drive`](Self::drive), with the timers of a clock. Also returns the hints found in the responses.
    pub(crate) async fn drive_by_clock<O: Output>(
        self,
        fetcher: &Fetcher,
        clock: Arc<dyn DriverClock>,
        output: &mut O,
        stop: &Stop,
    ) -> Result<(FollowSummary, ResponseHints), O::Error> {
        let Self { mut route, options, follower: mut first } = self;
        let (summary, hints) = drive_with_hints(&mut first, fetcher, clock.clone(), output, stop).await?;
        if !first.filter.has_failed() {
            return Ok((summary, hints));
        }
        let finding = first.filter.find_feed(fetcher, &route.url, route.protocol);
        let Some(url) = unless_stopped(stop, finding).await.flatten() else {
            // Tells the failure that was held back, and goes on.
            return drive_with_hints(&mut first, fetcher, clock, output, stop).await;
        };
        let page = std::mem::replace(&mut route.url, url);
        output.located(&route, &page);
        match follower(route, options) {
            Ok(mut follower) => drive_with_hints(&mut *follower, fetcher, clock, output, stop).await,
            Err(error) => {
                output.notice(FollowNotice::Failed(error.clone()));
                let summary = FollowSummary { failed: Some(error), ..FollowSummary::default() };
                Ok((summary, ResponseHints::default()))
            }
        }
    }
}
