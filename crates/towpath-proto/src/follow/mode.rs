//! When a follow ends.

/// When a follow ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FollowMode {
    /// Delivers all current changes and ends. It also ends at a failure, so that the caller decides about a retry.
    CatchUp,
    /// Waits for further changes without end, and retries after failures.
    #[default]
    Continuous,
}
