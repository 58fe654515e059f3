//! Errors of opening a node's store.

use towpath_store::{OpenError, ReplicaError};

/// Failure to open a node of a cluster. The reason says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The address cannot be parsed: a fault of the configuration.
    #[error(
        "invalid cluster address: {reason}; an address is like nats://user:password@host:4222,host:4222?name=NAME"
    )]
    Address {
        /// The fault, without any part of the address that may be a password.
        reason: String,
    },
    /// The cluster cannot be reached, or its log cannot be followed.
    #[error("cannot use the cluster at {address}: {reason}")]
    Unusable {
        /// The address, without user and password.
        address: String,
        /// State of the cluster.
        reason: String,
    },
    /// This program is too old for the cluster.
    #[error("cannot join the cluster at {address}: {reason}")]
    TooOld {
        /// The address, without user and password.
        address: String,
        /// Levels of the cluster and of this program.
        reason: String,
    },
    /// The folder of this node's replica cannot be opened.
    #[error(transparent)]
    Folder(#[from] OpenError),
    /// The replica's own position in the log cannot be read.
    #[error("cannot read this node's replica in {folder}: {source}")]
    Replica {
        /// Path of the replica's folder.
        folder: String,
        /// The reason.
        source: ReplicaError,
    },
    /// The operating system refused a thread.
    #[error("cannot start the thread that applies the log: {0}")]
    Thread(std::io::Error),
}
