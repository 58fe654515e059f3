//! A page: the result of a pull request.

use jiff::Timestamp;

use super::cursor::LogTag;
use crate::change::{Change, Seq};
use crate::smart::wire::spec::OrderBy;

/// Result of a pull request, independent of its format.
#[derive(Debug, Clone, PartialEq)]
pub struct PullPage {
    /// The items in the requested order, as the reader may see them.
    pub changes: Vec<Change>,
    /// Cursor of the last item; of an empty page the cursor of the request, if it had one.
    pub last_cursor: Option<String>,
    /// True if the log has more after `last_cursor` now.
    pub more: bool,
    /// Number of items that the reader may see, tombstones included.
    pub total: u64,
    /// Time of the feed's last change; the Unix epoch if it has none.
    pub updated: Timestamp,
    /// True if `since` is a cursor of another log or order, or behind the horizon: the page begins at the log's start.
    pub reset: bool,
    /// Horizon of the log when it was read.
    pub horizon: Seq,
}

impl PullPage {
    /// Returns a page without items.
    pub fn empty(total: u64, updated: Timestamp) -> Self {
        Self { changes: Vec::new(), last_cursor: None, more: false, total, updated, reset: false, horizon: 0 }
    }

    /// Returns the cursor of an item of the page.
    pub fn cursor(&self, tag: &LogTag, by: OrderBy, change: &Change) -> String {
        tag.cursor_within(by, by.position(change), self.horizon)
    }
}
