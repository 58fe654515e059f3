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
    /// The documents before that one within its second; `None` if not all of them are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) same_second: Option<SameSecond>,
    /// The next document, if it was delivered in part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) partial: Option<PartialDocument>,
    /// Start time; earlier changes are not delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) since: Option<Timestamp>,
    /// ETag of the polled document, so that a program started anew polls conditionally, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) validator: Option<PollValidator>,
    /// Cursor of the first document of the chain, if it is known; tells the chain from one that begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<String>,
    /// Number of passes in a row whose latest document was older than the delivered one.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub(super) older: u32,
    /// True if a cursor of this publisher was proved. From then on, an unproved one is an error.
    #[serde(default)]
    pub(super) verified: bool,
    /// True if an index of this publisher was read. From then on, one that is missing is an error for some passes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) has_index: bool,
    /// Number of passes in a row whose index was missing, or lagged behind the delivered state or the latest document.
    // Stored, so that one-shot follows give up on such an index too.
    #[serde(default)]
    pub(super) lags: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_none_yet(count: &u32) -> bool {
    *count == 0
}

/// Largest number of known documents of one second.
const MAX_SAME_SECOND: usize = 100;

/// ETag of the head, or of the latest document where there is no head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PollValidator {
    pub(super) etag: String,
    /// Cursor of the document. The ETag counts only once that cursor was delivered.
    pub(super) cursor: String,
}

/// The documents before one of the same second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SameSecond {
    /// Cursor of the document. Followers in other languages may move the state on, and keep this as it was.
    cursor: String,
    /// Cursors of the documents before it.
    earlier: Vec<String>,
}

/// A document that was delivered in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartialDocument {
    pub(super) cursor: String,
    /// Number of the last delivered change, from 1.
    pub(super) delivered: usize,
}

/// Returns the position after a change of a document: its cursor and the number of the change.
pub(super) fn position(cursor: &str, number: usize) -> String {
    format!("{cursor}/{number}")
}

impl DiffDeltaFollowState {
    /// Creates the state after a position: a cursor, or a cursor and the number of a change of its document. Any other
    /// text is none.
    pub(super) fn after(position: &str) -> Option<Self> {
        let (cursor, number) = match position.split_once('/') {
            Some((cursor, number)) => (cursor, Some(number)),
            None => (position, None),
        };
        // Anything else would start a follower that never finds its place.
        if !is_of_version_1_0_0(cursor) {
            cursor.parse::<Cursor>().ok()?;
        }
        let Some(number) = number else {
            return Some(Self { cursor: Some(cursor.to_owned()), ..Self::default() });
        };
        let partial = PartialDocument { cursor: cursor.to_owned(), delivered: number.parse().ok()? };
        Some(Self { partial: Some(partial), ..Self::default() })
    }

    /// Records a completely delivered document. `prev_cursor` is the one that it states, if it states any.
    pub(super) fn record_document(&mut self, cursor: &str, generated_at: &str, prev_cursor: Option<&str>) {
        let follows = prev_cursor.is_some_and(|prev| match self.cursor.as_deref() {
            Some(delivered) => delivered == prev,
            None => is_zero(prev),
        });
        let is_same_second = self.generated_at.as_deref() == Some(generated_at);
        let before = self.same_second.take().filter(|known| Some(&known.cursor) == self.cursor.as_ref());
        let earlier = match (follows, is_same_second) {
            (false, _) => None,
            (true, false) => Some(Vec::new()),
            (true, true) => before.map(|known| [known.earlier, vec![known.cursor]].concat()),
        };
        let earlier = earlier.filter(|list| list.len() <= MAX_SAME_SECOND);
        self.same_second = earlier.map(|earlier| SameSecond { cursor: cursor.to_owned(), earlier });
        if prev_cursor.is_some_and(is_zero) {
            self.origin = Some(cursor.to_owned());
        }
        self.cursor = Some(cursor.to_owned());
        self.generated_at = Some(generated_at.to_owned());
        self.partial = None;
    }

    /// Returns true if a document of the second of the last one may be an earlier one of the same chain.
    pub(super) fn may_precede(&self, cursor: &str) -> bool {
        let known = self.same_second.as_ref().filter(|known| Some(&known.cursor) == self.cursor.as_ref());
        known.is_none_or(|known| known.earlier.iter().any(|earlier| earlier == cursor))
    }

    /// Returns the cursor of the last document that was delivered at least in part.
    pub(super) fn latest_known(&self) -> Option<&str> {
        let partial = || self.partial.as_ref().map(|partial| partial.cursor.as_str());
        self.cursor.as_deref().or_else(partial)
    }

    /// Returns the number of delivered changes of the document with this cursor.
    pub(super) fn delivered_of(&self, cursor: &str) -> usize {
        self.partial.as_ref().filter(|p| p.cursor == cursor).map_or(0, |p| p.delivered)
    }
}

/// Returns true for a cursor of the public publisher's first documents: a time, a bar and a digest.
fn is_of_version_1_0_0(cursor: &str) -> bool {
    let parts = cursor.split_once('|');
    parts.is_some_and(|(time, digest)| time.parse::<Timestamp>().is_ok() && !digest.is_empty())
}

/// Returns true for the zero cursor: the source never had a successful fetch (section 2.1).
pub(super) fn is_zero(cursor: &str) -> bool {
    cursor.parse() == Ok(Cursor::ZERO)
}
