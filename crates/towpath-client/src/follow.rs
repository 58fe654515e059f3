//! The simple way to follow one feed: a builder, and a stream of its changes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use towpath_proto::follow::{FeedReset, FollowError, FollowMode, Followed, ReadLimits, StartFrom};

use super::changes::StatePlace;
use super::clock::{DriverClock, SystemClock};
use super::drive::{FollowNotice, FollowSummary, Output};
use super::fetch::{FetchOptions, Fetcher};
use super::large_files::large_folder;
use super::protocol::{FollowerOptions, Protocol};
use super::redact;
use super::route::{FindRouteError, FollowRoute, RouteFollower, RouteOrigin, RouteRequest};

/// Builder of a follow of one feed. The crate's documentation has an example.
#[derive(Debug, Clone)]
pub struct Follow {
    pub(crate) url: String,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) from: StartFrom,
    /// Route of an earlier follow, which goes on.
    pub(crate) held: Option<FollowRoute>,
    pub(crate) mode: FollowMode,
    pub(crate) limits: ReadLimits,
    pub(crate) large_content: Option<PathBuf>,
    pub(crate) fetcher: Option<Fetcher>,
    pub(crate) place: StatePlace,
    pub(crate) clock: Arc<dyn DriverClock>,
}

/// A saved position, from which [`Follow::resume`] continues. Serialise it to store it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Protocol of the follow.
    pub protocol: Protocol,
    /// URL that is followed, after discovery.
    pub url: String,
    /// State of the protocol's follower.
    pub state: Value,
}

/// An event of a follow.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum FollowEvent {
    /// A change of the feed.
    Change(Box<Followed>),
    /// The publisher began anew: items so far are void, and all that it has follows.
    Reset(FeedReset),
    /// Covers every change before it. Store it once these are processed.
    Checkpoint(Checkpoint),
    /// A warning, or an error after which the follow continues.
    Notice(FollowNotice),
}

impl Follow {
    /// Follows the feed at `url` from its beginning, without end, by the strongest protocol that it offers.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            protocol: None,
            from: StartFrom::Beginning,
            held: None,
            mode: FollowMode::Continuous,
            limits: ReadLimits::default(),
            large_content: None,
            fetcher: None,
            place: StatePlace::None,
            clock: Arc::new(SystemClock),
        }
    }

    /// Continues an earlier follow after its checkpoint.
    pub fn resume(checkpoint: Checkpoint) -> Self {
        let url = checkpoint.url.clone();
        Self { held: Some(checkpoint.into()), ..Self::new(url) }
    }

    /// Sets the start position. Ignored after [`Follow::resume`].
    #[must_use]
    pub fn start(mut self, from: StartFrom) -> Self {
        self.from = from;
        self
    }

    /// Sets the protocol, instead of discovering it.
    ///
    /// The URL may be that of a page that names the feed. After [`Follow::resume`], another protocol than that of the
    /// checkpoint is an error.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Ends the follow once all current changes are delivered.
    #[must_use]
    pub fn once(mut self) -> Self {
        self.mode = FollowMode::CatchUp;
        self
    }

    /// Sets the limits of what is read from the publisher.
    #[must_use]
    pub fn within(mut self, limits: ReadLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Writes large contents to files in a folder, in constant memory: those that the publisher keeps as files, and entities
    /// of Data Replication above [`ReadLimits::max_entity`].
    ///
    /// A file is named by the SHA-256 of its bytes, and is complete and durable before its change comes. The change has no
    /// content then: the first of its `attachments` has the file's URL.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), towpath_client::ChangesError> {
    /// use towpath_client::Follow;
    ///
    /// let mut films = Follow::new("https://example.com/feeds/films").large_content("films").changes();
    /// while let Some(change) = films.try_next().await? {
    ///     let attachments = change.item().and_then(|item| item.extra.get("attachments"));
    ///     println!("{} {attachments:?}", change.id());
    ///     films.acknowledge(&change);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn large_content(mut self, folder: impl Into<PathBuf>) -> Self {
        self.large_content = Some(folder.into());
        self
    }

    /// Sets the HTTP client, to share connections or to send headers.
    #[must_use]
    pub fn fetcher(mut self, fetcher: Fetcher) -> Self {
        self.fetcher = Some(fetcher);
        self
    }

    /// Sets the clock of polls and retries. Simulations of hours need another than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn DriverClock>) -> Self {
        self.clock = clock;
        self
    }

    /// Refuses a state that only [`Follow::changes`] saves: without it a restart would begin anew in silence.
    pub(crate) fn check_place(&self) -> Result<(), FollowError> {
        let why = "a state file is for `changes`; other follows keep their checkpoints themselves";
        match self.place {
            StatePlace::None => Ok(()),
            _ => Err(FollowError::Usage(why.into())),
        }
    }

    /// Returns the URL of the folder for large contents.
    fn large_folder(&self) -> Result<Option<String>, FollowError> {
        let refuse =
            |folder: &PathBuf, e| FollowError::Usage(format!("the folder {}: {e}", folder.display()));
        let folder = self.large_content.as_ref();
        folder.map(|folder| large_folder(folder).map_err(|e| refuse(folder, e))).transpose()
    }

    /// Returns the options of the follower.
    fn options(&self) -> Result<FollowerOptions, FollowError> {
        Ok(FollowerOptions {
            from: self.from.clone(),
            mode: self.mode,
            limits: self.limits,
            large_folder: self.large_folder()?,
            ..FollowerOptions::default()
        })
    }

    /// Returns the given or a usual HTTP client, with the user's own address allowed.
    pub(crate) fn named_fetcher(&self) -> Result<Fetcher, FollowError> {
        let fetcher = match &self.fetcher {
            Some(fetcher) => fetcher.clone(),
            None => Fetcher::new(FetchOptions::default()).map_err(|e| FollowError::Usage(e.to_string()))?,
        };
        Ok(fetcher.with_named([self.url.as_str()]))
    }

    /// Finds the route of the follow. One that a destination or a state file holds goes before a checkpoint of the caller.
    pub(crate) async fn route(
        &self,
        fetcher: &Fetcher,
        held: Option<FollowRoute>,
    ) -> Result<FollowRoute, FindRouteError> {
        let request = RouteRequest { protocol: self.protocol, ..RouteRequest::default() };
        let held = held.or_else(|| self.held.clone());
        let route = FollowRoute::find(fetcher, &self.url, held, request).await?;
        if let RouteOrigin::Discovered(why) = &route.origin {
            tracing::info!(url = redact::url(&route.url), protocol = %route.protocol, because = why, "following");
        }
        Ok(route)
    }

    /// Creates the follower of a route.
    pub(crate) fn follower(&self, route: FollowRoute) -> Result<RouteFollower, FollowError> {
        RouteFollower::new(route, self.options()?)
    }

    /// Discovers the protocol, unless it is known, and starts following in a task of the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`FollowError`] if the feed cannot be reached or recognised, or the state does not fit it.
    pub async fn open(self) -> Result<FollowStream, FollowError> {
        self.check_place()?;
        let fetcher = self.named_fetcher()?;
        let follower = self.follower(self.route(&fetcher, None).await?)?;
        Ok(FollowStream::spawn(follower, fetcher, self.clock, self.mode))
    }
}

/// Events of a running follow. Dropping the stream stops the follow.
#[derive(Debug)]
pub struct FollowStream {
    protocol: Protocol,
    url: String,
    mode: FollowMode,
    messages: mpsc::UnboundedReceiver<StreamMessage>,
    /// Set by the driver's last message.
    has_finished: bool,
    /// Events of the last delivery that were not returned yet.
    pending: VecDeque<FollowEvent>,
    /// Acknowledges the last delivery, which lets the driver continue.
    delivered: Option<oneshot::Sender<()>>,
    stop: watch::Sender<bool>,
}

/// Message from the driver's task to the stream.
#[derive(Debug)]
pub(crate) enum StreamMessage {
    Delivery {
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
        delivered: oneshot::Sender<()>,
    },
    Reset {
        reset: FeedReset,
        delivered: oneshot::Sender<()>,
    },
    /// The feed was found at another URL.
    Located(String),
    Notice(FollowNotice),
    Finished(FollowSummary),
}

impl FollowStream {
    pub(crate) fn spawn(
        follower: RouteFollower,
        fetcher: Fetcher,
        clock: Arc<dyn DriverClock>,
        mode: FollowMode,
    ) -> Self {
        let FollowRoute { protocol, url, .. } = follower.route().clone();
        // Unbounded, because notices cannot wait. At most one delivery is queued: the next waits for its acknowledgement.
        let (sender, messages) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        // A task of its own: the driver must handle timers and responses while the caller processes a batch.
        tokio::spawn(async move {
            let mut output = StreamOutput { messages: sender };
            let driven = follower.drive_by_clock(&fetcher, clock, &mut output, &stopped);
            if let Ok((summary, _)) = driven.await {
                let _ = output.messages.send(StreamMessage::Finished(summary));
            }
        });
        let pending = VecDeque::new();
        Self { protocol, url, mode, messages, has_finished: false, pending, delivered: None, stop }
    }

    /// Polls for the next message of the driver; `None` after its end.
    ///
    /// # Errors
    ///
    /// [`FollowError::Usage`] if the driver's task has gone without an end: its runtime was shut down.
    pub(crate) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<StreamMessage>, FollowError>> {
        let message = ready!(self.messages.poll_recv(cx));
        if message.is_none() && !self.has_finished {
            // Told once: what comes after an error is the end.
            self.has_finished = true;
            let why =
                "the Tokio runtime in which this follow began has ended; begin a follow in the present one";
            return Poll::Ready(Err(FollowError::Usage(format!("{}: {why}", self.url))));
        }
        self.has_finished |= matches!(message, Some(StreamMessage::Finished(_)));
        Poll::Ready(Ok(message))
    }

    /// Protocol of the follow.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// URL that is followed: after discovery, and from the first event on the one that a page named.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the next event; `None` at the end of a follow with [`Follow::once`]. Cancel-safe.
    ///
    /// # Errors
    ///
    /// The [`FollowError`] that ended a follow with [`Follow::once`]. A follow without it retries instead, and reports
    /// the error as a [`FollowEvent::Notice`]. [`FollowError::Usage`] if the runtime in which it began has ended.
    pub async fn next(&mut self) -> Result<Option<FollowEvent>, FollowError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(Some(event));
            }
            // The caller asks for more, so it has processed the last delivery.
            self.delivered.take().map(|delivered| delivered.send(()));
            match poll_fn(|cx| self.poll_message(cx)).await? {
                Some(StreamMessage::Delivery { changes, checkpoint, delivered }) => {
                    self.pending.extend(changes.into_iter().map(|c| FollowEvent::Change(Box::new(c))));
                    let (protocol, url) = (self.protocol, self.url.clone());
                    let checkpoint = checkpoint.map(|state| Checkpoint { protocol, url, state });
                    self.pending.extend(checkpoint.map(FollowEvent::Checkpoint));
                    self.delivered = Some(delivered);
                }
                Some(StreamMessage::Reset { reset, delivered }) => {
                    self.delivered = Some(delivered);
                    return Ok(Some(FollowEvent::Reset(reset)));
                }
                Some(StreamMessage::Located(url)) => self.url = url,
                // Without retries the error is the result, below.
                Some(StreamMessage::Notice(FollowNotice::Failed(_))) if self.mode == FollowMode::CatchUp => {}
                // An event of its own.
                Some(StreamMessage::Notice(FollowNotice::Reset(_))) => {}
                Some(StreamMessage::Notice(notice)) => return Ok(Some(FollowEvent::Notice(notice))),
                Some(StreamMessage::Finished(summary)) => match summary.failed {
                    Some(error) if self.mode == FollowMode::CatchUp => return Err(error),
                    _ => {}
                },
                None => return Ok(None),
            }
        }
    }
}

impl Drop for FollowStream {
    fn drop(&mut self) {
        // Lets the driver end at its next step; the dropped receiver fails a delivery that waits.
        let _ = self.stop.send(true);
    }
}

/// Output that forwards to a [`FollowStream`].
struct StreamOutput {
    messages: mpsc::UnboundedSender<StreamMessage>,
}

/// The stream was dropped.
struct StreamDropped;

impl Output for StreamOutput {
    type Error = StreamDropped;

    async fn deliver(
        &mut self,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), StreamDropped> {
        let (delivered, acknowledged) = oneshot::channel();
        let message = StreamMessage::Delivery { changes, checkpoint, delivered };
        self.messages.send(message).map_err(|_| StreamDropped)?;
        acknowledged.await.map_err(|_| StreamDropped)
    }

    async fn reset(&mut self, reset: FeedReset) -> Result<(), StreamDropped> {
        let (delivered, acknowledged) = oneshot::channel();
        self.messages.send(StreamMessage::Reset { reset, delivered }).map_err(|_| StreamDropped)?;
        acknowledged.await.map_err(|_| StreamDropped)
    }

    fn located(&mut self, route: &FollowRoute, page: &str) {
        log_located(route, page);
        let _ = self.messages.send(StreamMessage::Located(route.url.clone()));
    }

    fn notice(&mut self, notice: FollowNotice) {
        let _ = self.messages.send(StreamMessage::Notice(notice));
    }
}

/// Logs that a page named the feed.
pub(crate) fn log_located(route: &FollowRoute, page: &str) {
    let (url, page) = (redact::url(&route.url), redact::url(page));
    tracing::info!(url, protocol = %route.protocol, page, "following the feed that a page names");
}
