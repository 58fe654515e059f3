//! Validation by JSON Schema 2020-12, limited to the keywords of our own schemas.
//!
//! The check validates by the same text that we publish. A general validator would be a large dependency.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::diffdelta::wire::uri;

/// Most problems that are reported for a document.
pub(super) const MAX_PROBLEMS: usize = 5;

/// A parsed schema.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Schema {
    #[serde(rename = "$ref")]
    reference: Option<String>,
    #[serde(rename = "$defs")]
    definitions: BTreeMap<String, Schema>,
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(rename = "enum")]
    values: Option<Vec<Value>>,
    one_of: Vec<Schema>,
    required: Vec<String>,
    properties: BTreeMap<String, Schema>,
    additional_properties: Option<AdditionalProperties>,
    items: Option<Box<Schema>>,
    min_items: usize,
    max_items: Option<usize>,
    unique_items: bool,
    min_length: usize,
    max_length: Option<usize>,
    #[serde(deserialize_with = "pattern")]
    pattern: Option<Regex>,
    format: Option<String>,
    minimum: Option<f64>,
    maximum: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AdditionalProperties {
    Allowed(bool),
    Each(Box<Schema>),
}

fn pattern<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Regex>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Regex::new(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Schema {
    /// Returns the schema of feed documents.
    pub(super) fn of_feeds() -> Self {
        Self::parse(include_str!("../wire/schema/diff.schema.json"))
    }

    /// Returns the schema of manifests.
    pub(super) fn of_manifests() -> Self {
        Self::parse(include_str!("../wire/schema/wellknown.schema.json"))
    }

    fn parse(text: &str) -> Self {
        let schema = serde_json::from_str(text);
        debug_assert!(schema.is_ok(), "{schema:?}");
        schema.unwrap_or_default()
    }

    /// Validates a value. Returns the first few problems, each with its JSON pointer.
    pub(super) fn problems(&self, value: &Value) -> Vec<String> {
        let mut found = SchemaValidation { root: self, problems: Vec::new() };
        found.check(self, value, &mut String::new());
        found.problems
    }
}

impl Schema {
    /// Validates an item of a bucket, which is at `pointer`, and adds its problems.
    pub(super) fn check_item(&self, item: &Value, mut pointer: String, problems: &mut Vec<String>) {
        let Some(schema) = self.definitions.get("item") else { return };
        let mut found = SchemaValidation { root: self, problems: std::mem::take(problems) };
        found.check(schema, item, &mut pointer);
        *problems = found.problems;
    }
}

struct SchemaValidation<'a> {
    root: &'a Schema,
    problems: Vec<String>,
}

impl<'a> SchemaValidation<'a> {
    fn report(&mut self, pointer: &str, problem: impl AsRef<str>) {
        if self.problems.len() < MAX_PROBLEMS {
            let pointer = if pointer.is_empty() { "the document" } else { pointer };
            self.problems.push(format!("{pointer} {}", problem.as_ref()));
        }
    }

    fn check(&mut self, schema: &'a Schema, value: &Value, pointer: &mut String) {
        // A document may have thousands of items with the same problem.
        if self.problems.len() >= MAX_PROBLEMS {
            return;
        }
        let target = schema.reference.as_deref().and_then(|r| r.strip_prefix("#/$defs/"));
        if let Some(target) = target.and_then(|name| self.root.definitions.get(name)) {
            self.check(target, value, pointer);
        }
        self.check_choice(schema, value, pointer);
        if let Some(kind) = schema.kind.as_deref().filter(|kind| !is_kind(value, kind)) {
            // Further keywords assume the type and would only repeat the problem.
            self.report(pointer, format!("is not of type {kind}"));
            return;
        }
        if schema.values.as_ref().is_some_and(|values| !values.contains(value)) {
            self.report(pointer, format!("is {value}, which is none of the values allowed"));
        }
        match value {
            Value::Object(members) => self.check_object(schema, members, pointer),
            Value::Array(values) => self.check_array(schema, values, pointer),
            Value::String(text) => self.check_text(schema, text, pointer),
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                let fits = schema.minimum.is_none_or(|min| number >= min)
                    && schema.maximum.is_none_or(|max| number <= max);
                if !fits {
                    self.report(pointer, format!("is {number}, which is out of bounds"));
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Validates `oneOf`. If no choice matches, reports the problems of the closest one.
    fn check_choice(&mut self, schema: &'a Schema, value: &Value, pointer: &mut String) {
        let mut outcomes = Vec::new();
        for choice in &schema.one_of {
            let mut found = SchemaValidation { root: self.root, problems: Vec::new() };
            found.check(choice, value, pointer);
            outcomes.push(found.problems);
        }
        match outcomes.iter().filter(|o| o.is_empty()).count() {
            1 => {}
            0 => {
                let nearest = outcomes.into_iter().min_by_key(Vec::len).unwrap_or_default();
                self.problems.extend(nearest);
            }
            _ => self.report(pointer, "matches more than one alternative of oneOf"),
        }
    }

    fn check_object(
        &mut self,
        schema: &'a Schema,
        members: &serde_json::Map<String, Value>,
        pointer: &mut String,
    ) {
        for name in schema.required.iter().filter(|name| !members.contains_key(*name)) {
            self.report(pointer, format!("has no {name}"));
        }
        for (name, value) in members {
            let inner = match (schema.properties.get(name), &schema.additional_properties) {
                (Some(inner), _) => inner,
                (None, Some(AdditionalProperties::Each(inner))) => inner,
                (None, Some(AdditionalProperties::Allowed(false))) => {
                    self.report(pointer, format!("has {name}, which the schema does not know"));
                    continue;
                }
                (None, _) => continue,
            };
            let length = pointer.len();
            pointer.push('/');
            pointer.push_str(name);
            self.check(inner, value, pointer);
            pointer.truncate(length);
        }
    }

    fn check_array(&mut self, schema: &'a Schema, values: &[Value], pointer: &mut String) {
        if values.len() < schema.min_items || schema.max_items.is_some_and(|max| values.len() > max) {
            self.report(pointer, format!("has {} elements", values.len()));
        }
        let mut seen = BTreeSet::new();
        // Compared as text: values have no order of their own.
        if schema.unique_items && !values.iter().all(|v| seen.insert(v.to_string())) {
            self.report(pointer, "has an element twice");
        }
        let Some(inner) = &schema.items else { return };
        for (index, value) in values.iter().enumerate() {
            let length = pointer.len();
            pointer.push_str(&format!("/{index}"));
            self.check(inner, value, pointer);
            pointer.truncate(length);
        }
    }

    fn check_text(&mut self, schema: &'a Schema, text: &str, pointer: &str) {
        // Counting characters is linear, and most members have no limit.
        let length =
            if schema.min_length > 0 || schema.max_length.is_some() { text.chars().count() } else { 0 };
        if length < schema.min_length || schema.max_length.is_some_and(|max| length > max) {
            self.report(pointer, format!("has {length} characters"));
        }
        if schema.pattern.as_ref().is_some_and(|pattern| !pattern.is_match(text)) {
            self.report(pointer, format!("is {:?}, against the pattern", shortened(text)));
        }
        let fits = match schema.format.as_deref() {
            Some("date-time") => text.parse::<Timestamp>().is_ok(),
            // Section 8 requires a template with braces, which RFC 3986 does not allow.
            Some("uri") => uri::absolute(&text.replace(['{', '}'], "")).is_some(),
            _ => true,
        };
        if !fits {
            let format = schema.format.as_deref().unwrap_or_default();
            self.report(pointer, format!("is {:?}, which is no {format}", shortened(text)));
        }
    }
}

fn is_kind(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        // JSON Schema counts 1.0 as an integer.
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        _ => false,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::diffdelta::discovery;
    use crate::diffdelta::publish::testing::{TestSource, at, places};
    use crate::item::Item;

    /// Our validator agrees with a JSON Schema library on corrupted documents.
    #[test]
    fn our_schema_validator_agrees_with_a_library() {
        let mut p = TestSource::new("ab");
        p.put(Item { title: Some("t".into()), ..Item::new("a") }, at(1));
        p.run(at(1));
        let good: Value = serde_json::from_slice(&p.latest).unwrap();
        let (_, text) = discovery::schemas(&p.site).remove(0);
        let text: Value = serde_json::from_slice(&text).unwrap();
        let library = jsonschema::options().should_validate_formats(true).build(&text).unwrap();
        let schema = Schema::of_feeds();
        assert_eq!(schema.problems(&good), [""; 0]);
        let mut pointers = Vec::new();
        places(&good, "", &mut pointers);
        let long = Value::from("x".repeat(2001));
        for pointer in pointers {
            // Of other types, out of bounds, a whole float, repeated elements, and too long a text.
            for value in [
                Value::Null,
                json!("?"),
                json!(-1),
                json!(1.0),
                json!(2.5),
                json!([]),
                json!(["a", "a"]),
                json!({}),
                long.clone(),
            ] {
                let mut broken = good.clone();
                *broken.pointer_mut(&pointer).unwrap() = value.clone();
                let problems = schema.problems(&broken);
                assert_eq!(
                    problems.is_empty(),
                    library.is_valid(&broken),
                    "{pointer} = {value}: {problems:?}"
                );
            }
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let mut broken = good.clone();
            if let Some(parent) = broken.pointer_mut(parent).and_then(Value::as_object_mut) {
                parent.remove(name);
                parent.insert("unknown_member".into(), json!(1));
                assert_eq!(schema.problems(&broken).is_empty(), library.is_valid(&broken), "{pointer}");
            }
        }
    }
}
