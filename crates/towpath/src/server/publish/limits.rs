//! Limits of what is published in one request.

/// Largest content of an item over HTTP, in bytes.
// A body is held in memory as a whole while it is appended.
pub(in crate::server) const MAX_CONTENT: usize = 64 << 20;
/// Limit of changes in a batch, which is appended atomically.
pub(super) const MAX_LINES: usize = 10_000;

#[cfg(test)]
mod tests {
    use towpath_proto::format::DocumentLimits;

    use super::MAX_CONTENT;

    /// Followers read at default limits what publishing takes, in Base64, too.
    #[test]
    fn the_largest_content_is_within_the_default_limits_of_followers() {
        assert!(DocumentLimits::default().string > MAX_CONTENT.div_ceil(3) * 4);
    }
}
