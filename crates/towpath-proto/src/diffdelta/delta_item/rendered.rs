//! A delta item as text: what a document's buckets are made of.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::diffdelta::wire::{ImpactReason, Kind};
use crate::feed_id::FeedId;

/// A delta as JSON text, with what decides where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// What happened to the item.
    pub kind: Kind,
    /// Whether it stands in the flagged bucket.
    pub flagged: bool,
    /// How much it matters.
    pub reason: ImpactReason,
    /// As shown: the first key of the order (section 4).
    pub published_at: String,
    /// The source, the second key.
    pub source: FeedId,
    /// The id as shown, the third key.
    pub id: String,
    /// The object's members after `"change"`, without the opening brace.
    pub(in crate::diffdelta) members: String,
}

impl Rendered {
    /// The key that buckets are sorted by (section 4).
    pub(in crate::diffdelta) fn order(&self) -> (&str, &str, &str) {
        (&self.published_at, self.source.as_str(), &self.id)
    }

    /// About how many bytes it has in a document.
    pub fn len(&self) -> usize {
        self.members.len() + 20
    }

    /// Never: an item has required members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Reads back the items of a document of ours. How much each mattered is not in it: they count as
    /// substantive.
    pub fn read_all(source: &FeedId, document: &[u8]) -> Result<Vec<Self>, serde_json::Error> {
        #[derive(Deserialize)]
        struct Document<'a> {
            #[serde(borrow)]
            buckets: BTreeMap<&'a str, Vec<&'a RawValue>>,
        }
        #[derive(Deserialize)]
        struct Keys {
            change: Kind,
            id: String,
            published_at: String,
        }
        let document: Document<'_> = serde_json::from_slice(document)?;
        let mut items = Vec::new();
        for (bucket, texts) in document.buckets {
            for text in texts {
                let keys: Keys = serde_json::from_str(text.get())?;
                let members = text.get().split_once(',').map_or("}", |(_, rest)| rest);
                items.push(Self {
                    kind: keys.change,
                    reason: ImpactReason::Substantive,
                    flagged: bucket == "flagged",
                    published_at: keys.published_at,
                    source: source.clone(),
                    id: keys.id,
                    members: members.to_owned(),
                });
            }
        }
        Ok(items)
    }

    /// Writes the whole object: `change` is the first of its members.
    pub(in crate::diffdelta) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"change\":\"");
        out.extend_from_slice(self.kind.as_str().as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(self.members.as_bytes());
    }
}
