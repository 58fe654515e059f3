//! JSON records in tables, most in that of chains.

use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_store::{Precondition, Store, Table, TableWrite, WriteError};

use crate::store_error::StoreError;

/// Attempts of a change that races with others.
const TRIES: usize = 20;

/// Loads the record of a key, if there is one.
pub(crate) async fn load<T: DeserializeOwned>(
    store: &dyn Store,
    key: &[u8],
) -> Result<Option<T>, StoreError> {
    let value = store.get(Table::Chains, key).await?;
    value.map(|value| parse(key, &value)).transpose()
}

/// Parses a record that was read with others.
pub(crate) fn parse<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    // Names the key: an operator can then find, and if need be remove, the one damaged record.
    let error = |e| StoreError::Damaged(format!("{}: {e}", String::from_utf8_lossy(key)));
    serde_json::from_slice(value).map_err(error)
}

/// Makes the write of a record. Serialising plain data to memory cannot fail.
pub(crate) fn put(key: Vec<u8>, record: &impl Serialize) -> TableWrite {
    let value = serde_json::to_vec(record).unwrap_or_default();
    TableWrite { table: Table::Chains, key, value: Some(value.into()) }
}

/// Changes a record as it is stored; a missing one begins with its default. `edit` returns false to leave it.
///
/// Returns true if the record was written, under `conditions` too.
///
/// # Errors
///
/// [`StoreError`] if the record cannot be read or written, a condition does not hold, or others change it at each try.
pub(crate) async fn change<T: Serialize + DeserializeOwned + Default>(
    store: &dyn Store,
    table: Table,
    key: &[u8],
    conditions: &[Precondition],
    edit: impl Fn(&mut T) -> bool,
) -> Result<bool, StoreError> {
    for _ in 0..TRIES {
        let stored = store.get(table, key).await?;
        let mut record = stored.as_ref().map(|value| parse(key, value)).transpose()?.unwrap_or_default();
        if !edit(&mut record) {
            return Ok(false);
        }
        // Without it, one of two changes that are made at a time would be lost.
        let as_read = Precondition { table, key: key.to_vec(), value: stored };
        let conditions = conditions.iter().cloned().chain([as_read]).collect();
        let write = TableWrite { table, ..put(key.to_vec(), &record) };
        match store.write(vec![write], conditions).await {
            Ok(()) => return Ok(true),
            Err(WriteError::Precondition { key: changed, .. }) if changed == key => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(StoreError::Contended("others keep changing it"))
}

/// Makes the removal of a record.
pub(crate) fn remove(key: Vec<u8>) -> TableWrite {
    TableWrite { table: Table::Chains, key, value: None }
}
