//! Versions of an item in the log, newest first.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_proto::change::Seq;
use towpath_proto::{Change, FeedId, NewChange, Op, patch};
use towpath_store::{ReadError, Store};

/// A version of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ItemVersion {
    /// Time of the change that made it.
    pub(crate) modified: Timestamp,
    /// Operation that made it.
    #[schemars(schema_with = "crate::engine::scheduled::op_schema")]
    pub(crate) op: Op,
    /// Position of the version before it; `null` for the first.
    pub(crate) previous: Option<Seq>,
    /// Position of the change that made it.
    pub(crate) seq: Seq,
}

/// Versions of an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ItemVersions {
    /// Position of the next older version, if there are more that are kept.
    pub(crate) older: Option<Seq>,
    /// Versions, newest first.
    pub(crate) versions: Vec<ItemVersion>,
}

impl From<&Change> for ItemVersion {
    fn from(change: &Change) -> Self {
        Self { modified: change.modified, op: change.op, previous: change.previous, seq: change.seq }
    }
}

/// Returns true if a change leaves the item as it is: then nothing is appended, and readers are not woken.
pub(crate) fn changes_nothing(latest: &Change, change: &mut NewChange) -> bool {
    let after = match (change.op, &change.patch) {
        (Op::Put, _) => Some(change.content_hash()),
        (Op::Patch, Some(patch)) => patch::apply(&latest.item, patch).ok().map(|item| item.content_hash()),
        _ => None,
    };
    after == Some(latest.hash)
}

/// Walks an item's versions from the one at a position, at most so many.
pub(crate) async fn versions(
    store: &dyn Store,
    log: &FeedId,
    id: &str,
    from: Seq,
    limit: usize,
) -> Result<ItemVersions, ReadError> {
    let (mut next, mut versions) = (Some(from), Vec::new());
    while let Some(seq) = next.filter(|_| versions.len() < limit) {
        // A position that a stranger made up leads to another item, or to none.
        let Some(change) = version(store, log, id, seq).await? else {
            next = None;
            break;
        };
        next = change.previous;
        versions.push(ItemVersion::from(&change));
    }
    // The log may have let go of it.
    let older = match next {
        Some(seq) => version(store, log, id, seq).await?.map(|change| change.seq),
        None => None,
    };
    Ok(ItemVersions { older, versions })
}

impl ItemVersions {
    /// Returns the position of the version before one of these; `None` if there is none, or it is no longer kept.
    pub(crate) fn before(&self, version: &ItemVersion) -> Option<Seq> {
        let is_kept =
            |seq: &Seq| self.older == Some(*seq) || self.versions.iter().any(|kept| kept.seq == *seq);
        version.previous.filter(is_kept)
    }
}

/// Returns the version of an item at a position.
pub(crate) async fn version(
    store: &dyn Store,
    log: &FeedId,
    id: &str,
    seq: Seq,
) -> Result<Option<Change>, ReadError> {
    Ok(store.change(log, seq).await?.filter(|change| change.item.id == id))
}

#[cfg(test)]
mod tests {
    use towpath_proto::{Item, NewChange};
    use towpath_store::Expected;
    use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

    use super::*;

    #[tokio::test]
    async fn the_version_before_the_kept_ones_is_not_named() {
        let folder = tempfile::tempdir().unwrap();
        let store = EmbeddedStore::open(folder.path(), EmbeddedOptions::default()).unwrap();
        let log = FeedId::new("notes").unwrap();
        for n in 0..5 {
            let item = Item { title: Some(n.to_string()), ..Item::new("a") };
            store.append(&log, Expected::Any, vec![NewChange::put(item)]).await.unwrap();
        }
        let list = async |limit| {
            let list = versions(&store, &log, "a", 5, limit).await.unwrap();
            let before: Vec<_> = list.versions.iter().map(|version| list.before(version)).collect();
            (list.older, before)
        };
        assert_eq!(list(2).await, (Some(3), vec![Some(4), Some(3)]));
        assert_eq!(list(9).await, (None, vec![Some(4), Some(3), Some(2), Some(1), None]));
        assert_eq!(store.let_go(&log, 4).await.unwrap().horizon, 4);
        assert_eq!(list(1).await, (Some(4), vec![Some(4)]));
        assert_eq!(list(2).await, (None, vec![Some(4), None]));
        assert_eq!(list(9).await, (None, vec![Some(4), None]));
    }
}
