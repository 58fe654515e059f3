//! Health of a node: its position against the log's end, and its problems.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;
use towpath_store::embedded::command::FIRST_LEVEL;
use towpath_store::{ReplicaStatus, StoreFailure};

use crate::checkpoint::LogMark;
use crate::stream::LogExtent;

/// Age up to which an error of the connection explains later failures.
const RECENT_ERROR: Duration = Duration::from_secs(15);

/// Time for which a node whose replica cannot be written goes on with reads.
const FAILED_READS: Duration = Duration::from_secs(60);

/// Part of a node that reports a problem, and clears it. The first explains the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProblemOrigin {
    /// The thread that applies the log waits for disk space.
    Disk,
    /// The log cannot be read.
    Consumer,
    /// The log's end cannot be asked.
    Watch,
}

/// Number of origins.
const ORIGINS: usize = 3;

/// State that the tasks of a node share.
#[derive(Debug)]
pub(crate) struct NodeHealth {
    /// Sequence number up to which the replica has applied the log.
    applied: watch::Sender<u64>,
    /// Feature level of the cluster, as far as the replica has applied the log.
    level: AtomicU8,
    state: Mutex<HealthState>,
}

#[derive(Debug, Default)]
struct HealthState {
    current_at: Option<Timestamp>,
    /// End of the log, and the time at which it was there.
    end: Option<(u64, Timestamp)>,
    /// An earlier end of the log that the replica has not reached yet, and the time of its request.
    awaited: Option<(u64, Instant)>,
    /// Time of the last request whose end the replica has reached.
    caught_up: Option<Instant>,
    /// Last applied message.
    mark: Option<LogMark>,
    /// Applied message that the log no longer has.
    lost: Option<LogMark>,
    problems: [Option<String>; ORIGINS],
    /// Reason why this node has stopped. Only an operator can fix it.
    stopped: Option<String>,
    /// Failure of the replica's storage, which only a restart can mend.
    failed: Option<(Instant, String)>,
    /// Sentence of a node that is too old for its cluster.
    outdated: Option<String>,
    /// Extent of the log when it was last asked.
    log: Option<LogExtent>,
    /// Last error of the connection.
    reported: Option<(Instant, String)>,
}

impl NodeHealth {
    pub(crate) fn new(position: u64, mark: Option<LogMark>) -> Self {
        let state = Mutex::new(HealthState { mark, ..HealthState::default() });
        Self { applied: watch::Sender::new(position), level: AtomicU8::new(FIRST_LEVEL), state }
    }

    /// Returns the feature level of the cluster.
    pub(crate) fn level(&self) -> u8 {
        // The applying thread stores it before it sends the results of the raise.
        self.level.load(Ordering::Acquire)
    }

    pub(crate) fn set_level(&self, level: u8) {
        self.level.store(level, Ordering::Release);
    }

    /// Stops the node for good: the log has messages that its program is too old for.
    pub(crate) fn outdate(&self, reason: String) {
        self.state.lock().outdated = Some(reason.clone());
        self.fail(reason);
    }

    /// Returns the sentence of a node that is too old for its cluster.
    pub(crate) fn outdated(&self) -> Option<String> {
        self.state.lock().outdated.clone()
    }

    pub(crate) fn set_log(&self, extent: LogExtent) {
        self.state.lock().log = Some(extent);
    }

    /// Returns the extent of the log when it was last asked.
    pub(crate) fn log(&self) -> Option<LogExtent> {
        self.state.lock().log
    }

    /// Sets the position of a replica that is being replaced by a snapshot, so that the log keeps what follows it.
    pub(crate) fn begin_at(&self, position: u64, mark: Option<LogMark>) {
        self.state.lock().mark = mark;
        self.applied.send_replace(position);
    }

    /// Records that the replica cannot be written any more, and stops the node.
    pub(crate) fn fail(&self, reason: String) {
        self.state.lock().failed.get_or_insert_with(|| (Instant::now(), reason.clone()));
        self.stop(reason);
    }

    /// Returns the failure of the replica. It becomes final after a time in which the node can still be read, and not
    /// while `full_disk` tells of one.
    pub(crate) fn failure(&self, full_disk: Option<String>) -> Option<StoreFailure> {
        let is_full = full_disk.is_some();
        match self.state.lock().failed.clone() {
            Some((since, reason)) => {
                // The next process would meet the same disk. Until there is space, this one serves readers.
                let is_final = !is_full && since.elapsed() >= FAILED_READS;
                Some(StoreFailure { reason, is_final, is_full })
            }
            None => full_disk.map(|reason| StoreFailure { reason, is_final: false, is_full }),
        }
    }

    /// Records that the replica has applied the log up to `at`.
    pub(crate) fn applied(&self, at: u64, mark: Option<LogMark>) {
        self.state.lock().mark = mark;
        self.applied.send_replace(at);
        self.compare();
    }

    /// Returns the last applied message, which the log must have.
    pub(crate) fn mark(&self) -> Option<LogMark> {
        self.state.lock().mark
    }

    /// Returns an applied message that the log was found to have lost.
    pub(crate) fn lost(&self) -> Option<LogMark> {
        self.state.lock().lost
    }

    /// Records that the log has lost an applied message, and stops the node until it has it again.
    pub(crate) fn lose(&self, mark: LogMark, reason: String) {
        self.state.lock().lost = Some(mark);
        self.stop(reason);
    }

    /// Returns a watch on the applied sequence number.
    pub(crate) fn position(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    /// Records that the log ended at `end` at a time.
    pub(crate) fn log_ends(&self, end: u64, at: Timestamp, asked: Instant) {
        let mut state = self.state.lock();
        if state.stopped.is_some() {
            // The log differs from the replica: its end says nothing about the replica.
            return;
        }
        state.end = Some((end, at));
        // The oldest unreached end stays: a replica that is always slightly behind would never reach the newest.
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

    /// Returns the last known time at which the replica had the whole log.
    pub(crate) fn caught_up(&self) -> Option<Instant> {
        self.state.lock().caught_up
    }

    pub(crate) fn set_problem(&self, origin: ProblemOrigin, problem: String) {
        let known = &mut self.state.lock().problems[origin as usize];
        if known.as_ref() != Some(&problem) {
            tracing::warn!(problem, "problem with the cluster's log");
            *known = Some(problem);
        }
    }

    /// Ends the problem that a part of the node reported.
    pub(crate) fn clear_problem(&self, origin: ProblemOrigin) {
        self.state.lock().problems[origin as usize] = None;
    }

    /// Stops the node: it refuses writes until an operator fixes the reason.
    pub(crate) fn stop(&self, reason: String) {
        let mut state = self.state.lock();
        if state.stopped.as_ref() != Some(&reason) {
            tracing::error!(reason, "this node has stopped following the log");
            state.stopped = Some(reason);
        }
        // Ends of a log that differs from the replica say nothing about the replica.
        (state.end, state.awaited) = (None, None);
    }

    pub(crate) fn resume(&self) {
        let mut state = self.state.lock();
        (state.stopped, state.lost) = (None, None);
    }

    pub(crate) fn stopped(&self) -> Option<String> {
        self.state.lock().stopped.clone()
    }

    /// Records an error of the connection.
    pub(crate) fn report(&self, error: String) {
        self.state.lock().reported = Some((Instant::now(), error));
    }

    /// Returns the most important known problem.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.state.lock();
        let reported = || {
            let recent = state.reported.as_ref().filter(|(at, _)| at.elapsed() < RECENT_ERROR);
            recent.map(|(_, error)| error.clone())
        };
        // In this order: a stop explains everything below it.
        let problem = || state.problems.iter().flatten().next().cloned();
        state.stopped.clone().or_else(problem).or_else(reported)
    }

    pub(crate) fn replica_status(&self) -> ReplicaStatus {
        let current_at = self.state.lock().current_at;
        ReplicaStatus { current_at, problem: self.problem() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lagging_replica_is_as_current_as_the_end_that_it_reached() {
        let (health, now, at) = (NodeHealth::new(0, None), Instant::now(), Timestamp::UNIX_EPOCH);
        let later = |seconds| now + Duration::from_secs(seconds);
        health.log_ends(10, at, now);
        assert_eq!(health.caught_up(), None);
        // A second request before the first end is reached: the first one stays the measure.
        health.log_ends(20, at, later(1));
        health.applied(12, None);
        assert_eq!(health.caught_up(), Some(now));
        health.log_ends(30, at, later(2));
        health.applied(29, None);
        assert_eq!(health.caught_up(), Some(now));
        health.applied(30, None);
        assert_eq!(health.caught_up(), Some(later(2)));
        health.log_ends(30, at, later(3));
        assert_eq!(health.caught_up(), Some(later(3)), "a log without new messages is complete");
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_replica_of_a_log_that_lost_messages_is_not_current() {
        let health = NodeHealth::new(0, None);
        let mark = LogMark { at: 7, session: 1, number: 2, time: 3 };
        health.applied(7, Some(mark));
        assert_eq!(health.mark(), Some(mark));
        health.log_ends(7, at(1), Instant::now());
        assert_eq!(health.replica_status().current_at, Some(at(1)));
        let before = health.caught_up();
        health.lose(mark, "it is gone".into());
        // The log is shorter now, so that the replica seems to have all of it.
        health.log_ends(5, at(2), Instant::now());
        health.applied(8, Some(mark));
        let status = health.replica_status();
        assert_eq!((status.current_at, status.problem.as_deref()), (Some(at(1)), Some("it is gone")));
        assert_eq!((health.lost(), health.caught_up()), (Some(mark), before));
        health.resume();
        assert_eq!((health.lost(), health.stopped()), (None, None));
        health.log_ends(8, at(3), Instant::now());
        assert_eq!(health.replica_status().current_at, Some(at(3)));
    }

    #[test]
    fn a_node_with_a_full_disk_serves_readers_until_there_is_space() {
        let health = NodeHealth::new(0, None);
        let full = || Some("the disk is full".to_owned());
        let told = |full| health.failure(full).map(|failure| (failure.is_final, failure.is_full));
        assert_eq!((told(None), told(full())), (None, Some((false, true))));
        health.fail("no space left on device".into());
        assert_eq!((told(None), told(full())), (Some((false, false)), Some((false, true))));
        let long_ago = Instant::now().checked_sub(2 * FAILED_READS).unwrap();
        health.state.lock().failed.as_mut().unwrap().0 = long_ago;
        assert_eq!(told(full()), Some((false, true)));
        assert_eq!(told(None), Some((true, false)), "the next process can write");
    }

    #[test]
    fn a_problem_lasts_until_its_origin_clears_it() {
        let health = NodeHealth::new(0, None);
        health.set_problem(ProblemOrigin::Watch, "no answer".into());
        health.set_problem(ProblemOrigin::Disk, "no space".into());
        health.set_problem(ProblemOrigin::Consumer, "interrupted".into());
        for (origin, next) in [
            (ProblemOrigin::Disk, Some("interrupted")),
            (ProblemOrigin::Consumer, Some("no answer")),
            (ProblemOrigin::Watch, None),
        ] {
            health.clear_problem(origin);
            assert_eq!(health.replica_status().problem.as_deref(), next);
        }
    }
}
