//! Lines to one consumer, and the state that only its acknowledgements move.
//!
//! Shared by the program that `exec:` starts and the reader of standard output with `follow --ack`.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::acks::{AckError, AckTracker, line_key};
use super::{SinkBatch, SinkEvent, SinkStateFile};

/// Maximum number of lines that wait for acknowledgements.
const OPEN_LINES: usize = 10_000;
/// Maximum bytes of these lines; a single line may exceed it.
const OPEN_BYTES: usize = 64 << 20;

/// Lines of one consumer. Clones share them.
#[derive(Clone)]
pub struct AckedLines {
    shared: Arc<Mutex<AckedState>>,
    /// Signals every acknowledgement.
    progress: Arc<Notify>,
}

struct AckedState {
    tracker: AckTracker,
    file: Option<SinkStateFile>,
    /// Lines of an unfinished unit that were acknowledged in an earlier run. They come again, and are not sent.
    finished: HashMap<Arc<str>, HashMap<String, u32>>,
    is_changed: bool,
}

/// A change that the consumer refused: its source, the change and the reason.
pub type RefusedLine = (Arc<str>, SinkEvent, String);

impl AckedLines {
    /// Creates the lines of a consumer. Without a file the positions are lost at the end.
    pub fn new(file: Option<SinkStateFile>) -> Self {
        let finished = HashMap::new();
        let state = AckedState { tracker: AckTracker::default(), file, finished, is_changed: false };
        Self { shared: Arc::new(Mutex::new(state)), progress: Arc::default() }
    }

    /// Returns the checkpoint of a source up to which all lines were acknowledged.
    pub fn open(&self, source: &str) -> Option<Vec<u8>> {
        let mut state = self.shared.lock();
        let AckedState { file: Some(file), .. } = &*state else { return None };
        let mut finished: HashMap<String, u32> = HashMap::new();
        // Counted: a unit may hold two resets, which are equal.
        file.acknowledged(source).iter().for_each(|line| *finished.entry(line.clone()).or_default() += 1);
        let checkpoint = file.checkpoint(source);
        if !finished.is_empty() {
            state.finished.insert(source.into(), finished);
        }
        checkpoint
    }

    /// Adds a batch; returns the lines to send, each with its end.
    ///
    /// # Errors
    ///
    /// Errors of the state file, which is written if nothing waits before the batch's checkpoint.
    pub fn add(&self, batch: &SinkBatch) -> io::Result<Vec<Arc<[u8]>>> {
        let mut state = self.shared.lock();
        let mut lines = Vec::with_capacity(batch.events.len());
        for event in batch.events.iter() {
            if let Some(finished) = state.finished.get_mut(&batch.source)
                && let Some(count) = finished.get_mut(&line_key(event)).filter(|count| **count > 0)
            {
                *count -= 1;
                continue;
            }
            let mut text = event.to_json();
            text.push(b'\n');
            let text: Arc<[u8]> = text.into();
            state.tracker.add(&batch.source, event, text.clone());
            lines.push(text);
        }
        if let Some(checkpoint) = &batch.checkpoint {
            state.finished.remove(&batch.source);
            let covered = state.tracker.add_checkpoint(&batch.source, checkpoint.clone());
            if let (Some(covered), Some(file)) = (covered, &mut state.file) {
                file.set_checkpoint(&batch.source, &covered)?;
                file.save()?;
            }
        }
        Ok(lines)
    }

    /// Takes an acknowledgement. The state moves with [`save`](Self::save), so that many share one write.
    ///
    /// # Errors
    ///
    /// [`AckError`] if it cannot be read, or no line waits for it.
    pub fn acknowledge(&self, text: &str) -> Result<Option<RefusedLine>, AckError> {
        let mut state = self.shared.lock();
        let done = state.tracker.acknowledge(text)?;
        if let Some(file) = &mut state.file {
            if let Some(checkpoint) = &done.checkpoint {
                // A checkpoint of ours is JSON.
                let _ = file.set_checkpoint(&done.source, checkpoint);
            }
            done.lines.into_iter().for_each(|line| file.add_acknowledged(&done.source, line));
        }
        state.is_changed = true;
        drop(state);
        self.progress.notify_waiters();
        Ok(done.refused.map(|(change, reason)| (done.source, SinkEvent::Change(change), reason)))
    }

    /// Saves what was acknowledged.
    ///
    /// # Errors
    ///
    /// Errors of the state file.
    pub fn save(&self) -> io::Result<()> {
        let mut state = self.shared.lock();
        if std::mem::take(&mut state.is_changed) {
            return state.file.as_ref().map_or(Ok(()), SinkStateFile::save);
        }
        Ok(())
    }

    /// Returns the lines that wait, in the order in which they were sent.
    pub fn lines(&self) -> Vec<Arc<[u8]>> {
        self.shared.lock().tracker.lines()
    }

    /// Number of lines that wait.
    pub fn open_lines(&self) -> usize {
        self.shared.lock().tracker.open_lines()
    }

    /// Bytes of the lines that wait.
    pub fn open_bytes(&self) -> usize {
        self.shared.lock().tracker.open_bytes()
    }

    /// Returns whether another batch may be sent.
    pub fn has_room(&self) -> bool {
        let state = self.shared.lock();
        state.tracker.open_lines() < OPEN_LINES && state.tracker.open_bytes() < OPEN_BYTES
    }

    /// Waits until `is_enough` after an acknowledgement, or at once.
    pub async fn wait(&self, is_enough: impl Fn(&Self) -> bool) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            // Registered before the check: an acknowledgement in between would be missed.
            progress.as_mut().enable();
            if is_enough(self) {
                return;
            }
            progress.await;
        }
    }

    /// Wakes those who wait, to look at something else that has changed.
    pub fn wake(&self) {
        self.progress.notify_waiters();
    }
}
