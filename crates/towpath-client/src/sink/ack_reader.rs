//! Reader of what a consumer writes back: cuts it into acknowledgements, whatever else is in it.
//!
//! A consumer may print anything. Text that is no acknowledgement is reported, and changes nothing. A line without an end
//! takes no more memory than the longest acknowledgement, and repeated faults do not fill the log.

use std::io;
use std::sync::Arc;

use super::acked_lines::RefusedLine;
use super::acks::AckError;
use super::{AckedLines, DeadLetterFile};

/// Longest acknowledgement, beside twice the lines that wait: a consumer may write a line back, with other spaces.
const SHORTEST_LIMIT: usize = 1 << 20;

/// Acknowledgements of one run of a consumer.
pub struct AckReader {
    lines: AckedLines,
    /// Name of the consumer, for messages.
    name: Arc<str>,
    /// Beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// True while the rest of a line that is too long is skipped.
    is_skipping: bool,
    faults: u64,
}

impl AckReader {
    /// Creates a reader for the lines of a consumer.
    pub fn new(lines: AckedLines, name: impl Into<Arc<str>>) -> Self {
        Self { lines, name: name.into(), partial: Vec::new(), is_skipping: false, faults: 0 }
    }

    /// Takes bytes that the consumer wrote. Refused items are kept in the file. The state is saved if that is due.
    pub fn take(&mut self, bytes: &[u8], refused: Option<&mut DeadLetterFile>) {
        let lines = self.read(bytes);
        self.keeper().keep(&lines, refused);
    }

    /// Ends the input: its last line needs no end. The state is saved.
    pub fn finish(&mut self, refused: Option<&mut DeadLetterFile>) {
        let lines = self.end();
        self.keeper().finish(&lines, refused);
    }

    /// Reads bytes that the consumer wrote. Returns the lines that it refuses, for the [`keeper`](Self::keeper).
    pub fn read(&mut self, mut bytes: &[u8]) -> Vec<RefusedLine> {
        let mut refused = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end]);
            refused.extend(self.end_line());
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
        refused
    }

    /// Ends the input as [`finish`](Self::finish) does, and leaves the files to the [`keeper`](Self::keeper).
    pub fn end(&mut self) -> Vec<RefusedLine> {
        if self.partial.is_empty() { None } else { self.end_line() }.into_iter().collect()
    }

    /// Returns the writer of its files, whose calls block.
    pub fn keeper(&self) -> AckKeeper {
        AckKeeper { lines: self.lines.clone(), name: self.name.clone() }
    }

    fn extend(&mut self, bytes: &[u8]) {
        let limit = SHORTEST_LIMIT.max(self.lines.open_bytes().saturating_mul(2));
        if self.is_skipping || self.partial.len() + bytes.len() > limit {
            self.is_skipping = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) -> Option<RefusedLine> {
        let line = std::mem::take(&mut self.partial);
        let taken = if std::mem::take(&mut self.is_skipping) {
            Err(AckError::TooLong)
        } else {
            self.lines.acknowledge(&String::from_utf8_lossy(&line))
        };
        taken.unwrap_or_else(|error| {
            self.faults += 1;
            // A consumer that prints for people does so for every item.
            if self.faults.is_power_of_two() {
                tracing::warn!(sink = %self.name, %error, lines = self.faults, "a line of the sink is no acknowledgement");
            }
            None
        })
    }
}

/// Writer of a consumer's files: refused items, and the state.
#[derive(Clone)]
pub struct AckKeeper {
    lines: AckedLines,
    name: Arc<str>,
}

impl AckKeeper {
    /// Names refused items and keeps them, and saves the state if that is due.
    pub fn keep(&self, refused: &[RefusedLine], file: Option<&mut DeadLetterFile>) {
        self.append(refused, file);
        self.log_failure(self.lines.save_if_due());
    }

    /// As [`keep`](Self::keep), and saves the state in any case.
    pub fn finish(&self, refused: &[RefusedLine], file: Option<&mut DeadLetterFile>) {
        self.append(refused, file);
        self.log_failure(self.lines.save());
    }

    /// Names refused items and appends them to the file. Their batch was applied long ago, so the writer cannot.
    fn append(&self, refused: &[RefusedLine], mut file: Option<&mut DeadLetterFile>) {
        for (source, event, reason) in refused {
            let (feed, id) = (event.feed(), event.change().map_or("", |change| &change.item.id));
            tracing::warn!(sink = %self.name, feed, item = id, %reason, "the sink refuses an item");
            if let Some(file) = &mut file
                && let Err(error) = file.append(source, event, reason)
            {
                tracing::error!(item = id, file = %file.path().display(), %error, "cannot keep a refused item");
            }
        }
        // Before the state is saved, which covers them: else a crash could lose them.
        self.lines.kept(refused.len());
    }

    fn log_failure(&self, saved: io::Result<()>) {
        if let Err(error) = saved {
            tracing::error!(sink = %self.name, %error, "cannot write the state file");
        }
    }
}
