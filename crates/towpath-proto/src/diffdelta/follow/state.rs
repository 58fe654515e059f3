//! The persistent state of a follower.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::diffdelta::wire::cursor::Cursor;

/// State of a follower, as its checkpoints contain it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DiffDeltaFollowState {
    /// Cursor of the last completely delivered document; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cursor: Option<String>,
    /// Time of that document; tells apart two snapshots with one cursor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) generated_at: Option<String>,
    /// The next document, if it was delivered in part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) partial: Option<PartialDocument>,
    /// Start time; earlier changes are not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
    /// True if a cursor of this publisher was proved. From then on, an unproved one is an error.
    #[serde(default)]
    pub(super) verified: bool,
}

/// A document that was delivered in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartialDocument {
    pub(super) cursor: String,
    /// Number of delivered changes.
    pub(super) delivered: usize,
}

impl DiffDeltaFollowState {
    /// Returns the number of delivered changes of the document with this cursor.
    pub(super) fn delivered_of(&self, cursor: &str) -> usize {
        self.partial.as_ref().filter(|p| p.cursor == cursor).map_or(0, |p| p.delivered)
    }
}

/// Returns true for the zero cursor: the source never had a successful fetch (section 2.1).
pub(super) fn is_zero(cursor: &str) -> bool {
    cursor.parse() == Ok(Cursor::ZERO)
}
