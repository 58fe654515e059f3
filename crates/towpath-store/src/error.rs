//! Errors of the store: one type per operation.
//!
//! Each variant says whose fault it is. [`AppendError::Invalid`], [`AppendError::Patch`] and
//! [`WriteError::KeyTooLong`] are the caller's. [`AppendError::Conflict`],
//! [`AppendError::ItemConflict`] and [`WriteError::Precondition`] are lost races: read again and retry. Everything
//! else is the fault of the store or of the machine below it.

use std::fmt;
use std::time::Duration;

use towpath_proto::change::Seq;
use towpath_proto::feed_id::FeedId;
use towpath_proto::patch::PatchError;

use crate::Table;

/// Failure to open a data folder. The reason says what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the data folder {folder}: {reason}")]
pub struct OpenError {
    /// Path of the folder.
    pub folder: String,
    /// Cause, and the remedy where there is one.
    pub reason: String,
}

/// Failure of a read. The caller's request was correct.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The storage engine cannot read its files.
    #[error("cannot read {target}: {reason}")]
    Storage {
        /// Data that was read.
        target: ReadTarget,
        /// The engine's error.
        reason: String,
    },
    /// Stored bytes are not what the store wrote. `towpath verify` lists every such place.
    #[error("damaged data in {target}: {reason}")]
    Damaged {
        /// Data that was read.
        target: ReadTarget,
        /// The difference from the stored format.
        reason: String,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// Data that a failed read was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadTarget {
    /// A feed: its head, log or items.
    Feed(FeedId),
    /// The list of all feeds.
    Feeds,
    /// A key of a table, or the keys with a prefix.
    Table(Table, Vec<u8>),
    /// Every keyspace of the store.
    Everything,
}

impl fmt::Display for ReadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Feed(feed) => write!(f, "feed {feed}"),
            Self::Feeds => f.write_str("the list of feeds"),
            Self::Table(table, key) => write!(f, "{}", TableKey(*table, key)),
            Self::Everything => f.write_str("the store"),
        }
    }
}

/// Display of a table and a key, as errors name them.
struct TableKey<'a>(Table, &'a [u8]);

impl fmt::Display for TableKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}, key {:?}", self.0.name(), String::from_utf8_lossy(self.1))
    }
}

/// Failure of an append. Except after [`AppendError::UnknownOutcome`], nothing of the batch is in the log.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another append came first: the log does not end where the caller expected.
    #[error("conflict in feed {feed}: expected the log to end at {expected}, and it ends at {actual}")]
    Conflict {
        /// The feed.
        feed: FeedId,
        /// Position from [`Expected::Last`](crate::Expected::Last).
        expected: Seq,
        /// Position at which the log ends.
        actual: Seq,
    },
    /// The item changed concurrently: its latest version is not the one that the caller expected.
    #[error("conflict in feed {feed}: item {id:?} changed concurrently")]
    ItemConflict {
        /// The feed.
        feed: FeedId,
        /// Id of the item.
        id: String,
        /// Position of its latest version; `None` if there is no such item, or it is deleted.
        actual: Option<Seq>,
    },
    /// A change cannot be stored. The caller's fault.
    #[error("feed {feed}, change {} of the batch: {reason}", index + 1)]
    Invalid {
        /// The feed.
        feed: FeedId,
        /// Index of the change in the batch, from 0.
        index: usize,
        /// The rule that it breaks.
        reason: String,
    },
    /// A patch does not apply to the item's latest version. The caller's fault, or a lost race.
    #[error("feed {feed}, change {} of the batch, item {id:?}: {source}", index + 1)]
    Patch {
        /// The feed.
        feed: FeedId,
        /// Index of the change in the batch, from 0.
        index: usize,
        /// Id of the item.
        id: String,
        /// The reason.
        source: PatchError,
    },
    /// The storage engine cannot write: a full disk, a read-only folder, an earlier failure.
    ///
    /// The batch cannot be read now. It may be there, whole, after the store is opened again.
    #[error("cannot append to feed {feed}: {reason}")]
    Storage {
        /// The feed.
        feed: FeedId,
        /// The engine's error.
        reason: String,
    },
    /// A read that the append needs failed.
    #[error("cannot append: {0}")]
    Read(#[source] ReadError),
    /// The cluster does not take the append now. It was not published to the log.
    #[error("append to feed {feed} refused, nothing was written: {reason}")]
    Refused {
        /// The feed.
        feed: FeedId,
        /// State of the cluster.
        reason: String,
        /// Time after which a retry makes sense.
        retry_after: Duration,
    },
    /// The cluster did not confirm the append. It may be in the log, now or later.
    #[error("append to feed {feed} has an unknown outcome: {reason}")]
    UnknownOutcome {
        /// The feed.
        feed: FeedId,
        /// State of the cluster.
        reason: String,
        /// Time after which a retry makes sense.
        retry_after: Duration,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

/// Failure of a batch of table writes. Except after [`WriteError::UnknownOutcome`], nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A [`Precondition`](crate::Precondition) did not hold.
    #[error("precondition failed: {} changed concurrently", TableKey(*table, key))]
    Precondition {
        /// Table of the row that changed.
        table: Table,
        /// Key of the row that changed.
        key: Vec<u8>,
    },
    /// A key is longer than [`MAX_KEY_BYTES`](crate::embedded::MAX_KEY_BYTES). The caller's fault.
    #[error("table {}: a key of {length} bytes exceeds the limit of {max} bytes", table.name(), max = crate::embedded::MAX_KEY_BYTES)]
    KeyTooLong {
        /// Table of the write.
        table: Table,
        /// Length of its key.
        length: usize,
    },
    /// The storage engine cannot write: a full disk, a read-only folder, an earlier failure.
    #[error("cannot write to the tables: {reason}")]
    Storage {
        /// The engine's error.
        reason: String,
    },
    /// A read that the write needs failed.
    #[error("cannot write to the tables: {0}")]
    Read(#[source] ReadError),
    /// The cluster does not take the write now. It was not published to the log.
    #[error("table write refused, nothing was written: {reason}")]
    Refused {
        /// State of the cluster.
        reason: String,
        /// Time after which a retry makes sense.
        retry_after: Duration,
    },
    /// The cluster did not confirm the write. It may be applied, now or later.
    #[error("table write has an unknown outcome: {reason}")]
    UnknownOutcome {
        /// State of the cluster.
        reason: String,
        /// Time after which a retry makes sense.
        retry_after: Duration,
    },
    /// The store is closed.
    #[error("the store is closed")]
    Closed,
}

impl From<ReadError> for AppendError {
    fn from(error: ReadError) -> Self {
        match error {
            // Callers match on one variant for a closed store, whatever step found it closed.
            ReadError::Closed => Self::Closed,
            error => Self::Read(error),
        }
    }
}

impl From<ReadError> for WriteError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed => Self::Closed,
            error => Self::Read(error),
        }
    }
}

impl WriteError {
    /// Returns true where a concurrent write won the race: read again and retry.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Precondition { .. })
    }
}

/// Failure of a check that a lease is still held.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The lease's term is over: another node may hold the role by now.
    #[error("lease of role {role} is no longer current: another node may hold it")]
    Expired {
        /// The role.
        role: String,
    },
}

/// Failure of a replica that cannot apply the log any further.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The storage engine cannot write.
    #[error("cannot write: {0}")]
    Write(String),
    /// A read from the replica failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The replica's own state, or a message of the log, cannot be decoded.
    #[error("damaged replica: {0}")]
    Damaged(String),
}

/// Failure inside the engine, before the operation adds the name of what it was for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StorageError {
    /// The engine cannot read its files.
    #[error("{0}")]
    Read(String),
    /// Stored bytes are not what was written.
    #[error("{0}")]
    Damaged(String),
}

impl StorageError {
    /// Adds the data that was read.
    pub(crate) fn of(self, target: ReadTarget) -> ReadError {
        match self {
            Self::Read(reason) => ReadError::Storage { target, reason },
            Self::Damaged(reason) => ReadError::Damaged { target, reason },
        }
    }
}

impl From<StorageError> for ReplicaError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Damaged(reason) => Self::Damaged(reason),
            // A group spans many feeds and tables: no single name fits.
            StorageError::Read(_) => Self::Read(error.of(ReadTarget::Everything)),
        }
    }
}
