//! What a feed's log holds: one change after another, each with its place in the order.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::item::{Content, ContentHash, Item};

/// A place in a feed's order: dense, from 1. Zero stands before the first change.
pub type Seq = u64;

/// What a change did to its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// The item is now this.
    Put,
    /// The item was changed by a patch; the change holds the result and the patch.
    Patch,
    /// The item is gone. Its id and its times stay.
    Delete,
}

impl Op {
    /// `put`, `patch` or `delete`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// One entry of a feed's log, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// Its place in the feed's order.
    pub seq: Seq,
    /// What it did.
    pub op: Op,
    /// When it was appended; never decreases along the log.
    pub modified: Timestamp,
    /// When the item with this id was first appended.
    pub created: Timestamp,
    /// The place at which the item with this id was first appended.
    pub first_seq: Seq,
    /// The place of the version before this one, if there was one (deletions are versions too).
    pub previous: Option<Seq>,
    /// The item as it now is, whole. Of a deleted item only `id`, `published` and `updated` stay.
    pub item: Item,
    /// The patch that was sent, where `op` is [`Op::Patch`].
    pub patch: Option<Content>,
    /// The name of this entry at the publisher it was mirrored from (a Content-ID), to be kept by the mirror.
    pub entry_id: Option<String>,
    /// [`Item::content_hash`] of `item`; all zeros for a deletion.
    pub hash: ContentHash,
}

impl Change {
    /// Whether this is the first version of its item, or the first after a deletion, cannot be read from the
    /// change alone; this says only whether no version of the item came before it.
    pub fn is_first(&self) -> bool {
        self.previous.is_none()
    }
}

/// A change that is to be appended.
#[derive(Debug, Clone, PartialEq)]
pub struct NewChange {
    /// What it does.
    pub op: Op,
    /// For a put the whole item; for a patch or a deletion only its `id` counts.
    pub item: Item,
    /// For a patch: the patch.
    pub patch: Option<Content>,
    /// When it was made at the publisher it is mirrored from; the log's own clock otherwise. Moved up to the
    /// last change's time where it is earlier, so that times never decrease along the log.
    pub modified: Option<Timestamp>,
    /// See [`Change::entry_id`].
    pub entry_id: Option<String>,
    /// [`Item::content_hash`] of the item, where the caller has it already. Computed on append otherwise.
    pub hash: Option<ContentHash>,
}

impl NewChange {
    /// Puts a whole item.
    pub fn put(item: Item) -> Self {
        Self { op: Op::Put, item, patch: None, modified: None, entry_id: None, hash: None }
    }

    /// Patches the item with this id.
    pub fn patch(id: impl Into<String>, patch: Content) -> Self {
        Self { op: Op::Patch, patch: Some(patch), ..Self::put(Item::new(id)) }
    }

    /// The same, made no later than `now`. For what people publish: as times never decrease along a log, one that
    /// lies in the future would be the time of every change after it.
    #[must_use]
    pub fn not_after(mut self, now: Timestamp) -> Self {
        self.modified = self.modified.map(|modified| modified.min(now));
        self
    }

    /// Deletes the item with this id.
    pub fn delete(id: impl Into<String>) -> Self {
        Self { op: Op::Delete, ..Self::put(Item::new(id)) }
    }
}
