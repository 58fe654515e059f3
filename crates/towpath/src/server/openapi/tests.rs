use std::collections::BTreeSet;

use super::*;

/// Collects every reference of a document.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str().filter(|_| key == "$ref") {
                    Some(reference) => drop(found.insert(reference.to_owned())),
                    None => references(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_leads_somewhere() {
    let document = document("http://127.0.0.1:8080", Publishing::ByToken);
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 40, "{found:?}");
    for reference in found {
        assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    }
}

#[test]
fn every_schema_is_used() {
    let document = document("http://127.0.0.1:8080", Publishing::ByToken);
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    // A page's lines are text to generators, which find the schema of a line by its name.
    let unused: Vec<_> = schemas
        .keys()
        .filter(|name| !found.contains(&format!("#/components/schemas/{name}")) && *name != "Change")
        .collect();
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn operations_have_names_of_their_own() {
    let ids: BTreeSet<&str> = all().map(|operation| operation.id).collect();
    assert_eq!(ids.len(), all().count());
    let addresses: BTreeSet<_> = all().map(|operation| (operation.path, operation.verb.key())).collect();
    assert_eq!(addresses.len(), all().count());
}

#[test]
fn every_parameter_is_in_the_table() {
    for operation in all() {
        let of_path = operation.path.split('/').filter(|part| part.starts_with('{'));
        for name in of_path.chain(operation.parameters.iter().copied()) {
            assert!(parameters::parameter(name).is_some(), "{name} of {}", operation.path);
        }
    }
}

#[test]
fn a_server_with_tokens_asks_for_them() {
    let security = |publishing| {
        document("http://a", publishing)["paths"]["/feeds/{feed}/items"]["post"]["security"].clone()
    };
    assert_eq!(security(Publishing::ByToken), json!([{ "token": [] }]));
    assert_eq!(security(Publishing::Open), json!([{}, { "token": [] }]));
}
