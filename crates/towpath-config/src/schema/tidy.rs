//! Changes to the derived schema: TOML has no null, and durations are texts.

use serde_json::{Map, Value, json};

use super::types::duration;

/// Stands for a default that depends on other keys; see `ttl`.
const UNSET_SECONDS: u64 = u64::MAX;

/// Changes the derived schema to the configuration's forms.
pub(super) fn tidy(schema: &mut Value) {
    each_object(schema, &mut |object| {
        without_null(object);
        default_duration(object);
        // Rust's own formats, such as uint64, mean nothing to an editor. A key may have this name, too.
        if object.get("format").is_some_and(Value::is_string) {
            object.remove("format");
        }
        plain_enum(object);
    });
    if schema["$defs"].get("Duration").is_some() {
        schema["$defs"]["Duration"] = duration();
    }
    schema["title"] = "towpath.toml".into();
}

fn each_object(value: &mut Value, change: &mut dyn FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            change(object);
            object.values_mut().for_each(|value| each_object(value, change));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| each_object(value, change)),
        _ => {}
    }
}

/// Removes null from what a value may be: an absent key is absent.
fn without_null(object: &mut Map<String, Value>) {
    if object.get("default").is_some_and(Value::is_null) {
        object.remove("default");
    }
    if let Some(Value::Array(types)) = object.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            let only = only.clone();
            object.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(choices)) = object.get_mut("anyOf") else { return };
    choices.retain(|choice| choice != &json!({ "type": "null" }));
    if choices.len() == 1
        && let Value::Object(only) = choices.remove(0)
    {
        object.remove("anyOf");
        for (key, value) in only {
            // The field's own description says more than its type's.
            object.entry(key).or_insert(value);
        }
    }
}

/// Writes a default duration as a text.
fn default_duration(object: &mut Map<String, Value>) {
    let Some(default) = object.get("default").and_then(Value::as_object) else { return };
    let (Some(seconds), Some(0 | 999_999_999)) =
        (default.get("secs").and_then(Value::as_u64), default.get("nanos").and_then(Value::as_u64))
    else {
        return;
    };
    if seconds == UNSET_SECONDS {
        object.remove("default");
        return;
    }
    object.insert("default".into(), duration_text(seconds).into());
}

fn duration_text(seconds: u64) -> String {
    for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
        if seconds > 0 && seconds.is_multiple_of(length) {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

/// Gives an enumeration whose values have descriptions the list of its values, which editors complete.
fn plain_enum(object: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = object.get("oneOf") else { return };
    let values: Option<Vec<Value>> = choices.iter().map(|choice| choice.get("const").cloned()).collect();
    if let Some(values) = values {
        object.insert("enum".into(), Value::Array(values));
    }
}
