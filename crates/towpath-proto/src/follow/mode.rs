//! End of a follow.

/// End of a follow: once it has caught up, or never by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FollowMode {
    /// Delivers all current changes and ends. It also ends at a failure, so that the caller decides about a retry.
    CatchUp,
    /// Waits for further changes without end, and retries after failures.
    #[default]
    Continuous,
}
