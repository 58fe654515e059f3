//! Failures of mirrors, and how the status of a source shows them.

use towpath_client::{DiscoverError, FindRouteError};
use towpath_proto::follow::FollowError;
use towpath_store::{AppendError, ReadError, WriteError};

use crate::engine::disk::NoRoom;
use crate::source::state::SourceFailure;
use crate::store_error::StoreError;

/// An attempt to mirror failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum MirrorError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Follow(#[from] FollowError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot copy {url}: {source}")]
    Room { url: String, source: NoRoom },
    #[error(
        "{url} has changes of several sources, such as {first} and {second}, whose items may have the same ids: mirror \
         each source by a feed of its own, at an address like /diff/{second}/head.json"
    )]
    SeveralSources { url: String, first: String, second: String },
    #[error("an entity is larger than {limit} bytes (limit: [server] large_content_mib)")]
    EntityTooLarge { limit: u64 },
}

impl MirrorError {
    pub(super) fn to_source_error(&self) -> SourceFailure {
        let message = self.to_string();
        let code = match self {
            Self::Discover(DiscoverError::Transfer { source, .. }) => {
                return SourceFailure::from_transfer(source, message);
            }
            Self::Discover(DiscoverError::Status { status, .. }) => {
                return SourceFailure::from_status(*status, message);
            }
            Self::Discover(_) => "NOT_FOLLOWABLE",
            Self::Follow(error) => return source_failure(error),
            // The patch type is not supported, or the local item differs from the publisher's. Skipping it would corrupt
            // the mirror, so it stops at this position.
            Self::Append(AppendError::Patch { .. }) => "PATCH_NOT_APPLICABLE",
            Self::SeveralSources { .. } => "SEVERAL_SOURCES",
            Self::EntityTooLarge { .. } => "TOO_LARGE",
            Self::Append(_) | Self::Store(_) | Self::Room { .. } => "STORE_ERROR",
        };
        SourceFailure::new(code, message)
    }
}

impl From<FindRouteError> for MirrorError {
    fn from(error: FindRouteError) -> Self {
        match error {
            FindRouteError::Discover(error) => Self::Discover(error),
            other => Self::Follow(other.into()),
        }
    }
}

impl From<ReadError> for MirrorError {
    fn from(error: ReadError) -> Self {
        Self::Store(error.into())
    }
}

impl From<WriteError> for MirrorError {
    fn from(error: WriteError) -> Self {
        Self::Store(error.into())
    }
}

pub(super) fn source_failure(error: &FollowError) -> SourceFailure {
    let message = error.to_string();
    match error {
        FollowError::Transfer { source, .. } => SourceFailure::from_transfer(source, message),
        FollowError::Status { status, .. } => SourceFailure::from_status(*status, message),
        FollowError::Protocol { .. } => SourceFailure::new("PROTOCOL_ERROR", message),
        _ => SourceFailure::new("CONFIG_ERROR", message),
    }
}
