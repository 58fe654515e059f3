//! The secret identity of a data folder.

use towpath_client::random::unguessable;
use towpath_store::{Precondition, Store, Table, TableWrite, WriteError};

use crate::store_error::StoreError;

/// The key is older than this module, and part of the stored format.
pub(crate) const IDENTITY: &[u8] = b"smart/identity";

/// Returns the write that makes a data folder another one: the next start gives it a new identity. Followers learn from
/// it that the log began anew.
pub(crate) fn forget() -> TableWrite {
    TableWrite { table: Table::Sources, key: IDENTITY.to_vec(), value: None }
}

/// Returns the data folder's identity, made at the first start.
///
/// Cursors carry a digest of it: a cursor of another folder, or of a later one at the same address, is recognised.
/// SUP IDs of private feeds are derived from it, so it must not be guessable.
pub(crate) async fn identity(store: &dyn Store, is_shared: bool) -> Result<String, StoreError> {
    if let Some(stored) = store.get(Table::Sources, IDENTITY).await? {
        return Ok(hex::encode(stored));
    }
    let new = unguessable().to_be_bytes().to_vec();
    let write = TableWrite { table: Table::Sources, key: IDENTITY.to_vec(), value: Some(new.clone().into()) };
    if is_shared {
        // The first node to write decides for all: cursors must be valid on every node.
        let unwritten = Precondition { table: Table::Sources, key: IDENTITY.to_vec(), value: None };
        match store.write(vec![write], vec![unwritten]).await {
            Ok(()) | Err(WriteError::Precondition { .. }) => {}
            Err(e) => return Err(e.into()),
        }
        // Read again: if the precondition failed, another node's identity is the valid one.
        let stored = store.get(Table::Sources, IDENTITY).await?;
        return Ok(hex::encode(stored.unwrap_or_default()));
    }
    // A full disk must not keep the server from serving. Cursors then end with this run.
    if let Err(e) = store.write(vec![write], Vec::new()).await {
        tracing::warn!(
            error = %e,
            "cannot store the identity of the data folder, so cursors will not outlast this run"
        );
    }
    Ok(hex::encode(new))
}

#[cfg(test)]
mod tests {
    use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

    use super::*;

    /// A generator that is seeded with a number would give the same identity again.
    #[tokio::test]
    async fn nobody_guesses_an_identity() {
        let mut made = Vec::new();
        for _ in 0..2 {
            let folder = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(folder.path(), EmbeddedOptions::default()).unwrap();
            // The same seed for both folders: an identity from this generator would be equal.
            fastrand::seed(7);
            let new = identity(&store, false).await.unwrap();
            assert_eq!(identity(&store, false).await.unwrap(), new, "it is kept");
            made.push(new);
        }
        assert_ne!(made[0], made[1]);
        assert_eq!(made[0].len(), 32);
    }
}
