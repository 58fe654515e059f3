//! The simple way to follow one feed into a sink.

use std::sync::Arc;

use tokio::sync::watch;
use towpath_proto::follow::FollowError;

use super::output::{FollowObserver, parse_checkpoint};
use super::{Sink, SinkFailure, SinkNotice, SinkObserver, SinkOptions, SinkOutput, SinkQueue, SinkWriter};
use crate::drive::{FollowNotice, FollowSummary, drive};
use crate::follow::{Checkpoint, Follow, named_fetcher};
use crate::protocol::{FollowPace, FollowerConfig, follower};
use crate::{DiscoverError, discover};

/// Reason why a follow into a sink ended.
#[derive(Debug, thiserror::Error)]
pub enum IntoSinkError {
    /// The feed cannot be followed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// No protocol was found.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The destination takes nothing more.
    #[error(transparent)]
    Sink(#[from] SinkFailure),
}

/// Logs what a sink and a follow report.
struct LoggingObserver;

impl SinkObserver for LoggingObserver {
    fn notice(&self, source: &str, notice: SinkNotice) {
        tracing::warn!("{}: {notice}", crate::redact::url(source));
    }
}

impl FollowObserver for LoggingObserver {
    fn notice(&mut self, notice: FollowNotice) {
        tracing::warn!("{notice:?}");
    }
}

impl Follow {
    /// Follows the feed into a sink, from the checkpoint that the sink holds.
    ///
    /// Returns at the end of a follow with [`Follow::once`]; otherwise only with an error. Messages are logged.
    ///
    /// # Errors
    ///
    /// [`IntoSinkError`] if the feed cannot be recognised, or the destination refuses.
    pub async fn into_sink(self, sink: impl Sink + 'static) -> Result<FollowSummary, IntoSinkError> {
        self.check_place()?;
        let (_never, stop) = watch::channel(false);
        let (sink, observer) = (Box::new(sink), Arc::new(LoggingObserver));
        let queue = SinkQueue::start(SinkWriter::new(sink, SinkOptions::default(), observer, stop.clone()));
        let opener = queue.opener();
        let Self { url, protocol, from, state, once, limits, fetcher, .. } = self;
        let fetcher = named_fetcher(fetcher, &url)?;
        let source: Arc<str> = url.as_str().into();
        let held = opener.open(&source).await?.map(|bytes| parse_checkpoint(&source, &bytes)).transpose()?;
        let mut name = None;
        let (protocol, url, state) = match (held, protocol) {
            (Some(Checkpoint { protocol, url, state }), _) => (protocol, url, Some(state)),
            (None, Some(protocol)) => (protocol, url, state),
            (None, None) => {
                let offer = discover(&fetcher, &url, FollowPace::Held).await?;
                name = offer.feed;
                (offer.protocol, offer.url, None)
            }
        };
        let config = FollowerConfig {
            url: url.clone(),
            from,
            name,
            state,
            once,
            every: None,
            limits,
            large_folder: None,
        };
        let mut follower = follower(protocol, config)?;
        let mut output = SinkOutput::new(opener, source, protocol, url, LoggingObserver);
        let ended = drive(&mut *follower, &fetcher, &mut output, &stop).await;
        drop(output);
        queue.finish().await?;
        Ok(ended?)
    }
}
