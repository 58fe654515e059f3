//! JSON records in the table of chains.

use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_store::{Store, Table, TableWrite};

use crate::store_error::StoreError;

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

/// Makes the removal of a record.
pub(crate) fn remove(key: Vec<u8>) -> TableWrite {
    TableWrite { table: Table::Chains, key, value: None }
}
