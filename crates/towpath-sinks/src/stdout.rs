//! Lines to standard output, whose position moves only with acknowledgements on standard input (`follow --ack`).

use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use towpath_client::sink::{AckReader, AckedLines, DeadLetterFile, SinkStateFile};
use towpath_client::{Sink, SinkBatch, SinkError};

/// Sink of the process's own standard output.
pub struct StdoutSink {
    lines: AckedLines,
    /// Escapes what a terminal would act on.
    escape: fn(Vec<u8>) -> Vec<u8>,
    /// Set at the end of standard input.
    is_input_closed: Arc<AtomicBool>,
}

impl StdoutSink {
    /// Creates the sink, and starts a thread that reads standard input. `escape` is applied to each line.
    pub fn new(file: SinkStateFile, escape: fn(Vec<u8>) -> Vec<u8>) -> Self {
        let mut refused = DeadLetterFile::beside(file.path());
        let lines = AckedLines::new(Some(file));
        let is_input_closed = Arc::new(AtomicBool::new(false));
        let (acked, closed) = (lines.clone(), is_input_closed.clone());
        // A thread of its own: a read of standard input cannot be cancelled.
        std::thread::spawn(move || {
            read_acks(&acked, &mut refused);
            closed.store(true, Ordering::Release);
            acked.wake();
        });
        Self { lines, escape, is_input_closed }
    }

    /// Waits until the consumer has acknowledged enough; an error if it has gone.
    async fn wait(&self, is_enough: impl Fn(&AckedLines) -> bool) -> Result<(), SinkError> {
        self.lines.wait(|lines| is_enough(lines) || self.is_input_closed.load(Ordering::Acquire)).await;
        if is_enough(&self.lines) {
            return Ok(());
        }
        let open = self.lines.open_lines();
        Err(SinkError::refused(format!(
            "standard input ended with {open} lines not acknowledged; they come again at the next start"
        )))
    }
}

/// Reads acknowledgements until standard input is closed.
fn read_acks(lines: &AckedLines, refused: &mut DeadLetterFile) {
    let mut input = io::BufReader::new(io::stdin());
    let mut acks = AckReader::new(lines.clone(), "the consumer");
    loop {
        let taken = match input.fill_buf() {
            Ok([]) => break,
            Ok(bytes) => {
                // One write of the state for all acknowledgements that have arrived.
                acks.take(bytes, Some(refused));
                bytes.len()
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => break,
        };
        input.consume(taken);
    }
    acks.finish(Some(refused));
}

#[async_trait]
impl Sink for StdoutSink {
    async fn open(&mut self, source: &str) -> Result<Option<Vec<u8>>, SinkError> {
        Ok(self.lines.open(source))
    }

    async fn apply(&mut self, batch: &SinkBatch) -> Result<(), SinkError> {
        self.wait(AckedLines::has_room).await?;
        let added = self.lines.add(batch);
        let lines =
            added.map_err(|error| SinkError::refused(format!("cannot write the state file: {error}")))?;
        let escape = self.escape;
        // A slow reader of standard output must not block the runtime.
        let written = tokio::task::spawn_blocking(move || {
            let mut out = io::stdout().lock();
            let mut write = |line: &Arc<[u8]>| out.write_all(&escape(line.to_vec()));
            lines.iter().try_for_each(&mut write).and_then(|()| out.flush())
        });
        let written = written.await.map_err(|error| SinkError::refused(error.to_string()))?;
        written.map_err(|error| SinkError::refused(format!("cannot write to standard output: {error}")))
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.wait(|lines| lines.open_lines() == 0).await?;
        self.lines.save().map_err(|error| SinkError::refused(format!("cannot write the state file: {error}")))
    }
}
