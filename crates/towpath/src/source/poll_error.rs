//! Errors of a poll, and what is saved of them.

use std::time::Duration;

use towpath_proto::diff::GuardError;
use towpath_proto::format::FormatError;
use towpath_store::{AppendError, ReadError};

use super::load::LoadError;
use super::state::SourceFailure;
use crate::store_error::StoreError;

/// A poll failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PollError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{address}: {source}")]
    Format { address: String, source: FormatError },
    #[error("{address}: {source}")]
    Guard { address: String, source: GuardError },
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("reading the document failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

impl From<ReadError> for PollError {
    fn from(error: ReadError) -> Self {
        Self::Store(error.into())
    }
}

impl PollError {
    /// Returns how long the server asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Load(LoadError::Status { retry_after, .. }) => *retry_after,
            _ => None,
        }
    }

    /// Returns the error as it is saved and shown.
    pub(super) fn to_source_error(&self) -> SourceFailure {
        let message = self.to_string();
        let code = match self {
            Self::Load(LoadError::Status { status, .. }) => {
                return SourceFailure::from_status(*status, message);
            }
            Self::Load(LoadError::Paging { .. }) => "PAGING",
            Self::Load(LoadError::Broken(_)) => "INTERNAL_ERROR",
            Self::Load(LoadError::Transfer { source, .. }) => {
                return SourceFailure::from_transfer(source, message);
            }
            Self::Format { source: FormatError::Truncated { .. }, .. } => "TRUNCATED",
            Self::Format { .. } => "PARSE_ERROR",
            Self::Guard { .. } => "GUARD",
            Self::Append(_) | Self::Store(_) => "STORE_ERROR",
            Self::Broken(_) => "INTERNAL_ERROR",
        };
        SourceFailure::new(code, message)
    }
}
