use serde_json::Value;

use super::*;
use crate::diffdelta::publish::SourceAbout;
use crate::diffdelta::publish::testing::{TestSource, at, places, site};
use crate::item::Item;

fn json_of(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

/// Returns a public schema, to which section 9 of the text refers.
fn public(name: &str) -> jsonschema::Validator {
    let text = match name {
        "diff" => include_str!("../../../../tests/data/diffdelta/diff.schema.json"),
        _ => include_str!("../../../../tests/data/diffdelta/wellknown.schema.json"),
    };
    validator(text)
}

fn validator(text: &str) -> jsonschema::Validator {
    let schema: Value = serde_json::from_str(text).unwrap();
    jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
}

fn own(name: &str) -> jsonschema::Validator {
    let path = format!("/schema/v1/{name}.schema.json");
    let (_, text) = schemas(&site()).into_iter().find(|(p, _)| *p == path).unwrap();
    validator(std::str::from_utf8(&text).unwrap())
}

fn errors(validator: &jsonschema::Validator, document: &Value) -> Vec<String> {
    validator.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect()
}

/// Returns a source that minted items of every kind and then failed, and its documents.
fn publisher() -> (TestSource, Vec<Value>) {
    use proptest::strategy::{Strategy, ValueTree};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let items = crate::diffdelta::publish::testing::items();
    let mut p = TestSource::new("ab");
    let mut documents = vec![json_of(&p.latest)];
    for run in 0..40 {
        for _ in 0..5 {
            let item: Item = items.new_tree(&mut runner).unwrap().current();
            p.put(item, at(run));
        }
        if run % 3 == 2 {
            let id = p.log[run as usize].item.id.clone();
            p.delete(&id, at(run));
        }
        p.run(at(run));
        documents.push(json_of(&p.latest));
    }
    p.run(at(50));
    documents.push(json_of(&p.latest));
    p.chain.health.failed("TIMEOUT", None);
    p.carry(at(60));
    documents.push(json_of(&p.latest));
    (p, documents)
}

/// Section 9: "Feed payloads MUST conform to diff.schema.json": the public one and ours.
#[test]
fn documents_are_valid_by_the_public_schema_and_by_ours() {
    let (public, own) = (public("diff"), own("diff"));
    for document in publisher().1 {
        assert_eq!(errors(&public, &document), [""; 0], "{document:#}");
        assert_eq!(errors(&own, &document), [""; 0]);
    }
}

/// Our schema accepts and refuses the same documents as the public one.
#[test]
fn our_schema_is_as_strict_as_the_public_one() {
    let (public, own) = (public("diff"), own("diff"));
    let document = publisher().1.remove(1);
    let mut pointers = Vec::new();
    places(&document, "", &mut pointers);
    for pointer in pointers {
        for change in
            [Value::Null, Value::from("?"), Value::from(-1), Value::from(1e6), Value::from("x".repeat(2001))]
        {
            let mut broken = document.clone();
            *broken.pointer_mut(&pointer).unwrap() = change.clone();
            assert_eq!(own.is_valid(&broken), public.is_valid(&broken), "{pointer} = {change}");
        }
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let mut broken = document.clone();
        if let Some(parent) = broken.pointer_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(name);
            assert_eq!(own.is_valid(&broken), public.is_valid(&broken), "without {pointer}");
            let mut broken = document.clone();
            let parent = broken.pointer_mut(pointer.rsplit_once('/').unwrap().0).unwrap();
            parent.as_object_mut().unwrap().insert("unknown_member".into(), Value::from(1));
            assert_eq!(own.is_valid(&broken), public.is_valid(&broken), "beside {pointer}");
        }
    }
}

/// Section 8: the manifest is valid by the public schema and by ours.
#[test]
fn the_manifest_is_valid() {
    let p = TestSource::new("ab");
    let manifest = json_of(&manifest(&site(), &[p.source()], 300, at(0)));
    let template = &manifest["endpoints"]["diff_by_source_template"];
    assert_eq!(template, "http://127.0.0.1:8080/diff/{source}/latest.json");
    assert_eq!(manifest["endpoints"]["diff_latest"], "http://127.0.0.1:8080/diff/latest.json");
    assert_eq!(manifest["polling"]["recommended_ttl_sec"], 300);
    assert_eq!(manifest["sources_supported"], serde_json::json!(["ab"]));
    assert_eq!(manifest["capabilities"]["etag_supported"], true);
    assert_eq!(manifest["capabilities"]["cursor_supported"], true);
    // Braces are not allowed in a URI, yet the text requires the template with them.
    let template = "/endpoints/diff_by_source_template";
    for validator in [public("wellknown"), own("wellknown")] {
        assert!(validator.iter_errors(&manifest).all(|e| e.instance_path().as_str() == template));
    }
}

#[test]
fn known_issues_are_valid_by_their_schema() {
    assert_eq!(errors(&own("known_issues"), &json_of(&known_issues())), [""; 0]);
}

#[test]
fn schemas_state_the_url_they_are_served_at() {
    for (path, text) in schemas(&site()) {
        assert_eq!(json_of(&text)["$id"], site().absolute(&path));
    }
}

#[test]
fn an_index_grows_without_being_parsed() {
    let (p, _) = publisher();
    let mut grown = archive_index("ab", Vec::new());
    for (entry, _) in &p.snapshots {
        grown = append_to_archive_index(&grown, entry).unwrap();
    }
    assert_eq!(grown, p.index());
    assert_eq!(json_of(&grown)["snapshots"].as_array().unwrap().len(), p.snapshots.len());
    assert_eq!(append_to_archive_index(b"{}", &p.snapshots[0].0), None);
}

#[test]
fn sources_and_health_name_stale_sources() {
    let (p, _) = publisher();
    let sources = json_of(&sources(&site(), &[(p.source(), &p.chain)], at(70)));
    let listed = &sources["sources"][0];
    assert_eq!(listed["source_id"], "ab");
    assert_eq!(listed["stale"], true);
    assert_eq!(listed["status"], "error");
    assert_eq!(listed["error"]["code"], "TIMEOUT");
    assert_eq!(listed["head_url"], "/diff/ab/head.json");
    assert_eq!(listed["archive_index_url"], "/archive/ab/index.json");
    let health = json_of(&healthz(&[(p.source(), &p.chain)], &NodeHealth::default(), at(70)));
    assert_eq!(health["status"], "degraded");
    assert_eq!(health["sources_stale"][0], "ab");
}

/// Clients of the public publisher read these fields, and take a missing `ok` for a failure.
#[test]
fn the_fields_of_the_public_publisher_are_there() {
    let (mut p, _) = publisher();
    let tags = ["security".to_owned()];
    let about = SourceAbout { name: "Things", description: "Of all kinds", homepage: None, tags: &tags };
    let source = SourcePublisher { about, ..p.source() };
    let listed = json_of(&sources(&site(), &[(source, &p.chain)], at(70)))["sources"][0].clone();
    assert_eq!((&listed["name"], &listed["description"]), (&"Things".into(), &"Of all kinds".into()));
    assert_eq!((&listed["tags"], &listed["enabled"]), (&serde_json::json!(["security"]), &true.into()));
    assert_eq!(listed["homepage"], "http://127.0.0.1:8080/feeds/ab");
    let listed = json_of(&sources(&site(), &[(p.source(), &p.chain)], at(70)))["sources"][0].clone();
    assert_eq!((&listed["name"], &listed["description"]), (&"ab".into(), &"".into()), "always text");

    let health = json_of(&healthz(&[(p.source(), &p.chain)], &NodeHealth::default(), at(70)));
    assert_eq!((&health["ok"], &health["service"]), (&false.into(), &"towpath".into()));
    assert_eq!((&health["sources_checked"], &health["sources_ok"]), (&1.into(), &0.into()));
    assert_eq!(health["time"], at(70).to_string());
    p.chain.health.succeeded(at(71));
    assert_eq!(json_of(&healthz(&[(p.source(), &p.chain)], &NodeHealth::default(), at(72)))["ok"], true);
    p.chain.health.disabled = true;
    let health = json_of(&healthz(&[(p.source(), &p.chain)], &NodeHealth::default(), at(73)));
    assert_eq!((&health["ok"], &health["sources_checked"]), (&false.into(), &0.into()));
}
