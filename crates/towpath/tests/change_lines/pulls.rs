//! `?as=line` on the items of a feed.

use serde_json::{Value, json};

use super::ids;

use crate::common::waiting::{PollClient, publish, put, until, waiters};
use crate::common::{TestFolder, TestResponse};

const FEEDS: &str = "[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"toc\"\ncursor = \"toc\"\npage_items = 2\n";

fn lines(answer: &TestResponse) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn pages_are_lines_whose_positions_resume() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    for feed in ["aa", "toc"] {
        let json =
            json!({"id": "a", "json": {"n": 1}, "item": {"title": "A", "image": "http://x.example/a.png"}});
        publish(&server, feed, &[json, put("b"), put("c"), json!({"op": "delete", "id": "b"})]);
        let path = format!("/feeds/{feed}/items?as=line&timeout=0");
        let first = server.get(&format!("{path}&max=2"));
        let all = lines(&first);
        assert_eq!(ids(&all), ["a", "c"]);
        assert_eq!((&all[0]["feed"], &all[0]["json"]), (&json!(feed), &json!({"n": 1})));
        assert_eq!(all[0]["item"]["image"], "http://x.example/a.png");
        let rest = lines(&server.get(&format!("{path}&since={}", all[1]["position"].as_str().unwrap())));
        assert_eq!((ids(&rest), &rest[0]["op"]), (vec!["b"], &json!("delete")));
        let next = first.header("link").unwrap().split(">; rel=\"next\"").next().unwrap();
        let next = next.strip_prefix(&format!("<{}", server.base)).unwrap();
        assert_eq!(lines(&server.get(&format!("{next}&timeout=0"))), rest, "{next}");
        // A position is what `follow --from` takes, too.
        let from = all[1]["position"].as_str().unwrap();
        let url = format!("{}/feeds/{feed}/items", server.base);
        let followed = crate::common::lines(&dir.run(&["follow", &url, "--from", from, "--once"]));
        assert_eq!(ids(&followed), ["b"]);
    }
    let one = server.get("/feeds/aa/items/a?as=line").json();
    assert_eq!((&one["feed"], &one["json"]), (&json!("aa"), &json!({"n": 1})));
    let schema = server.get("/schema/change.json");
    assert_eq!(schema.json()["title"], "A change, as towpath tells it");
    let bad = server.get("/feeds/aa/items?as=lines");
    assert_eq!((bad.status, &bad.json()["parameter"]), (400, &json!("as")), "{}", bad.text());
}

/// A patch is told with the item after it: the reader may not have the version before.
#[test]
fn a_patch_is_told_with_the_whole_item() {
    let dir = TestFolder::new("[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"copy\"\n");
    let server = dir.serve();
    publish(&server, "aa", &[json!({"id": "a", "json": {"n": 1, "m": 1}, "item": {"title": "A"}})]);
    for patch in [r#"{"n":2}"#, r#"{"m":null}"#] {
        let merge = [("Content-Type", "application/merge-patch+json")];
        assert_eq!(server.ask("PATCH", "/feeds/aa/items/a", &merge, patch.as_bytes()).status, 200);
    }
    let text = server.get("/feeds/aa/items?as=line").text();
    let line: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&line["op"], &line["json"]), (&json!("patch"), &json!({"n": 2})));
    assert_eq!(line["item"]["title"], "A");
    // A copy that never had the item takes it.
    assert_eq!(server.ask("POST", "/feeds/copy/items", &[], text.as_bytes()).status, 200);
    assert_eq!(server.get("/feeds/copy/items/a?as=line").json()["json"], json!({"n": 2}));
}

#[test]
fn a_long_poll_is_answered_with_lines() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let since = lines(&server.get("/feeds/aa/items?as=line"))[0]["position"].as_str().unwrap().to_owned();
    let path = format!("/feeds/aa/items?as=line&since={since}");
    let mut clients: Vec<PollClient> = (0..3).map(|_| PollClient::new(&server)).collect();
    for round in ["b", "c"] {
        for client in &mut clients {
            client.send(&path, "");
        }
        if round == "b" {
            until("they wait", || waiters(&server) == 3);
            publish(&server, "aa", &[put("b")]);
        }
        for client in &mut clients {
            let answer = client.answer_bytes();
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.contains("application/x-ndjson"), "{head}");
            let line: Value = serde_json::from_str(body).unwrap();
            assert_eq!((&line["feed"], &line["id"]), (&json!("aa"), &json!("b")));
        }
    }
    assert_eq!(server.get(&format!("{path}x&timeout=0")).status, 400, "no position");
    let lost = server.get("/feeds/aa/items?as=line&since=m7-0123456789&timeout=0");
    assert_eq!(lines(&lost)[0], json!({"feed": "aa", "op": "reset"}));
}

#[test]
fn last_begins_with_the_latest() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    for feed in ["aa", "toc"] {
        publish(&server, feed, &["a", "b", "c", "d", "e"].map(put));
        publish(
            &server,
            feed,
            &[put("b"), json!({"op": "delete", "id": "d"}), json!({"op": "delete", "id": "e"})],
        );
        let get =
            |query: &str| lines(&server.get(&format!("/feeds/{feed}/items?as=line&timeout=0&max=9&{query}")));
        let live = |all: Vec<Value>| {
            let live: Vec<String> = all
                .iter()
                .filter(|line| line["op"] == "put")
                .map(|line| line["id"].as_str().unwrap().into())
                .collect();
            live.join("")
        };
        // A page of the feed `toc` has two items at most, and so has `last`.
        let whole = if feed == "aa" { "acb" } else { "cb" };
        assert_eq!(live(get("last=20")), whole);
        assert_eq!(live(get("last=2")), "cb");
        assert_eq!(live(get("last=1&order=created")), "c");
    }
    assert_eq!(server.get("/feeds/aa/items?last=2&since=cursor:x").json()["parameter"], "last");
    assert_eq!(server.get("/feeds/aa/items?last=0").status, 400);
    assert_eq!(server.get("/feeds/aa/items?last=2&timeout=0").json()["items"].as_array().unwrap().len(), 4);
}
