//! Budget for the memory of a parsed document.

use serde_json::{Map, Value};

use super::error::FormatError;
use super::limits::{DocumentLimits, MEMORY_TIMES};
use crate::change::NewChange;
use crate::item::{Author, Item};

/// Memory of an allocation beside its bytes.
const ALLOCATION: usize = 16;
/// Memory of an item beside its texts. A poll turns each item into a change, and holds its id in three tables.
const ITEM: usize = size_of::<Item>() + size_of::<NewChange>() + 3 * 64;
/// Memory of a JSON value.
const VALUE: usize = size_of::<Value>();
/// Memory of an array beside its values: a vector begins with room for four.
const ARRAY: usize = 4 * VALUE;
/// Members in a node of an object's tree: nodes have room for eleven, and are at least about half full.
const NODE_MEMBERS: usize = 6;
/// Memory of a node.
const NODE: usize = 11 * (VALUE + size_of::<String>()) + 2 * ALLOCATION;
/// Memory that must be left beyond a repetition, which is counted once more with the item that holds it.
const ROOM: usize = 4096;

/// Remaining memory for what is read from a document: items, and parts that are repeated, such as a feed's
/// authors in every entry without authors, a base URL in every relative URL, a namespace in every stored element.
/// Without this bound many small items, or a long name in a small document, would fill the memory.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limits: DocumentLimits,
    left: usize,
    items: usize,
}

impl Budget {
    /// Creates the budget of a document of `length` bytes, which are in memory already.
    pub(crate) fn new(length: usize, limits: DocumentLimits) -> Self {
        let whole = limits.memory.max(length.saturating_mul(MEMORY_TIMES));
        Self { limits, left: whole.saturating_sub(length), items: 0 }
    }

    /// Spends `bytes` on a repetition, or fails with a reason.
    pub(crate) fn spend(&mut self, bytes: usize, reason: impl FnOnce() -> String) -> Result<(), FormatError> {
        // Else the item would fail, and its error would not name the repetition.
        if self.left < bytes.saturating_mul(2).saturating_add(ROOM) {
            return Err(FormatError::Limit(format!("{} (limit: memory_mib)", reason())));
        }
        self.left -= bytes;
        Ok(())
    }

    /// Returns spent bytes whose memory is free again.
    pub(crate) fn refund(&mut self, bytes: usize) {
        self.left = self.left.saturating_add(bytes);
    }

    /// Returns the bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Spends the memory of something that is stored, given the bytes of its texts.
    pub(crate) fn store(&mut self, bytes: usize) -> Result<(), FormatError> {
        let left = self.left.checked_sub(bytes.saturating_add(ALLOCATION));
        self.left = left.ok_or_else(|| {
            FormatError::Limit(format!(
                "what it holds takes more memory than {MEMORY_TIMES} times its size (limit: memory_mib)"
            ))
        })?;
        Ok(())
    }

    /// Counts an item or a deleted entry, with its memory.
    pub(crate) fn item(&mut self, item: &Item) -> Result<(), FormatError> {
        self.count()?;
        self.store(ITEM + texts(item))
    }

    /// Counts a deleted entry.
    pub(crate) fn deleted(&mut self, id: &str) -> Result<(), FormatError> {
        self.count()?;
        self.store(ITEM + id.len())
    }

    fn count(&mut self) -> Result<(), FormatError> {
        self.items += 1;
        if self.items > self.limits.items {
            return Err(FormatError::Limit(format!("more than {} items (limit: items)", self.limits.items)));
        }
        Ok(())
    }

    /// Spends the memory of a JSON value, given the bytes of its text.
    pub(crate) fn value(&mut self, bytes: usize) -> Result<(), FormatError> {
        self.store(VALUE + bytes)
    }

    /// Spends the memory of an array beside its values.
    pub(crate) fn array(&mut self) -> Result<(), FormatError> {
        self.value(ARRAY)
    }

    /// Spends the memory of a member of an object with `count` others, given the bytes of its name.
    pub(crate) fn member(&mut self, count: usize, name: usize) -> Result<(), FormatError> {
        let node = if count.is_multiple_of(NODE_MEMBERS) { NODE } else { 0 };
        self.store(node + name)
    }

    /// Checks the length of a text.
    pub(crate) fn text(&self, bytes: usize) -> Result<(), FormatError> {
        if bytes <= self.limits.string {
            return Ok(());
        }
        Err(FormatError::Limit(format!(
            "a text of more than {} bytes (limit: string_mib)",
            self.limits.string
        )))
    }
}

/// Returns the memory of an item's texts and extra data.
fn texts(item: &Item) -> usize {
    let some = |text: &Option<String>| text.as_ref().map_or(0, |text| text.len() + ALLOCATION);
    let author = |a: &Author| size_of::<Author>() + a.name.len() + some(&a.email) + some(&a.url) + ALLOCATION;
    let content = item.content.as_ref().map_or(0, |c| c.bytes.len() + c.media_type.len() + 3 * ALLOCATION);
    let tags = item.tags.iter().map(|tag| size_of::<String>() + tag.len() + ALLOCATION).sum::<usize>();
    let authors = item.authors.iter().map(author).sum::<usize>();
    // The id stands in three tables besides.
    let fields = some(&item.url) + some(&item.title) + some(&item.summary) + content + tags + authors;
    4 * item.id.len() + fields + members_memory(&item.extra)
}

/// Returns the memory that a value takes beside itself.
fn value_memory(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len() + ALLOCATION,
        Value::Array(values) => {
            values.iter().map(|v| VALUE + value_memory(v)).sum::<usize>() + ARRAY + ALLOCATION
        }
        Value::Object(members) => members_memory(members),
    }
}

fn members_memory(members: &Map<String, Value>) -> usize {
    let texts = members.iter().map(|(name, value)| name.len() + ALLOCATION + value_memory(value));
    members.len().div_ceil(NODE_MEMBERS) * NODE + texts.sum::<usize>()
}
