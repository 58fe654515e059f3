//! Stored state of the global feed: its form, its place, and its reading.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use towpath_proto::diffdelta::global::GlobalChain;
use towpath_proto::diffdelta::publish::DocumentChain;
use towpath_store::{Store, Table, TableWrite};

use crate::engine::Engine;
use crate::protocols::diffdelta::global_included::{
    Included, IncludedChanges, IncludedDifference, with_changes,
};
use crate::store_error::StoreError;

/// State of the global feed as it is stored.
pub(super) struct StoredGlobal {
    pub(super) global: GlobalChain,
    /// Path of the last snapshot.
    pub(super) path: String,
    pub(super) carried: Option<CarriedLatest>,
    pub(super) head: String,
}

/// Row of the state, written with each mint. In a cluster each carry is written as well, so that every node serves it.
#[derive(Serialize, Deserialize)]
struct StateRow {
    /// State with all sources: that of a cluster, whose nodes may be of earlier versions, and that of these versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    global: Option<GlobalChain>,
    /// Chain without the sources, which are in a row of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chain: Option<DocumentChain>,
    /// Changes since that row was written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    changed: IncludedChanges,
    path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    carried: Option<CarriedLatest>,
    #[serde(default)]
    head: String,
}

impl StoredGlobal {
    /// Returns the writes that store it, the row of the state last, and true if they write the list of all sources.
    pub(super) fn writes(
        self,
        table: Table,
        difference: &IncludedDifference,
    ) -> Result<(Vec<TableWrite>, bool), StoreError> {
        let Self { global, path, carried, head } = self;
        let write = |table, key: &[u8], value| TableWrite { table, key: key.to_vec(), value: Some(value) };
        if table == Table::Chains {
            let row =
                StateRow { global: Some(global), chain: None, changed: BTreeMap::new(), path, carried, head };
            return Ok((vec![write(table, KEY, encoded(&row)?)], false));
        }
        let GlobalChain { chain, included } = global;
        let has_list = difference.is_list_due(included.len());
        let mut writes = Vec::new();
        if has_list {
            writes.push(write(table, LIST_KEY, encoded(&included)?));
        }
        let changed = if has_list { BTreeMap::new() } else { difference.changes().clone() };
        let row = StateRow { global: None, chain: Some(chain), changed, path, carried, head };
        writes.push(write(table, KEY, encoded(&row)?));
        Ok((writes, has_list))
    }
}

fn encoded(row: &impl Serialize) -> Result<Bytes, StoreError> {
    serde_json::to_vec(row).map(Bytes::from).map_err(|e| StoreError::Encode(e.to_string()))
}

/// `latest.json` as it was carried: the buckets are those of the snapshot, and stand at the ends of both.
#[derive(Serialize, Deserialize)]
pub(super) struct CarriedLatest {
    /// The chain as the mint left it.
    pub(super) minted: DocumentChain,
    /// Bytes before the end that both documents share.
    begin: String,
    /// Begin of that end in the snapshot.
    end_at: usize,
}

impl CarriedLatest {
    pub(super) fn new(minted: DocumentChain, snapshot: &[u8], latest: &[u8]) -> Self {
        // A carry changes only the document's first fields, and its buckets may take megabytes.
        let same = snapshot.iter().rev().zip(latest.iter().rev()).take_while(|(a, b)| a == b).count();
        // Not within a character.
        let is_whole = |at: usize| latest.get(at).is_none_or(|byte| byte & 0xC0 != 0x80);
        let cut = (latest.len() - same..=latest.len()).find(|at| is_whole(*at)).unwrap_or(latest.len());
        let end_at = snapshot.len() - (latest.len() - cut);
        Self { minted, begin: String::from_utf8_lossy(&latest[..cut]).into_owned(), end_at }
    }

    pub(super) fn latest(&self, snapshot: &[u8]) -> Bytes {
        [self.begin.as_bytes(), snapshot.get(self.end_at..).unwrap_or_default()].concat().into()
    }
}

// No feed can have the name `_global`, so the key is free.
pub(super) const KEY: &[u8] = b"diffdelta/_global/chain";
/// Key of the list of all sources.
const LIST_KEY: &[u8] = b"diffdelta/_global/included";

/// Returns the table in which the state is written.
///
/// Its list names every source. With 100,000 of them it has 11 MB, which an embedded store would read and check for each
/// look at a row that sorts just before it: only of documents it keeps large values apart. Nodes of a cluster may be of
/// versions that look for the state among the chains.
pub(super) fn table_of(engine: &Engine) -> Table {
    if engine.is_shared() { Table::Chains } else { Table::Documents }
}

/// Reads the bytes of the stored state, and the table that has them.
async fn stored_bytes(store: &dyn Store) -> Result<Option<(Table, Bytes)>, StoreError> {
    // Earlier versions, and clusters, have it among the chains.
    for table in [Table::Documents, Table::Chains] {
        if let Some(bytes) = store.get(table, KEY).await? {
            return Ok(Some((table, bytes)));
        }
    }
    Ok(None)
}

/// State as it was read, with what the next write needs.
pub(super) struct LoadedGlobal {
    pub(super) state: StoredGlobal,
    pub(super) snapshot: Bytes,
    /// Bytes of the state's row, with its table.
    pub(super) row: (Table, Bytes),
    pub(super) difference: IncludedDifference,
}

/// Reads the stored state of the global feed, and its last snapshot.
pub(super) async fn stored(store: &dyn Store) -> Result<Option<LoadedGlobal>, StoreError> {
    let Some((table, bytes)) = stored_bytes(store).await? else { return Ok(None) };
    let row: StateRow = serde_json::from_slice(&bytes).map_err(|e| damaged(&e))?;
    let StateRow { global, chain, changed, path, carried, head } = row;
    let (global, difference) = match (global, chain) {
        (Some(global), _) => (global, IncludedDifference::default()),
        (None, Some(chain)) => {
            let included = with_changes(stored_list(store).await?, &changed);
            (GlobalChain { chain, included }, IncludedDifference::stored(changed))
        }
        (None, None) => return Err(damaged(&"its state has no chain")),
    };
    // Without a path it was carried before anything was minted.
    let snapshot = if path.is_empty() { Bytes::new() } else { stored_snapshot(store, &path).await? };
    let state = StoredGlobal { global, path, carried, head };
    Ok(Some(LoadedGlobal { state, snapshot, row: (table, bytes), difference }))
}

async fn stored_list(store: &dyn Store) -> Result<Included, StoreError> {
    // Written with the first state that has none itself, so a missing one is damage.
    let list = store.get(Table::Documents, LIST_KEY).await?;
    let list = list.ok_or_else(|| damaged(&"the list of its sources is missing"))?;
    serde_json::from_slice(&list).map_err(|e| damaged(&format_args!("the list of its sources: {e}")))
}

async fn stored_snapshot(store: &dyn Store, path: &str) -> Result<Bytes, StoreError> {
    let snapshot = store.get(Table::Documents, path.as_bytes()).await?;
    snapshot.ok_or_else(|| damaged(&format_args!("{path} is missing")))
}

/// Returns the chain as it is stored.
pub(super) async fn stored_chain(store: &dyn Store) -> Result<Option<DocumentChain>, StoreError> {
    Ok(stored(store).await?.map(|loaded| loaded.state.global.chain))
}

/// The chain, `head.json` and `latest.json` as the node that makes them stored them.
pub(super) async fn load_shared(
    engine: &Engine,
) -> Result<Option<(DocumentChain, Bytes, Bytes)>, StoreError> {
    let Some(LoadedGlobal { state, snapshot, .. }) = stored(engine.store.as_ref()).await? else {
        return Ok(None);
    };
    let latest = state.carried.map_or(snapshot.clone(), |carried| carried.latest(&snapshot));
    Ok(Some((state.global.chain, state.head.into(), latest)))
}

/// Makes the error of a state that cannot be used.
pub(super) fn damaged(reason: &dyn std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("the global chain: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carried_document_is_kept_without_its_buckets() {
        for (snapshot, latest) in [
            (r#"{"a":1,"buckets":["x","y"]}"#, r#"{"a":22,"buckets":["x","y"]}"#),
            ("\u{e9}", "\u{129}"),
            ("", "{}"),
            ("same", "same"),
            ("longer than", "an"),
        ] {
            let carried =
                CarriedLatest::new(DocumentChain::default(), snapshot.as_bytes(), latest.as_bytes());
            assert_eq!(carried.latest(snapshot.as_bytes()), latest);
        }
        let large = format!("1{}", "x".repeat(1000));
        let carried = CarriedLatest::new(
            DocumentChain::default(),
            large.as_bytes(),
            large.replace('1', "2").as_bytes(),
        );
        assert_eq!(carried.begin, "2");
    }
}
