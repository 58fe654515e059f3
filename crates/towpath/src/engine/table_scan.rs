//! Scanning a table page by page.

use bytes::Bytes;
use towpath_store::{Store, Table, TableWrite};

use crate::store_error::StoreError;

/// Number of records in one read.
// Bounds the memory of one read: tables hold a row for each subscriber or page.
const PAGE: usize = 1000;

/// The records of a table whose keys begin alike, in the order of their keys, a page at a time.
pub(crate) struct TableScan<'a> {
    store: &'a dyn Store,
    table: Table,
    prefix: &'a [u8],
    after: Option<Vec<u8>>,
    is_over: bool,
}

impl<'a> TableScan<'a> {
    /// Scans all records with a prefix.
    pub(crate) fn new(store: &'a dyn Store, table: Table, prefix: &'a [u8]) -> Self {
        Self { store, table, prefix, after: None, is_over: false }
    }

    /// Scans the records after a key.
    pub(crate) fn after(store: &'a dyn Store, table: Table, prefix: &'a [u8], key: Vec<u8>) -> Self {
        Self { after: Some(key), ..Self::new(store, table, prefix) }
    }

    /// The next page; `None` behind the last. What was removed from earlier pages does not matter.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<(Bytes, Bytes)>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let page = self.store.scan(self.table, self.prefix, self.after.as_deref(), PAGE).await?;
        // A full page may be the last one. Then the next read is empty, and ends the scan.
        self.is_over = page.len() < PAGE;
        self.after = page.last().map(|(key, _)| key.to_vec());
        Ok(Some(page))
    }
}

/// Removes all records of a table whose keys begin with a prefix.
pub(crate) async fn remove_all(store: &dyn Store, table: Table, prefix: &[u8]) -> Result<(), StoreError> {
    loop {
        let records = store.scan(table, prefix, None, PAGE).await?;
        if records.is_empty() {
            return Ok(());
        }
        let remove = |(key, _): (Bytes, Bytes)| TableWrite { table, key: key.to_vec(), value: None };
        store.write(records.into_iter().map(remove).collect(), Vec::new()).await?;
    }
}

#[cfg(test)]
mod tests {
    use towpath_store::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn every_record_comes_once() {
        // A table whose size is a multiple of the page is where a scan could end early or loop.
        for count in [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE] {
            let store = MemoryStore::new(std::sync::Arc::new(jiff::Timestamp::now));
            let write =
                |key: String| TableWrite { table: Table::Chains, key: key.into(), value: Some("v".into()) };
            let keys: Vec<String> = (0..count).map(|n| format!("a/{n:05}")).collect();
            // Keys before and behind the prefix: a scan must stop at its own records.
            let others = ["a", "b/1"].map(str::to_owned);
            store.write(keys.iter().cloned().chain(others).map(write).collect(), Vec::new()).await.unwrap();
            let mut scan = TableScan::new(&store, Table::Chains, b"a/");
            let mut found = Vec::new();
            while let Some(page) = scan.next().await.unwrap() {
                found.extend(page.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()));
            }
            assert_eq!(found, keys);
            let mut rest = TableScan::after(&store, Table::Chains, b"a/", "a/00000".into());
            assert_eq!(rest.next().await.unwrap().unwrap().len(), count.saturating_sub(1).min(PAGE));
        }
    }
}
