//! Follows another server's feed into a sink.

use std::sync::Arc;

use towpath_client::sink::{FollowObserver, SinkFailure, SinkOpener, SinkOutput};
use towpath_client::{
    Fetcher, FindRouteError, FollowNotice, FollowRoute, FollowerOptions, RouteFollower, RouteRequest, redact,
};
use towpath_config::{Secret, SinkStart};
use towpath_proto::follow::{FollowError, StartFrom};

use super::health::SinkHealth;
use crate::engine::sinks::SinkEntry;
use crate::stop::{Stop, unless_stopped};

/// Reason why the feed is not followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForeignError {
    #[error(transparent)]
    Route(#[from] FindRouteError),
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error(transparent)]
    Sink(#[from] SinkFailure),
}

/// Name under which the sink keeps its position in the feed.
pub(super) fn source(url: &Secret) -> Arc<str> {
    redact::credentials(url.expose()).into()
}

/// Follows until `stop` is set.
pub(super) async fn follow(
    sink: &Arc<SinkEntry>,
    url: &Secret,
    fetcher: &Fetcher,
    opener: SinkOpener,
    health: SinkHealth,
    stop: &Stop,
) -> Result<(), ForeignError> {
    let config = &sink.config;
    let mut fetcher = fetcher.with_named([url.expose()]);
    // Of a text that is no URL, the request below tells it.
    if let Ok(url) = url::Url::parse(url.expose()) {
        fetcher = fetcher.with_headers(&url, config.header_map());
    }
    let source = source(url);
    let held = opener.open_route(&source).await?;
    let request = RouteRequest::default().with_protocol(config.protocol());
    let finding = FollowRoute::find(&fetcher, url.expose(), held, request);
    let Some(route) = unless_stopped(stop, finding).await else { return Ok(()) };
    let route = route?;
    let from = match config.from {
        SinkStart::Beginning => StartFrom::Beginning,
        SinkStart::Now => StartFrom::Now,
    };
    let options = FollowerOptions::default().with_from(from).with_limits(config.read_limits());
    let failing = opener.clone();
    let mut output = SinkOutput::new(opener, source, &route, HealthObserver(health));
    let follower = RouteFollower::new(route, options)?;
    tokio::select! {
        followed = follower.drive(&fetcher, &mut output, stop) => followed.map(drop).map_err(Into::into),
        // The destination may fail for good while nothing is written to it.
        failure = failing.failed() => Err(failure.into()),
    }
}

/// Records a follow's messages, and when the feed answers again.
struct HealthObserver(SinkHealth);

impl FollowObserver for HealthObserver {
    fn notice(&mut self, notice: FollowNotice) {
        self.0.follow_notice(notice);
    }

    fn caught_up(&mut self) {
        self.0.source_answers();
    }
}
