//! Going through a table without holding all of it.

use bytes::Bytes;
use towpath_store::{Store, StoreError, Table};

/// How many records are read at a time.
const PAGE: usize = 1000;

/// The records of a table whose keys begin alike, in the order of their keys, a page at a time.
pub(super) struct Scan<'a> {
    store: &'a dyn Store,
    table: Table,
    prefix: &'a [u8],
    after: Option<Vec<u8>>,
    is_over: bool,
}

impl<'a> Scan<'a> {
    /// All of them.
    pub(super) fn new(store: &'a dyn Store, table: Table, prefix: &'a [u8]) -> Self {
        Self { store, table, prefix, after: None, is_over: false }
    }

    /// Those whose keys come after this one.
    pub(super) fn after(store: &'a dyn Store, table: Table, prefix: &'a [u8], key: Vec<u8>) -> Self {
        Self { after: Some(key), ..Self::new(store, table, prefix) }
    }

    /// The next page; `None` behind the last. What was removed from earlier pages does not matter.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<(Bytes, Bytes)>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let page = self.store.scan(self.table, self.prefix, self.after.as_deref(), PAGE).await?;
        self.is_over = page.len() < PAGE;
        self.after = page.last().map(|(key, _)| key.to_vec());
        Ok(Some(page))
    }
}

#[cfg(test)]
mod tests {
    use towpath_store::Write;
    use towpath_store::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn every_record_comes_once() {
        for count in [0, 1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE] {
            let store = MemoryStore::new(std::sync::Arc::new(jiff::Timestamp::now));
            let write =
                |key: String| Write { table: Table::Chains, key: key.into(), value: Some("v".into()) };
            let keys: Vec<String> = (0..count).map(|n| format!("a/{n:05}")).collect();
            let others = ["a", "b/1"].map(str::to_owned);
            store.write(keys.iter().cloned().chain(others).map(write).collect(), Vec::new()).await.unwrap();
            let mut scan = Scan::new(&store, Table::Chains, b"a/");
            let mut found = Vec::new();
            while let Some(page) = scan.next().await.unwrap() {
                found.extend(page.into_iter().map(|(key, _)| String::from_utf8(key.to_vec()).unwrap()));
            }
            assert_eq!(found, keys);
            let mut rest = Scan::after(&store, Table::Chains, b"a/", "a/00000".into());
            assert_eq!(rest.next().await.unwrap().unwrap().len(), count.saturating_sub(1).min(PAGE));
        }
    }
}
