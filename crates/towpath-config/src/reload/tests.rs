use serde_json::{Value, json};

use super::*;
use crate::reference::{toml_with, with_required};
use crate::schema::{Key, KeyKind, Section, json_schema_sections};

/// Reads a configuration without its checks: only that two of them differ matters here.
fn read(text: &str) -> Option<Config> {
    toml::from_str(text).ok()
}

/// Values that a key may have: its default, its example, and others of the same type.
fn values(key: &Key) -> Vec<Value> {
    let mut values: Vec<Value> = key.default.iter().chain(&key.example).cloned().collect();
    values.extend(key.choices.iter().map(|(choice, _)| choice.clone().into()));
    let others: Vec<Value> = values
        .iter()
        .flat_map(|value| match value {
            Value::Bool(is_set) => vec![json!(!is_set)],
            Value::Number(number) => vec![
                json!(number.as_u64().map_or(1, |number| number + 1)),
                json!(number.as_f64().unwrap_or(1.0) / 2.0),
            ],
            Value::Array(values) => vec![json!([]), json!([values.as_slice(), values].concat())],
            _ => Vec::new(),
        })
        .collect();
    values.extend(others);
    match key.kind {
        KeyKind::Quantity => values.extend([json!("7m"), json!("7 MiB")]),
        KeyKind::Text | KeyKind::Other => {
            values.extend([json!("zz"), json!("/zz"), json!("http://zz.example/")]);
        }
        KeyKind::Number | KeyKind::Boolean | KeyKind::Texts => {}
    }
    values
}

/// Returns two configurations that differ in nothing but one key. `beside` is in both.
fn pair(section: &Section, key: &Key, beside: &str) -> (Config, Config) {
    let texts = values(key).into_iter().map(|value| toml_with(section, key, &value));
    let texts = texts.chain([with_required(section, Some(&key.name))]);
    let mut read: Vec<Config> = texts.filter_map(|text| read(&format!("{text}\n{beside}"))).collect();
    let place = format!("{} in {}", key.name, section.heading());
    let first = read.pop().unwrap_or_else(|| panic!("{place}: no valid value"));
    let other = read.into_iter().find(|other| *other != first);
    let other = other
        .unwrap_or_else(|| panic!("{place}: the comparison sees no difference between any of its values"));
    (first, other)
}

/// Every key of the schema is noticed when it changes, and is either taken over or named as needing a restart.
#[test]
fn a_changed_key_is_taken_over_or_needs_a_restart() {
    let mut count = 0;
    for section in json_schema_sections() {
        for key in &section.keys {
            let path = section.path.iter().chain([&key.name]).cloned().collect::<Vec<_>>().join(".");
            if path == "include" {
                continue;
            }
            let beside = match path.as_str() {
                // The first reader makes a feed private, which is a change of another key.
                "feed.readers" => "visibility = 'private'",
                // Else an absent one means the same as `public`.
                "feed.visibility" => "readers = ['x']",
                "feed.publish.deleted" => "json = { id = '/id' }",
                _ => "",
            };
            let (old, new) = pair(&section, key, beside);
            let changes = old.setting_changes(&new);
            let (expected, first) = (at_reload(&path), section.path[0].as_str());
            if matches!(first, "token" | "sink") {
                assert_eq!((changes, expected), (SettingChanges::default(), AtReload::TakenOver), "{path}");
                assert!(old.tokens != new.tokens || old.sinks != new.sinks, "{path}");
            } else if first == "feed" {
                let fixed: Vec<_> = old.feeds[0].fixed_changes(&new.feeds[0]).collect();
                let needs_restart =
                    if fixed.is_empty() { AtReload::TakenOver } else { AtReload::NeedsRestart };
                assert_eq!(changes, SettingChanges::default(), "{path}");
                assert!(old.feeds != new.feeds && needs_restart == expected, "{path}: {fixed:?}");
            } else {
                let one = |effect| if effect == expected { vec![path.clone()] } else { Vec::new() };
                assert_eq!(changes.taken_over, one(AtReload::TakenOver), "{path}");
                assert_eq!(changes.need_restart, one(AtReload::NeedsRestart), "{path}");
            }
            let mut running = old.clone();
            running.take_over(new.clone());
            assert_eq!(running == new, expected == AtReload::TakenOver || first == "feed", "{path}");
            count += 1;
        }
    }
    assert!(count > 150, "{count} keys");
}

#[test]
fn each_key_of_a_single_table_is_classified_once() {
    let mut classified: Vec<String> = classified().into_iter().map(|(key, _)| key).collect();
    let of_schema = json_schema_sections().into_iter().flat_map(|section| {
        let path = section.path.join(".");
        let is_single =
            !matches!(section.path.first().map(String::as_str), None | Some("feed" | "token" | "sink"));
        section.keys.into_iter().filter(move |_| is_single).map(move |key| format!("{path}.{}", key.name))
    });
    let mut of_schema: Vec<String> = of_schema.collect();
    classified.sort();
    of_schema.sort();
    assert_eq!(classified, of_schema);
}

#[test]
fn a_table_that_comes_or_goes_needs_a_restart() {
    let without = read("").unwrap();
    let with = read("[xmpp]\nserver = '127.0.0.1:5347'\njid = 'a.example'\nsecret = 's'\n[server.tls]\ncert = 'c'\nkey = 'k'\n").unwrap();
    for (old, new) in [(&without, &with), (&with, &without)] {
        let changes = old.setting_changes(new);
        assert_eq!(changes.need_restart, ["[server.tls]", "[xmpp]"]);
        let mut running = old.clone();
        running.take_over(new.clone());
        assert_eq!(running.setting_changes(new), changes, "it is told again at the next reload");
    }
}

#[test]
fn alerts_and_the_access_log_come_and_go() {
    let without = read("").unwrap();
    let with = read("[alerts]\n[server.access_log]\n").unwrap();
    let with_email = read(
        "[alerts]\n[alerts.email]\nserver = 'smtp://a'\nfrom = 'a@b'\nto = ['c@d']\n[server.access_log]\n",
    );
    let with_email = with_email.unwrap();
    for (old, new, expected) in [
        (&without, &with, vec!["[server.access_log]", "[alerts]"]),
        (&with, &with_email, vec!["[alerts.email]"]),
        (&with_email, &without, vec!["[server.access_log]", "[alerts]"]),
    ] {
        assert_eq!(old.setting_changes(new).taken_over, expected);
        let mut running = old.clone();
        running.take_over(new.clone());
        assert_eq!(running, *new);
    }
}

#[test]
fn secrets_are_compared() {
    let config = |cluster: &str, token: &str| {
        read(&format!("[server]\ncluster = 'nats://a:{cluster}@h:1'\ntokens = ['{token}']")).unwrap()
    };
    let changes = config("a", "x").setting_changes(&config("b", "y"));
    assert_eq!(
        (changes.taken_over, changes.need_restart),
        (vec!["server.tokens".to_owned()], vec!["server.cluster".to_owned()])
    );
}
