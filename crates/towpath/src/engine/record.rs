//! Records of the table of chains, which are JSON: how what is published of each feed goes on.

use serde::Serialize;
use serde::de::DeserializeOwned;
use towpath_store::{Store, StoreError, Table, Write};

/// The record of a key, where there is one.
pub(super) async fn load<T: DeserializeOwned>(
    store: &dyn Store,
    key: &[u8],
) -> Result<Option<T>, StoreError> {
    let value = store.get(Table::Chains, key).await?;
    value.map(|value| parse(key, &value)).transpose()
}

/// A record that was read with others.
pub(super) fn parse<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    let error = |e| StoreError::Damaged(format!("{}: {e}", String::from_utf8_lossy(key)));
    serde_json::from_slice(value).map_err(error)
}

/// The write of a record. Records are types of ours, which serialise always.
pub(super) fn put(key: Vec<u8>, record: &impl Serialize) -> Write {
    let value = serde_json::to_vec(record).unwrap_or_default();
    Write { table: Table::Chains, key, value: Some(value.into()) }
}

/// The removal of one.
pub(super) fn remove(key: Vec<u8>) -> Write {
    Write { table: Table::Chains, key, value: None }
}
