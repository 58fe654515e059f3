//! The tables beside the logs, and conditional writes to them.

use bytes::Bytes;

/// Table beside the logs. Keys are arbitrary bytes, ordered bytewise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// State of each source: validators, errors, schedule.
    Sources,
    /// State and indexes of document chains: DiffDelta's cursors, snapshot lists.
    Chains,
    /// Whole immutable documents: archives, snapshots.
    Documents,
    /// Push subscriptions.
    Subscriptions,
    /// Leases of the roles that one node at a time may hold.
    Leases,
}

impl Table {
    /// Name of the table in errors and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sources => "sources",
            Self::Chains => "chains",
            Self::Documents => "documents",
            Self::Subscriptions => "subscriptions",
            Self::Leases => "leases",
        }
    }
}

/// Write of one key of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableWrite {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` removes the key.
    pub value: Option<Bytes>,
}

/// Condition of a batch of table writes: the row must have this value when the batch is applied.
///
/// ```
/// # use towpath_store::{Precondition, Table};
/// // The batch creates the row: it must not exist yet.
/// let absent = Precondition { table: Table::Chains, key: b"orders".to_vec(), value: None };
/// # let _ = absent;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Precondition {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The expected value; `None` expects no row.
    pub value: Option<Bytes>,
}
