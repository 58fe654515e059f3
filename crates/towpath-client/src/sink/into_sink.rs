//! The simple way to follow one feed into a sink.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;
use towpath_proto::follow::FollowError;

use super::output::FollowObserver;
use super::{
    Sink, SinkFailure, SinkNotice, SinkObserver, SinkOpener, SinkOptions, SinkOutput, SinkQueue, SinkWriter,
};
use crate::discover::DiscoverError;
use crate::drive::{FollowNotice, FollowSummary};
use crate::follow::{Follow, log_located};
use crate::route::{FindRouteError, FollowRoute};
use crate::stop::Stop;

/// Reason why a follow into a sink ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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

impl From<FindRouteError> for IntoSinkError {
    fn from(error: FindRouteError) -> Self {
        match error {
            FindRouteError::Discover(error) => Self::Discover(error),
            other => Self::Follow(other.into()),
        }
    }
}

/// A message of a follow into a sink.
#[derive(Debug)]
#[non_exhaustive]
pub enum IntoSinkNotice {
    /// About the feed.
    Feed(FollowNotice),
    /// About the destination.
    Sink(SinkNotice),
}

impl fmt::Display for IntoSinkNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feed(notice) => f.write_str(&crate::redact::credentials(&notice.to_string())),
            Self::Sink(notice) => notice.fmt(f),
        }
    }
}

/// Receiver of the messages.
type NoticeReceiver = Arc<dyn Fn(IntoSinkNotice) + Send + Sync>;

/// Options of [`Follow::into_sink_with`].
#[derive(Default)]
#[non_exhaustive]
pub struct IntoSinkOptions {
    /// Treatment of items that the destination refuses.
    pub sink: SinkOptions,
    /// Receiver of messages. Without it they are logged.
    pub on_notice: Option<NoticeReceiver>,
    /// Signal that ends the follow. What was received by then is applied, for up to five seconds.
    pub stop: Option<Stop>,
}

impl IntoSinkOptions {
    /// Sets [`sink`](Self::sink).
    #[must_use]
    pub fn with_sink(mut self, sink: SinkOptions) -> Self {
        self.sink = sink;
        self
    }

    /// Sets [`on_notice`](Self::on_notice).
    #[must_use]
    pub fn with_on_notice(mut self, receiver: impl Fn(IntoSinkNotice) + Send + Sync + 'static) -> Self {
        self.on_notice = Some(Arc::new(receiver));
        self
    }

    /// Sets [`stop`](Self::stop).
    #[must_use]
    pub fn with_stop(mut self, stop: impl Into<Option<Stop>>) -> Self {
        self.stop = stop.into();
        self
    }
}

impl fmt::Debug for IntoSinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoSinkOptions").field("sink", &self.sink).finish_non_exhaustive()
    }
}

/// Passes messages of both ends on.
#[derive(Clone)]
struct NoticeObserver(NoticeReceiver);

impl SinkObserver for NoticeObserver {
    fn notice(&self, _source: &str, notice: SinkNotice) {
        (self.0)(IntoSinkNotice::Sink(notice));
    }
}

impl FollowObserver for NoticeObserver {
    fn notice(&mut self, notice: FollowNotice) {
        (self.0)(IntoSinkNotice::Feed(notice));
    }

    fn located(&mut self, route: &FollowRoute, page: &str) {
        log_located(route, page);
    }
}

/// Logs what a sink and a follow report.
fn logger(source: &str) -> NoticeReceiver {
    let source = crate::redact::url(source);
    Arc::new(move |notice| tracing::warn!(source, %notice, "notice of a sink"))
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
        self.into_sink_with(Box::new(sink), IntoSinkOptions::default()).await
    }

    /// Like [`into_sink`](Self::into_sink), with a stop signal, a receiver of messages, and a place for refused items.
    ///
    /// # Errors
    ///
    /// [`IntoSinkError`] if the feed cannot be recognised, or the destination refuses.
    pub async fn into_sink_with(
        self,
        sink: Box<dyn Sink>,
        options: IntoSinkOptions,
    ) -> Result<FollowSummary, IntoSinkError> {
        self.check_place()?;
        let (_never, unstopped) = watch::channel(false);
        let stop = options.stop.unwrap_or(unstopped);
        let observer = NoticeObserver(options.on_notice.unwrap_or_else(|| logger(&self.url)));
        let writer = SinkWriter::new(sink, options.sink, Arc::new(observer.clone()), stop.clone());
        let queue = SinkQueue::start(writer);
        let failing = queue.opener();
        let ended = tokio::select! {
            ended = self.drive_into(queue.opener(), observer, &stop) => ended,
            // The destination may fail for good while nothing is written to it.
            failure = failing.failed() => Err(failure.into()),
        };
        // The queue ends with its last opener.
        drop(failing);
        let finished = queue.finish_within(&stop).await;
        match ended {
            // The failure of the sink also ended the follow, and says why.
            Err(IntoSinkError::Sink(_)) | Ok(_) => finished?,
            Err(_) => {}
        }
        ended
    }

    /// Follows the feed into the queue of a sink.
    async fn drive_into(
        self,
        opener: SinkOpener,
        observer: NoticeObserver,
        stop: &Stop,
    ) -> Result<FollowSummary, IntoSinkError> {
        let fetcher = self.named_fetcher()?;
        let source: Arc<str> = self.url.as_str().into();
        let held = opener.open_route(&source).await?;
        let route = self.route(&fetcher, held).await?;
        let mut output = SinkOutput::new(opener, source, &route, observer);
        let follower = self.follower(route)?;
        let driven = follower.drive_by_clock(&fetcher, self.clock, &mut output, stop);
        Ok(driven.await?.0)
    }
}
