//! Stored state of the global feed: its form, its place, and its reading.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use towpath_proto::diffdelta::global::GlobalChain;
use towpath_proto::diffdelta::publish::DocumentChain;
use towpath_store::{Store, Table};

use crate::engine::Engine;
use crate::store_error::StoreError;

/// Stored state, written with each mint. In a cluster each carry is written as well, so that every node serves it.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredGlobal {
    pub(super) global: GlobalChain,
    pub(super) path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) carried: Option<CarriedLatest>,
    #[serde(default)]
    pub(super) head: String,
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

/// Returns the table in which the state is written.
///
/// It names every source. With 100,000 of them it has 11 MB, which an embedded store would read and check for each look
/// at a row that sorts just before it: only of documents it keeps large values apart. Nodes of a cluster may be of
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

/// Reads the stored state of the global feed, its last snapshot, and its own bytes with their table.
pub(super) async fn stored(
    store: &dyn Store,
) -> Result<Option<(StoredGlobal, Bytes, (Table, Bytes))>, StoreError> {
    let Some((table, bytes)) = stored_bytes(store).await? else { return Ok(None) };
    let kept: StoredGlobal = serde_json::from_slice(&bytes).map_err(|e| damaged(&e))?;
    // Carried before anything was minted.
    if kept.path.is_empty() {
        return Ok(Some((kept, Bytes::new(), (table, bytes))));
    }
    let snapshot = store.get(Table::Documents, kept.path.as_bytes()).await?;
    let snapshot = snapshot.ok_or_else(|| damaged(&format_args!("{} is missing", kept.path)))?;
    Ok(Some((kept, snapshot, (table, bytes))))
}

/// Returns the chain as it is stored.
pub(super) async fn stored_chain(store: &dyn Store) -> Result<Option<DocumentChain>, StoreError> {
    Ok(stored(store).await?.map(|(kept, ..)| kept.global.chain))
}

/// The chain, `head.json` and `latest.json` as the node that makes them stored them.
pub(super) async fn load_shared(
    engine: &Engine,
) -> Result<Option<(DocumentChain, Bytes, Bytes)>, StoreError> {
    let Some((kept, snapshot, _)) = stored(engine.store.as_ref()).await? else { return Ok(None) };
    let latest = kept.carried.map_or(snapshot.clone(), |carried| carried.latest(&snapshot));
    Ok(Some((kept.global.chain, kept.head.into(), latest)))
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
