//! JSON Schema of the configuration, derived from its types. Doc comments are its descriptions.
//!
//! The reference, the annotated example and the environment variables come from the schema. So a new key is in all of
//! them at once.

mod keys;
mod tidy;
mod types;

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::Config;

use keys::sections;
pub(super) use keys::{Key, KeyKind, Section};
pub(super) use types::{ByteSize, Mebibytes};

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Config>().to_value();
    tidy::tidy(&mut schema);
    schema
});

/// Returns the tables of the configuration, with their keys.
pub(super) fn json_schema_sections() -> Vec<Section> {
    sections(json_schema())
}

/// Returns the JSON Schema (draft 2020-12) of the configuration.
pub fn json_schema() -> &'static Value {
    &SCHEMA
}

#[cfg(test)]
mod tests;
