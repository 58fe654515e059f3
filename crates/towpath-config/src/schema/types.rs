//! Schemas of values that are read by functions of our own.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use towpath_proto::FeedId;
use towpath_proto::smart::filter::Filter;

use crate::access::{FilterConfig, ReaderConfig};
use crate::secret::Secret;

/// Pattern of a size with its unit.
const SIZE: &str = r"^\s*[0-9]+(\.[0-9]+)?\s*([KkMmGgTt]?[Ii]?[Bb])?\s*$";

/// Schema of a size in bytes.
pub(crate) struct ByteSize;

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A size: a number of bytes, or a text with a unit such as \"64 KiB\".",
            "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": SIZE }],
            "x-type": "size",
            "x-unit": "bytes",
        })
    }
}

/// Schema of a size in MiB.
pub(crate) struct Mebibytes;

impl JsonSchema for Mebibytes {
    fn schema_name() -> Cow<'static, str> {
        "Mebibytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A size: a number of MiB, or a text with a unit such as \"1 GiB\".",
            "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": SIZE }],
            "x-type": "size",
            "x-unit": "MiB",
        })
    }
}

/// Returns the schema of a duration, in place of the one that its two numbers have.
pub(super) fn duration() -> Value {
    serde_json::json!({
        "description": "A duration: a number of seconds, or a text such as \"90s\", \"5m\", \"1h 30m\" or \"2d\".",
        "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": "^\\s*[0-9]" }],
        "x-type": "duration",
        "x-unit": "seconds",
    })
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A secret, best written as ${VARIABLE} or ${file:PATH}.",
            "type": "string",
            "x-type": "secret text",
        })
    }
}

impl JsonSchema for FilterConfig {
    fn schema_name() -> Cow<'static, str> {
        "FilterConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Filter::json_schema(generator);
        let of = json_schema!({
            "description": "Id of the feed whose items are filtered.",
            "allOf": [generator.subschema_for::<FeedId>()],
            "examples": ["orders"],
        });
        if let Some(Value::Object(properties)) = schema.get_mut("properties") {
            properties.insert("of".into(), of.to_value());
        }
        schema.insert("required".into(), serde_json::json!(["of"]));
        let about = "Filter on another feed, whose items this feed shows. An item must meet every condition.";
        schema.insert("description".into(), about.into());
        schema
    }
}

impl JsonSchema for ReaderConfig {
    fn schema_name() -> Cow<'static, str> {
        "ReaderConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let token = generator.subschema_for::<Secret>();
        let filter = generator.subschema_for::<Filter>();
        json_schema!({
            "description": "A token for the whole feed, or a token with a filter for a part of it.",
            "anyOf": [
                token,
                {
                    "type": "object",
                    "properties": { "token": token, "filter": filter },
                    "required": ["token", "filter"],
                    "additionalProperties": false,
                },
            ],
            "x-type": "token, or `{ token, filter }`",
        })
    }
}
