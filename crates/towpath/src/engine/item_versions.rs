//! Versions of an item in the log, newest first.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_proto::change::Seq;
use towpath_proto::{Change, FeedId, Op};
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
    /// Position of the next older version, if there are more.
    pub(crate) older: Option<Seq>,
    /// Versions, newest first.
    pub(crate) versions: Vec<ItemVersion>,
}

impl From<&Change> for ItemVersion {
    fn from(change: &Change) -> Self {
        Self { modified: change.modified, op: change.op, previous: change.previous, seq: change.seq }
    }
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
    Ok(ItemVersions { older: next, versions })
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
