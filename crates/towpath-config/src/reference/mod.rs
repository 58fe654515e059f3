//! The configuration reference and the annotated example, made from the schema.

mod example;
mod toml_value;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::reload::{AtReload, at_reload};
use crate::schema::{Key, Section, json_schema_sections};

pub use example::example;
use toml_value::{assignment, toml_value};

/// Version in which each key appeared. The generator adds new keys with the current version.
const SINCE: &str = include_str!("../../data/since.toml");

/// Beginning of the reference.
const HEAD: &str = include_str!("head.md");

/// Returns the reference of all keys, as Markdown.
pub fn reference() -> String {
    let since = since();
    let mut text = HEAD.to_owned();
    for section in json_schema_sections() {
        // The file's own keys are in the first, which has no name.
        let heading = match section.path.is_empty() {
            true => "Keys of the file itself".to_owned(),
            false => format!("`{}`", section.heading()),
        };
        if section.keys.is_empty() && section.path.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## {heading}\n\n");
        if !section.path.is_empty() {
            let _ = writeln!(text, "{}", section.about);
        }
        for key in &section.keys {
            let path = key_path(&section, key);
            let version = since.get(&path).map_or(env!("CARGO_PKG_VERSION"), String::as_str);
            describe(&mut text, &section, key, version);
        }
    }
    text
}

/// Returns the versions in which the keys appeared, with those that the file does not have yet.
pub fn complete_since() -> String {
    let known = since();
    let mut text =
        String::from("# Version in which each key appeared. `cargo xtask config-reference` adds new keys.\n");
    let keys = json_schema_sections().into_iter().flat_map(|section| {
        let paths: Vec<_> = section.keys.iter().map(|key| key_path(&section, key)).collect();
        paths
    });
    for path in keys.collect::<std::collections::BTreeSet<_>>() {
        let version = known.get(&path).map_or(env!("CARGO_PKG_VERSION"), String::as_str);
        let _ = writeln!(text, "{path:?} = {version:?}");
    }
    text
}

fn since() -> BTreeMap<String, String> {
    toml::from_str(SINCE).unwrap_or_default()
}

fn key_path(section: &Section, key: &Key) -> String {
    section.path.iter().chain([&key.name]).cloned().collect::<Vec<_>>().join(".")
}

fn describe(text: &mut String, section: &Section, key: &Key, since: &str) {
    let _ = write!(text, "\n### `{}`\n\n{}\n\n", key_path(section, key), key.about);
    for (value, about) in &key.choices {
        let dash = if about.is_empty() { "" } else { ": " };
        let _ = writeln!(text, "- `{value:?}`{dash}{about}");
    }
    if !key.choices.is_empty() {
        text.push('\n');
    }
    let unit = key.unit.as_ref().map(|unit| format!("; a bare number is in {unit}")).unwrap_or_default();
    let default = match (&key.default, &key.default_text) {
        (_, Some(words)) => words.clone(),
        (Some(value), None) => format!("`{}`", toml_value(value)),
        (None, None) if key.is_required => "none: the key is required".to_owned(),
        (None, None) => "none".to_owned(),
    };
    let _ = write!(text, "Type: {}{unit}. Default: {default}. Since {since}.", key.type_name);
    if let Some(variable) = key.variable(section) {
        let _ = write!(text, " Environment: `{variable}`.");
    }
    let at_reload = match at_reload(&key_path(section, key)) {
        AtReload::TakenOver => "taken over",
        AtReload::NeedsRestart => "needs a restart",
    };
    let _ = write!(text, " At a reload: {at_reload}.");
    if let Some(example) = &key.example {
        let _ = write!(text, "\n\n```toml\n{}\n```\n", assignment(&key.name, example));
    } else {
        text.push('\n');
    }
}

#[cfg(test)]
pub(crate) use tests::{toml_with, with_required};

#[cfg(test)]
mod tests;
