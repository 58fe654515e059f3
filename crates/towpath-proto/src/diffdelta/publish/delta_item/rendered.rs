//! A rendered delta item: JSON text with the keys that decide its position in a document.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::diffdelta::wire::{DeltaKind, ImpactReason};
use crate::feed_id::FeedId;

/// A delta item as JSON text, with its bucket and sort key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedItem {
    /// The kind of change.
    pub kind: DeltaKind,
    /// True if the item belongs to the flagged bucket.
    pub flagged: bool,
    /// Weight of the change.
    pub reason: ImpactReason,
    /// The field's text; first sort key (section 4).
    pub published_at: String,
    /// The source; second sort key.
    pub source: FeedId,
    /// The field's text; third sort key.
    pub id: String,
    /// Number of the mint whose change a later one repeats; none in the change's own mint.
    pub(in crate::diffdelta) changed_in: Option<u64>,
    /// The members after `"change"` and `"changed_in"`, without the opening brace.
    pub(in crate::diffdelta) members: Bytes,
}

impl RenderedItem {
    /// Returns the sort key of buckets (section 4).
    pub(in crate::diffdelta) fn order(&self) -> (&str, &str, &str) {
        (&self.published_at, self.source.as_str(), &self.id)
    }

    /// Returns the approximate size in a document, in bytes.
    pub fn len(&self) -> usize {
        // 20 is the length of `{"change":"removed",`, which `write` adds, and 40 more fit `"changed_in":…,`.
        self.members.len() + if self.changed_in.is_some() { 60 } else { 20 }
    }

    /// Always false: an item has required members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Reads back the items of a document of our own.
    ///
    /// A document does not state the weight of each item, so all count as substantive.
    pub fn parse_document(document: &[u8]) -> Result<Vec<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct DocumentBuckets<'a> {
            #[serde(borrow)]
            buckets: BTreeMap<&'a str, Vec<&'a RawValue>>,
        }
        #[derive(Deserialize)]
        struct ItemKeys {
            change: DeltaKind,
            #[serde(default)]
            changed_in: Option<u64>,
            id: String,
            published_at: String,
            source: FeedId,
        }
        let document: DocumentBuckets<'_> = serde_json::from_slice(document)?;
        let mut items = Vec::new();
        for (bucket, texts) in document.buckets {
            for text in texts {
                let keys: ItemKeys = serde_json::from_str(text.get())?;
                // `change` and `changed_in` are the first members of our own documents, so the rest begins after
                // the first or second comma.
                let marks = if keys.changed_in.is_some() { 2 } else { 1 };
                let members = text.get().splitn(marks + 1, ',').nth(marks).unwrap_or("}");
                items.push(Self {
                    kind: keys.change,
                    reason: ImpactReason::Substantive,
                    flagged: bucket == "flagged",
                    published_at: keys.published_at,
                    source: keys.source,
                    id: keys.id,
                    changed_in: keys.changed_in,
                    members: Bytes::copy_from_slice(members.as_bytes()),
                });
            }
        }
        Ok(items)
    }

    /// Writes the whole object. `change` and `changed_in` sort before all other members.
    pub(in crate::diffdelta) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"change\":\"");
        out.extend_from_slice(self.kind.as_str().as_bytes());
        out.extend_from_slice(b"\",");
        if let Some(number) = self.changed_in {
            out.extend_from_slice(format!("\"changed_in\":{number},").as_bytes());
        }
        out.extend_from_slice(&self.members);
    }
}
