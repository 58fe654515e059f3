//! Schemas that the server publishes as documents of their own.

use serde_json::{Map, Value, json};
use towpath_proto::diffdelta::{SiteUrl, discovery};

/// JSON Schema of lines, which is a document of its own as well.
pub(in crate::server) const CHANGE_SCHEMA: &str = include_str!("../../change.schema.json");

/// Adds the schemas that the server publishes as documents of their own.
pub(super) fn add(schemas: &mut Map<String, Value>) {
    if let Ok(change) = serde_json::from_str(CHANGE_SCHEMA) {
        add_whole(schemas, "Change", change);
    }
    for (path, text) in discovery::schemas(&SiteUrl::new("")) {
        let name = match path.rsplit('/').next() {
            Some("diff.schema.json") => "DiffDeltaFeed",
            Some("known_issues.schema.json") => "DiffDeltaKnownIssues",
            _ => "DiffDeltaManifest",
        };
        if let Ok(schema) = serde_json::from_slice(&text) {
            add_whole(schemas, name, schema);
        }
    }
}

/// Adds a schema and its definitions, which get names of their own: references within the document are from its root.
fn add_whole(schemas: &mut Map<String, Value>, name: &str, mut schema: Value) {
    let Some(root) = schema.as_object_mut() else { return };
    root.remove("$schema");
    root.remove("$id");
    let definitions = root.remove("$defs");
    for (definition, mut body) in definitions.into_iter().filter_map(into_object).flatten() {
        rename(&mut body, name);
        schemas.insert(definition_name(name, &definition), body);
    }
    rename(&mut schema, name);
    schemas.insert(name.to_owned(), schema);
}

fn into_object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(map) => Some(map),
        _ => None,
    }
}

/// Name of a definition: `ChangeOneContent` for `one_content` of `Change`.
fn definition_name(schema: &str, definition: &str) -> String {
    let words = definition.split('_').map(|word| {
        let mut letters = word.chars();
        letters
            .next()
            .map(|first| first.to_uppercase().chain(letters).collect::<String>())
            .unwrap_or_default()
    });
    format!("{schema}{}", words.collect::<String>())
}

/// Renames the references to definitions, and gives members that must be absent a schema that generators know.
fn rename(value: &mut Value, name: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let reference = value.as_str().filter(|_| key == "$ref");
                if let Some(definition) = reference.and_then(|text| text.strip_prefix("#/$defs/")) {
                    *value = format!("#/components/schemas/{}", definition_name(name, definition)).into();
                    continue;
                }
                let properties = value.as_object_mut().filter(|_| key == "properties");
                for (_, never) in properties.into_iter().flatten().filter(|(_, schema)| **schema == false) {
                    *never = json!({ "not": {} });
                }
                rename(value, name);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| rename(value, name)),
        _ => {}
    }
}
