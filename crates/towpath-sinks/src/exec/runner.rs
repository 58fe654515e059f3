//! The task that keeps a command running, feeds it and reads its acknowledgements.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use towpath_client::sink::{AckKeeper, AckReader, AckedLines, DeadLetterFile, RefusedLine};
use towpath_client::{SinkBatch, SinkError};
use towpath_proto::follow::Backoff;

/// Waits before a command that ended is started again.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(60));
/// Time that a command has to end once its input is closed.
const END: Duration = Duration::from_secs(5);

/// Place for lines that the command refuses.
pub(super) enum RefusedLines {
    /// A file beside the state.
    File(DeadLetterFile),
    /// The caller of the sink, who waits for the end of each batch.
    Caller(Vec<RefusedLine>),
}

/// A running command.
pub(super) struct CommandRunner {
    pub(super) lines: AckedLines,
    refused: Arc<Mutex<RefusedLines>>,
    queue: Option<mpsc::UnboundedSender<Arc<[u8]>>>,
    /// Reason why the command is not running.
    failure: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl CommandRunner {
    pub(super) fn start(command: String, lines: AckedLines, refused: RefusedLines) -> Self {
        // Unbounded, because the lines that wait for acknowledgements are bounded.
        let (queue, waiting) = mpsc::unbounded_channel();
        let failure = Arc::new(Mutex::new(None));
        let refused = Arc::new(Mutex::new(refused));
        let restarts = RestartLoop {
            command,
            lines: lines.clone(),
            refused: refused.clone(),
            waiting,
            failure: failure.clone(),
        };
        Self { lines, refused, queue: Some(queue), failure, task: tokio::spawn(restarts.run()) }
    }

    /// Takes the lines that the command has refused, unless a file keeps them.
    pub(super) fn take_refused(&self) -> Vec<RefusedLine> {
        match &mut *self.refused.lock() {
            RefusedLines::File(_) => Vec::new(),
            RefusedLines::Caller(lines) => std::mem::take(lines),
        }
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Queues the lines of a batch.
    pub(super) fn send(&self, batch: &SinkBatch) -> Result<(), SinkError> {
        let lines = self.lines.add(batch).map_err(|error| unsaved(&error))?;
        for line in lines {
            // The task ends only after `close`.
            let _ = self.queue.as_ref().map(|queue| queue.send(line));
        }
        Ok(())
    }

    /// Saves the state if that is due.
    pub(super) async fn save_if_due(&self) -> Result<(), SinkError> {
        match self.lines.save_due() {
            Some(Duration::ZERO) => self.save().await,
            _ => Ok(()),
        }
    }

    async fn save(&self) -> Result<(), SinkError> {
        let lines = self.lines.clone();
        let saved = tokio::task::spawn_blocking(move || lines.save()).await;
        let saved = saved.map_err(|error| SinkError::unavailable(error.to_string()))?;
        saved.map_err(|error| unsaved(&error))
    }

    /// Waits until all lines are acknowledged; an error if the command ends before.
    pub(super) async fn finished(&self) -> Result<(), SinkError> {
        self.lines.wait(|lines| lines.is_finished() || self.failure.lock().is_some()).await;
        match self.failure().filter(|_| !self.lines.is_finished()) {
            Some(failure) => Err(SinkError::unavailable(failure)),
            None => Ok(()),
        }
    }

    /// Waits until all lines are acknowledged, then ends the command.
    pub(super) async fn close(&mut self) -> Result<(), SinkError> {
        self.finished().await?;
        self.queue = None;
        // Called again after a failure below: a task is awaited once.
        if !self.task.is_finished() {
            let _ = (&mut self.task).await;
        }
        self.save().await
    }
}

fn unsaved(error: &io::Error) -> SinkError {
    SinkError::unavailable(format!("cannot write the state file of the command: {error}"))
}

impl Drop for CommandRunner {
    fn drop(&mut self) {
        // The command is ended with its task (`kill_on_drop`).
        self.task.abort();
    }
}

struct RestartLoop {
    command: String,
    lines: AckedLines,
    refused: Arc<Mutex<RefusedLines>>,
    waiting: mpsc::UnboundedReceiver<Arc<[u8]>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl RestartLoop {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let before = self.lines.finished_lines();
            let Err(reason) = self.run_once().await else { return };
            if self.waiting.is_closed() && self.waiting.is_empty() && self.lines.open_lines() == 0 {
                return;
            }
            // Acknowledged lines are progress: the command is not broken as such.
            failures = if self.lines.finished_lines() > before { 1 } else { failures + 1 };
            let wait = BACKOFF.wait(failures);
            tracing::warn!(reason, wait_seconds = wait.as_secs_f64(), "the command is started again");
            *self.failure.lock() = Some(reason);
            self.lines.wake();
            tokio::time::sleep(wait).await;
        }
    }

    /// Runs the command until it ends by itself (an error), or its input is closed.
    async fn run_once(&mut self) -> Result<(), String> {
        let name = format!("the command {:?}", self.command);
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).kill_on_drop(true);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("cannot start {name}: it has no pipes"));
        };
        let acks = tokio::spawn(read_acks(self.lines.clone(), self.refused.clone(), output, name.clone()));
        *self.failure.lock() = None;
        let fed = self.feed(input, &mut child).await;
        // A command may close its input and go on. It is not waited for longer than this.
        let ended = tokio::time::timeout(END, child.wait()).await;
        // The last acknowledgements may still be in the pipe.
        let _ = tokio::time::timeout(END, acks).await;
        match (fed, ended) {
            (true, _) => Ok(()),
            (false, Ok(Ok(status))) => {
                let open = self.lines.open_lines();
                Err(format!("{name} ended ({status}) with {open} lines not acknowledged"))
            }
            (false, Ok(Err(error))) => Err(format!("{name}: {error}")),
            (false, Err(_)) => Err(format!("{name} has closed its input and does not end")),
        }
    }

    /// Feeds the command; returns true once all lines were sent and the input is closed on purpose.
    async fn feed(&mut self, mut input: ChildStdin, child: &mut Child) -> bool {
        // What waits in the queue is among the lines that are not acknowledged.
        while self.waiting.try_recv().is_ok() {}
        // Everything that the command before has not acknowledged, in its order: it may have died with any of
        // these lines.
        for line in self.lines.lines() {
            if input.write_all(&line).await.is_err() {
                return false;
            }
        }
        loop {
            let line = tokio::select! {
                line = self.waiting.recv() => line,
                // A command that has ended while no line was there would otherwise be noticed at the next line
                // only.
                _ = child.wait() => return false,
            };
            let Some(line) = line else { return true };
            if input.write_all(&line).await.is_err() {
                return false;
            }
            // Flushed only when no other line waits, so that a long sync writes large pieces.
            if self.waiting.is_empty() && input.flush().await.is_err() {
                return false;
            }
        }
    }
}

/// Reads acknowledgements until the output is closed.
async fn read_acks(lines: AckedLines, refused: Arc<Mutex<RefusedLines>>, output: ChildStdout, name: String) {
    let mut output = BufReader::new(output);
    let mut acks = AckReader::new(lines.clone(), name);
    loop {
        let due = lines.save_due();
        let (kept, length) = tokio::select! {
            read = output.fill_buf() => match read {
                Ok([]) | Err(_) => break,
                // One write of the state for all acknowledgements that have arrived.
                Ok(bytes) => (acks.read(bytes), bytes.len()),
            },
            // A consumer that falls silent must not leave its last acknowledgements unsaved.
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => (Vec::new(), 0),
        };
        output.consume(length);
        if !kept.is_empty() || lines.save_due() == Some(Duration::ZERO) {
            blocking(acks.keeper(), kept, refused.clone(), AckKeeper::keep).await;
        }
    }
    let kept = acks.end();
    blocking(acks.keeper(), kept, refused, AckKeeper::finish).await;
}

/// Writes a consumer's files in a thread for blocking work.
async fn blocking(
    keeper: AckKeeper,
    kept: Vec<RefusedLine>,
    refused: Arc<Mutex<RefusedLines>>,
    write: fn(&AckKeeper, &[RefusedLine], Option<&mut DeadLetterFile>),
) {
    let written = tokio::task::spawn_blocking(move || match &mut *refused.lock() {
        RefusedLines::File(file) => write(&keeper, &kept, Some(file)),
        RefusedLines::Caller(lines) => {
            // Before they count as kept, which ends the caller's wait.
            lines.extend(kept.iter().cloned());
            write(&keeper, &kept, None);
        }
    });
    if let Err(error) = written.await {
        tracing::error!(%error, "cannot write the state file");
    }
}
