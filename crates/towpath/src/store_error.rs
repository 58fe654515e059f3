//! Error of operations of the program that read and write the store.

use std::time::Duration;

use towpath_store::{AppendError, LeaseError, ReadError, WriteError};

/// Failure of an operation that reads from the store and writes to it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write to the tables failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// An append failed.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The lease that the operation runs under is over.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A stored record cannot be decoded.
    #[error("damaged data in the store: {0}")]
    Damaged(String),
    /// A record cannot be encoded.
    #[error("cannot encode a record for the store: {0}")]
    Encode(String),
    /// A fault of the program.
    #[error("internal error: {0}")]
    Internal(String),
    /// Others changed the same records at each of the tries.
    #[error("{0}; try again")]
    Contended(&'static str),
    /// This node's replica does not have the data yet; another node does.
    #[error("not available on this node yet: {reason}")]
    Unavailable {
        /// The missing data.
        reason: String,
        /// Time after which a retry makes sense.
        retry_after: Duration,
    },
}

impl StoreError {
    /// Returns true where another writer, or another holder of the lease, came first.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Write(error) => error.is_conflict(),
            // An expired lease says what a lost precondition says: another node may have written.
            Self::Lease(LeaseError::Expired { .. }) => true,
            _ => false,
        }
    }

    /// Returns true where nothing can be written for now: a full disk, or a cluster that is not reachable.
    pub fn is_transient(&self) -> bool {
        self.is_storage() || self.retry_after().is_some()
    }

    /// Returns true where the storage engine refuses to write.
    pub fn is_storage(&self) -> bool {
        matches!(
            self,
            Self::Write(WriteError::Storage { .. } | WriteError::KeyTooLong { .. }) | Self::Encode(_)
        )
    }

    /// Returns true where stored data cannot be decoded. Other data may be sound.
    pub fn is_damage(&self) -> bool {
        let read = match self {
            Self::Damaged(_) => return true,
            Self::Read(error)
            | Self::Append(AppendError::Read(error))
            | Self::Write(WriteError::Read(error)) => error,
            _ => return false,
        };
        matches!(read, ReadError::Damaged { .. })
    }

    /// Returns true where the store is being closed.
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Read(ReadError::Closed) | Self::Write(WriteError::Closed))
    }

    /// Time after which a retry makes sense, where the cluster or a replica has to catch up first.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Write(
                WriteError::Refused { retry_after, .. } | WriteError::UnknownOutcome { retry_after, .. },
            )
            | Self::Unavailable { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }
}
