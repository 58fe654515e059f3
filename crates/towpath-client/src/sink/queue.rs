//! A task that writes to one sink on behalf of all follows, while they fetch on.
//!
//! Jobs are taken in order. Waiting batches of one source are merged, so a long sync writes large batches and a single
//! change is written at once.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::output::parse_checkpoint;
use super::{SinkBatch, SinkEvent, SinkFailure, SinkWriter};
use crate::route::FollowRoute;
use crate::stop::{Stop, stopped};

/// Maximum number of jobs that wait. The follower fetches no further until there is room.
const QUEUE: usize = 16;
/// Maximum number of events in a merged batch.
const BATCH_EVENTS: usize = 10_000;
/// Maximum content of a merged batch in bytes; a single batch of a follower may exceed it.
const BATCH_BYTES: usize = 16 << 20;

/// Time that a destination has for what is queued, after the stop signal.
const GRACE: Duration = Duration::from_secs(5);

/// Work of the task.
enum SinkJob {
    Open { source: Arc<str>, reply: oneshot::Sender<Result<Option<Vec<u8>>, SinkFailure>> },
    Write(QueuedBatch),
    Flush { reply: oneshot::Sender<()> },
}

#[derive(Default)]
struct QueuedBatch {
    source: Arc<str>,
    events: Vec<SinkEvent>,
    checkpoint: Option<Vec<u8>>,
}

impl QueuedBatch {
    fn size(&self) -> usize {
        self.events.iter().map(SinkEvent::size).sum()
    }

    /// Joins batches of one source. The last one has the checkpoint, if any has.
    fn concat(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut whole = parts.next().unwrap_or_default();
        for mut part in parts {
            whole.events.append(&mut part.events);
            // Of the last part, even if it has none: an earlier checkpoint would not cover the events behind
            // it.
            whole.checkpoint = part.checkpoint;
        }
        whole
    }
}

/// Sender of jobs to the sink's task.
#[derive(Debug, Clone)]
pub struct SinkOpener {
    jobs: mpsc::Sender<SinkJob>,
    failure: Arc<OnceLock<SinkFailure>>,
}

/// The sink's task.
#[derive(Debug)]
pub struct SinkQueue {
    opener: SinkOpener,
    task: JoinHandle<()>,
}

impl SinkQueue {
    /// Starts the task in the current Tokio runtime.
    pub fn start(writer: SinkWriter) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let failure = Arc::new(OnceLock::new());
        let failed = failure.clone();
        let task = tokio::spawn(async move {
            let mut task = SinkTask { writer, queue, waiting: VecDeque::new() };
            if let Err(error) = task.run().await {
                // Before the task drops its jobs and its queue, by which senders learn that it has ended.
                let _ = failed.set(error);
            }
        });
        Self { opener: SinkOpener { jobs, failure }, task }
    }

    /// Returns a sender of jobs.
    pub fn opener(&self) -> SinkOpener {
        self.opener.clone()
    }

    /// Waits until everything that was sent is applied, and closes the sink.
    ///
    /// # Errors
    ///
    /// The failure that ended the task.
    pub async fn finish(self) -> Result<(), SinkFailure> {
        let Self { opener, task } = self;
        let failure = opener.failure.clone();
        // The last sender here. The task closes the sink once all are gone.
        drop(opener);
        // A panic of the sink is a failure too.
        let ended = task.await;
        match failure.get() {
            Some(error) => Err(error.clone()),
            None => ended.map_err(|_| SinkFailure::Ended),
        }
    }
}

impl SinkQueue {
    /// Like [`finish`](Self::finish), for up to five seconds once the stop signal is set.
    ///
    /// # Errors
    ///
    /// The failure that ended the task, or [`SinkFailure::Stopped`].
    pub async fn finish_within(self, stop: &Stop) -> Result<(), SinkFailure> {
        let grace = async {
            stopped(stop).await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            finished = self.finish() => finished,
            // The position was not kept, so the next start applies the rest.
            () = grace => Err(SinkFailure::Stopped("the destination took too long".into())),
        }
    }
}

impl SinkOpener {
    /// Opens a source after all earlier jobs, and returns the checkpoint that the sink holds for it.
    ///
    /// # Errors
    ///
    /// The failure that ended the task.
    pub async fn open(&self, source: &Arc<str>) -> Result<Option<Vec<u8>>, SinkFailure> {
        let (reply, opened) = oneshot::channel();
        self.send(SinkJob::Open { source: source.clone(), reply }).await?;
        opened.await.unwrap_or_else(|_| Err(self.failure()))
    }

    /// Like [`open`](Self::open), and returns the route on which the follow of the source goes on.
    ///
    /// # Errors
    ///
    /// The failure that ended the task, or [`SinkFailure::Refused`] if the checkpoint is damaged.
    pub async fn open_route(&self, source: &Arc<str>) -> Result<Option<FollowRoute>, SinkFailure> {
        let held = self.open(source).await?;
        let checkpoint = held.map(|bytes| parse_checkpoint(source, &bytes)).transpose()?;
        Ok(checkpoint.map(FollowRoute::from))
    }

    /// Queues a batch. It is not applied yet when this returns.
    ///
    /// # Errors
    ///
    /// The failure that ended the task.
    pub async fn write(
        &self,
        source: &Arc<str>,
        events: Vec<SinkEvent>,
        checkpoint: Option<Vec<u8>>,
    ) -> Result<(), SinkFailure> {
        self.send(SinkJob::Write(QueuedBatch { source: source.clone(), events, checkpoint })).await
    }

    /// Waits until all earlier batches are applied.
    ///
    /// # Errors
    ///
    /// The failure that ended the task.
    pub async fn flush(&self) -> Result<(), SinkFailure> {
        let (reply, flushed) = oneshot::channel();
        self.send(SinkJob::Flush { reply }).await?;
        flushed.await.map_err(|_| self.failure())
    }

    /// Returns once the task has ended, which it does only after a failure while there are senders.
    pub async fn failed(&self) -> SinkFailure {
        self.jobs.closed().await;
        self.failure()
    }

    /// Number of jobs that no one has taken yet.
    #[cfg(test)]
    pub(super) fn jobs_waiting(&self) -> usize {
        QUEUE - self.jobs.capacity()
    }

    async fn send(&self, job: SinkJob) -> Result<(), SinkFailure> {
        self.jobs.send(job).await.map_err(|_| self.failure())
    }

    fn failure(&self) -> SinkFailure {
        self.failure.get().cloned().unwrap_or(SinkFailure::Ended)
    }
}

struct SinkTask {
    writer: SinkWriter,
    queue: mpsc::Receiver<SinkJob>,
    waiting: VecDeque<SinkJob>,
}

impl SinkTask {
    async fn run(&mut self) -> Result<(), SinkFailure> {
        while let Some(job) = self.next().await {
            match job {
                SinkJob::Open { source, reply } => {
                    let opened = self.writer.open(&source).await;
                    let _ = reply.send(opened.clone());
                    opened?;
                }
                SinkJob::Write(batch) => {
                    let QueuedBatch { source, events, checkpoint } = self.merged(batch);
                    let (events, checkpoint) = (Arc::new(events), checkpoint.map(Into::into));
                    self.writer.write(SinkBatch { source, events, checkpoint }).await?;
                }
                SinkJob::Flush { reply } => {
                    let _ = reply.send(());
                }
            }
        }
        self.writer.close().await
    }

    async fn next(&mut self) -> Option<SinkJob> {
        match self.waiting.pop_front() {
            Some(job) => Some(job),
            None => self.queue.recv().await,
        }
    }

    /// Merges the batches that wait behind this one, as far as they can be applied together.
    fn merged(&mut self, first: QueuedBatch) -> QueuedBatch {
        let (mut size, mut events) = (first.size(), first.events.len());
        let mut parts = vec![first];
        // No more than one batch is taken: the rest fills the queue, so that the follower waits.
        while let Some(job) = self.waiting.pop_front().or_else(|| self.queue.try_recv().ok()) {
            match job {
                SinkJob::Write(next) if next.source == parts[0].source => {
                    (size, events) = (size + next.size(), events + next.events.len());
                    if size > BATCH_BYTES || events > BATCH_EVENTS {
                        self.waiting.push_front(SinkJob::Write(next));
                        break;
                    }
                    parts.push(next);
                }
                other => {
                    self.waiting.push_front(other);
                    break;
                }
            }
        }
        // A checkpoint must not be kept with events that it does not cover: what follows the last one waits.
        if let Some(last) = parts.iter().rposition(|part| part.checkpoint.is_some()) {
            for part in parts.drain(last + 1..).rev() {
                self.waiting.push_front(SinkJob::Write(part));
            }
        }
        QueuedBatch::concat(parts)
    }
}
