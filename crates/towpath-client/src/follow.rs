//! The simple way to follow one feed: a builder, and a stream of its changes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use towpath_proto::follow::{FeedReset, FollowError, FollowMode, Followed, Follower, ReadLimits, StartFrom};

use super::changes::StatePlace;
use super::clock::{DriverClock, SystemClock};
use super::discover::discover;
use super::drive::{FollowNotice, FollowSummary, Output, drive_by_clock};
use super::fetch::{FetchOptions, Fetcher};
use super::large_files::large_folder;
use super::protocol::{FollowPace, FollowerConfig, Protocol, follower};

/// Builder of a follow of one feed. The crate's documentation has an example.
#[derive(Debug, Clone)]
pub struct Follow {
    pub(crate) url: String,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) from: StartFrom,
    pub(crate) state: Option<Value>,
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
            state: None,
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
        let Checkpoint { protocol, url, state } = checkpoint;
        Self { protocol: Some(protocol), state: Some(state), ..Self::new(url) }
    }

    /// Sets the start position. Ignored after [`Follow::resume`].
    #[must_use]
    pub fn start(mut self, from: StartFrom) -> Self {
        self.from = from;
        self
    }

    /// Sets the protocol, instead of discovering it.
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

    /// Returns the configuration of the follower, as far as it is known before discovery.
    pub(crate) fn config(&self) -> Result<FollowerConfig, FollowError> {
        Ok(FollowerConfig {
            url: self.url.clone(),
            from: self.from.clone(),
            name: None,
            fixed_name: None,
            state: self.state.clone(),
            mode: self.mode,
            every: None,
            limits: self.limits,
            large_folder: self.large_folder()?,
        })
    }

    /// Discovers the protocol, unless it is known, and starts following in a task of the current Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`FollowError`] if the feed cannot be reached or recognised, or the state does not fit it.
    pub async fn open(self) -> Result<FollowStream, FollowError> {
        self.check_place()?;
        let config = self.config()?;
        let Self { url, protocol, mode, fetcher, clock, .. } = self;
        let fetcher = named_fetcher(fetcher, &url)?;
        // A resumed follow has both: discovering again might find another protocol, whose state differs.
        let (protocol, url, name) = match protocol {
            Some(protocol) => (protocol, url, None),
            None => {
                let offer = discover(&fetcher, &url, FollowPace::Held).await?;
                (offer.protocol, offer.url, offer.feed)
            }
        };
        let config = FollowerConfig { url: url.clone(), name, ..config };
        let follower = follower(protocol, config)?;
        Ok(FollowStream::spawn(follower, fetcher, clock, protocol, url, mode))
    }
}

/// Returns the given or a usual HTTP client, with the user's own address allowed.
pub(crate) fn named_fetcher(fetcher: Option<Fetcher>, url: &str) -> Result<Fetcher, FollowError> {
    let fetcher = match fetcher {
        Some(fetcher) => fetcher,
        None => Fetcher::new(FetchOptions::default()).map_err(|e| FollowError::Usage(e.to_string()))?,
    };
    Ok(fetcher.with_named([url]))
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
    Delivery { changes: Vec<Followed>, checkpoint: Option<Value>, delivered: oneshot::Sender<()> },
    Reset { reset: FeedReset, delivered: oneshot::Sender<()> },
    Notice(FollowNotice),
    Finished(FollowSummary),
}

impl FollowStream {
    pub(crate) fn spawn(
        mut follower: Box<dyn Follower>,
        fetcher: Fetcher,
        clock: Arc<dyn DriverClock>,
        protocol: Protocol,
        url: String,
        mode: FollowMode,
    ) -> Self {
        // Unbounded, because notices cannot wait. At most one delivery is queued: the next waits for its acknowledgement.
        let (sender, messages) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        // A task of its own: the driver must handle timers and responses while the caller processes a batch.
        tokio::spawn(async move {
            let mut output = StreamOutput { messages: sender };
            let driven = drive_by_clock(&mut *follower, &fetcher, clock, &mut output, &stopped);
            if let Ok(summary) = driven.await {
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

    /// URL that is followed, after discovery.
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

    fn notice(&mut self, notice: FollowNotice) {
        let _ = self.messages.send(StreamMessage::Notice(notice));
    }
}
