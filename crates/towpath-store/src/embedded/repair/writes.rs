//! Writes to the new store that wait for their batch.

use std::collections::BTreeMap;

use fjall::Keyspace;

use super::RepairError;
use crate::embedded::storage_engine::{DiskNeed, StorageEngine};

/// Bytes of a batch.
const LARGE: usize = 4 << 20;

/// Name of a keyspace, and a key in it.
type RowKey = (String, Vec<u8>);

/// Rows to write. The last write of a key counts: the entries of an engine's batch have no order.
pub(super) struct PendingWrites<'a> {
    engine: &'a StorageEngine,
    rows: BTreeMap<RowKey, (Keyspace, Option<Vec<u8>>)>,
    bytes: usize,
}

impl<'a> PendingWrites<'a> {
    pub(super) fn new(engine: &'a StorageEngine) -> Self {
        Self { engine, rows: BTreeMap::new(), bytes: 0 }
    }

    pub(super) fn put(&mut self, keyspace: &Keyspace, key: &[u8], value: Vec<u8>) {
        self.add(keyspace, key, Some(value));
    }

    pub(super) fn remove(&mut self, keyspace: &Keyspace, key: &[u8]) {
        self.add(keyspace, key, None);
    }

    fn add(&mut self, keyspace: &Keyspace, key: &[u8], value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.rows.insert((keyspace.name().to_string(), key.to_vec()), (keyspace.clone(), value));
    }

    /// Returns the pending value of a key; `None` if nothing is pending.
    pub(super) fn get(&self, keyspace: &Keyspace, key: &[u8]) -> Option<Option<&[u8]>> {
        let row = self.rows.get(&(keyspace.name().to_string(), key.to_vec()));
        row.map(|(_, value)| value.as_deref())
    }

    pub(super) fn flush_if_large(&mut self) -> Result<(), RepairError> {
        if self.bytes < LARGE { Ok(()) } else { self.flush() }
    }

    pub(super) fn flush(&mut self) -> Result<(), RepairError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.engine.check_writable(DiskNeed::Much).map_err(RepairError::Write)?;
        let mut batch = self.engine.durable_batch();
        for ((_, key), (keyspace, value)) in std::mem::take(&mut self.rows) {
            match value {
                Some(value) => batch.insert(&keyspace, key, value),
                None => batch.remove(&keyspace, key),
            }
        }
        self.bytes = 0;
        self.engine.commit_durably(batch).map_err(RepairError::Write)
    }
}
