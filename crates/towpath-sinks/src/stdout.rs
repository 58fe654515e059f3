//! Lines to standard output, whose position moves only with acknowledgements on standard input (`follow --ack`).

use std::io::{self, BufRead as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use towpath_client::sink::{AckReader, AckedLines, DeadLetterFile, SinkStateFile};
use towpath_client::{Sink, SinkBatch, SinkError};

/// Wait for acknowledgements while nothing is unsaved.
const IDLE: Duration = Duration::from_secs(60);

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
        let (chunks, input) = mpsc::sync_channel(1);
        // A thread of its own: a read of standard input cannot be cancelled.
        std::thread::spawn(move || read_input(&chunks));
        // And one that does not wait for input alone, to save the last acknowledgements of a consumer that falls silent.
        std::thread::spawn(move || {
            take_acks(&input, &acked, &mut refused);
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

/// Reads standard input until it is closed.
fn read_input(chunks: &mpsc::SyncSender<Vec<u8>>) {
    let mut input = io::BufReader::new(io::stdin());
    loop {
        let chunk = match input.fill_buf() {
            Ok([]) => break,
            Ok(bytes) => bytes.to_vec(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        input.consume(chunk.len());
        if chunks.send(chunk).is_err() {
            break;
        }
    }
}

/// Takes acknowledgements until standard input is closed.
fn take_acks(input: &mpsc::Receiver<Vec<u8>>, lines: &AckedLines, refused: &mut DeadLetterFile) {
    let mut acks = AckReader::new(lines.clone(), "the consumer");
    loop {
        match input.recv_timeout(lines.save_due().unwrap_or(IDLE)) {
            Ok(bytes) => acks.take(&bytes, Some(refused)),
            Err(RecvTimeoutError::Timeout) => acks.keeper().keep(&[], None),
            Err(RecvTimeoutError::Disconnected) => break,
        }
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
        let lines = added.map_err(|error| unsaved(&error))?;
        let (escape, acked) = (self.escape, self.lines.clone());
        // A slow reader of standard output must not block the runtime.
        let written = tokio::task::spawn_blocking(move || {
            let mut out = io::stdout().lock();
            let mut write = |line: &Arc<[u8]>| out.write_all(&escape(line.to_vec()));
            let written = lines.iter().try_for_each(&mut write).and_then(|()| out.flush());
            written
                .map_err(|error| SinkError::refused(format!("cannot write to standard output: {error}")))?;
            acked.save_if_due().map_err(|error| unsaved(&error))
        });
        written.await.map_err(|error| SinkError::refused(error.to_string()))?
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.wait(|lines| lines.open_lines() == 0).await?;
        let lines = self.lines.clone();
        let saved = tokio::task::spawn_blocking(move || lines.save().map_err(|error| unsaved(&error)));
        saved.await.map_err(|error| SinkError::refused(error.to_string()))?
    }
}

fn unsaved(error: &io::Error) -> SinkError {
    SinkError::refused(format!("cannot write the state file: {error}"))
}
