//! What must be there so that a write is made, as a log carries it.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::{Condition, Table};

/// A [`Condition`], as a log carries it.
#[derive(Debug)]
pub(crate) struct Demand {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
    pub(super) value: Demanded,
}

/// What must be there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Demanded {
    Nothing,
    Value(Bytes),
    /// The value of which this is the SHA-256.
    Digest([u8; 32]),
}

impl Demanded {
    /// Whether that is there.
    pub(super) fn is(&self, there: Option<&Bytes>) -> bool {
        match (self, there) {
            (Self::Nothing, there) => there.is_none(),
            (Self::Value(value), there) => there == Some(value),
            (Self::Digest(digest), Some(there)) => Sha256::digest(there)[..] == digest[..],
            (Self::Digest(_), None) => false,
        }
    }
}

impl From<Condition> for Demand {
    fn from(Condition { table, key, value }: Condition) -> Self {
        Self { table, key, value: value.map_or(Demanded::Nothing, Demanded::Value) }
    }
}

impl Demand {
    /// The same with a digest where that is shorter: what is kept of a chain may be long, and is in the log already.
    pub(crate) fn short(self) -> Self {
        match self.value {
            Demanded::Value(value) if value.len() > 32 => {
                Self { value: Demanded::Digest(Sha256::digest(&value).into()), ..self }
            }
            _ => self,
        }
    }
}
