//! Result of a poll.

use std::time::Duration;

use towpath_proto::format::ProblemCounts;

use super::state::SourceFailure;

/// Result of a poll.
#[derive(Debug, Default)]
pub struct PollSummary {
    /// Number of items that are new or came back.
    pub new: usize,
    /// Number of items whose content changed.
    pub updated: usize,
    /// Number of removed items.
    pub removed: usize,
    /// Number of unchanged items; `None` if the document was unchanged and therefore not parsed.
    pub unchanged: Option<usize>,
    /// Size of the document; `None` if none came, or it was not modified.
    pub bytes: Option<u64>,
    /// Problems of the document, the first of each kind.
    pub problems: Vec<String>,
    /// Numbers of all problems.
    pub counts: ProblemCounts,
    /// Error of a failed poll.
    pub error: Option<SourceFailure>,
    /// Wait until the next poll.
    pub next: Duration,
    /// The publisher ended the source (410): there is no next poll.
    pub ended: bool,
}
