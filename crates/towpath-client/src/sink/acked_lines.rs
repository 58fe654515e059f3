//! Lines to one consumer, and the state that only its acknowledgements move.
//!
//! Shared by the program that `exec:` starts and the reader of standard output with `follow --ack`.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::acks::{AckError, AckTracker, line_key};
use super::{SinkBatch, SinkEvent, SinkStateFile};
use crate::durable_file::replace;

/// Maximum number of lines that wait for acknowledgements.
const OPEN_LINES: usize = 10_000;
/// Maximum bytes of these lines; a single line may exceed it.
const OPEN_BYTES: usize = 64 << 20;

/// Longest time that acknowledgements stay unsaved: a kill repeats those of this time.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// Lines of one consumer. Clones share them.
#[derive(Clone)]
pub struct AckedLines {
    shared: Arc<Mutex<AckedState>>,
    /// Held while the file is written, without the lines: they are needed meanwhile.
    writing: Arc<Mutex<()>>,
    /// Signals every acknowledgement.
    progress: Arc<Notify>,
}

struct AckedState {
    tracker: AckTracker,
    file: Option<SinkStateFile>,
    /// Lines of an unfinished unit that were acknowledged in an earlier run. They come again, and are not sent.
    finished: HashMap<Arc<str>, HashMap<String, u32>>,
    /// True if the file lacks something.
    is_changed: bool,
    /// Time at which the file is to be saved if it lacks something.
    save_at: Instant,
    /// Refused items that no file keeps yet. Until then the state must not cover them.
    unkept: usize,
}

impl AckedState {
    /// Moves the checkpoint of a source. It is to be saved at once: a kill would repeat the whole unit before it.
    fn cover(&mut self, source: &str, checkpoint: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.set_checkpoint(source, checkpoint)?;
        (self.is_changed, self.save_at) = (true, Instant::now());
        Ok(())
    }

    /// Returns the file's path and content if it lacks something and may be saved.
    fn take_unsaved(&mut self) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
        let Some(file) = self.file.as_ref().filter(|_| self.is_changed && self.unkept == 0) else {
            return Ok(None);
        };
        let unsaved = (file.path().to_owned(), file.content()?);
        (self.is_changed, self.save_at) = (false, Instant::now() + SAVE_EVERY);
        Ok(Some(unsaved))
    }
}

impl Drop for AckedState {
    fn drop(&mut self) {
        // The follow was cancelled within the second that acknowledgements may stay unsaved.
        if let Ok(Some((path, content))) = self.take_unsaved() {
            let _ = replace(&path, &content);
        }
    }
}

/// A change that the consumer refused: its source, the change and the reason.
pub type RefusedLine = (Arc<str>, SinkEvent, String);

impl AckedLines {
    /// Creates the lines of a consumer. Without a file the positions are lost at the end.
    pub fn new(file: Option<SinkStateFile>) -> Self {
        let state = AckedState {
            tracker: AckTracker::default(),
            file,
            finished: HashMap::new(),
            is_changed: false,
            save_at: Instant::now(),
            unkept: 0,
        };
        Self { shared: Arc::new(Mutex::new(state)), writing: Arc::default(), progress: Arc::default() }
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
    /// If nothing waits before the batch's checkpoint, the state moves, with [`save`](Self::save).
    ///
    /// # Errors
    ///
    /// If the checkpoint is not JSON.
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
            if let Some(covered) = state.tracker.add_checkpoint(&batch.source, checkpoint.clone()) {
                state.cover(&batch.source, &covered)?;
            }
        }
        Ok(lines)
    }

    /// Takes an acknowledgement. The state moves with [`save`](Self::save), so that many share one write.
    ///
    /// A refused line is to be kept, and told by [`kept`](Self::kept): before that nothing is saved.
    ///
    /// # Errors
    ///
    /// [`AckError`] if it cannot be read, or no line waits for it.
    pub fn acknowledge(&self, text: &str) -> Result<Option<RefusedLine>, AckError> {
        let mut state = self.shared.lock();
        let done = state.tracker.acknowledge(text)?;
        if let Some(checkpoint) = &done.checkpoint {
            // A checkpoint of ours is JSON.
            let _ = state.cover(&done.source, checkpoint);
        }
        let AckedState { file, is_changed, unkept, .. } = &mut *state;
        if let Some(file) = file {
            done.lines.into_iter().for_each(|line| file.add_acknowledged(&done.source, line));
            *is_changed = true;
        }
        *unkept += usize::from(done.refused.is_some());
        drop(state);
        self.progress.notify_waiters();
        Ok(done.refused.map(|(change, reason)| (done.source, SinkEvent::Change(change), reason)))
    }

    /// Tells that so many refused lines are kept.
    pub fn kept(&self, lines: usize) {
        let mut state = self.shared.lock();
        state.unkept = state.unkept.saturating_sub(lines);
        drop(state);
        self.progress.notify_waiters();
    }

    /// Returns true if every line is acknowledged, and every refused one kept.
    pub fn is_finished(&self) -> bool {
        self.open_lines() == 0 && self.shared.lock().unkept == 0
    }

    /// Saves what was acknowledged. Blocks for the disk.
    ///
    /// # Errors
    ///
    /// Errors of the state file.
    pub fn save(&self) -> io::Result<()> {
        // Taken before the state is read: a later content must not be written first.
        let _writing = self.writing.lock();
        let Some((path, content)) = self.shared.lock().take_unsaved()? else { return Ok(()) };
        let saved = replace(&path, &content);
        if saved.is_err() {
            self.shared.lock().is_changed = true;
        }
        saved
    }

    /// Returns the time until the state is to be saved; `None` if it has been. At most a save a second is due, and one for
    /// each checkpoint.
    pub fn save_due(&self) -> Option<Duration> {
        let state = self.shared.lock();
        let is_unsaved = state.is_changed && state.unkept == 0;
        is_unsaved.then(|| state.save_at.saturating_duration_since(Instant::now()))
    }

    /// Saves the state if that is due. Blocks for the disk.
    ///
    /// # Errors
    ///
    /// Errors of the state file.
    pub fn save_if_due(&self) -> io::Result<()> {
        if self.save_due().is_some_and(|wait| wait.is_zero()) { self.save() } else { Ok(()) }
    }

    /// Number of lines that were acknowledged so far.
    pub fn finished_lines(&self) -> u64 {
        self.shared.lock().tracker.finished_lines()
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
