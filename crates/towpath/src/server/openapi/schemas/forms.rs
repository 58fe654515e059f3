//! Small schemas, of which others are made.

use serde_json::{Map, Value, json};

/// Schema of an object that may have other members.
pub(super) fn object(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Schema of a list of bodies of one schema.
pub(super) fn list_of(schema: &str) -> Value {
    json!({ "type": "array", "items": reference(schema) })
}

/// Reference to a schema by its name.
pub(super) fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

/// Schema of a text.
pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

/// Schema of a time.
pub(super) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

/// Schema of a number of things.
pub(super) fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// Gives schemas their names.
pub(super) fn named(schemas: impl IntoIterator<Item = (&'static str, Value)>) -> Map<String, Value> {
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}
