//! Read links: an address that reads one feed for a short time.

use serde_json::{Value, json};

use crate::common::waiting::{PollClient, put, until, waiters};
use crate::common::{TestFolder, TestServer};

const FEEDS: &str = "[server]\nheartbeat = \"1s\"\ntokens = [\"publisher\"]\n[[feed]]\nid = \"open\"\n[[feed]]\nid = \"mine\"\n\
    readers = [\"reader\", { token = \"part\", filter = { tags = [\"x\"] } }]\n[[feed]]\nid = \"other\"\nreaders = [\"reader\"]\n";

fn post(server: &TestServer, path: &str, token: &str) -> (u16, Value) {
    let header = format!("Bearer {token}");
    let answer = server.ask("POST", path, &[("Authorization", &header)], b"");
    (answer.status, answer.json())
}

/// Returns the path of a link.
fn link(server: &TestServer, path: &str, token: &str, member: &str) -> String {
    let (status, made) = post(server, path, token);
    assert_eq!(status, 201, "{made}");
    made[member].as_str().unwrap().strip_prefix(&server.base).unwrap().to_owned()
}

fn fill(server: &TestServer) {
    for feed in ["open", "mine", "other"] {
        let lines = [put("a"), json!({"id": "tagged", "item": {"title": "title of tagged", "tags": ["x"]}})];
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let token = [("Authorization", "Bearer publisher")];
        assert_eq!(server.ask("POST", &format!("/feeds/{feed}/items"), &token, body.as_bytes()).status, 200);
    }
}

#[test]
fn a_link_reads_its_feed_and_nothing_else() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    fill(&server);
    let items = link(&server, "/feeds/mine/read-links", "reader", "items");
    let (base, signature) = items.split_once("link=").unwrap();
    let answer = server.get(&format!("{items}&timeout=0"));
    assert_eq!(answer.status, 200);
    assert!(answer.header("cache-control").unwrap().contains("private"));
    let mut stream = PollClient::new(&server);
    stream.send(&format!("{}&last=9", link(&server, "/feeds/mine/read-links", "reader", "url")), "");
    stream.read_until(|text| text.contains("title of tagged"));
    // Other feeds, other rights, and links of links.
    for path in ["/feeds/other/items", "/diff/other/head.json", "/feeds/other"] {
        assert_eq!(server.get(&format!("{path}?link={signature}")).status, 401, "{path}");
    }
    assert_eq!(server.get(&format!("/feeds/events?feed=mine&link={signature}")).status, 404);
    for (method, path) in [
        ("POST", "items"),
        ("PUT", "items/a"),
        ("DELETE", "items/a"),
        ("POST", "snapshots"),
        ("POST", "read-links"),
    ] {
        let answer = server.ask(method, &format!("/feeds/mine/{path}?link={signature}"), &[], b"{}");
        assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text());
    }
    assert!(!server.json(&format!("/feeds?link={signature}")).to_string().contains("mine"));
    // Tampered with.
    for index in [0, 10, signature.len() / 2, signature.len() - 2] {
        let mut altered = signature.as_bytes().to_vec();
        altered[index] = if altered[index] == b'A' { b'B' } else { b'A' };
        let altered = String::from_utf8(altered).unwrap();
        assert_eq!(server.get(&format!("{base}link={altered}&timeout=0")).status, 401, "{index}");
    }
    // A reader of a part makes links that read that part.
    let part = link(&server, "/feeds/mine/read-links", "part", "items");
    let seen = server.get(&format!("{part}&timeout=0&as=line")).text();
    assert!(seen.contains("tagged") && !seen.contains("title of a\""), "{seen}");
    // A public feed needs none; a stranger and a bad time get none.
    let (status, made) = post(&server, "/feeds/open/read-links", "reader");
    assert_eq!((status, &made["expires"]), (201, &Value::Null));
    assert_eq!(made["url"], format!("{}/feeds/open/events", server.base));
    assert_eq!(post(&server, "/feeds/mine/read-links", "wrong").0, 401);
    assert_eq!(post(&server, "/feeds/mine/read-links?seconds=0", "reader").1["parameter"], "seconds");
    assert_eq!(server.get("/feeds/mine/read-links").status, 405);
}

#[test]
fn a_link_ends_with_its_time_and_with_its_token() {
    let dir = TestFolder::new(FEEDS);
    let server = dir.serve();
    fill(&server);
    let short = link(&server, "/feeds/mine/read-links?seconds=2", "reader", "url");
    let mut stream = PollClient::new(&server);
    stream.send(&format!("{short}&last=1"), "");
    stream.read_until(|text| text.contains("title of tagged"));
    until("the link expires", || server.get(&short.replace("/events?", "/items?timeout=0&")).status == 401);
    // The stream was ended with it: nothing waits any more.
    until("the stream ends", || waiters(&server) == 0);
    let long = link(&server, "/feeds/mine/read-links", "reader", "items");
    assert_eq!(server.get(&format!("{long}&timeout=0")).status, 200);
    // The key is the data folder's: a link outlives a restart.
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    let long = long.as_str();
    assert_eq!(server.get(&format!("{long}&timeout=0")).status, 200);
    assert_eq!(server.stop(), Some(0));
    dir.write("towpath.toml", FEEDS.replace("[\"reader\", {", "[\"another\", {").as_bytes());
    let server = dir.serve();
    assert_eq!(server.get(&format!("{long}&timeout=0")).status, 401, "the token was withdrawn");
    assert_eq!(server.get("/feeds/open/items?timeout=0").status, 200);
}
