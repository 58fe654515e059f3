//! State of a store that operators see: lag, failures, damage and counts.

use std::time::Duration;

use jiff::Timestamp;

/// Lag of a replica behind the log that it applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Last time, by this node's clock, at which the replica had the whole log; `None` if not since it was opened.
    pub current_at: Option<Timestamp>,
    /// Known reason why it is not current now.
    pub problem: Option<String>,
}

/// State of the log that a replica applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStatus {
    /// Sequence number of the oldest message that the log still has.
    pub first: u64,
    /// Sequence number of the newest message.
    pub last: u64,
    /// Number of messages.
    pub messages: u64,
    /// Size of the messages, in bytes.
    pub bytes: u64,
    /// Sequence number up to which this node has applied the log.
    pub applied: u64,
    /// Feature level of the cluster.
    pub level: u8,
    /// Highest feature level that this node supports.
    pub supported_level: u8,
    /// Last snapshot, from which new nodes begin.
    pub snapshot: Option<LogSnapshot>,
}

/// Snapshot of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSnapshot {
    /// Sequence number of the last message that it covers.
    pub sequence: u64,
    /// Time at which it was begun.
    pub made: Timestamp,
}

/// Failure of the log's upkeep. The next pass tries again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LogUpkeepError(pub String);

/// Reason why nothing can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFailure {
    /// Error of the write or the flush that failed, or the free space.
    pub reason: String,
    /// The store does not recover by itself: the process has to be restarted.
    pub is_final: bool,
    /// Less space is free than is reserved. Once there is space, writes go on by themselves, or the failure is final.
    pub is_full: bool,
}

/// Damaged data that reads have met since the store was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreDamage {
    /// Number of reads that failed for it.
    pub reads: u64,
    /// Error of the first one, with the folder.
    pub first: String,
}

/// Commits since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Groups of requests, each with one sync.
    pub groups: u64,
    /// Appends and writes in these groups.
    pub requests: u64,
    /// Time of writing and syncing.
    pub commit_time: Duration,
    /// Groups that could not be written.
    pub errors: u64,
    /// Size of the store on disk in bytes.
    pub bytes: u64,
}
