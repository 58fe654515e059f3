//! Lines that were sent to a consumer and not acknowledged yet.
//!
//! A consumer writes back, one per line, what it has finished: a position, or a JSON object with `position`, and where
//! it helps `id` and `feed` (the line itself will do). An acknowledgement covers all lines of the source before it too.
//! Several lines may share a position; then it covers the first that is open, so a consumer that is killed between
//! two lines of one document loses neither. A line is refused by an object with `refused`, the reason.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use towpath_proto::follow::Followed;

use super::SinkEvent;

/// Tracks the lines of all sources that one consumer reads.
#[derive(Debug, Default)]
pub struct AckTracker {
    sources: HashMap<Arc<str>, VecDeque<OpenEntry>>,
    /// Number of lines so far, which orders those of several sources.
    sent: u64,
    open_lines: usize,
    open_bytes: usize,
}

#[derive(Debug)]
enum OpenEntry {
    Line(OpenLine),
    Checkpoint(Arc<[u8]>),
}

/// A line that waits for its acknowledgement.
#[derive(Debug, Clone)]
pub struct OpenLine {
    number: u64,
    feed: String,
    id: String,
    position: String,
    event: SinkEvent,
    /// The line, with its end.
    pub text: Arc<[u8]>,
}

/// Effect of an acknowledgement.
#[derive(Debug, Clone, PartialEq)]
pub struct Acknowledged {
    /// Source of the lines.
    pub source: Arc<str>,
    /// The last checkpoint all of whose lines are finished now.
    pub checkpoint: Option<Arc<[u8]>>,
    /// Keys of the finished lines after that checkpoint.
    pub lines: Vec<String>,
    /// The change that the consumer refuses, and its reason.
    pub refused: Option<(Box<Followed>, String)>,
}

/// An acknowledgement cannot be read, or names no open line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AckError {
    /// It is neither a position nor a JSON object with one.
    #[error("not an acknowledgement: {0:?}; write back a line's position, or the line itself")]
    Form(String),
    /// It is longer than any line that waits.
    #[error("not an acknowledgement: it is longer than all lines that wait; write back a line's position")]
    TooLong,
    /// No line with this position waits for it.
    #[error("no line waits for the acknowledgement {0:?}")]
    Unknown(String),
}

/// Content of an acknowledgement.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AckText {
    feed: Option<String>,
    id: Option<String>,
    /// A reset has none.
    position: Option<String>,
    op: Option<String>,
    refused: Option<String>,
}

impl AckTracker {
    /// Adds a line that is sent to the consumer.
    pub fn add(&mut self, source: &Arc<str>, event: &SinkEvent, text: Arc<[u8]>) {
        self.sent += 1;
        self.open_lines += 1;
        self.open_bytes += text.len();
        let (id, position) = match event {
            SinkEvent::Change(change) => {
                (change.item.id.clone(), crate::redact::credentials(&change.position))
            }
            SinkEvent::Reset(_) => (String::new(), RESET.into()),
        };
        let line =
            OpenLine { number: self.sent, feed: event.feed(), id, position, event: event.clone(), text };
        self.sources.entry(source.clone()).or_default().push_back(OpenEntry::Line(line));
    }

    /// Adds the checkpoint that covers the lines of a source so far. Returns it at once if no line waits.
    pub fn add_checkpoint(&mut self, source: &Arc<str>, checkpoint: Arc<[u8]>) -> Option<Arc<[u8]>> {
        let open = self.sources.entry(source.clone()).or_default();
        match open.back_mut() {
            None => return Some(checkpoint),
            // No line was sent between the two: only the later one counts.
            Some(OpenEntry::Checkpoint(last)) => *last = checkpoint,
            Some(OpenEntry::Line(_)) => open.push_back(OpenEntry::Checkpoint(checkpoint)),
        }
        None
    }

    /// Number of lines that were acknowledged so far.
    pub fn finished_lines(&self) -> u64 {
        self.sent - self.open_lines as u64
    }

    /// Number of lines that wait for an acknowledgement.
    pub fn open_lines(&self) -> usize {
        self.open_lines
    }

    /// Bytes of these lines.
    pub fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    /// Returns the lines that wait, in the order in which they were sent.
    pub fn lines(&self) -> Vec<Arc<[u8]>> {
        let mut lines: Vec<&OpenLine> = self.sources.values().flatten().filter_map(OpenEntry::line).collect();
        lines.sort_by_key(|line| line.number);
        lines.into_iter().map(|line| line.text.clone()).collect()
    }

    /// Takes an acknowledgement.
    ///
    /// # Errors
    ///
    /// [`AckError`] if it cannot be read, or no line waits for it.
    pub fn acknowledge(&mut self, text: &str) -> Result<Acknowledged, AckError> {
        let text = text.trim();
        let ack = AckText::parse(text)?;
        let is_named = |entry: &OpenEntry| entry.line().is_some_and(|line| line.is_named_by(&ack));
        // Positions of two sources may be equal. `feed` and `id` tell them apart if the consumer sends them.
        let found = self.sources.iter().find_map(|(source, open)| {
            let index = open.iter().position(is_named)?;
            Some((source.clone(), index))
        });
        let unknown = || AckError::Unknown(shortened(text));
        let (source, index) = found.ok_or_else(unknown)?;
        let open = self.sources.get_mut(&source).ok_or_else(unknown)?;
        // A checkpoint directly behind the line is covered too.
        let is_covered = matches!(open.get(index + 1), Some(OpenEntry::Checkpoint(_)));
        let mut done = Acknowledged { source, checkpoint: None, lines: Vec::new(), refused: None };
        for entry in open.drain(..=index + usize::from(is_covered)) {
            match entry {
                OpenEntry::Checkpoint(checkpoint) => {
                    done.checkpoint = Some(checkpoint);
                    // The checkpoint covers these lines, so they need not be remembered one by one.
                    done.lines.clear();
                }
                OpenEntry::Line(line) => {
                    self.open_lines -= 1;
                    self.open_bytes -= line.text.len();
                    done.lines.push(line_key(&line.event));
                    // Set anew for each line, so that only the last one, which the acknowledgement names,
                    // counts as refused.
                    done.refused = match (&ack.refused, line.event) {
                        (Some(reason), SinkEvent::Change(change)) => Some((change, reason.clone())),
                        _ => None,
                    };
                }
            }
        }
        Ok(done)
    }
}

impl OpenEntry {
    fn line(&self) -> Option<&OpenLine> {
        match self {
            Self::Line(line) => Some(line),
            Self::Checkpoint(_) => None,
        }
    }
}

impl OpenLine {
    fn is_named_by(&self, ack: &AckText) -> bool {
        ack.position.as_ref() == Some(&self.position)
            && ack.id.as_ref().is_none_or(|named| *named == self.id)
            && ack.feed.as_ref().is_none_or(|named| *named == self.feed)
    }
}

/// Digest by which a line is recognised when its unit is sent again, as text in a state file.
pub fn line_key(event: &SinkEvent) -> String {
    line_digest(event).to_string()
}

/// Digest of a line, by which it is recognised when its unit is sent again.
///
/// The first half of a SHA-256: files and databases keep it beyond the next compiler. A digest that nothing matches, such as
/// one of an earlier version, only repeats its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LineDigest(u128);

impl fmt::Display for LineDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for LineDigest {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl LineDigest {
    /// Returns the digest of a line as it is written.
    pub fn of_line(line: &[u8]) -> Self {
        Self::of_hash(&Sha256::digest(line))
    }

    /// Returns the digest that belongs to a SHA-256, which may be computed elsewhere.
    pub fn of_hash(hash: &[u8]) -> Self {
        let half = hash.first_chunk().copied().unwrap_or_default();
        Self(u128::from_be_bytes(half))
    }
}

/// Returns the digest of what identifies an event: cheaper than that of its line.
pub fn line_digest(event: &SinkEvent) -> LineDigest {
    match event {
        SinkEvent::Change(change) => change_digest(change),
        SinkEvent::Reset(_) => reset_digest(),
    }
}

/// Returns the digest of a change's line.
pub fn change_digest(change: &Followed) -> LineDigest {
    // The position of an entry of Atom or RSS is its document, which may have a newer version of it the next time.
    let length = change.item.content.as_ref().map_or(0, |content| content.bytes.len());
    let modified = change.modified.map_or(i128::MIN, Timestamp::as_nanosecond);
    let mut hash = Sha256::new();
    for text in [change.op.as_str(), &change.feed, &change.item.id, &change.position] {
        // With its length: the end of one text must not pass for the begin of the next.
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    hash.update(modified.to_le_bytes());
    hash.update((length as u64).to_le_bytes());
    LineDigest::of_hash(&hash.finalize())
}

/// Returns the digest of a reset's line. All resets are equal.
pub fn reset_digest() -> LineDigest {
    LineDigest::of_line(RESET.as_bytes())
}

/// Acknowledgement of the line of a reset, which has no position.
const RESET: &str = "reset";

fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}

impl AckText {
    fn parse(text: &str) -> Result<Self, AckError> {
        let malformed = || AckError::Form(shortened(text));
        if !text.starts_with('{') {
            let position = Some(text.to_owned()).filter(|text| !text.is_empty()).ok_or_else(malformed)?;
            return Ok(Self { position: Some(position), ..Self::default() });
        }
        let mut ack: Self = serde_json::from_str(text).map_err(|_| malformed())?;
        if ack.op.as_deref() == Some(RESET) {
            ack.position = Some(RESET.into());
        }
        if ack.position.is_none() { Err(malformed()) } else { Ok(ack) }
    }
}
