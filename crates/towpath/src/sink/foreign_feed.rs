//! Follows another server's feed into a sink.

use std::sync::Arc;

use towpath_client::sink::output::parse_checkpoint;
use towpath_client::sink::{FollowObserver, SinkFailure, SinkOpener, SinkOutput};
use towpath_client::{
    DiscoverError, Fetcher, FollowNotice, FollowPace, FollowerConfig, discover, drive, follower, redact,
};
use towpath_config::{Secret, SinkStart};
use towpath_proto::follow::{FollowError, FollowMode, StartFrom};

use super::health::SinkHealth;
use crate::engine::sinks::SinkEntry;
use crate::stop::{Stop, stopped};

/// Reason why the feed is not followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForeignError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
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
    let mut name = None;
    let (protocol, followed, state) = match opener.open(&source).await? {
        Some(kept) => {
            let kept = parse_checkpoint(&source, &kept)?;
            (kept.protocol, kept.url, Some(kept.state))
        }
        None => match config.protocol() {
            Some(protocol) => (protocol, url.expose().to_owned(), None),
            None => {
                let offer = tokio::select! {
                    offer = discover(&fetcher, url.expose(), FollowPace::Held) => offer?,
                    () = stopped(stop) => return Ok(()),
                };
                name = offer.feed;
                (offer.protocol, offer.url, None)
            }
        },
    };
    let from = match config.from {
        SinkStart::Beginning => StartFrom::Beginning,
        SinkStart::Now => StartFrom::Now,
    };
    let mut follower = follower(
        protocol,
        FollowerConfig {
            url: followed.clone(),
            from,
            name,
            fixed_name: None,
            state,
            mode: FollowMode::Continuous,
            every: None,
            limits: config.read_limits(),
            large_folder: None,
        },
    )?;
    let failing = opener.clone();
    let observer = HealthObserver(health);
    let mut output = SinkOutput::new(opener, source, protocol, followed, observer);
    tokio::select! {
        followed = drive(follower.as_mut(), &fetcher, &mut output, stop) => followed.map(drop).map_err(Into::into),
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
