use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::Config;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn is_current(name: &str, text: &str) {
    let found = std::fs::read_to_string(file(name)).unwrap_or_default();
    assert!(found == text, "{name} is out of date: run `cargo xtask config-reference`");
}

#[test]
fn the_reference_is_up_to_date() {
    is_current("data/since.toml", &complete_since());
    is_current("../../docs/configuration.md", &reference());
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("towpath.toml")).map_err(|e| e.to_string())
}

#[test]
fn the_example_is_valid() {
    let config = parse(&example()).unwrap();
    assert_eq!(config.feeds.len(), 1);
}

/// Each line of the example that is commented out is a key with a value of the right type.
#[test]
fn each_key_of_the_example_is_valid_by_itself() {
    for section in json_schema_sections() {
        for key in &section.keys {
            let shown = key.default.iter().chain(&key.example);
            for value in shown {
                let text = toml_with(&section, key, value);
                // Values that only fit with others are refused by a check, whose error names a place.
                let error = parse(&text).err().unwrap_or_default();
                for wrong in ["invalid type", "unknown", "is not a"] {
                    assert!(!error.contains(wrong), "{text}\n{error}");
                }
            }
        }
    }
}

/// Returns a configuration with one key, and the required keys around it.
pub(crate) fn toml_with(section: &Section, key: &Key, value: &Value) -> String {
    // Variables of the environment are not set here.
    let assignment = assignment(&key.name, value).replace("${", "$${");
    format!("{}{assignment}", with_required(section, Some(&key.name)))
}

/// Returns a configuration with the required keys of a table and of those around it, without one of its own.
pub(crate) fn with_required(section: &Section, without: Option<&str>) -> String {
    let mut text = String::new();
    for depth in 1..section.path.len() {
        let outer = json_schema_sections().into_iter().find(|outer| outer.path == section.path[..depth]);
        text.extend(outer.map(|outer| table(&outer, None)));
    }
    text + &table(section, without)
}

fn table(section: &Section, without: Option<&str>) -> String {
    let mut text = String::new();
    if !section.path.is_empty() {
        text = format!("{}\n", section.heading());
    }
    for key in section.keys.iter().filter(|key| key.is_required && Some(key.name.as_str()) != without) {
        let example = key.example.as_ref().expect("each key has an example");
        text.push_str(&format!("{}\n", assignment(&key.name, example).replace("${", "$${")));
    }
    text
}
