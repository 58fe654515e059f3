//! Preparation of requests on the caller's thread.

use jiff::Timestamp;
use towpath_proto::change::{NewChange, Op};
use towpath_proto::feed_id::FeedId;
use towpath_proto::item::{Content, ContentHash};

use crate::embedded::MAX_KEY_BYTES;
use crate::embedded::record::RecordDraft;
use crate::{AppendError, TableWrite, WriteError};

/// Change that is checked, encoded and hashed. This happens on the caller's thread, so that the commit thread
/// is not the bottleneck of many writers.
#[derive(Debug)]
pub(crate) struct PreparedChange {
    pub(in crate::embedded) id: String,
    pub(in crate::embedded) modified: Option<Timestamp>,
    pub(in crate::embedded) entry_id: Option<String>,
    pub(in crate::embedded) op: PreparedOp,
}

#[derive(Debug)]
pub(crate) enum PreparedOp {
    Put { draft: RecordDraft, hash: ContentHash },
    Patch(Content),
    Delete,
}

impl PreparedChange {
    /// Checks a change and encodes its record.
    pub(crate) fn new(change: NewChange) -> Result<Self, String> {
        change.item.check().map_err(|e| e.to_string())?;
        let op = match (change.op, change.patch) {
            (Op::Put, _) => PreparedOp::Put {
                // JSON encoding and SHA-256 of all writers run in parallel here.
                draft: RecordDraft::new(Op::Put, &change.item, None, change.entry_id.as_deref())?,
                hash: change.hash.unwrap_or_else(|| change.item.content_hash()),
            },
            // A patch is applied when it is decided: only then is the latest version known.
            (Op::Patch, Some(patch)) => PreparedOp::Patch(patch),
            (Op::Patch, None) => return Err("the operation is a patch, but the change has no patch".into()),
            (Op::Delete, _) => PreparedOp::Delete,
        };
        Ok(Self { id: change.item.id, modified: change.modified, entry_id: change.entry_id, op })
    }

    /// Returns true for the removal of an item.
    pub(crate) fn is_delete(&self) -> bool {
        matches!(self.op, PreparedOp::Delete)
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match &self.op {
            PreparedOp::Put { draft, .. } => draft.bytes(),
            PreparedOp::Patch(patch) => self.id.len() + patch.bytes.len(),
            PreparedOp::Delete => self.id.len(),
        }
    }
}

/// Checks and lays out the changes of an append to `feed`.
pub(crate) fn prepare(feed: &FeedId, changes: Vec<NewChange>) -> Result<Vec<PreparedChange>, AppendError> {
    let prepare = |(index, change)| {
        let invalid = |reason| AppendError::Invalid { feed: feed.clone(), index, reason };
        PreparedChange::new(change).map_err(invalid)
    };
    changes.into_iter().enumerate().map(prepare).collect()
}

/// Fails where a key is longer than [`MAX_KEY_BYTES`].
pub(crate) fn check_keys(writes: &[TableWrite]) -> Result<(), WriteError> {
    match writes.iter().find(|write| write.key.len() > MAX_KEY_BYTES) {
        Some(write) => Err(WriteError::KeyTooLong { table: write.table, length: write.key.len() }),
        None => Ok(()),
    }
}
