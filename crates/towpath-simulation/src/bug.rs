//! Bugs that are planted on purpose, to see that the simulation finds them.
//!
//! Each is made at a seam of the simulation: the program's code has none of them, and no branch for them.

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Syncs return without having synced.
    DropSync,
    /// An append is acknowledged and shown before it is durable.
    TellBeforeDurable,
    /// An append's expected position is not checked.
    IgnoreExpected,
    /// Some appends call no hooks: documents stay, and nobody is woken.
    LoseHook,
    /// A follower saves its checkpoint before the changes that it covers.
    CheckpointFirst,
    /// A follower goes on from the checkpoint before its last one.
    ReuseCursor,
    /// A follower loses the last change of some batches.
    DropChange,
    /// Answers that are cut off look like whole ones.
    TruncateAnswer,
    /// A cache answers requests with what it has, without asking.
    StaleCache,
    /// Conditional requests are sometimes answered 304 without a look at the document.
    FalseNotModified,
    /// A publisher's request that got no answer is taken for done.
    AssumeDone,
    /// A follower ignores deletions.
    IgnoreDeletions,
}

impl Bug {
    /// All planted bugs.
    pub const ALL: [Self; 12] = [
        Self::DropSync,
        Self::TellBeforeDurable,
        Self::IgnoreExpected,
        Self::LoseHook,
        Self::CheckpointFirst,
        Self::ReuseCursor,
        Self::DropChange,
        Self::TruncateAnswer,
        Self::StaleCache,
        Self::FalseNotModified,
        Self::AssumeDone,
        Self::IgnoreDeletions,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::DropSync => "drop-sync",
            Self::TellBeforeDurable => "tell-before-durable",
            Self::IgnoreExpected => "ignore-expected",
            Self::LoseHook => "lose-hook",
            Self::CheckpointFirst => "checkpoint-first",
            Self::ReuseCursor => "reuse-cursor",
            Self::DropChange => "drop-change",
            Self::TruncateAnswer => "truncate-answer",
            Self::StaleCache => "stale-cache",
            Self::FalseNotModified => "false-not-modified",
            Self::AssumeDone => "assume-done",
            Self::IgnoreDeletions => "ignore-deletions",
        }
    }

    /// Returns the bug of a name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|bug| bug.name() == name)
    }
}
