//! What a follower keeps between runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::diffdelta::Cursor;

/// A follower's state, as its checkpoints hold it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The cursor of the last document that was handed over whole; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<String>,
    /// When that document was made: tells apart two snapshots with one cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) generated_at: Option<String>,
    /// The document after it, where only a part of that was handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) partial: Option<Partial>,
    /// Only changes from this time on are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
    /// Whether this publisher's cursors recompute: from then on one that does not is an error.
    #[serde(default)]
    pub(super) verified: bool,
}

/// A document of which a part was handed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Partial {
    pub(super) cursor: String,
    /// How many of its changes.
    pub(super) delivered: usize,
}

impl State {
    /// How many changes of the document with this cursor were handed over already.
    pub(super) fn delivered_of(&self, cursor: &str) -> usize {
        self.partial.as_ref().filter(|p| p.cursor == cursor).map_or(0, |p| p.delivered)
    }
}

/// Whether a cursor says that the source never had a successful fetch (section 2.1).
pub(super) fn is_zero(cursor: &str) -> bool {
    cursor.parse() == Ok(Cursor::ZERO)
}
