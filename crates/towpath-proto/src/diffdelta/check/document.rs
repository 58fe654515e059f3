//! A feed document under check.
//!
//! Its items are read one after the other, and only what the rules compare is kept of them: as values, thousands of small
//! items would take twenty times their text.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::responses::text;
use super::schema::Schema;
use crate::format::FormatError;
use crate::format::budget::Budget;
use crate::format::json::syntax_error;
use crate::format::json_value::{BoundedValue, SharedBudget, read_value};

/// Buckets of the text. The items of others are counted in no rule (section 4).
pub(super) const KNOWN: [&str; 4] = ["new", "updated", "removed", "flagged"];

/// Items of a document by bucket.
pub(super) type BucketItems = BTreeMap<String, Vec<CheckedItem>>;

/// A document without its items, and what the rules compare of these.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CheckedDocument {
    /// The document, with empty buckets.
    pub(super) value: Value,
    pub(super) items: BucketItems,
    /// Problems of the items by the schema, each with its JSON pointer.
    pub(super) problems: Vec<String>,
}

/// An item of a bucket.
#[derive(Debug, PartialEq)]
pub(super) struct CheckedItem {
    pub(super) source: String,
    pub(super) id: String,
    pub(super) published_at: String,
    /// Score of its risk; 0 without one.
    pub(super) score: f64,
    /// Kind of its change, if it states any.
    pub(super) change: String,
    /// True if an earlier mint had it (`changed_in`).
    pub(super) is_repeated: bool,
    /// Digest of the whole item.
    digest: [u8; 32],
}

impl CheckedDocument {
    /// Reads a document within a budget, and checks its items by the schema.
    pub(super) fn read(text: &str, schema: &Schema, budget: &mut Budget) -> Result<Self, FormatError> {
        let mut document = Self::default();
        if !text.trim_start().starts_with('{') {
            document.value = read_value(text, budget)?;
            return Ok(document);
        }
        let mut members = Map::new();
        for (name, raw) in raw_parts(text, budget)?.members {
            let value = match name.as_str() {
                "buckets" if raw.get().starts_with('{') => {
                    document.read_buckets(raw.get(), schema, budget)?
                }
                _ => read_value(raw.get(), budget)?,
            };
            members.insert(name, value);
        }
        document.value = Value::Object(members);
        Ok(document)
    }

    /// Reads the items of all buckets; returns the buckets without them.
    fn read_buckets(
        &mut self,
        text: &str,
        schema: &Schema,
        budget: &mut Budget,
    ) -> Result<Value, FormatError> {
        let mut buckets = Map::new();
        for (name, raw) in raw_parts(text, budget)?.members {
            let value = match raw.get().starts_with('[') {
                true => self.read_bucket(&name, raw.get(), schema, budget)?,
                false => read_value(raw.get(), budget)?,
            };
            buckets.insert(name, value);
        }
        Ok(Value::Object(buckets))
    }

    fn read_bucket(
        &mut self,
        name: &str,
        text: &str,
        schema: &Schema,
        budget: &mut Budget,
    ) -> Result<Value, FormatError> {
        let mut items = Vec::new();
        for (index, raw) in raw_parts(text, budget)?.elements.into_iter().enumerate() {
            let before = budget.left();
            let value = read_value(raw.get(), budget)?;
            // The value is gone before the next item is read.
            budget.refund(before.saturating_sub(budget.left()));
            if KNOWN.contains(&name) {
                schema.check_item(&value, format!("/buckets/{name}/{index}"), &mut self.problems);
            }
            let item = CheckedItem::of(&value);
            budget.store(item.memory())?;
            items.push(item);
        }
        self.items.insert(name.to_owned(), items);
        Ok(Value::Array(Vec::new()))
    }
}

impl CheckedItem {
    fn of(item: &Value) -> Self {
        let owned = |name| text(item, name).to_owned();
        Self {
            source: owned("source"),
            id: owned("id"),
            published_at: owned("published_at"),
            // An item without a score counts as harmless.
            score: item.pointer("/risk/score").and_then(Value::as_f64).unwrap_or(0.0),
            change: owned("change"),
            is_repeated: item.get("changed_in").is_some(),
            // Members are sorted, so only the content counts.
            digest: Sha256::digest(item.to_string()).into(),
        }
    }

    fn memory(&self) -> usize {
        let texts = [&self.source, &self.id, &self.published_at, &self.change];
        size_of::<Self>() + texts.iter().map(|text| text.len() + 16).sum::<usize>()
    }
}

/// Members of an object, or elements of an array, as text.
#[derive(Default)]
struct RawParts<'t> {
    /// Of a repeated name the last one counts.
    members: BTreeMap<String, &'t RawValue>,
    elements: Vec<&'t RawValue>,
}

/// Reads the parts of an object or array.
fn raw_parts<'t>(text: &'t str, budget: &mut Budget) -> Result<RawParts<'t>, FormatError> {
    let shared = SharedBudget::new(budget);
    let mut parser = serde_json::Deserializer::from_str(text);
    let seed = PartsSeed { shared: &shared };
    let read = seed.deserialize(&mut parser).and_then(|parts| parser.end().map(|()| parts));
    read.map_err(|error| shared.exceeded().unwrap_or_else(|| syntax_error(text, 0, &error)))
}

struct PartsSeed<'a, 'b> {
    shared: &'a SharedBudget<'b>,
}

impl<'de> DeserializeSeed<'de> for PartsSeed<'_, '_> {
    type Value = RawParts<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawParts<'de>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PartsSeed<'_, '_> {
    type Value = RawParts<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<RawParts<'de>, A::Error> {
        let mut parts = RawParts::default();
        let object = BoundedValue { shared: self.shared, depth: 0 };
        while let Some(name) = members.next_key::<String>()? {
            object.member(parts.members.len(), &name)?;
            parts.members.insert(name, members.next_value()?);
        }
        Ok(parts)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<RawParts<'de>, A::Error> {
        let mut parts = RawParts::default();
        while let Some(element) = elements.next_element()? {
            parts.elements.push(element);
            self.shared.spend(|budget| {
                let most = budget.limits.items;
                if parts.elements.len() > most {
                    return Err(FormatError::Limit(format!("more than {most} items (limit: items)")));
                }
                budget.store(size_of::<&RawValue>())
            })?;
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DocumentLimits;

    fn checked(text: &str) -> Result<CheckedDocument, FormatError> {
        let mut budget = Budget::new(text.len(), DocumentLimits::default());
        CheckedDocument::read(text, &Schema::of_feeds(), &mut budget)
    }

    /// As values they take twenty times their text.
    #[test]
    fn thousands_of_small_items_are_within_the_default_limits() {
        let item = |n| {
            format!(r#"{{"source":"s","id":"{n}","risk":{{"score":0}},"content":{{}},"provenance":{{}}}}"#)
        };
        let items: Vec<String> = (0..50_000).map(item).collect();
        let text = format!(r#"{{"cursor":"c","buckets":{{"new":[{}],"other":[{{}}]}}}}"#, items.join(","));
        let mut budget = Budget::new(text.len(), DocumentLimits::default());
        assert!(matches!(read_value(&text, &mut budget), Err(FormatError::Limit(_))));
        let document = checked(&text).unwrap();
        assert_eq!(document.items["new"].len(), 50_000);
        assert_eq!(document.items["new"][9].id, "9");
        assert_eq!(document.value.to_string(), r#"{"buckets":{"new":[],"other":[]},"cursor":"c"}"#);
        assert!(document.problems[0].starts_with("/buckets/new/0 has no "), "{:?}", document.problems);
        assert!(document.problems.iter().all(|problem| !problem.contains("other")));
    }

    #[test]
    fn items_differ_by_their_content() {
        let one = checked(r#"{"buckets":{"new":[{"id":"a","x":[1]}]}}"#).unwrap();
        let same = checked("{\"buckets\": {\"new\": [{\"x\": [1], \"id\": \"a\"}]}}\n").unwrap();
        let other = checked(r#"{"buckets":{"new":[{"id":"a","x":[2]}]}}"#).unwrap();
        assert_eq!(one, same);
        assert_ne!(one.items, other.items);
    }

    #[test]
    fn hostile_documents_are_refused() {
        let many = format!("{{{}}}", (0..20_000).map(|n| format!("\"{n}\":0")).collect::<Vec<_>>().join(","));
        assert!(checked(&many).unwrap_err().to_string().contains("limit: members"));
        let empty = format!(r#"{{"buckets":{{"new":[{}0]}}}}"#, "0,".repeat(600_000));
        assert!(checked(&empty).unwrap_err().to_string().contains("limit: items"));
        for text in ["", "{", "[1", r#"{"buckets":{"new":[1}}"#, r#"{"buckets":{"new":[1e400]}}"#] {
            assert!(checked(text).is_err(), "{text}");
        }
        for text in ["[]", "1", r#"{"buckets":1}"#, r#"{"buckets":{"new":{}}}"#] {
            assert!(checked(text).unwrap().items.is_empty(), "{text}");
        }
    }
}
