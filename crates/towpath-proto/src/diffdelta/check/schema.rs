//! As much of JSON Schema 2020-12 as our own schemas use, so that a document is held against the same text
//! that we publish.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use crate::diffdelta::uri;

/// How many problems of one document are named.
const MAX_PROBLEMS: usize = 5;

/// A schema, read once.
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
    additional_properties: Option<Additional>,
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
enum Additional {
    Allowed(bool),
    Each(Box<Schema>),
}

fn pattern<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Regex>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Regex::new(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Schema {
    /// The schema of feeds.
    pub(super) fn of_feeds() -> Self {
        Self::parse(include_str!("../schema/diff.schema.json"))
    }

    /// The schema of manifests.
    pub(super) fn of_manifests() -> Self {
        Self::parse(include_str!("../schema/wellknown.schema.json"))
    }

    fn parse(text: &str) -> Self {
        let schema = serde_json::from_str(text);
        debug_assert!(schema.is_ok(), "{schema:?}");
        schema.unwrap_or_default()
    }

    /// What is wrong with a value, each with its place as a JSON pointer; the first few of it.
    pub(super) fn problems(&self, value: &Value) -> Vec<String> {
        let mut found = Found { root: self, problems: Vec::new() };
        found.check(self, value, &mut String::new());
        found.problems
    }
}

struct Found<'a> {
    root: &'a Schema,
    problems: Vec<String>,
}

impl<'a> Found<'a> {
    fn note(&mut self, place: &str, problem: impl AsRef<str>) {
        if self.problems.len() < MAX_PROBLEMS {
            let place = if place.is_empty() { "the document" } else { place };
            self.problems.push(format!("{place} {}", problem.as_ref()));
        }
    }

    fn check(&mut self, schema: &'a Schema, value: &Value, place: &mut String) {
        if self.problems.len() >= MAX_PROBLEMS {
            return;
        }
        let target = schema.reference.as_deref().and_then(|r| r.strip_prefix("#/$defs/"));
        if let Some(target) = target.and_then(|name| self.root.definitions.get(name)) {
            self.check(target, value, place);
        }
        self.check_choice(schema, value, place);
        if let Some(kind) = schema.kind.as_deref().filter(|kind| !is_kind(value, kind)) {
            self.note(place, format!("is not of type {kind}"));
            return;
        }
        if schema.values.as_ref().is_some_and(|values| !values.contains(value)) {
            self.note(place, format!("is {value}, which is none of the values allowed"));
        }
        match value {
            Value::Object(members) => self.check_object(schema, members, place),
            Value::Array(values) => self.check_array(schema, values, place),
            Value::String(text) => self.check_text(schema, text, place),
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or(f64::NAN);
                let fits = schema.minimum.is_none_or(|min| number >= min)
                    && schema.maximum.is_none_or(|max| number <= max);
                if !fits {
                    self.note(place, format!("is {number}, which is out of bounds"));
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Exactly one of the choices; otherwise the problems of the one that comes nearest.
    fn check_choice(&mut self, schema: &'a Schema, value: &Value, place: &mut String) {
        let mut outcomes = Vec::new();
        for choice in &schema.one_of {
            let mut found = Found { root: self.root, problems: Vec::new() };
            found.check(choice, value, place);
            outcomes.push(found.problems);
        }
        match outcomes.iter().filter(|o| o.is_empty()).count() {
            1 => {}
            0 => {
                let nearest = outcomes.into_iter().min_by_key(Vec::len).unwrap_or_default();
                self.problems.extend(nearest);
            }
            _ => self.note(place, "fits several forms of which it may be one only"),
        }
    }

    fn check_object(
        &mut self,
        schema: &'a Schema,
        members: &serde_json::Map<String, Value>,
        place: &mut String,
    ) {
        for name in schema.required.iter().filter(|name| !members.contains_key(*name)) {
            self.note(place, format!("has no {name}"));
        }
        for (name, value) in members {
            let inner = match (schema.properties.get(name), &schema.additional_properties) {
                (Some(inner), _) => inner,
                (None, Some(Additional::Each(inner))) => inner,
                (None, Some(Additional::Allowed(false))) => {
                    self.note(place, format!("has {name}, which the schema does not know"));
                    continue;
                }
                (None, _) => continue,
            };
            let length = place.len();
            place.push('/');
            place.push_str(name);
            self.check(inner, value, place);
            place.truncate(length);
        }
    }

    fn check_array(&mut self, schema: &'a Schema, values: &[Value], place: &mut String) {
        if values.len() < schema.min_items || schema.max_items.is_some_and(|max| values.len() > max) {
            self.note(place, format!("has {} elements", values.len()));
        }
        let mut seen = BTreeSet::new();
        if schema.unique_items && !values.iter().all(|v| seen.insert(v.to_string())) {
            self.note(place, "has an element twice");
        }
        let Some(inner) = &schema.items else { return };
        for (index, value) in values.iter().enumerate() {
            let length = place.len();
            place.push_str(&format!("/{index}"));
            self.check(inner, value, place);
            place.truncate(length);
        }
    }

    fn check_text(&mut self, schema: &'a Schema, text: &str, place: &str) {
        let length =
            if schema.min_length > 0 || schema.max_length.is_some() { text.chars().count() } else { 0 };
        if length < schema.min_length || schema.max_length.is_some_and(|max| length > max) {
            self.note(place, format!("has {length} characters"));
        }
        if schema.pattern.as_ref().is_some_and(|pattern| !pattern.is_match(text)) {
            self.note(place, format!("is {:?}, against the pattern", shortened(text)));
        }
        let fits = match schema.format.as_deref() {
            Some("date-time") => text.parse::<Timestamp>().is_ok(),
            // A template's braces stand for what makes it one (section 8).
            Some("uri") => uri::absolute(&text.replace(['{', '}'], "")).is_some(),
            _ => true,
        };
        if !fits {
            let format = schema.format.as_deref().unwrap_or_default();
            self.note(place, format!("is {:?}, which is no {format}", shortened(text)));
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
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        _ => false,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}
