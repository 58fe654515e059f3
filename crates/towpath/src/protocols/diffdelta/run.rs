//! The runs of sources, which end in DiffDelta documents.

use jiff::Timestamp;
use towpath_proto::diffdelta::publish::SourceHealth;

/// Result of a source's run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// A poll succeeded, with or without changes.
    Polled,
    /// Changes were published to the feed. A feed without a source is healthy from the start.
    Moved,
    /// A poll failed.
    Failed {
        /// Error code: `HTTP_503`, `TIMEOUT`, …
        code: String,
        /// HTTP status, if there was a response.
        http_status: Option<u16>,
    },
    /// The source is disabled in the configuration.
    Disabled,
}

impl Run {
    /// Applies the result to the source's health.
    pub(super) fn apply(&self, health: &mut SourceHealth, now: Timestamp) {
        match self {
            Self::Polled | Self::Moved => health.succeeded(now),
            Self::Failed { code, http_status } => health.failed(code.clone(), *http_status),
            // "DISABLED" is then the source's error (section 5).
            Self::Disabled => health.disabled = true,
        }
    }

    /// Returns true if the source is healthy.
    pub(super) fn is_success(&self) -> bool {
        matches!(self, Self::Polled | Self::Moved)
    }

    /// Returns true if documents show the run although nothing changed.
    pub(super) fn is_shown(&self) -> bool {
        // An append without deltas has nothing to show; a poll shows that the source is alive.
        *self != Self::Moved
    }
}
