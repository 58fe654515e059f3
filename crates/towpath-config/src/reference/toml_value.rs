//! Values of the schema, written as TOML.

use serde_json::Value;

/// Writes a value as TOML, in one line.
pub(super) fn toml_value(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(toml_value).collect::<Vec<_>>().join(", ")),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| assignment(name, value));
            format!("{{ {} }}", members.collect::<Vec<_>>().join(", "))
        }
        // A basic string of TOML has JSON's escapes.
        other => other.to_string(),
    }
}

/// Writes `key = value`.
pub(super) fn assignment(key: &str, value: &Value) -> String {
    let is_bare = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    let key = if is_bare { key.to_owned() } else { Value::from(key).to_string() };
    format!("{key} = {}", toml_value(value))
}
