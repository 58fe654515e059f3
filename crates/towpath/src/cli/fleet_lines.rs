//! Output of several feeds: lines of JSON, and the states that cover them.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use towpath_client::fleet::{FeedRoute, FleetOutput, SavedFeed};
use towpath_client::{FollowNotice, Offer};
use towpath_proto::follow::{FeedReset, Followed};

use super::lines::{LinesError, notice_text, write_lines, write_reset};
use super::state_log::{StateEntry, StateLog};
use super::terminal::message;

/// Maximum number of deliveries that share one write and sync.
const BATCH: usize = 256;

/// Error that ended the output, shared by all feeds that wait for a delivery.
type SharedLinesError = Arc<LinesError>;

/// Storage of the feeds' states.
pub(super) enum FleetStates {
    /// A file.
    Log(StateLog),
    /// Memory, for as long as the process runs.
    Memory(HashMap<Arc<str>, (FeedRoute, Box<str>)>),
}

impl FleetStates {
    fn load(&self, feed: &str) -> Result<Option<SavedFeed>, LinesError> {
        match self {
            Self::Log(log) => Ok(log.load(feed)?),
            Self::Memory(states) => Ok(states.get(feed).map(|(route, state)| SavedFeed {
                route: route.clone(),
                state: serde_json::from_str(state).unwrap_or_default(),
            })),
        }
    }

    fn save(&mut self, entries: Vec<StateEntry>, schedule: Option<Box<RawValue>>) -> Result<(), LinesError> {
        match self {
            Self::Log(log) => Ok(log.save(entries, schedule)?),
            Self::Memory(states) => {
                let saved = entries.into_iter().map(|e| (e.feed, (e.route, e.state.to_string().into())));
                states.extend(saved);
                Ok(())
            }
        }
    }
}

/// Channel for the result of a queued delivery.
type JobResult = oneshot::Receiver<Result<(), SharedLinesError>>;

/// A queued delivery, and the channel for its result.
struct WriteJob {
    /// Written before the changes.
    reset: Option<FeedReset>,
    changes: Vec<Followed>,
    entry: Option<StateEntry>,
    schedule: Option<Box<RawValue>>,
    done: oneshot::Sender<Result<(), SharedLinesError>>,
}

/// Prints each change as one line. Concurrent deliveries share one flush and one sync of the state file.
pub(super) struct FleetLines {
    jobs: mpsc::Sender<WriteJob>,
    states: Arc<Mutex<FleetStates>>,
    /// The write error that ended the output.
    failure: Arc<OnceLock<SharedLinesError>>,
}

impl FleetLines {
    pub(super) fn new(out: impl Write + Send + 'static, states: FleetStates) -> Self {
        let (jobs, queue) = mpsc::channel(BATCH);
        let states = Arc::new(Mutex::new(states));
        let failure = Arc::new(OnceLock::new());
        let (saved, failed) = (states.clone(), failure.clone());
        // A thread of its own: a slow reader of standard output must not block signal handling.
        std::thread::spawn(move || write_all(queue, out, &saved, &failed));
        Self { jobs, states, failure }
    }

    async fn enqueue(
        &self,
        changes: Vec<Followed>,
        entry: Option<StateEntry>,
        schedule: Option<Box<RawValue>>,
    ) -> Result<(), SharedLinesError> {
        let (done, written) = oneshot::channel();
        let job = WriteJob { reset: None, changes, entry, schedule, done };
        self.enqueue_job(job, written).await
    }

    async fn enqueue_job(&self, job: WriteJob, written: JobResult) -> Result<(), SharedLinesError> {
        let unknown = || Arc::new(LinesError::Broken("the writer thread has ended".into()));
        let broken = || self.failure.get().cloned().unwrap_or_else(unknown);
        self.jobs.send(job).await.map_err(|_| broken())?;
        written.await.map_err(|_| broken())?
    }
}

/// Writes queued deliveries until the queue is closed or a write fails.
fn write_all(
    mut queue: mpsc::Receiver<WriteJob>,
    mut out: impl Write,
    states: &Mutex<FleetStates>,
    failure: &OnceLock<SharedLinesError>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    // One sync for everything that is queued: with one per delivery the disk limits the fleet.
    while queue.blocking_recv_many(&mut batch, BATCH) > 0 {
        let written = write(&mut batch, &mut out, states).map_err(Arc::new);
        if let Err(error) = &written {
            let _ = failure.set(error.clone());
        }
        for job in batch.drain(..) {
            let _ = job.done.send(written.clone());
        }
        if written.is_err() {
            return;
        }
    }
}

fn write(
    batch: &mut [WriteJob],
    out: &mut impl Write,
    states: &Mutex<FleetStates>,
) -> Result<(), LinesError> {
    // A reset separates the lines before it from those after it.
    for jobs in batch.chunk_by(|_, next| next.reset.is_none()) {
        jobs.first().and_then(|job| job.reset.as_ref()).map_or(Ok(()), |reset| write_reset(out, reset))?;
        write_lines(out, jobs.iter().flat_map(|job| &job.changes))?;
    }
    let entries: Vec<StateEntry> = batch.iter_mut().filter_map(|job| job.entry.take()).collect();
    let schedule = batch.iter_mut().filter_map(|job| job.schedule.take()).next_back();
    if entries.is_empty() && schedule.is_none() {
        return Ok(());
    }
    states.lock().save(entries, schedule)
}

impl FleetOutput for FleetLines {
    type Error = SharedLinesError;

    async fn load(&self, feed: &str) -> Result<Option<SavedFeed>, SharedLinesError> {
        let (states, feed) = (self.states.clone(), feed.to_owned());
        // The lock is held during a sync, which may take long on a slow disk.
        let loading = tokio::task::spawn_blocking(move || states.lock().load(&feed));
        let loaded = loading.await.map_err(|e| LinesError::Broken(e.to_string()))?;
        Ok(loaded?)
    }

    async fn deliver(
        &self,
        feed: &Arc<str>,
        route: &FeedRoute,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), SharedLinesError> {
        let entry = checkpoint.map(|state| StateEntry { feed: feed.clone(), route: route.clone(), state });
        self.enqueue(changes, entry, None).await
    }

    async fn reset(&self, _feed: &Arc<str>, reset: FeedReset) -> Result<(), SharedLinesError> {
        let (done, written) = oneshot::channel();
        let job = WriteJob { reset: Some(reset), changes: Vec::new(), entry: None, schedule: None, done };
        self.enqueue_job(job, written).await
    }

    async fn save_schedule(&self, schedule: Box<RawValue>) -> Result<(), SharedLinesError> {
        // Without a state file there is nothing to resume.
        if matches!(*self.states.lock(), FleetStates::Memory(_)) {
            return Ok(());
        }
        self.enqueue(Vec::new(), None, Some(schedule)).await
    }

    fn notice(&self, feed: &str, notice: FollowNotice) {
        let text = notice_text(&notice);
        // Most messages name the requested URL, which may differ from the feed's.
        let name = if feed.is_empty() || text.contains(feed) { String::new() } else { format!("{feed}: ") };
        eprintln!("towpath: {}", message(&format!("{name}{text}")));
    }

    fn discovered(&self, feed: &str, offer: &Offer) {
        let place = if offer.url == feed { String::new() } else { format!(" at {}", offer.url) };
        let text = format!("following {feed}{place} by {}, because {}", offer.protocol, offer.why);
        eprintln!("towpath: {}", message(&text));
    }
}
