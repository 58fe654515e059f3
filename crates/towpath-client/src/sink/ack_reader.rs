//! Reader of what a consumer writes back: cuts it into acknowledgements, whatever else is in it.
//!
//! A consumer may print anything. Text that is no acknowledgement is reported, and changes nothing. A line without an end
//! takes no more memory than the longest acknowledgement, and repeated faults do not fill the log.

use super::acked_lines::RefusedLine;
use super::acks::AckError;
use super::{AckedLines, DeadLetterFile};

/// Longest acknowledgement, beside twice the lines that wait: a consumer may write a line back, with other spaces.
const SHORTEST_LIMIT: usize = 1 << 20;

/// Acknowledgements of one run of a consumer.
pub struct AckReader {
    lines: AckedLines,
    /// Name of the consumer, for messages.
    name: String,
    /// Beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    /// True while the rest of a line that is too long is skipped.
    is_skipping: bool,
    faults: u64,
}

impl AckReader {
    /// Creates a reader for the lines of a consumer.
    pub fn new(lines: AckedLines, name: impl Into<String>) -> Self {
        Self { lines, name: name.into(), partial: Vec::new(), is_skipping: false, faults: 0 }
    }

    /// Takes bytes that the consumer wrote. Refused items are kept in the file. The state is saved once.
    pub fn take(&mut self, mut bytes: &[u8], refused: Option<&mut DeadLetterFile>) {
        let mut kept = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end]);
            kept.extend(self.end_line());
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
        self.keep(&kept, refused);
    }

    /// Ends the input: its last line needs no end.
    pub fn finish(&mut self, refused: Option<&mut DeadLetterFile>) {
        let kept: Vec<RefusedLine> =
            if self.partial.is_empty() { None } else { self.end_line() }.into_iter().collect();
        self.keep(&kept, refused);
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

    /// Names refused items and keeps them. Their batch was applied long ago, so the writer cannot.
    fn keep(&self, lines: &[RefusedLine], mut file: Option<&mut DeadLetterFile>) {
        for (source, event, reason) in lines {
            let (feed, id) = (event.feed(), event.change().map_or("", |change| &change.item.id));
            tracing::warn!(sink = %self.name, feed, item = id, %reason, "the sink refuses an item");
            if let Some(file) = &mut file
                && let Err(error) = file.append(source, event, reason)
            {
                tracing::error!(item = id, file = %file.path().display(), %error, "cannot keep a refused item");
            }
        }
        // After the refused items: else a crash could lose them.
        if let Err(error) = self.lines.save() {
            tracing::error!(sink = %self.name, %error, "cannot write the state file");
        }
    }
}
