//! Gate between the runtime's thread and a store's commit thread: only one of the two runs at a time.
//!
//! The commit thread stops where it reads the clock, before it decides a group, and where it syncs. The runtime's
//! thread waits until it has stopped there, or has answered all requests. So the groups, and all that their hooks wake,
//! come in the same order in every run of a seed, and a sync takes simulated time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Wake;

/// Place at which a commit thread stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Before a group is decided.
    Clock,
    /// Before a group is durable.
    Sync,
}

/// Result of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is durable.
    Done,
    /// The sync says that it is done, and it is not.
    Ignored,
    /// It fails.
    Failed,
}

/// Event that the runtime's thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The commit thread has stopped.
    Stopped(Stop),
    /// A request was answered.
    Answered,
}

/// Gate of one store.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: Option<Stop>,
    verdict: Option<Verdict>,
    answers: u64,
    seen: u64,
    /// The machine is off: the thread passes, and no sync is durable.
    is_off: bool,
}

impl Gate {
    /// Stops the commit thread until the runtime's thread lets it go on.
    pub fn arrive(&self, stop: Stop) -> Verdict {
        let mut state = self.lock();
        if state.is_off {
            return Verdict::Failed;
        }
        state.stopped = Some(stop);
        self.changed.notify_all();
        loop {
            if let Some(verdict) = state.verdict.take() {
                state.stopped = None;
                return verdict;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the commit thread stops, or answers.
    pub fn wait(&self) -> Progress {
        let mut state = self.lock();
        loop {
            if let Some(stop) = state.stopped.filter(|_| state.verdict.is_none()) {
                return Progress::Stopped(stop);
            }
            if state.seen != state.answers {
                state.seen = state.answers;
                return Progress::Answered;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets the commit thread go on.
    pub fn release(&self, verdict: Verdict) {
        self.lock().verdict = Some(verdict);
        self.changed.notify_all();
    }

    /// Lets the commit thread go on for ever, with syncs that fail. Returns true if one fails now.
    pub fn turn_off(&self) -> bool {
        let mut state = self.lock();
        state.is_off = true;
        if state.stopped.is_some() {
            state.verdict = Some(Verdict::Failed);
        }
        let is_failing = state.stopped == Some(Stop::Sync);
        drop(state);
        self.changed.notify_all();
        is_failing
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        self.lock().answers += 1;
        self.changed.notify_all();
    }
}
