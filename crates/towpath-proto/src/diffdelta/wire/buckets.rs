//! The buckets of a feed document as a follower reads them (section 4).

use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Maximum number of unknown buckets that are named.
// The names come from another publisher: a document of a million buckets would be a million warnings.
const MAX_UNKNOWN: usize = 20;

/// The buckets of a feed document. Items stay text until they are delivered: as trees, those of a large document would
/// take many times its size.
#[derive(Debug, Clone, Default)]
pub struct ItemBuckets {
    /// New items.
    pub new: Vec<Box<RawValue>>,
    /// Items whose content changed.
    pub updated: Vec<Box<RawValue>>,
    /// Removed items, in their last known version.
    pub removed: Vec<Box<RawValue>>,
    /// Items with a risk score of 0.4 or more (section 9).
    pub flagged: Vec<Box<RawValue>>,
    /// New and changed items of publishers that do not tell them apart. Not in the text.
    pub items: Vec<Box<RawValue>>,
    /// Names of all other buckets that have items, and the number of those.
    pub unknown: Vec<(String, usize)>,
}

impl<'de> Deserialize<'de> for ItemBuckets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(BucketsVisitor)
    }
}

struct BucketsVisitor;

impl<'de> Visitor<'de> for BucketsVisitor {
    type Value = ItemBuckets;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("buckets by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<ItemBuckets, A::Error> {
        let mut buckets = ItemBuckets::default();
        while let Some(name) = members.next_key::<String>()? {
            let bucket = match name.as_str() {
                "new" => &mut buckets.new,
                "updated" => &mut buckets.updated,
                "removed" => &mut buckets.removed,
                "flagged" => &mut buckets.flagged,
                "items" => &mut buckets.items,
                _ => {
                    let ElementCount(count) = members.next_value()?;
                    if count > 0 && buckets.unknown.len() < MAX_UNKNOWN {
                        buckets.unknown.push((name.chars().take(60).collect(), count));
                    }
                    continue;
                }
            };
            if !bucket.is_empty() {
                return Err(A::Error::custom(format!("the bucket {name} is there twice")));
            }
            *bucket = members.next_value::<BucketItems>()?.0;
        }
        Ok(buckets)
    }
}

/// The items of a bucket. `null` counts as empty. The follower counts them before they are read.
#[derive(Default)]
pub(super) struct BucketItems(pub(super) Vec<Box<RawValue>>);

impl<'de> Deserialize<'de> for BucketItems {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemsVisitor).map(Self)
    }
}

struct ItemsVisitor;

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Vec<Box<RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = elements.next_element()? {
            items.push(item);
        }
        Ok(items)
    }
}

/// Number of elements of an array; 0 of any other value, which holds no items.
#[derive(Default)]
pub(super) struct ElementCount(pub(super) usize);

impl<'de> Deserialize<'de> for ElementCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = <&RawValue>::deserialize(deserializer)?.get();
        if !value.starts_with('[') {
            return Ok(Self(0));
        }
        let elements: Vec<IgnoredAny> = serde_json::from_str(value).map_err(D::Error::custom)?;
        Ok(Self(elements.len()))
    }
}
