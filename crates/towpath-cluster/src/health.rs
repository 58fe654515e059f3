//! How the node stands with the log.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use towpath_store::Standing;

use crate::notes::Mark;

/// How long an error that the connection reported explains what goes wrong after it.
const RECENT: Duration = Duration::from_secs(15);

/// What the parts of a node tell each other.
#[derive(Debug)]
pub(crate) struct Health {
    /// The place in the stream up to which the replica has everything.
    applied: watch::Sender<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    current_at: Option<Timestamp>,
    /// The log's end, and when it was there.
    end: Option<(u64, Timestamp)>,
    /// A place at which the log ended when it was asked, and that the replica has not reached yet.
    awaited: Option<(u64, Instant)>,
    /// When the log last ended at a place that the replica has.
    caught_up: Option<Instant>,
    /// The last message that was applied.
    mark: Option<Mark>,
    /// A message that was applied and that the log does not have in its place.
    lost: Option<Mark>,
    problem: Option<String>,
    /// Why this node cannot go on until somebody does something about it.
    stopped: Option<String>,
    /// The last error that the connection reported.
    reported: Option<(Instant, String)>,
}

impl Health {
    pub(crate) fn new(position: u64, mark: Option<Mark>) -> Self {
        let state = Mutex::new(State { mark, ..State::default() });
        Self { applied: watch::Sender::new(position), state }
    }

    /// The replica has everything up to a place.
    pub(crate) fn applied(&self, at: u64, mark: Option<Mark>) {
        self.state.lock().mark = mark;
        self.applied.send_replace(at);
        self.compare();
    }

    /// The last message that was applied: what the log must have.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.state.lock().mark
    }

    /// A message that was applied and that the log was found not to have.
    pub(crate) fn lost(&self) -> Option<Mark> {
        self.state.lock().lost
    }

    /// The log does not have a message that was applied: nothing goes on until it does.
    pub(crate) fn lose(&self, mark: Mark, reason: String) {
        self.state.lock().lost = Some(mark);
        self.stop(reason);
    }

    /// The place up to which the replica has everything, to be watched.
    pub(crate) fn position(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// The log ended at a place at a time.
    pub(crate) fn log_ends(&self, end: u64, at: Timestamp, asked: Instant) {
        let mut state = self.state.lock();
        if state.stopped.is_some() {
            // What the log has is not what this replica has.
            return;
        }
        state.end = Some((end, at));
        // A replica that is always a little behind reaches the one place before it is asked for the next.
        if state.awaited.is_none_or(|(awaited, _)| end < awaited) {
            state.awaited = Some((end, asked));
        }
        drop(state);
        self.compare();
    }

    fn compare(&self) {
        let applied = *self.applied.borrow();
        let mut state = self.state.lock();
        if let Some((end, at)) = state.end
            && applied >= end
            && state.stopped.is_none()
        {
            state.current_at = state.current_at.max(Some(at));
        }
        if let Some((_, asked)) = state.awaited.take_if(|(end, _)| applied >= *end) {
            state.caught_up = Some(asked);
        }
    }

    /// A time at which the log had nothing that the replica does not have: the last that is known.
    pub(crate) fn caught_up(&self) -> Option<Instant> {
        self.state.lock().caught_up
    }

    pub(crate) fn set_problem(&self, problem: String) {
        let mut state = self.state.lock();
        if state.problem.as_ref() != Some(&problem) {
            tracing::warn!(problem, "the cluster's log");
            state.problem = Some(problem);
        }
    }

    pub(crate) fn no_problem(&self) {
        self.state.lock().problem = None;
    }

    /// Nothing can be written until somebody does something about it.
    pub(crate) fn stop(&self, reason: String) {
        let mut state = self.state.lock();
        if state.stopped.as_ref() != Some(&reason) {
            tracing::error!(reason, "this node stops following the log");
            state.stopped = Some(reason);
        }
        (state.end, state.awaited) = (None, None);
    }

    pub(crate) fn resume(&self) {
        let mut state = self.state.lock();
        (state.stopped, state.lost) = (None, None);
    }

    pub(crate) fn stopped(&self) -> Option<String> {
        self.state.lock().stopped.clone()
    }

    /// The connection reported an error.
    pub(crate) fn report(&self, error: String) {
        self.state.lock().reported = Some((Instant::now(), error));
    }

    /// What is wrong, where that is known.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.state.lock();
        let reported = || {
            let recent = state.reported.as_ref().filter(|(at, _)| at.elapsed() < RECENT);
            recent.map(|(_, error)| error.clone())
        };
        state.stopped.clone().or_else(|| state.problem.clone()).or_else(reported)
    }

    pub(crate) fn standing(&self) -> Standing {
        let current_at = self.state.lock().current_at;
        Standing { current_at, problem: self.problem() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_is_behind_is_as_current_as_what_it_has_reached() {
        let (health, now, at) = (Health::new(0, None), Instant::now(), Timestamp::UNIX_EPOCH);
        let later = |seconds| now + Duration::from_secs(seconds);
        health.log_ends(10, at, now);
        assert_eq!(health.caught_up(), None);
        // Asked again before it has that: the first answer is what it is measured by.
        health.log_ends(20, at, later(1));
        health.applied(12, None);
        assert_eq!(health.caught_up(), Some(now));
        health.log_ends(30, at, later(2));
        health.applied(29, None);
        assert_eq!(health.caught_up(), Some(now));
        health.applied(30, None);
        assert_eq!(health.caught_up(), Some(later(2)));
        health.log_ends(30, at, later(3));
        assert_eq!(health.caught_up(), Some(later(3)), "nothing new is all of it");
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_replica_of_a_log_that_has_lost_something_is_not_current() {
        let health = Health::new(0, None);
        let mark = Mark { at: 7, session: 1, number: 2, time: 3 };
        health.applied(7, Some(mark));
        assert_eq!(health.mark(), Some(mark));
        health.log_ends(7, at(1), Instant::now());
        assert_eq!(health.standing().current_at, Some(at(1)));
        let before = health.caught_up();
        health.lose(mark, "it is gone".into());
        // The log is shorter, so that all of it seems to be here.
        health.log_ends(5, at(2), Instant::now());
        health.applied(8, Some(mark));
        let standing = health.standing();
        assert_eq!((standing.current_at, standing.problem.as_deref()), (Some(at(1)), Some("it is gone")));
        assert_eq!((health.lost(), health.caught_up()), (Some(mark), before));
        health.resume();
        assert_eq!((health.lost(), health.stopped()), (None, None));
        health.log_ends(8, at(3), Instant::now());
        assert_eq!(health.standing().current_at, Some(at(3)));
    }
}
