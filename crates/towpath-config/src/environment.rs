//! Environment variables that set keys of `[server]`, such as `TOWPATH_SERVER_LISTEN`.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::error::ConfigProblem;
use super::files::{ConfigTexts, shifted};
use super::schema::{KeyKind, json_schema_sections};
use super::tree::set;
use super::variables::Environment;

/// A key that a variable sets.
pub(super) struct EnvironmentKey {
    path: Vec<String>,
    kind: KeyKind,
    /// Number of its text among the configuration's texts.
    start: usize,
}

/// Reads the variables that are set. Their values are added to the texts. An empty one counts as not set.
pub(super) fn read(environment: &Environment<'_>, texts: &mut ConfigTexts) -> Vec<EnvironmentKey> {
    let mut found = Vec::new();
    for section in json_schema_sections() {
        for key in &section.keys {
            let Some(variable) = key.variable(&section) else { continue };
            let Some(value) = environment(&variable).ok().filter(|value| !value.is_empty()) else { continue };
            let path = section.path.iter().chain([&key.name]).cloned().collect();
            let start = texts.add(format!("environment variable {variable}"), None, value);
            found.push(EnvironmentKey { path, kind: key.kind, start });
        }
    }
    found
}

/// Sets the keys. They win over the file's.
pub(super) fn apply<'a>(
    keys: &'a [EnvironmentKey],
    texts: &'a ConfigTexts,
    table: &mut DeTable<'a>,
    problems: &mut Vec<ConfigProblem>,
) {
    for EnvironmentKey { path, kind, start } in keys {
        let Some(text) = texts.iter().find(|text| text.start == *start) else { continue };
        let span = shifted(&(0..text.text.len()), *start);
        match value(&text.text, *kind, *start) {
            Some(value) => {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                set(table, &path, Spanned::new(span, value));
            }
            None => {
                let expected = match kind {
                    KeyKind::Boolean => "true or false",
                    _ => "a number",
                };
                problems
                    .push(texts.problem(Some(*start), format!("{}: it is not {expected}", path.join("."))));
            }
        }
    }
}

fn value(text: &str, kind: KeyKind, start: usize) -> Option<DeValue<'_>> {
    let trimmed = text.trim();
    match kind {
        KeyKind::Boolean => trimmed.parse().ok().map(DeValue::Boolean),
        KeyKind::Number => number(trimmed),
        // A bare number is in the key's own unit, as in the file.
        KeyKind::Quantity => Some(number(trimmed).unwrap_or(DeValue::String(trimmed.into()))),
        KeyKind::Texts => {
            let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
            let element = |text: &'_ str| {
                Spanned::new(shifted(&(0..text.len()), start), DeValue::String(text.to_owned().into()))
            };
            Some(DeValue::Array(texts.map(element).collect::<DeArray<'_>>()))
        }
        KeyKind::Text | KeyKind::Other => Some(DeValue::String(text.into())),
    }
}

fn number(text: &str) -> Option<DeValue<'_>> {
    let value = DeValue::parse(text).ok()?.into_inner();
    matches!(value, DeValue::Integer(_) | DeValue::Float(_)).then_some(value)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use serde_json::Value;

    use super::super::Config;
    use super::*;

    fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        let environment = |name: &str| {
            let value = variables.get(name).map(|value| (*value).to_owned());
            value.ok_or(std::env::VarError::NotPresent)
        };
        Config::parse_with(text, Path::new("towpath.toml"), &environment).map_err(|e| e.to_string())
    }

    fn as_variable(value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Array(values) => values.iter().map(as_variable).collect::<Vec<_>>().join(","),
            other => other.to_string(),
        }
    }

    /// A variable has the effect of its key: the configuration is as with the key in the file.
    #[test]
    fn each_key_of_the_server_has_a_variable() {
        let mut count = 0;
        for section in json_schema_sections() {
            for key in &section.keys {
                let Some(variable) = key.variable(&section) else { continue };
                let example = key.example.as_ref().unwrap();
                let value = as_variable(example).replace("${", "$${");
                let mut table = format!("[{}]\n", section.path.join("."));
                for other in section.keys.iter().filter(|other| other.is_required && other.name != key.name) {
                    table.push_str(&format!("{} = {}\n", other.name, other.example.as_ref().unwrap()));
                }
                let from_variable = load(&table, &[(&variable, &value)]).map(|config| format!("{config:?}"));
                let in_file = format!("{table}{} = {}\n", key.name, example.to_string().replace("${", "$${"));
                let from_file = load(&in_file, &[]).map(|config| format!("{config:?}"));
                assert_eq!(from_variable, from_file, "{variable}");
                // The value of another type, or another text, is seen.
                let other = load(&table, &[(&variable, "\u{1}")]).map(|config| format!("{config:?}"));
                assert!(other != from_variable || key.type_name == "list: secret text", "{variable}");
                count += 1;
            }
        }
        assert!(count > 20, "{count} variables");
    }

    #[test]
    fn a_variable_wins_over_the_file() {
        let text = "[server]\nwaiters = 5\ncache_mib = 7\n";
        let config =
            load(text, &[("TOWPATH_SERVER_WAITERS", "6"), ("TOWPATH_SERVER_CACHE_MIB", "")]).unwrap();
        assert_eq!((config.server.waiters, config.server.cache_mib), (6, 7));
        let units = [("TOWPATH_SERVER_CACHE_MIB", "8"), ("TOWPATH_SERVER_FETCH_MIB", "1 GiB")];
        let config = load(text, &units).unwrap();
        assert_eq!((config.server.cache_mib, config.server.fetch_mib), (8, 1024));
        for (name, value, needle) in [
            ("TOWPATH_SERVER_WAITERS", "many", "server.waiters: it is not a number"),
            ("TOWPATH_SERVER_CREATE_FEEDS", "yes", "it is not true or false"),
            ("TOWPATH_SERVER_HEARTBEAT", "soon", "server.heartbeat: \"soon\" is not a duration"),
            ("TOWPATH_SERVER_THREADS", "0", "threads must be at least 1"),
        ] {
            let error = load(text, &[(name, value)]).unwrap_err();
            assert!(
                error.contains(&format!("environment variable {name}: ")) && error.contains(needle),
                "{error}"
            );
        }
        let secret = load("", &[("TOWPATH_SERVER_CLUSTER", "http://u:hush@x")]).unwrap_err();
        assert!(!secret.contains("hush"), "{secret}");
    }
}
