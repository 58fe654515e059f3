//! The changes of one feed as a stream, with a state that moves only past what was acknowledged.
//!
//! ```no_run
//! use towpath_client::Follow;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), towpath_client::ChangesError> {
//! let mut changes = Follow::new("https://example.com/feeds/news").state("news.state").changes();
//! while let Some(change) = changes.try_next().await? {
//!     println!("{} {}", change.op(), change.id());
//!     changes.acknowledge(&change);
//! }
//! # Ok(())
//! # }
//! ```

mod open;
mod saver;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use futures_util::future::BoxFuture;
use serde_json::Value;
use towpath_proto::Item;
use towpath_proto::follow::{FollowError, FollowMode, Followed};

use self::open::OpenFollow;
use crate::drive::FollowNotice;
use crate::follow::{Follow, StreamMessage};
use crate::progress::FollowProgress;
use crate::redact;
use crate::sink::SinkEvent;
use crate::sink::acks::line_digest;
use crate::state_file::StateError;

/// Reason why the changes of a feed end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangesError {
    /// The feed cannot be followed: the network, the server or its documents are at fault, as the error says.
    #[error("{}", redact::credentials(&.0.to_string()))]
    Follow(#[from] FollowError),
    /// The state cannot be used or saved.
    #[error("{}", redact::credentials(&.0.to_string()))]
    State(#[from] StateError),
}

/// Place of a follow's state.
#[derive(Debug, Clone, Default)]
pub(crate) enum StatePlace {
    #[default]
    None,
    File(PathBuf),
    /// Content of a state file that the caller keeps. `name` is its place in errors.
    Content {
        name: PathBuf,
        content: Option<Vec<u8>>,
    },
}

/// A change from a [`Changes`], not acknowledged yet.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedChange {
    event: SinkEvent,
    number: u64,
}

impl FeedChange {
    /// Operation: `put`, `patch`, `delete`, or `reset` if the feed began anew and what you have of it is void.
    pub fn op(&self) -> &'static str {
        self.event.change().map_or("reset", |change| change.op.as_str())
    }

    /// Id of the item; empty for a reset.
    pub fn id(&self) -> &str {
        self.event.change().map_or("", |change| &change.item.id)
    }

    /// Item after a put or patch, or with its id alone; `None` for a reset.
    pub fn item(&self) -> Option<&Item> {
        self.change().map(|change| &change.item)
    }

    /// Change with all that the publisher tells of it; `None` for a reset.
    pub fn change(&self) -> Option<&Followed> {
        self.event.change()
    }

    /// Change or reset.
    pub fn event(&self) -> &SinkEvent {
        &self.event
    }

    /// Returns the change or reset without its number.
    pub fn into_event(self) -> SinkEvent {
        self.event
    }

    /// Returns the change as the line of JSON that `towpath follow` prints, without a line end.
    pub fn to_json(&self) -> Vec<u8> {
        self.event.to_json()
    }

    /// Number of the change in its stream, for [`Changes::acknowledge_through`].
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// Changes that arrived together.
#[derive(Debug)]
pub struct ChangeBatch {
    /// The changes, in order. Empty if only the state moved.
    pub changes: Vec<FeedChange>,
    /// Content of a state file that covers the batch and all before it, with [`Follow::state_content`].
    ///
    /// `None` in the middle of a unit that the publisher tells as one.
    pub state: Option<Vec<u8>>,
    /// True if more changes have arrived, which the next batch returns at once.
    pub has_more: bool,
}

/// Receiver of a follow's messages.
type NoticeReceiver = Box<dyn FnMut(&FollowNotice) + Send>;

/// The changes of one feed. Dropping it stops the follow and saves what was acknowledged.
///
/// The state is saved when the stream has to wait, at least every second while it has not, and at the end. It moves
/// past a change once that change and all before it were [acknowledged](Self::acknowledge). After a kill, changes since
/// the last save come again, and no others.
pub struct Changes {
    phase: ChangesPhase,
    arrived: VecDeque<ArrivedEntry>,
    progress: FollowProgress,
    mode: FollowMode,
    /// True if the caller saves the state, and so needs its content.
    needs_content: bool,
    on_notice: NoticeReceiver,
    is_incomplete: bool,
    /// Set by the first error. What was given before may still be acknowledged.
    has_failed: bool,
}

enum ChangesPhase {
    Opening(BoxFuture<'static, Result<OpenFollow, ChangesError>>),
    Open(Box<OpenFollow>),
}

/// Part of a delivery that was not returned yet.
enum ArrivedEntry {
    Event(SinkEvent),
    Checkpoint(Value),
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl Follow {
    /// Saves progress in the file at `path`, and continues from it. [`Follow::changes`] needs it to survive restarts.
    ///
    /// The file has the form of `towpath follow --state`, so either may continue what the other began.
    #[must_use]
    pub fn state(mut self, path: impl Into<PathBuf>) -> Self {
        self.place = StatePlace::File(path.into());
        self
    }

    /// Continues from a state that the caller keeps, such as in the database in which the changes take effect.
    ///
    /// `content` is that of the last [`ChangeBatch::state`], or `None` at first. `name` is its place in errors.
    #[must_use]
    pub fn state_content(mut self, name: impl Into<PathBuf>, content: Option<Vec<u8>>) -> Self {
        self.place = StatePlace::Content { name: name.into(), content };
        self
    }

    /// Returns the feed's changes as a stream. It does nothing before it is polled, within a Tokio runtime.
    ///
    /// Unless the protocol is known, it is discovered, which fails if the server does not answer. Once that was
    /// successful, the follow outlasts each outage.
    pub fn changes(self) -> Changes {
        let needs_content = matches!(self.place, StatePlace::Content { .. });
        Changes {
            mode: self.mode,
            phase: ChangesPhase::Opening(Box::pin(open::open(self))),
            arrived: VecDeque::new(),
            progress: FollowProgress::default(),
            needs_content,
            on_notice: Box::new(|notice| notice.log()),
            is_incomplete: false,
            has_failed: false,
        }
    }
}

impl Changes {
    /// Sets the receiver of warnings, failed attempts and gaps. Without it they are logged.
    #[must_use]
    pub fn on_notice(mut self, receiver: impl FnMut(&FollowNotice) + Send + 'static) -> Self {
        self.on_notice = Box::new(receiver);
        self
    }

    /// Returns the next change; `None` at the end of a follow with [`Follow::once`]. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`ChangesError`], after which there are no more changes.
    pub async fn try_next(&mut self) -> Result<Option<FeedChange>, ChangesError> {
        std::future::poll_fn(|cx| self.poll_change(cx)).await.transpose()
    }

    /// Returns up to `max` changes that arrived together, at least one or a new state; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`ChangesError`], after which there are no more changes.
    pub async fn next_batch(&mut self, max: usize) -> Result<Option<ChangeBatch>, ChangesError> {
        std::future::poll_fn(|cx| self.poll_batch(cx, max)).await
    }

    /// Takes note that a change and all before it are finished: the state moves past them.
    pub fn acknowledge(&mut self, change: &FeedChange) {
        self.acknowledge_through(change.number);
    }

    /// Like [`acknowledge`](Self::acknowledge), by the number of a change.
    pub fn acknowledge_through(&mut self, number: u64) {
        self.progress.acknowledge(number);
    }

    /// Returns true if the publisher could not supply some changes any more, or began anew.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Ends the follow, and saves what was acknowledged.
    ///
    /// # Errors
    ///
    /// [`ChangesError::State`] if it cannot be saved. A drop only logs that.
    pub async fn close(mut self) -> Result<(), ChangesError> {
        std::future::poll_fn(|cx| self.poll_saved(cx)).await
    }

    /// Saves what was acknowledged if more than a second has passed since the last save.
    ///
    /// Reading on does it too. This is for a consumer that takes long for what it has.
    ///
    /// # Errors
    ///
    /// [`ChangesError::State`] if it cannot be saved.
    pub async fn save_if_due(&mut self) -> Result<(), ChangesError> {
        match &self.phase {
            ChangesPhase::Open(open) if open.saver.as_ref().is_some_and(|saver| saver.is_due()) => {
                std::future::poll_fn(|cx| self.poll_saved(cx)).await
            }
            _ => Ok(()),
        }
    }

    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<FeedChange, ChangesError>>> {
        loop {
            match ready!(self.poll_arrived(cx)) {
                Err(error) => return Poll::Ready(Some(Err(error))),
                Ok(false) => return Poll::Ready(None),
                Ok(true) => {}
            }
            if let Some(change) = self.take_change() {
                return Poll::Ready(Some(Ok(change)));
            }
        }
    }

    fn poll_batch(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<ChangeBatch>, ChangesError>> {
        if !ready!(self.poll_arrived(cx))? {
            return Poll::Ready(Ok(None));
        }
        let mut changes = Vec::new();
        // A batch ends at a checkpoint: its state must cover these changes and no others.
        while changes.len() < max.max(1) && matches!(self.arrived.front(), Some(ArrivedEntry::Event(_))) {
            changes.extend(self.take_change());
        }
        // With the last change of its unit, so that the caller can store both in one transaction.
        let mut state = None;
        if let Some(ArrivedEntry::Checkpoint(checkpoint)) = self.arrived.front() {
            if let (true, ChangesPhase::Open(open)) = (self.needs_content, &self.phase) {
                state = open.header.content(Some(checkpoint), Vec::new()).ok();
            }
            self.take_change();
        }
        Poll::Ready(Ok(Some(ChangeBatch { changes, state, has_more: !self.arrived.is_empty() })))
    }

    /// Takes the first entry that has arrived; returns it if it is a change that the consumer does not have yet.
    fn take_change(&mut self) -> Option<FeedChange> {
        match self.arrived.pop_front()? {
            ArrivedEntry::Event(event) => {
                let number = self.progress.give(line_digest(&event))?;
                Some(FeedChange { event, number })
            }
            ArrivedEntry::Checkpoint(state) => {
                self.progress.end_unit(state);
                None
            }
        }
    }

    /// Waits until something has arrived; false at the end.
    fn poll_arrived(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ChangesError>> {
        let polled = self.poll_arrived_or_error(cx);
        if let Poll::Ready(Err(_)) = polled {
            self.has_failed = true;
        }
        polled
    }

    fn poll_arrived_or_error(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, ChangesError>> {
        if self.has_failed {
            return Poll::Ready(Ok(false));
        }
        loop {
            let open = match &mut self.phase {
                ChangesPhase::Opening(opening) => {
                    // Kept here until it is ready: a cancelled `try_next` loses nothing, and the next call goes
                    // on with it.
                    let mut open = ready!(opening.as_mut().poll(cx))?;
                    self.progress = std::mem::take(&mut open.progress);
                    self.phase = ChangesPhase::Open(Box::new(open));
                    continue;
                }
                ChangesPhase::Open(open) => open,
            };
            if let Some(saver) = &mut open.saver {
                // A save runs on another thread. It is polled here, so that its end wakes this task.
                if let Poll::Ready(saved) = saver.poll(cx) {
                    saved?;
                }
                if saver.is_due() && saver.start(&mut self.progress) {
                    continue;
                }
            }
            if !self.arrived.is_empty() {
                return Poll::Ready(Ok(true));
            }
            match open.stream.poll_message(cx)? {
                Poll::Ready(Some(message)) => self.handle_message(message)?,
                Poll::Ready(None) => {
                    ready!(self.poll_saved(cx))?;
                    return Poll::Ready(Ok(false));
                }
                Poll::Pending => {
                    // Everything that has arrived is finished as far as it will be before more arrives.
                    if open.saver.as_mut().is_some_and(|saver| saver.start(&mut self.progress)) {
                        continue;
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Saves what was acknowledged, and waits for it.
    fn poll_saved(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ChangesError>> {
        let ChangesPhase::Open(open) = &mut self.phase else { return Poll::Ready(Ok(())) };
        let Some(saver) = &mut open.saver else { return Poll::Ready(Ok(())) };
        loop {
            ready!(saver.poll(cx))?;
            if !saver.start(&mut self.progress) {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn handle_message(&mut self, message: StreamMessage) -> Result<(), ChangesError> {
        match message {
            StreamMessage::Delivery { changes, checkpoint, delivered } => {
                let events = changes.into_iter().map(|change| SinkEvent::Change(Box::new(change)));
                self.arrived.extend(events.map(ArrivedEntry::Event));
                self.arrived.extend(checkpoint.map(ArrivedEntry::Checkpoint));
                // The state is kept here, so the follower may fetch on.
                let _ = delivered.send(());
            }
            StreamMessage::Reset { reset, delivered } => {
                self.arrived.push_back(ArrivedEntry::Event(SinkEvent::Reset(reset)));
                let _ = delivered.send(());
            }
            StreamMessage::Located(url) => {
                if let ChangesPhase::Open(open) = &mut self.phase {
                    open.relocate(&url);
                }
            }
            StreamMessage::Notice(notice) => self.handle_notice(&notice),
            StreamMessage::Finished(summary) => {
                self.is_incomplete |= summary.incomplete;
                // A continuous follower ends only if a retry cannot help.
                if let Some(error) = summary.failed {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn handle_notice(&mut self, notice: &FollowNotice) {
        match notice {
            FollowNotice::Failed(_) => {
                self.progress.unit_restarts();
                // Without retries the error is the result.
                if self.mode == FollowMode::CatchUp {
                    return;
                }
            }
            // A change of its own.
            FollowNotice::Reset(_) => {
                self.is_incomplete = true;
                return;
            }
            FollowNotice::Incomplete(_) => self.is_incomplete = true,
            FollowNotice::Warning(_) => {}
        }
        (self.on_notice)(notice);
    }
}

impl Stream for Changes {
    type Item = Result<FeedChange, ChangesError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_change(cx)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        if let ChangesPhase::Open(open) = &mut self.phase
            && let Some(saver) = &mut open.saver
            && let Err(error) = saver.save_now(&mut self.progress)
        {
            tracing::error!(%error, "cannot save the state of the follow");
        }
    }
}
