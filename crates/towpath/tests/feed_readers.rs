//! Parsers of feeds in JavaScript read what is published, field by field.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::common::npm::NpmScript;
use crate::common::{TestFolder, stderr};

/// A field of an item as the parsers name it: of each item, oldest first.
type Expected = BTreeMap<&'static str, [Value; 3]>;

const ITEMS: &str = r#"{"id":"plain","content":"a < b & \"c\" é😀","item":{"title":"Plain & <simple>","summary":"S & s","url":"https://a.example/plain?b=1&c=2","authors":[{"name":"Ann","email":"a@b.example","url":"https://ann.example/"},{"name":"Bo"}],"tags":["x","y z"],"published":"2024-01-01T00:00:00Z","updated":"2024-01-02T00:00:00.5Z"}}
{"id":"html","content_type":"text/html","content":"<p>x &amp; y</p>","item":{"title":"Html","url":"https://a.example/html","authors":[{"name":"Cy"}],"image":"https://a.example/i.png","attachments":[{"url":"https://a.example/s.mp3","media_type":"audio/mpeg","size":12345},{"url":"https://a.example/t.mp3","media_type":"audio/mpeg","size":1}]}}
{"id":"gone","content":"x","item":{"title":"Gone"}}
{"op":"delete","id":"gone"}
{"id":"urn:x:1 2","content":"y","item":{"title":"Odd id","authors":[{"name":"Di"}],"updated":"2025-03-04T05:06:07Z"}}"#;

/// Returns the fields that the items have in a format.
fn expected(format: &str, base: &str, modified: &str) -> Expected {
    let id = |id: &str, escaped: &str| match format {
        // RFC 4287: an id is an IRI.
        "atom" => json!(format!("{base}/feeds/notes/items/{escaped}")),
        _ => json!(id),
    };
    // RSS and Atom require that HTML stands in the text of their elements. RSS has no other text.
    let plain = if format == "rss" { "a &lt; b &amp; \"c\" é😀" } else { "a < b & \"c\" é😀" };
    let enclosures = json!(["https://a.example/s.mp3", "https://a.example/t.mp3"]);
    let modified = &modified[..19];
    BTreeMap::from([
        ("id", [id("plain", "plain"), id("html", "html"), id("urn:x:1 2", "urn%3Ax%3A1%202")]),
        ("title", [json!("Plain & <simple>"), json!("Html"), json!("Odd id")]),
        ("url", [json!("https://a.example/plain?b=1&c=2"), json!("https://a.example/html"), Value::Null]),
        ("date", [json!("2024-01-01T00:00:00"), json!(modified), json!("2025-03-04T05:06:07")]),
        ("updated", [json!("2024-01-02T00:00:00"), json!(modified), json!("2025-03-04T05:06:07")]),
        ("content", [json!(plain), json!("<p>x &amp; y</p>"), json!("y")]),
        ("summary", [json!("S & s"), Value::Null, Value::Null]),
        ("author", [json!("Ann"), json!("Cy"), json!("Di")]),
        ("authors", [json!(["Ann", "Bo"]), json!(["Cy"]), json!(["Di"])]),
        ("tags", [json!(["x", "y z"]), json!([]), json!([])]),
        ("enclosure", [Value::Null, enclosures[0].clone(), Value::Null]),
        ("enclosures", [json!([]), enclosures, json!([])]),
        ("image", [Value::Null, json!("https://a.example/i.png"), Value::Null]),
    ])
}

#[test]
fn parsers_in_javascript_read_every_field() {
    let dir =
        TestFolder::new("[[feed]]\nid = \"notes\"\ntitle = \"Notes\"\nhome = \"https://home.example/\"\n");
    let server = dir.serve();
    let published = server.ask("POST", "/feeds/notes/items", &[], ITEMS.as_bytes());
    assert_eq!(published.status, 200, "{}", published.text());
    let modified = published.json()["modified"].as_str().unwrap().to_owned();
    let script = NpmScript::new("feed_readers.mjs");
    for (format, name, parsers) in [("atom", "atom", 6), ("rss", "rss", 6), ("json", "feed.json", 2)] {
        let url = format!("{}/feeds/notes/{name}", server.base);
        let output = script.command().args([format, &url]).output().unwrap();
        assert!(output.status.success(), "{format}: {}", stderr(&output));
        let read: BTreeMap<String, Vec<Map<String, Value>>> = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(read.len(), parsers, "{read:?}");
        let expected = expected(format, &server.base, &modified);
        for (parser, items) in read {
            assert_eq!(items.len(), 3, "{parser} of {format}: {items:?}");
            for (number, item) in items.iter().rev().enumerate() {
                for (field, value) in item {
                    let expected = &expected[field.as_str()][number];
                    assert_eq!(value, expected, "{field} of item {number} by {parser} in {format}: {item:?}");
                }
            }
        }
    }
}
