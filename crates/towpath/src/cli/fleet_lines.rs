//! The changes of many feeds as lines of JSON, and the states that cover them.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use towpath_proto::follow::Followed;

use super::lines::{LinesError, notice_text, write_lines};
use super::state_log::{Entry, StateLog};
use super::terminal::plain;
use crate::client::fleet::{Kept, Ledger, Way};
use crate::client::{Notice, Offer};

/// Deliveries that are written and synced together, at most.
const BATCH: usize = 256;

/// Why no more is taken, told to every feed that waits.
type Refusal = Arc<LinesError>;

/// Where states are kept.
pub(super) enum States {
    /// In a file.
    Log(StateLog),
    /// As long as the program runs.
    Memory(HashMap<Arc<str>, (Way, Box<str>)>),
}

impl States {
    fn load(&self, feed: &str) -> Result<Option<Kept>, LinesError> {
        match self {
            Self::Log(log) => Ok(log.load(feed)?),
            Self::Memory(states) => Ok(states.get(feed).map(|(way, state)| Kept {
                way: way.clone(),
                state: serde_json::from_str(state).unwrap_or_default(),
            })),
        }
    }

    fn save(&mut self, entries: Vec<Entry>, schedule: Option<Box<RawValue>>) -> Result<(), LinesError> {
        match self {
            Self::Log(log) => Ok(log.save(entries, schedule)?),
            Self::Memory(states) => {
                let kept = entries.into_iter().map(|e| (e.feed, (e.way, e.state.to_string().into())));
                states.extend(kept);
                Ok(())
            }
        }
    }
}

/// Something to be written, and who waits for it.
struct Job {
    changes: Vec<Followed>,
    entry: Option<Entry>,
    schedule: Option<Box<RawValue>>,
    done: oneshot::Sender<Result<(), Refusal>>,
}

/// Prints each change as one line. Deliveries of many feeds are flushed, and their states synced, together.
pub(super) struct FleetLines {
    jobs: mpsc::Sender<Job>,
    states: Arc<Mutex<States>>,
    /// Why no more is written, once that is so.
    refused: Arc<OnceLock<Refusal>>,
}

impl FleetLines {
    pub(super) fn new(out: impl Write + Send + 'static, states: States) -> Self {
        let (jobs, queue) = mpsc::channel(BATCH);
        let states = Arc::new(Mutex::new(states));
        let refused = Arc::new(OnceLock::new());
        let (kept, refusal) = (states.clone(), refused.clone());
        // A thread of its own: a reader that is slow must not hold up the signals that end the program.
        std::thread::spawn(move || write_all(queue, out, &kept, &refusal));
        Self { jobs, states, refused }
    }

    async fn hand_over(
        &self,
        changes: Vec<Followed>,
        entry: Option<Entry>,
        schedule: Option<Box<RawValue>>,
    ) -> Result<(), Refusal> {
        let unknown = || Arc::new(LinesError::Broken("the thread that writes has ended".into()));
        let broken = || self.refused.get().cloned().unwrap_or_else(unknown);
        let (done, written) = oneshot::channel();
        let job = Job { changes, entry, schedule, done };
        self.jobs.send(job).await.map_err(|_| broken())?;
        written.await.map_err(|_| broken())?
    }
}

/// Writes what comes until nothing comes any more, or it cannot be written.
fn write_all(
    mut queue: mpsc::Receiver<Job>,
    mut out: impl Write,
    states: &Mutex<States>,
    refused: &OnceLock<Refusal>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    while queue.blocking_recv_many(&mut batch, BATCH) > 0 {
        let written = write(&mut batch, &mut out, states).map_err(Arc::new);
        if let Err(refusal) = &written {
            let _ = refused.set(refusal.clone());
        }
        for job in batch.drain(..) {
            let _ = job.done.send(written.clone());
        }
        if written.is_err() {
            return;
        }
    }
}

fn write(batch: &mut [Job], out: &mut impl Write, states: &Mutex<States>) -> Result<(), LinesError> {
    let changes = batch.iter().flat_map(|job| &job.changes);
    write_lines(out, changes)?;
    let entries: Vec<Entry> = batch.iter_mut().filter_map(|job| job.entry.take()).collect();
    let schedule = batch.iter_mut().filter_map(|job| job.schedule.take()).next_back();
    if entries.is_empty() && schedule.is_none() {
        return Ok(());
    }
    states.lock().save(entries, schedule)
}

impl Ledger for FleetLines {
    type Error = Refusal;

    async fn load(&self, feed: &str) -> Result<Option<Kept>, Refusal> {
        let (states, feed) = (self.states.clone(), feed.to_owned());
        // The file may be busy being synced.
        let loading = tokio::task::spawn_blocking(move || states.lock().load(&feed));
        let loaded = loading.await.map_err(|e| LinesError::Broken(e.to_string()))?;
        Ok(loaded?)
    }

    async fn deliver(
        &self,
        feed: &Arc<str>,
        way: &Way,
        changes: Vec<Followed>,
        checkpoint: Option<Value>,
    ) -> Result<(), Refusal> {
        let entry = checkpoint.map(|state| Entry { feed: feed.clone(), way: way.clone(), state });
        self.hand_over(changes, entry, None).await
    }

    async fn keep_schedule(&self, schedule: Box<RawValue>) -> Result<(), Refusal> {
        if matches!(*self.states.lock(), States::Memory(_)) {
            return Ok(());
        }
        self.hand_over(Vec::new(), None, Some(schedule)).await
    }

    fn notice(&self, feed: &str, notice: Notice) {
        let text = notice_text(notice);
        // Most of what is told names the address that was asked, which may be another one.
        let name = if feed.is_empty() || text.contains(feed) { String::new() } else { format!("{feed}: ") };
        eprintln!("towpath: {}", plain(&format!("{name}{text}")));
    }

    fn chosen(&self, feed: &str, offer: &Offer) {
        let place = if offer.url == feed { String::new() } else { format!(" at {}", offer.url) };
        let text = format!("following {feed}{place} by {}, because {}", offer.protocol, offer.why);
        eprintln!("towpath: {}", plain(&text));
    }
}
