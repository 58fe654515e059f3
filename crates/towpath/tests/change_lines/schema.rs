//! `docs/change.schema.json`, by a validator of its own, against lines of every protocol and every address.

use serde_json::{Value, json};

use super::events;

use crate::common::waiting::publish;
use crate::common::{TestFolder, TestServer, lines, python, stderr};

const VALIDATE: &str = r#"
import json, sys, jsonschema
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
count = 0
for line in sys.stdin:
    name, text = line.rstrip("\n").split("\t", 1)
    wanted = not name.startswith("!")
    found = [error.message for error in validator.iter_errors(json.loads(text))]
    if wanted == bool(found):
        sys.exit(f"{name}: {text[:500]}: {found}")
    count += 1
print(count)
"#;

/// Validates lines, each with a name. A name that begins with `!` is of a line that must not be valid.
fn validate(lines: &[(String, String)]) {
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), VALIDATE).unwrap();
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/change.schema.json");
    let input = tempfile::NamedTempFile::new().unwrap();
    let text: String = lines.iter().map(|(name, line)| format!("{name}\t{}\n", line.trim_end())).collect();
    std::fs::write(input.path(), text).unwrap();
    let mut command = std::process::Command::new(python());
    command.arg(script.path()).arg(schema).stdin(std::fs::File::open(input.path()).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), lines.len().to_string());
}

fn fill(server: &TestServer) {
    publish(
        server,
        "aa",
        &[
            json!({"id": "text", "content_type": "text/html", "content": "<p>é</p>\n", "item": {"title": "A", "tags": ["t"],
            "authors": [{"name": "Ann", "email": "a@x.example"}], "published": "2024-01-01T00:00:00.5Z",
            "url": "https://x.example/", "image": "https://x.example/i.png", "extra": {"k": [1]},
            "attachments": [{"url": "https://x.example/a.mp3", "media_type": "audio/mpeg", "size": 3,
             "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}]}}),
            json!({"id": "json", "json": {"n": 1}, "item": {}}),
            json!({"id": "pretty", "content_type": "application/json", "content": "{\n \"n\": 1\n}"}),
            json!({"id": "null", "json": null}),
            json!({"id": "bytes", "content_type": "image/png", "content_base64": "iVBORwD/AQ=="}),
            json!({"id": "bare"}),
            json!({"id": "gone"}),
        ],
    );
    let merge = [("Content-Type", "application/merge-patch+json")];
    assert_eq!(server.ask("PATCH", "/feeds/aa/items/json", &merge, b"{\"m\":2}").status, 200);
    publish(server, "aa", &[json!({"op": "delete", "id": "gone"})]);
}

#[test]
fn every_protocol_tells_the_feeds_own_name() {
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n");
    let server = dir.serve();
    fill(&server);
    server.wait_for("/diff/aa/latest.json", |latest| latest["cursor"].is_string());
    let names = |url: &str, more: &[&str]| {
        let output = dir.run(&[&["follow", url, "--once"], more].concat());
        assert!(output.status.success(), "{url}: {}", stderr(&output));
        let names: Vec<Value> = lines(&output).iter().map(|line| line["feed"].clone()).collect();
        assert!(!names.is_empty(), "{url}");
        names
    };
    for path in ["", "/items", "/items?order=created", "/replication", "/atom", "/rss", "/feed.json"] {
        let url = format!("{}/feeds/aa{path}", server.base);
        assert!(names(&url, &[]).iter().all(|name| name == "aa"), "{path}");
    }
    for protocol in ["smart", "diffdelta", "replication", "history"] {
        let url = format!("{}/feeds/aa", server.base);
        assert!(names(&url, &["--protocol", protocol]).iter().all(|name| name == "aa"), "{protocol}");
    }
    // The name stays that of the first run; a state of an earlier version goes on under the URL.
    let url = format!("{}/feeds/aa/items", server.base);
    let with_state = ["--state", "s"];
    names(&url, &with_state);
    publish(&server, "aa", &[json!({"id": "later"})]);
    assert_eq!(names(&url, &with_state), ["aa"]);
    let state = std::fs::read_to_string(dir.path("s")).unwrap();
    assert!(state.contains("\"feed_name\":\"aa\""), "{state}");
    let without = ["feed_name", "copied_as"].into_iter().fold(state, |state, name| {
        let member = format!("\"{name}\":\"aa\"");
        state.replace(&format!("{member},"), "").replace(&format!(",{member}"), "")
    });
    dir.write("s", without.as_bytes());
    publish(&server, "aa", &[json!({"id": "last"})]);
    let of_url = names(&url, &with_state);
    assert!(matches!(&of_url[..], [Value::String(name)] if name.starts_with(&url)), "{of_url:?}");
}

#[test]
fn every_line_is_of_the_schema() {
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n");
    let server = dir.serve();
    fill(&server);
    server.wait_for("/diff/aa/latest.json", |latest| latest["cursor"].is_string());
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut take = |name: &str, text: &str, least: usize| {
        let found: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert!(found.len() >= least, "{name}: {text}");
        lines.extend(found.into_iter().map(|line| (name.to_owned(), line.to_owned())));
    };
    take("items", &server.get("/feeds/aa/items?as=line").text(), 7);
    take("lost", &server.get("/feeds/aa/items?as=line&since=m1-0123456789").text(), 8);
    for id in ["text", "json", "pretty", "null", "bytes", "bare"] {
        take(id, &server.get(&format!("/feeds/aa/items/{id}?as=line")).text(), 1);
    }
    for path in ["/feeds/aa/events?as=line&last=9", "/feeds/events?feed=aa&last=9"] {
        let mut client = crate::common::waiting::PollClient::new(&server);
        client.send(path, "");
        let text = client.read_until(|text| events(text).len() >= 7);
        for (_, line) in events(&text) {
            take(path, &line.to_string(), 1);
        }
    }
    for protocol in ["smart", "diffdelta", "replication", "history", "rss"] {
        let url = format!("{}/feeds/aa", server.base);
        let url = if protocol == "rss" { format!("{url}/rss") } else { url };
        let output = dir.run(&["follow", &url, "--protocol", protocol, "--once"]);
        assert!(output.status.success(), "{protocol}: {}", stderr(&output));
        take(protocol, &String::from_utf8(output.stdout).unwrap(), 6);
    }
    // The schema says no, too.
    let put = |more: Value| {
        let mut line = json!({"op": "put", "id": "a", "item": {}});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("!".to_owned(), line.to_string())
    };
    lines.extend([
        put(json!({"id": ""})),
        put(json!({"op": "reset"})),
        put(json!({"op": "delete"})),
        put(json!({"titel": "x"})),
        put(json!({"content": "x"})),
        put(json!({"content_type": "text/plain"})),
        put(json!({"content_type": "text/plain", "content": "x", "json": 1})),
        put(json!({"modified": "yesterday"})),
        put(json!({"item": {"authors": []}})),
        put(json!({"patch": {"content_type": "application/merge-patch+json", "json": {}}})),
        ("!patch".into(), r#"{"op":"patch","id":"a"}"#.into()),
        ("!put".into(), r#"{"op":"put","id":"a","content_type":"text/plain","content":"x"}"#.into()),
    ]);
    validate(&lines);
}
