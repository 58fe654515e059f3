//! Every pair of protocols: a feed is mirrored by the one and followed by the other, and has the same items.
//!
//! `docs/interoperability.md` has the table of the pairs; `TOWPATH_WRITE_TABLES=1` rewrites it.

mod chain;
mod table;
mod transports;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use transports::{ORIGIN, Reach, TRANSPORTS, Transport};

use crate::common::xmpp::XmppServer;
use crate::common::{PATIENCE, TestFolder, TestServer};

/// Items by id, each as its fields by name. A deleted item has none.
type Items = BTreeMap<String, BTreeMap<String, Value>>;

/// Items with every field and kind of content; later ones change, replace and delete earlier ones.
fn lines() -> [Vec<Value>; 2] {
    let first = vec![
        json!({ "id": "plain", "content_type": "text/plain", "content": "a < b & \"c\" \n\n\t é😀 ", "item": { "title": "Plain" } }),
        json!({ "id": "html", "content_type": "text/html", "content": "<p>x &amp; <b>y</b></p>", "item": { "title": "HTML" } }),
        json!({ "id": "json", "content_type": "application/json", "json": { "a": [1, null, "é"] }, "item": { "title": "JSON" } }),
        json!({ "id": "binary", "content_type": "image/png", "content_base64": "iVBORwD/AQ==", "item": { "title": "Binary" } }),
        json!({ "id": "https://a.example/?id=1&x=<y>", "content_type": "text/plain", "content": "x", "item": { "title": "URL" } }),
        json!({ "id": "title", "item": { "title": "Title only", "url": "https://a.example/title" } }),
        json!({ "id": "raw", "content_type": "text/plain", "content": "without a title" }),
        json!({ "id": "all", "content_type": "text/html", "content": "<p>all</p>", "item": {
            "title": " Spaces & <signs> ", "summary": "A summary", "url": "https://a.example/?b&c",
            "authors": [{ "name": "Ann", "email": "a@b.example" }, { "name": "Bo", "url": "https://b.example/" }],
            "tags": ["x", "y z"], "published": "2024-01-01T00:00:00Z", "updated": "2024-01-02T00:00:00.5Z",
            "image": "https://a.example/i.png",
            "attachments": [{ "url": "https://a.example/s.mp3", "media_type": "audio/mpeg", "size": 123 }],
            "extra": { "n": 1.5, "deep": { "z": [] } } } }),
        json!({ "id": "changes", "content_type": "text/plain", "content": "before", "item": { "title": "Before" } }),
        json!({ "id": "goes", "content_type": "text/plain", "content": "here", "item": { "title": "Goes" } }),
    ];
    let second = vec![
        json!({ "id": "changes", "content_type": "text/plain", "content": "after", "item": { "title": "After" } }),
        json!({ "id": "goes", "op": "delete" }),
        json!({ "id": "last", "content_type": "text/plain", "content": "last", "item": { "title": "Last" } }),
    ];
    [first, second]
}

fn publish(server: &TestServer, lines: &[Value]) {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.ask("POST", &format!("/feeds/{ORIGIN}/items"), &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Returns the items that lines of changes end in.
fn fold(lines: &[Value]) -> Items {
    let mut items = Items::new();
    for line in lines {
        let mut fields = BTreeMap::new();
        if line["op"] != "delete" {
            let content = ["content_type", "content", "content_base64", "json"];
            fields
                .extend(content.iter().filter_map(|&name| Some((name.to_owned(), line.get(name)?.clone()))));
            for (name, value) in line["item"].as_object().into_iter().flatten() {
                fields.insert(name.clone(), value.clone());
            }
        }
        items.insert(line["id"].as_str().unwrap_or_default().to_owned(), fields);
    }
    items
}

#[test]
fn every_pair_keeps_every_item() {
    let prosody = [XmppServer::prosody(&["alice"]), XmppServer::prosody(&["alice"])];
    let origin = TestFolder::new(&transports::origin(&prosody[0]));
    let origin_server = origin.serve();
    let mirror = TestFolder::new(&transports::mirror(&prosody[1], &origin_server));
    let mirror_server = mirror.serve();
    let from = Reach { folder: &origin, server: &origin_server, prosody: &prosody[0] };
    let to = Reach { folder: &mirror, server: &mirror_server, prosody: &prosody[1] };
    let mut published = Vec::new();
    for lines in lines() {
        publish(&origin_server, &lines);
        published.extend(lines);
        let original = fold(&published);
        for transport in TRANSPORTS {
            transport.copy(&from, &to);
        }
        for transport in TRANSPORTS {
            wait_for(transport.name, &original, || fold(&to.native(transport.feed)));
        }
    }
    let original = fold(&published);
    let followers: Vec<&Transport> = TRANSPORTS.iter().filter(|transport| transport.can_follow()).collect();
    let rows: Vec<table::Row<'_>> = TRANSPORTS
        .iter()
        .map(|transport| {
            let same = |follower: &&Transport| {
                let pair = format!("mirrored by {}, followed by {}", transport.name, follower.name);
                wait_for(&pair, &original, || fold(&follower.follow(&to, transport.feed))).len()
            };
            (transport.name, followers.iter().map(same).collect())
        })
        .collect();
    let names: Vec<&str> = followers.iter().map(|follower| follower.name).collect();
    table::assert_written(&names, &rows, original.len());
}

/// Waits until a copy has exactly these items, and returns it. Mirrors poll, and DiffDelta mints after a moment.
fn wait_for(copy: &str, original: &Items, mut items: impl FnMut() -> Items) -> Items {
    let end = Instant::now() + PATIENCE;
    loop {
        let copied = items();
        if copied == *original {
            return copied;
        }
        let differs = original.iter().find(|&(id, fields)| copied.get(id) != Some(fields));
        let differs = differs.map(|(id, fields)| (id, fields, copied.get(id)));
        assert!(Instant::now() < end, "{copy}: {} items; first difference: {differs:?}", copied.len());
        std::thread::sleep(Duration::from_millis(100));
    }
}
