//! State of a mirror's source, as its status shows it.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Mutex, mpsc};
use towpath_proto::follow::Backoff;

use super::super::metrics::SourceMetrics;
use super::super::poll::SAVED_PROBLEMS;
use super::super::state::{SourceFailure, SourceState};
use crate::engine::roles::Lease;
use crate::engine::{Engine, Feed};
use crate::protocols::diffdelta::{Run, publish};

/// Waits between attempts to follow.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(2), Duration::from_secs(600));
/// Minimum time between two saves of a healthy mirror's state.
const SAVE_INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// A local feed that mirrors another one.
#[derive(Clone)]
pub(super) struct MirrorTarget {
    pub(super) engine: Arc<Engine>,
    pub(super) feed: Arc<Feed>,
    pub(super) lease: Lease,
    /// State of the source, as shown in its status.
    pub(super) state: Arc<Mutex<SourceState>>,
}

/// Event of a follow that the status shows.
#[derive(Debug)]
pub(super) enum MirrorEvent {
    /// It has caught up.
    CaughtUp,
    /// It failed, and goes on.
    Failed(SourceFailure),
    /// Items are missing.
    Problem(String),
}

impl MirrorTarget {
    /// Records the events of a follow in their order, until their sender is dropped.
    pub(super) async fn record_all(&self, mut events: mpsc::UnboundedReceiver<MirrorEvent>) {
        while let Some(event) = events.recv().await {
            match event {
                MirrorEvent::CaughtUp => self.record_success().await,
                MirrorEvent::Failed(error) => self.record_failure(error).await,
                MirrorEvent::Problem(problem) => self.record_problem(problem).await,
            }
        }
    }

    /// Records a successful sync, and saves it if it is a recovery or the last save is old.
    pub(super) async fn record_success(&self) {
        let now = self.engine.now();
        let mut state = self.state.lock().await;
        // A date in the future is from a clock that was ahead: saving it again corrects it.
        let is_fresh =
            |at: Timestamp| (SignedDuration::ZERO..SAVE_INTERVAL).contains(&now.duration_since(at));
        // A recovery is published at once, so that readers of the status see it.
        let has_recovered = state.error.take().is_some();
        if !has_recovered && state.last_ok.is_some_and(is_fresh) {
            return;
        }
        (state.last_ok, state.failures) = (Some(now), 0);
        self.save(&state).await;
        if has_recovered {
            self.publish(Run::Polled).await;
        }
    }

    /// Records a failed attempt.
    pub(super) async fn record_failure(&self, error: SourceFailure) {
        let run = Run::Failed { code: error.code.clone(), http_status: error.http_status };
        let mut state = self.state.lock().await;
        state.last_attempt = Some(self.engine.now());
        state.failures = state.failures.saturating_add(1);
        state.error = Some(error);
        self.save(&state).await;
        self.publish(run).await;
    }

    /// Records items that are missing, for the status. The state keeps the last few.
    async fn record_problem(&self, problem: String) {
        let mut state = self.state.lock().await;
        if state.problems.contains(&problem) {
            return;
        }
        if state.problems.len() >= SAVED_PROBLEMS {
            // The last ones: a feed that loses items for a month is known by what it loses now.
            state.problems.remove(0);
        }
        state.problems.push(problem);
        self.save(&state).await;
    }

    /// Wait before the next attempt: grows with consecutive failures.
    pub(super) async fn retry_wait(&self) -> Duration {
        // A follow that ended without an error waits as well, or a publisher that closes at once would be asked
        // without pause.
        let failures = self.state.lock().await.failures.max(1);
        BACKOFF.jittered(failures, fastrand::u64(..))
    }

    async fn save(&self, state: &SourceState) {
        let Self { engine, feed, lease, .. } = self;
        if let Err(e) = state.save(engine.store.as_ref(), lease, feed.id()).await {
            tracing::error!(feed = %feed.id(), error = %e, "cannot save the state of the mirror");
        }
        SourceMetrics::record(feed, state);
    }

    async fn publish(&self, run: Run) {
        if let Err(e) = publish(&self.engine, &self.feed, run).await {
            tracing::error!(feed = %self.feed.id(), error = %e, "cannot publish");
        }
    }
}
