//! Changes as lines of JSON, and the state that covers them.

use std::io::{self, Write};

use serde_json::Value;
use towpath_proto::follow::{FollowError, Followed};

use super::state_file::{StateError, StateFile};
use crate::client::{Notice, Output};

/// Why no more lines can be delivered.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinesError {
    /// Whoever reads them has gone.
    #[error("standard output is closed")]
    Closed,
    /// They cannot be written.
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
    /// They are written, but not how far.
    #[error(transparent)]
    State(#[from] StateError),
    /// The thread that writes has died.
    #[error("writing broke off: {0}")]
    Broken(String),
}

/// Prints each change as one line, and keeps each checkpoint once the lines it covers are flushed.
pub(super) struct Lines<W> {
    /// Away while a batch is being written.
    sink: Option<Sink<W>>,
}

struct Sink<W> {
    out: W,
    state: Option<StateFile>,
}

impl<W: Write + Send + 'static> Lines<W> {
    pub(super) fn new(out: W, state: Option<StateFile>) -> Self {
        Self { sink: Some(Sink { out, state }) }
    }
}

impl<W: Write + Send + 'static> Output for Lines<W> {
    type Error = LinesError;

    async fn deliver(&mut self, changes: Vec<Followed>, checkpoint: Option<Value>) -> Result<(), LinesError> {
        let broken = || LinesError::Broken("an earlier batch was given up".into());
        let mut sink = self.sink.take().ok_or_else(broken)?;
        // A reader that is slow must not hold up the signals that end the program.
        let written = tokio::task::spawn_blocking(move || {
            let written = sink.write(&changes, checkpoint);
            (sink, written)
        });
        let (sink, written) = written.await.map_err(|e| LinesError::Broken(e.to_string()))?;
        self.sink = Some(sink);
        written
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Warning(text) => eprintln!("towpath: warning: {text}"),
            Notice::Incomplete(text) => eprintln!("towpath: incomplete: {text}"),
            Notice::Failed(FollowError::Usage(text)) => eprintln!("towpath: {text}"),
            Notice::Failed(error) => eprintln!("towpath: failed: {error}"),
        }
    }
}

impl<W: Write> Sink<W> {
    fn write(&mut self, changes: &[Followed], checkpoint: Option<Value>) -> Result<(), LinesError> {
        if !changes.is_empty() {
            self.write_lines(changes).map_err(|e| match e.kind() {
                io::ErrorKind::BrokenPipe => LinesError::Closed,
                _ => LinesError::Write(e),
            })?;
        }
        match (&self.state, checkpoint) {
            (Some(file), Some(state)) => Ok(file.save(state)?),
            _ => Ok(()),
        }
    }

    fn write_lines(&mut self, changes: &[Followed]) -> io::Result<()> {
        let mut text = Vec::new();
        for change in changes {
            serde_json::to_writer(&mut text, &change.line())?;
            text.push(b'\n');
        }
        self.out.write_all(&text)?;
        self.out.flush()
    }
}
