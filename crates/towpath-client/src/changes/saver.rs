//! Writer of a state file beside the loop that finishes changes.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::progress::FollowProgress;
use crate::state_file::{StateError, StateFile};

/// Longest time that acknowledged changes stay unsaved while more are at hand.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// State and the keys of acknowledged changes after it.
type UnsavedState = (Option<Value>, Vec<String>);

/// Saves states in their order, in a thread for blocking work: a sync of the disk takes milliseconds.
#[derive(Debug)]
pub(super) struct StateSaver {
    file: Arc<Mutex<NumberedFile>>,
    running: Option<JoinHandle<Result<(), StateError>>>,
    /// Number of states that were handed over.
    number: u64,
    saved_at: Instant,
}

/// State file, and the number of the state that it has.
#[derive(Debug)]
struct NumberedFile {
    file: StateFile,
    number: u64,
}

impl NumberedFile {
    fn save(&mut self, number: u64, (state, acknowledged): UnsavedState) -> Result<(), StateError> {
        // A thread that started late must not replace a newer state.
        if number <= self.number {
            return Ok(());
        }
        self.file.save_with(state.as_ref(), acknowledged)?;
        self.number = number;
        Ok(())
    }
}

impl StateSaver {
    pub(super) fn new(file: StateFile) -> Self {
        let file = Arc::new(Mutex::new(NumberedFile { file, number: 0 }));
        Self { file, running: None, number: 0, saved_at: Instant::now() }
    }

    /// Sets the URL at which the feed is followed, before anything is saved.
    pub(super) fn relocate(&self, follows: &str) {
        self.file.lock().file.relocate(follows);
    }

    /// Returns true if the last state is older than what a kill may repeat.
    pub(super) fn is_due(&self) -> bool {
        self.saved_at.elapsed() >= SAVE_EVERY
    }

    /// Starts to save what was acknowledged, unless a save is running; returns false if there is nothing to do.
    pub(super) fn start(&mut self, progress: &mut FollowProgress) -> bool {
        if self.running.is_some() || !progress.is_unsaved() {
            return false;
        }
        let Some(unsaved) = progress.take_unsaved() else { return false };
        self.number += 1;
        self.saved_at = Instant::now();
        let (file, number) = (self.file.clone(), self.number);
        self.running = Some(tokio::task::spawn_blocking(move || file.lock().save(number, unsaved)));
        true
    }

    /// Polls the running save, if there is one.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StateError>> {
        let Some(running) = &mut self.running else { return Poll::Ready(Ok(())) };
        let ended = std::task::ready!(std::pin::Pin::new(running).poll(cx));
        self.running = None;
        // Never cancelled; a runtime that shuts down saves at the drop instead.
        Poll::Ready(ended.unwrap_or(Ok(())))
    }

    /// Saves what was acknowledged, in this thread.
    pub(super) fn save_now(&mut self, progress: &mut FollowProgress) -> Result<(), StateError> {
        self.number += 1;
        match progress.take_unsaved() {
            Some(unsaved) => self.file.lock().save(self.number, unsaved),
            None => Ok(()),
        }
    }
}
