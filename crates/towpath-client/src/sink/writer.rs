//! Applies batches to a sink: waits while it is unavailable, sets refused items aside, stops if it refuses for good.

use std::sync::Arc;
use std::time::Duration;

use towpath_proto::follow::Backoff;

use super::{DeadLetterFile, RefusedItem, Sink, SinkBatch, SinkError, SinkEvent};
use crate::stop::{Stop, stopped};

/// Waits while the destination is unavailable. The first is short: a restart of a database takes seconds.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(60));
/// Maximum wait that a destination may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Reaction to an item that the destination refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnRefusedItem {
    /// Keep it aside, and go on with the rest.
    #[default]
    SetAside,
    /// Stop before it.
    Stop,
}

/// Options of a [`SinkWriter`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct SinkOptions {
    /// Reaction to refused items.
    pub on_refused_item: OnRefusedItem,
    /// File of refused items, for destinations without a place of their own.
    pub dead_letters: Option<DeadLetterFile>,
}

impl SinkOptions {
    /// Sets [`on_refused_item`](Self::on_refused_item).
    #[must_use]
    pub fn with_on_refused_item(mut self, on_refused_item: OnRefusedItem) -> Self {
        self.on_refused_item = on_refused_item;
        self
    }

    /// Sets [`dead_letters`](Self::dead_letters).
    #[must_use]
    pub fn with_dead_letters(mut self, dead_letters: impl Into<Option<DeadLetterFile>>) -> Self {
        self.dead_letters = dead_letters.into();
        self
    }
}

/// A message about a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SinkNotice {
    /// The destination is unavailable; the batch is tried again after the wait.
    Unavailable {
        /// The sink's message.
        message: String,
        /// Time until the next attempt.
        wait: Duration,
    },
    /// The destination is available again.
    Available,
    /// An item was refused and kept aside.
    SetAside {
        /// Name of the item's feed.
        feed: String,
        /// Id of the item.
        id: String,
        /// The destination's reason.
        reason: String,
        /// Place where it is kept.
        place: String,
    },
}

impl std::fmt::Display for SinkNotice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable { message, wait } => {
                write!(f, "{message}; trying again in {:.1} seconds", wait.as_secs_f64())
            }
            Self::Available => f.write_str("the destination is available again"),
            Self::SetAside { feed, id, reason, place } => {
                write!(f, "the destination refuses item {id:?} of {feed}: {reason}; kept aside in {place}")
            }
        }
    }
}

/// Receiver of a writer's messages and progress.
pub trait SinkObserver: Send + Sync {
    /// Reports a message to the operator.
    fn notice(&self, source: &str, notice: SinkNotice);

    /// Called after each batch that was applied.
    fn applied(&self, _batch: &SinkBatch) {}
}

/// Reason why a sink takes nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SinkFailure {
    /// The destination refuses for good.
    #[error("{0}")]
    Refused(String),
    /// The destination refuses an item, and [`OnRefusedItem::Stop`] is set.
    #[error("the destination refuses item {id:?} of {feed}: {reason}")]
    ItemRefused {
        /// Name of the item's feed.
        feed: String,
        /// Id of the item.
        id: String,
        /// The destination's reason.
        reason: String,
    },
    /// A refused item could not be kept aside.
    #[error("cannot keep the refused item {id:?} aside: {reason}")]
    DeadLetter {
        /// Id of the item.
        id: String,
        /// Error of the file, or what is missing.
        reason: String,
    },
    /// The stop signal was set while the destination was unavailable.
    #[error("stopped while the destination was unavailable: {0}")]
    Stopped(String),
    /// The sink's task has ended.
    #[error("internal error: the sink's task has ended")]
    Ended,
}

/// Applies batches to one sink.
pub struct SinkWriter {
    sink: Box<dyn Sink>,
    options: SinkOptions,
    observer: Arc<dyn SinkObserver>,
    stop: Stop,
    /// Failed attempts in a row.
    failures: u32,
}

impl SinkWriter {
    /// Creates a writer. `stop` ends waits for an unavailable destination.
    pub fn new(
        sink: Box<dyn Sink>,
        options: SinkOptions,
        observer: Arc<dyn SinkObserver>,
        stop: Stop,
    ) -> Self {
        Self { sink, options, observer, stop, failures: 0 }
    }

    /// Opens a source: see [`Sink::open`].
    ///
    /// # Errors
    ///
    /// [`SinkFailure`] if the destination refuses, or the stop signal is set while it is unavailable.
    pub async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkFailure> {
        loop {
            match self.sink.open(source).await {
                Ok(checkpoint) => {
                    self.mark_available(source);
                    return Ok(checkpoint);
                }
                Err(error) => self.wait_or_fail(source, error).await?,
            }
        }
    }

    /// Applies a batch: see [`Sink::apply`]. Retries until it is applied.
    ///
    /// # Errors
    ///
    /// [`SinkFailure`] if the destination refuses, or the stop signal is set while it is unavailable.
    pub async fn write(&mut self, mut batch: SinkBatch) -> Result<(), SinkFailure> {
        loop {
            match self.sink.apply(&batch).await {
                Ok(()) => {
                    self.mark_available(&batch.source);
                    self.observer.applied(&batch);
                    return Ok(());
                }
                // The rest is tried at once, without a wait: only the named items were at fault.
                Err(SinkError::Items(refused)) => batch = self.without_refused(batch, refused).await?,
                Err(error) => self.wait_or_fail(&batch.source, error).await?,
            }
        }
    }

    /// Closes the sink: see [`Sink::close`].
    ///
    /// # Errors
    ///
    /// [`SinkFailure`] if the destination refuses.
    pub async fn close(&mut self) -> Result<(), SinkFailure> {
        loop {
            match self.sink.close().await {
                Ok(()) => return Ok(()),
                Err(error) => self.wait_or_fail("", error).await?,
            }
        }
    }

    /// Sets refused items aside, and returns the batch without them.
    async fn without_refused(
        &mut self,
        batch: SinkBatch,
        refused: Vec<RefusedItem>,
    ) -> Result<SinkBatch, SinkFailure> {
        let mut is_refused = vec![false; batch.events.len()];
        for RefusedItem { index, message } in refused {
            let Some(SinkEvent::Change(change)) = batch.events.get(index) else {
                // A reset holds nothing that could be set aside, so the destination itself is at fault.
                return Err(SinkFailure::Refused(message));
            };
            // Set aside before the rest is applied: after a crash in between, an item is kept twice rather than
            // lost.
            is_refused[index] = true;
            let (feed, id) = (batch.events[index].feed(), change.item.id.clone());
            if self.options.on_refused_item == OnRefusedItem::Stop {
                return Err(SinkFailure::ItemRefused { feed, id, reason: message });
            }
            let place = self.set_aside(&batch.source, &batch.events[index], change, &message).await?;
            self.observer.notice(&batch.source, SinkNotice::SetAside { feed, id, reason: message, place });
        }
        if !is_refused.contains(&true) {
            // Nothing was named: the same batch would be refused again, for ever.
            return Err(SinkFailure::Refused(
                "the destination refuses a batch without naming an item".into(),
            ));
        }
        let SinkBatch { source, events, checkpoint } = batch;
        let events = Arc::unwrap_or_clone(events).into_iter().zip(is_refused);
        let events = events.filter(|(_, refused)| !refused).map(|(event, _)| event).collect();
        Ok(SinkBatch { source, events: Arc::new(events), checkpoint })
    }

    /// Keeps a refused item in the destination, else in the file of dead letters; returns the place.
    async fn set_aside(
        &mut self,
        source: &str,
        event: &SinkEvent,
        change: &towpath_proto::follow::Followed,
        reason: &str,
    ) -> Result<String, SinkFailure> {
        loop {
            match self.sink.set_aside(source, change, reason).await {
                Ok(true) => return Ok("the destination".into()),
                Ok(false) => break,
                Err(error) => self.wait_or_fail(source, error).await?,
            }
        }
        let id = || change.item.id.clone();
        let Some(file) = &mut self.options.dead_letters else {
            let reason = format!("the destination refuses it ({reason}), and no file of dead letters is set");
            return Err(SinkFailure::DeadLetter { id: id(), reason });
        };
        file.append(source, event, reason)
            .map_err(|error| SinkFailure::DeadLetter { id: id(), reason: error.to_string() })?;
        Ok(file.path().display().to_string())
    }

    /// Waits before the next attempt, if the destination is unavailable.
    async fn wait_or_fail(&mut self, source: &str, error: SinkError) -> Result<(), SinkFailure> {
        let (message, retry_after) = match error {
            SinkError::Unavailable { message, retry_after } => (message, retry_after),
            SinkError::Refused { message } => return Err(SinkFailure::Refused(message)),
            // Only a batch has items. Named in an answer to anything else, they cannot be set aside.
            other @ SinkError::Items(_) => return Err(SinkFailure::Refused(other.to_string())),
        };
        // Before the notice, which would promise another attempt.
        if *self.stop.borrow() {
            return Err(SinkFailure::Stopped(message));
        }
        self.failures = self.failures.saturating_add(1);
        let wait = BACKOFF.wait_or_longer(self.failures, retry_after, MAX_RETRY_AFTER);
        self.observer.notice(source, SinkNotice::Unavailable { message: message.clone(), wait });
        tokio::select! {
            () = tokio::time::sleep(wait) => Ok(()),
            () = stopped(&self.stop) => Err(SinkFailure::Stopped(message)),
        }
    }

    fn mark_available(&mut self, source: &str) {
        if std::mem::take(&mut self.failures) > 0 {
            self.observer.notice(source, SinkNotice::Available);
        }
    }
}
