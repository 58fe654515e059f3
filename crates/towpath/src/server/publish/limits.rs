//! Limits of what is published in one request.

/// Largest content of an item over HTTP, in bytes.
// A body is held in memory as a whole while it is appended.
pub(in crate::server) const MAX_CONTENT: usize = 64 << 20;
/// Limit of changes in a batch, which is appended atomically.
pub(super) const MAX_LINES: usize = 10_000;
