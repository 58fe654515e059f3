use super::*;

/// Each key of the configuration, with its table.
fn keys() -> Vec<(String, Key)> {
    let of = |section: Section| {
        let path = section.path.join(".");
        section.keys.into_iter().map(move |key| {
            let dot = if path.is_empty() { "" } else { "." };
            (format!("{path}{dot}{}", key.name), key)
        })
    };
    sections(json_schema()).into_iter().flat_map(of).collect()
}

#[test]
fn each_key_is_described() {
    let keys = keys();
    assert!(keys.len() > 100, "{} keys", keys.len());
    for (path, key) in keys {
        assert!(key.about.ends_with('.'), "{path} needs a doc comment of whole sentences: {:?}", key.about);
        // Links within the documentation of the code lead nowhere in a reference.
        assert!(!key.about.contains("[`"), "{path}: {}", key.about);
        let is_explained = key.is_required || key.default.is_some() || key.default_text.is_some();
        assert!(
            is_explained || key.example.is_some(),
            "{path}: its type has no Default, so name it by x-default"
        );
        assert!(key.example.is_some(), "{path} needs #[schemars(example = …)]");
        assert!(!matches!(key.type_name.as_str(), "" | "value"), "{path} has no type");
    }
}

#[test]
fn each_table_is_described() {
    for section in sections(json_schema()) {
        assert!(section.about.ends_with('.'), "{}: {:?}", section.heading(), section.about);
    }
}

#[test]
fn values_have_the_forms_of_the_file() {
    let schema = json_schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let server = &schema["$defs"]["ServerConfig"]["properties"];
    assert_eq!(server["longest_wait"]["default"], "5m");
    assert_eq!(server["heartbeat"]["default"], "25s");
    assert_eq!(server["cache_mib"]["default"], 64);
    let text = schema.to_string();
    for absent in ["\"null\"", "nanos", "uint64"] {
        assert!(!text.contains(absent), "{absent}");
    }
    let keys = keys();
    let key = |path: &str| keys.iter().find(|(name, _)| name == path).map(|(_, key)| key).unwrap();
    assert!(key("feed.id").is_required && key("xmpp.secret").is_required && !key("feed.ttl").is_required);
    assert_eq!(key("feed.page_bytes").unit.as_deref(), Some("bytes"));
    assert_eq!(key("feed.source.max_mib").unit.as_deref(), Some("MiB"));
    assert_eq!(key("feed.source.format").choices[0].0, "auto");
    assert_eq!(key("server.tokens").kind, KeyKind::Texts);
}
