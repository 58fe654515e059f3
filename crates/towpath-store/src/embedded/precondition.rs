//! Preconditions of table writes, in the form that a cluster's log carries.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::{Precondition, Table};

/// A [`Precondition`] of which the log may carry only a digest.
#[derive(Debug)]
pub(crate) struct LoggedPrecondition {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
    pub(super) value: LoggedValue,
}

/// Expected value of a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LoggedValue {
    Absent,
    Value(Bytes),
    /// SHA-256 of the value.
    Digest([u8; 32]),
}

impl LoggedValue {
    /// Returns true where the current value is the expected one.
    pub(super) fn matches(&self, current: Option<&Bytes>) -> bool {
        match (self, current) {
            (Self::Absent, current) => current.is_none(),
            (Self::Value(value), current) => current == Some(value),
            // Equal digests count as equal values: SHA-256 has no known collisions.
            (Self::Digest(digest), Some(current)) => Sha256::digest(current)[..] == digest[..],
            (Self::Digest(_), None) => false,
        }
    }
}

impl From<Precondition> for LoggedPrecondition {
    fn from(Precondition { table, key, value }: Precondition) -> Self {
        Self { table, key, value: value.map_or(LoggedValue::Absent, LoggedValue::Value) }
    }
}

impl LoggedPrecondition {
    /// Replaces a value of more than 32 bytes with its digest.
    ///
    /// Chain states are long, and the log has them already from the write before.
    pub(crate) fn shorten(self) -> Self {
        match self.value {
            // Up to 32 bytes, the digest would be no shorter.
            LoggedValue::Value(value) if value.len() > 32 => {
                Self { value: LoggedValue::Digest(Sha256::digest(&value).into()), ..self }
            }
            _ => self,
        }
    }
}
