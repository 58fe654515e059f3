//! Entries of a feed's log.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::item::{Content, ContentHash, Item};

/// Sequence number in a feed's log: dense, from 1. Zero precedes the first change.
pub type Seq = u64;

/// Operation of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Creates or replaces the item.
    Put,
    /// Patches the item; the change holds both the result and the patch.
    Patch,
    /// Deletes the item. Its id and times remain.
    Delete,
}

impl Op {
    /// Returns `put`, `patch` or `delete`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// Entry of a feed's log, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Sequence number.
    pub seq: Seq,
    /// Operation.
    pub op: Op,
    /// Time of the append; never decreases along the log.
    pub modified: Timestamp,
    /// Time of the first append of this item id.
    pub created: Timestamp,
    /// Sequence number of the first append of this item id.
    pub first_seq: Seq,
    /// Sequence number of the previous version, if any. Deletions count as versions.
    pub previous: Option<Seq>,
    /// Whole item after the change. A deleted item has only `id`, `published` and `updated`.
    pub item: Item,
    /// Patch as received, for [`Op::Patch`].
    pub patch: Option<Content>,
    /// Id of this entry at the mirrored publisher (a Content-ID), which the mirror preserves.
    pub entry_id: Option<String>,
    /// [`Item::content_hash`] of `item`; all zeros for a deletion.
    pub hash: ContentHash,
}

impl Change {
    /// Returns `true` if the item has no earlier version. A first version after a deletion cannot be told
    /// from the change alone.
    pub fn is_first(&self) -> bool {
        self.previous.is_none()
    }
}

/// Change to append.
///
/// ```
/// use towpath_proto::{Item, NewChange, Op};
///
/// let batch = [NewChange::put(Item::new("first")), NewChange::delete("second")];
/// assert_eq!(batch.map(|change| change.op), [Op::Put, Op::Delete]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NewChange {
    /// Operation.
    pub op: Op,
    /// Whole item for a put; only its `id` counts for a patch or a deletion.
    pub item: Item,
    /// Patch, for a patch.
    pub patch: Option<Content>,
    /// Time of the change at the mirrored publisher; by default the log's clock. Raised to the last change's
    /// time if it is earlier, so that times never decrease along the log.
    pub modified: Option<Timestamp>,
    /// See [`Change::entry_id`].
    pub entry_id: Option<String>,
    /// [`Item::content_hash`] of the item, if the caller has it. Otherwise computed on append.
    pub hash: Option<ContentHash>,
}

impl NewChange {
    /// Creates a put of a whole item.
    pub fn put(item: Item) -> Self {
        Self { op: Op::Put, item, patch: None, modified: None, entry_id: None, hash: None }
    }

    /// Creates a patch of the item with this id.
    pub fn patch(id: impl Into<String>, patch: Content) -> Self {
        Self { op: Op::Patch, patch: Some(patch), ..Self::put(Item::new(id)) }
    }

    /// Caps the time of the change at `now`, for changes that people publish. Times never decrease along a
    /// log, so a time in the future would become the time of all later changes.
    #[must_use]
    pub fn not_after(mut self, now: Timestamp) -> Self {
        self.modified = self.modified.map(|modified| modified.min(now));
        self
    }

    /// Returns the content hash of the item, and keeps it in `hash`.
    pub fn content_hash(&mut self) -> ContentHash {
        *self.hash.get_or_insert_with(|| self.item.content_hash())
    }

    /// Creates a deletion of the item with this id.
    pub fn delete(id: impl Into<String>) -> Self {
        Self { op: Op::Delete, ..Self::put(Item::new(id)) }
    }
}
