//! A program that reads lines on standard input, and writes back the positions that it has finished.
//!
//! `exec:COMMAND` runs the command with `sh -c`. It gets the lines of the change format. Only its acknowledgements move
//! the position: a line's `position`, or the line itself (see [`acks`](towpath_client::sink::acks)). A command that ends is
//! started again after a wait, and gets what it has not acknowledged. An acknowledgement with `refused` sets the item aside
//! in a file beside the state.

mod runner;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use towpath_client::sink::{AckedLines, DeadLetterFile, RefusedItem, RefusedLine, SinkStateFile};
use towpath_client::{Sink, SinkBatch, SinkError, SinkEvent};

use self::runner::{CommandRunner, RefusedLines};

/// Time without any acknowledgement after which a full window is reported.
const SILENCE: Duration = Duration::from_secs(30);

/// Parsed `exec:` destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecDestination {
    /// Command for `sh -c`.
    pub command: String,
    /// File of the positions.
    pub state: Option<PathBuf>,
}

impl ExecDestination {
    /// Parses the text behind `exec:`.
    ///
    /// # Errors
    ///
    /// The message for an empty command.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Err("expected a command, as in exec:./load.py".into());
        }
        Ok(Self { command: text.to_owned(), state: None })
    }
}

/// Sink of one running command.
pub struct ExecSink {
    destination: ExecDestination,
    runner: Option<CommandRunner>,
    /// Events of the last batch that was sent, which are not sent again when it comes again.
    sent: Option<Arc<Vec<SinkEvent>>>,
    /// Rest of a batch of which lines were refused. The command has finished it, and it comes again without them.
    finished: Option<Vec<SinkEvent>>,
}

impl ExecSink {
    /// Creates the sink. The command is started with the first source.
    pub fn new(destination: ExecDestination) -> Self {
        Self { destination, runner: None, sent: None, finished: None }
    }

    fn start(&mut self) -> Result<&mut CommandRunner, SinkError> {
        if self.runner.is_none() {
            let file =
                self.destination.state.as_deref().map(|path| SinkStateFile::open(NAME, path)).transpose();
            let lines = AckedLines::new(file.map_err(|error| SinkError::refused(error.to_string()))?);
            // Without a state file of its own, the caller keeps the position, and what is refused.
            let file = self.destination.state.as_deref().map(DeadLetterFile::beside);
            let refused = file.map_or_else(|| RefusedLines::Caller(Vec::new()), RefusedLines::File);
            self.runner = Some(CommandRunner::start(self.destination.command.clone(), lines, refused));
        }
        self.runner.as_mut().ok_or_else(|| SinkError::refused("internal error: the command is not started"))
    }
}

/// Returns the error of a command that has acknowledged nothing for a while.
fn silent(command: &str, runner: &CommandRunner) -> SinkError {
    let open = runner.lines.open_lines();
    let why = "it must write back the position of each line that it has finished";
    SinkError::unavailable(format!("the command {command:?} has not acknowledged {open} lines; {why}"))
}

/// Divides a batch into the items that the command refused and the rest.
fn divide(events: &[SinkEvent], mut refused: Vec<RefusedLine>) -> (Vec<RefusedItem>, Vec<SinkEvent>) {
    let (mut items, mut rest) = (Vec::new(), Vec::new());
    for (index, event) in events.iter().enumerate() {
        match refused.iter().position(|(_, line, _)| line == event) {
            Some(found) => items.push(RefusedItem { index, message: refused.remove(found).2 }),
            None => rest.push(event.clone()),
        }
    }
    (items, rest)
}

/// Name in the state file. Not the command itself: an option more does not make another consumer.
const NAME: &str = "exec";

#[async_trait]
impl Sink for ExecSink {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.start()?.lines.open(source))
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        let (command, is_waiting) = (self.destination.command.clone(), self.destination.state.is_none());
        let is_sent = self.sent.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, &batch.events));
        if self.finished.take().is_some_and(|finished| finished == **batch.events) {
            return Ok(());
        }
        let runner = self.start()?;
        if let Some(failure) = runner.failure() {
            return Err(SinkError::unavailable(failure));
        }
        if !is_sent {
            let waited = tokio::time::timeout(SILENCE, runner.lines.wait(AckedLines::has_room)).await;
            waited.map_err(|_| silent(&command, runner))?;
            runner.send(batch)?;
            self.sent = Some(batch.events.clone());
        }
        let runner = self.start()?;
        runner.save_if_due().await?;
        if is_waiting {
            // Without a state file of its own, the caller keeps the position when this returns.
            let waited = tokio::time::timeout(SILENCE, runner.finished()).await;
            waited.map_err(|_| silent(&command, runner))??;
            let refused = runner.take_refused();
            if !refused.is_empty() {
                let (items, rest) = divide(&batch.events, refused);
                self.finished = Some(rest);
                return Err(SinkError::Items(items));
            }
        }
        Ok(())
    }

    fn keeps_checkpoint(&self) -> bool {
        self.destination.state.is_some()
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        match &mut self.runner {
            Some(runner) => {
                // A command that acknowledges nothing must not end a follow in silence.
                let closed = tokio::time::timeout(SILENCE, runner.close()).await;
                closed.unwrap_or_else(|_| Err(silent(&self.destination.command, runner)))
            }
            None => Ok(()),
        }
    }
}
