//! Queue of callers' requests to the producer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use towpath_proto::feed_id::FeedId;
use towpath_store::embedded::command::LogCommand;
use towpath_store::{AppendError, WriteError};

use crate::health::NodeHealth;
use crate::producer::{PendingRequest, RETRY_AFTER, ReplySender};

/// Sending half of the queue.
pub(crate) struct RequestQueue {
    /// `None` once closed.
    queue: Mutex<Option<mpsc::Sender<PendingRequest>>>,
    health: Arc<NodeHealth>,
    timeout: Duration,
    /// Time after which no request waits any more: the process is stopping.
    end: Mutex<Option<Instant>>,
}

impl RequestQueue {
    pub(crate) fn new(
        queue: mpsc::Sender<PendingRequest>,
        health: Arc<NodeHealth>,
        timeout: Duration,
    ) -> Self {
        Self { queue: Mutex::new(Some(queue)), health, timeout, end: Mutex::new(None) }
    }

    /// Refuses requests from this time on, and lets none wait longer.
    pub(crate) fn end_at(&self, end: Instant) {
        *self.end.lock() = Some(end);
    }

    /// Returns the deadline of a request.
    fn deadline(&self) -> Instant {
        let usual = Instant::now() + self.timeout;
        self.end.lock().map_or(usual, |end| usual.min(end))
    }

    /// Refuses later requests.
    pub(crate) fn close(&self) {
        self.queue.lock().take();
    }

    /// Sends a command to the producer, and waits until this node has applied it.
    pub(crate) async fn request<T>(
        &self,
        command: &LogCommand,
        reply: impl FnOnce(oneshot::Sender<T>) -> ReplySender,
    ) -> Result<T, LogRequestError> {
        let queue = self.queue.lock().clone().ok_or(LogRequestError::Closed)?;
        // At once: the queue would only delay the same error.
        if let Some(reason) = self.health.stopped() {
            return Err(LogRequestError::Refused(reason));
        }
        let mut bytes = Vec::new();
        command.encode(&mut bytes);
        let (sender, result) = oneshot::channel();
        let deadline = self.deadline();
        let level = command.level();
        let request = PendingRequest { command: bytes, level, deadline, reply: reply(sender) };
        // The queue is full while the cluster is slow or gone: callers wait no longer than for a result.
        match tokio::time::timeout_at(deadline.into(), queue.send(request)).await {
            Ok(sent) => sent.map_err(|_| LogRequestError::Refused(STOPPED.into()))?,
            Err(_) => return Err(LogRequestError::Refused("too many requests are waiting".into())),
        }
        // The producer ends when all senders are gone: this one must not outlive the send.
        drop(queue);
        result.await.map_err(|_| LogRequestError::Unknown(STOPPED.into()))
    }
}

/// Reason of errors after the producer has ended.
pub(crate) const STOPPED: &str = "this node has stopped following the log";

/// Failure to get a request through the log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogRequestError {
    #[error("the store is closed")]
    Closed,
    /// The command was not published.
    #[error("{0}")]
    Refused(String),
    /// The command was published, and its result is not known.
    #[error("the outcome is not known: {0}")]
    Unknown(String),
}

impl LogRequestError {
    /// Converts it to the error of an append to `feed`.
    pub(crate) fn append_to(self, feed: &FeedId) -> AppendError {
        let (feed, retry_after) = (feed.clone(), RETRY_AFTER);
        match self {
            Self::Closed => AppendError::Closed,
            Self::Refused(reason) => AppendError::Refused { feed, reason, retry_after },
            Self::Unknown(reason) => AppendError::UnknownOutcome { feed, reason, retry_after },
        }
    }
}

impl From<LogRequestError> for WriteError {
    fn from(error: LogRequestError) -> Self {
        let retry_after = RETRY_AFTER;
        match error {
            LogRequestError::Closed => Self::Closed,
            LogRequestError::Refused(reason) => Self::Refused { reason, retry_after },
            LogRequestError::Unknown(reason) => Self::UnknownOutcome { reason, retry_after },
        }
    }
}
