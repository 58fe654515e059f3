//! Sinks: destinations in which a follow ends, such as a database, a folder or a queue.
//!
//! A [`Sink`] applies batches of changes. A destination with transactions keeps the checkpoint in the same
//! transaction, so every change takes effect exactly once, whatever is killed when. Other destinations get each change
//! at least once, in order per feed; their checkpoint is in a [`state file`](WithStateFile).
//!
//! | module | content |
//! |---|---|
//! | [`writer`] | applies batches with retries, and sets refused items aside |
//! | [`queue`] | a task with one writer for all feeds; merges small batches |
//! | [`into_sink`](crate::Follow::into_sink) | follows a feed into a sink |
//! | [`output`] | output of one follow |
//! | [`fleet`] | output of the follows of many feeds |
//! | [`state_file`] | checkpoints for sinks without a place for them |
//! | [`dead_letters`] | file of items that the destination refused |
//! | [`acked_lines`] | lines whose state only acknowledgements move |
//! | [`ack_reader`] | what a consumer writes back, cut into acknowledgements |
//! | [`acks`] | positions that a consumer has finished, line by line |
//!
//! A sink of one's own is short; `examples/sink.rs` is a whole program.

pub mod ack_reader;
pub mod acked_lines;
pub mod acks;
pub mod dead_letters;
pub mod fleet;
mod into_sink;
pub mod output;
pub mod queue;
pub mod state_file;
pub mod writer;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use towpath_proto::follow::{FeedReset, Followed};

pub use self::ack_reader::{AckKeeper, AckReader};
pub use self::acked_lines::{AckedLines, RefusedLine};
pub use self::acks::{AckError, AckTracker};
pub use self::dead_letters::DeadLetterFile;
pub use self::fleet::{FleetObserver, FleetSink};
pub use self::into_sink::{IntoSinkError, IntoSinkNotice, IntoSinkOptions};
pub use self::output::{FollowObserver, SinkOutput};
pub use self::queue::{SinkOpener, SinkQueue};
pub use self::state_file::{SinkStateError, SinkStateFile, WithStateFile};
pub use self::writer::{OnRefusedItem, SinkFailure, SinkNotice, SinkObserver, SinkOptions, SinkWriter};

/// A destination of changes.
///
/// Calls come one at a time: [`open`](Self::open) once per source, then [`apply`](Self::apply) in the source's order.
#[async_trait]
pub trait Sink: Send {
    /// Opens the destination, and returns the checkpoint that it holds for `source`, if any.
    ///
    /// Creates or checks tables and folders. Called once for each source of the same sink.
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError>;

    /// Applies the events in order and keeps the checkpoint: both or neither where the destination has transactions.
    ///
    /// Both must be durable when it returns. After [`SinkError::Unavailable`] the same batch comes again, so a sink
    /// must know whether its last attempt was kept. It may tell this by [`Arc::ptr_eq`] of the batch's events: a sink
    /// around another one passes on the same `Arc`, for a copy would be applied twice.
    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError>;

    /// Keeps an item that [`apply`](Self::apply) refused, with the reason, in the destination's own dead-letter place.
    ///
    /// Returns false if the destination has none. A crash may repeat it.
    async fn set_aside(
        &mut self,
        _source: &str,
        _change: &Followed,
        _reason: &str,
    ) -> Result<bool, SinkError> {
        Ok(false)
    }

    /// Returns false if the destination has no place for checkpoints. [`WithStateFile`] adds one.
    fn keeps_checkpoint(&self) -> bool {
        true
    }

    /// Ends the work with the destination: waits for acknowledgements, closes connections.
    async fn close(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for Box<S> {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        (**self).open(source).await
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        (**self).apply(batch).await
    }

    async fn set_aside(&mut self, source: &str, change: &Followed, reason: &str) -> Result<bool, SinkError> {
        (**self).set_aside(source, change, reason).await
    }

    fn keeps_checkpoint(&self) -> bool {
        (**self).keeps_checkpoint()
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        (**self).close().await
    }
}

/// Events of one source, in order. Cheap to clone, so that a sink can hand it to a thread.
#[derive(Debug, Clone)]
pub struct SinkBatch {
    /// Name of the follow: the URL as the user gave it, or the name of a server's sink and feed.
    pub source: Arc<str>,
    /// Changes and resets.
    pub events: Arc<Vec<SinkEvent>>,
    /// Checkpoint that covers the events and all before them.
    ///
    /// `None` if the batch is part of a larger unit whose checkpoint comes later. Events of an unfinished unit are sent
    /// again after a restart, with the same ids and positions.
    pub checkpoint: Option<Arc<[u8]>>,
}

/// An event of a source.
// Exhaustive on purpose: a copy whose sink passed over an unknown kind of event would be wrong without a word.
#[derive(Debug, Clone, PartialEq)]
pub enum SinkEvent {
    /// A change of an item.
    Change(Box<Followed>),
    /// The publisher began anew: the feed's items so far are void, and all that it has follows.
    Reset(FeedReset),
}

impl SinkEvent {
    /// Returns the change, unless it is a reset.
    pub fn change(&self) -> Option<&Followed> {
        match self {
            Self::Change(change) => Some(change),
            Self::Reset(_) => None,
        }
    }

    /// Returns the name of the feed, without credentials.
    pub fn feed(&self) -> String {
        let feed = match self {
            Self::Change(change) => &change.feed,
            Self::Reset(reset) => &reset.feed,
        };
        crate::redact::credentials(feed)
    }

    /// Returns the event as a line of JSON, without a line end.
    pub fn to_json(&self) -> Vec<u8> {
        match self {
            Self::Change(change) => change.line_json(),
            // A name and nothing else: writing to memory cannot fail.
            Self::Reset(reset) => serde_json::to_vec(&reset.line()).unwrap_or_default(),
        }
    }

    /// Approximate memory size in bytes.
    pub fn size(&self) -> usize {
        /// Ids, positions, times and the structs themselves.
        const REST: usize = 400;
        let Self::Change(change) = self else { return REST };
        let content = change.item.content.as_ref().map_or(0, |content| content.bytes.len());
        let patch = change.patch.as_ref().map_or(0, |patch| patch.bytes.len());
        REST + content + patch + change.item.summary.as_ref().map_or(0, String::len)
    }
}

/// Reason why a destination did not take a batch. Nothing of the batch was kept, where it has transactions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// The destination is not there, busy or full: the batch is tried again after a wait.
    #[error("{message}")]
    Unavailable {
        /// Operation, destination, cause, and what to do.
        message: String,
        /// Wait that the destination asks for.
        retry_after: Option<Duration>,
    },
    /// The destination refuses items: they are set aside, and the rest of the batch is applied without them.
    #[error("{} items are refused", .0.len())]
    Items(Vec<RefusedItem>),
    /// The destination refuses for good: another version, a table of somebody else, wrong credentials.
    #[error("{message}")]
    Refused {
        /// Operation, destination, cause, and what to do.
        message: String,
    },
}

/// An item that the destination refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedItem {
    /// Index of the event in [`SinkBatch::events`].
    pub index: usize,
    /// Reason, in the destination's words.
    pub message: String,
}

impl SinkError {
    /// Creates [`SinkError::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), retry_after: None }
    }

    /// Creates [`SinkError::Refused`].
    pub fn refused(message: impl Into<String>) -> Self {
        Self::Refused { message: message.into() }
    }

    /// Creates [`SinkError::Items`] of one item.
    pub fn item(index: usize, message: impl Into<String>) -> Self {
        Self::Items(vec![RefusedItem { index, message: message.into() }])
    }
}

#[cfg(test)]
mod tests;
