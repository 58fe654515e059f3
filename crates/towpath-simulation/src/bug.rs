//! Bugs that are planted on purpose, to see that the simulation finds them.
//!
//! Each is made at a seam of the simulation: the program's code has none of them, and no branch for them.

use clap::ValueEnum;

/// A planted bug. On the command line its name is in lower case, with hyphens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
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
    /// Writes to a full disk look as if they had worked.
    IgnoreFullDisk,
    /// A webhook's position is saved before the message is delivered.
    PositionFirst,
    /// A delivery of the hub that fails counts as delivered.
    FailedIsDelivered,
}

impl Bug {
    /// Returns the name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
