//! WebSub topics of a feed's newest Atom, RSS and JSON Feed documents.

use serde_json::json;
use towpath_proto::format::{FeedDocument, ReadOptions, read};

use crate::callback::CallbackServer;
use crate::common::{TestFolder, TestResponse, TestServer};

const CONFIG: &str = r#"
[server]
allow_private_callbacks = true
[[feed]]
id = "aa"
page_items = 3
[[feed]]
id = "private"
readers = ["all", { token = "some", filter = { tags = ["open"] } }]
[[feed]]
id = "part"
filter = { of = "aa", tags = ["open"] }
"#;

const DOCUMENTS: [&str; 3] = ["atom", "rss", "feed.json"];

fn publish(server: &TestServer, lines: &[serde_json::Value]) {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.ask("POST", "/feeds/aa/items", &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn put(id: &str) -> serde_json::Value {
    json!({ "id": id, "content": format!("the text of {id}"), "item": { "title": id } })
}

fn subscribe(
    server: &TestServer,
    feed: &str,
    topic: &str,
    callback: &str,
    headers: &[(&str, &str)],
) -> TestResponse {
    let parameters = [("hub.mode", "subscribe"), ("hub.topic", topic), ("hub.callback", callback)];
    let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let headers = [headers, &[("Content-Type", "application/x-www-form-urlencoded")]].concat();
    server.ask("POST", &format!("/feeds/{feed}/hub"), &headers, form.as_bytes())
}

fn document(body: &[u8], content_type: &str) -> FeedDocument {
    read(body, &ReadOptions { content_type: Some(content_type), ..ReadOptions::default() }).unwrap()
}

/// WebSub 4: discovery by Link headers, and by links in the document. 7: the delivery has "a Content-Type Header
/// corresponding to the Content-Type of the topic", and the links; it may be "a diff".
#[test]
fn documents_are_discovered_subscribed_to_and_delivered() {
    let dir = TestFolder::new(CONFIG);
    let (mut server, callback) = (dir.serve(), CallbackServer::good());
    publish(&server, &[put("old"), put("gone")]);
    for name in DOCUMENTS {
        let fetched = server.get(&format!("/feeds/aa/{name}"));
        let (hub, own) =
            (format!("{}/feeds/aa/hub", server.base), format!("{}/feeds/aa/{name}", server.base));
        let links: Vec<&str> = fetched.headers("link");
        assert!(links.contains(&format!("<{hub}>; rel=\"hub\"").as_str()), "{links:?}");
        assert!(links.contains(&format!("<{own}>; rel=\"self\"").as_str()), "{links:?}");
        let feed = document(&fetched.body, fetched.header("content-type").unwrap());
        assert_eq!((feed.link("hub"), feed.link("self")), (Some(hub.as_str()), Some(own.as_str())));
        let answer = subscribe(&server, "aa", &own, &callback.url(&format!("/{name}")), &[]);
        assert_eq!(answer.status, 202, "{}", answer.text());
    }
    callback.wait_for("three questions", |calls| calls.len() == 3);
    // The callback sees the question before the hub has stored the answer.
    std::thread::sleep(std::time::Duration::from_millis(300));
    publish(&server, &[put("new"), json!({ "op": "delete", "id": "gone" })]);
    let deliveries = callback.wait_for_deliveries(3);
    for name in DOCUMENTS {
        let delivery = deliveries.iter().find(|call| call.path == format!("/{name}")).unwrap();
        let fetched = server.get(&format!("/feeds/aa/{name}"));
        let media_type = fetched.header("content-type").unwrap();
        assert_eq!(delivery.header("content-type"), Some(media_type));
        let links =
            format!("<{0}/feeds/aa/{name}>; rel=\"self\", <{0}/feeds/aa/hub>; rel=\"hub\"", server.base);
        assert_eq!(delivery.header("link"), Some(links.as_str()));
        // WebSub 7: of Atom and RSS a part may stand for the whole.
        if name == "feed.json" {
            assert_eq!(delivery.body, fetched.body);
            continue;
        }
        let (pushed, whole) = (document(&delivery.body, media_type), document(&fetched.body, media_type));
        assert_eq!(pushed.items.len(), 1, "{name}");
        assert_eq!(whole.items.iter().find(|item| item.id == "new"), pushed.items.first());
        assert_eq!((pushed.stateful, pushed.link("prev")), (None, None));
        let deleted: Vec<&str> = pushed.deleted.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(deleted, ["gone"], "{name}");
    }
    // Subscriptions outlast a restart.
    assert_eq!(server.stop(), Some(0));
    server = dir.serve();
    publish(&server, &[put("newer")]);
    assert_eq!(callback.wait_for_deliveries(6).len(), 6);
}

/// Immutable documents are no topics, and protected feeds are pushed to nobody without access.
#[test]
fn immutable_and_protected_documents_are_no_topics() {
    let (server, callback) = (TestFolder::new(CONFIG).serve(), CallbackServer::good());
    for n in 0..9 {
        publish(&server, &[put(&format!("i{n}"))]);
    }
    for name in DOCUMENTS {
        let archive = server.get(&format!("/feeds/aa/{name}/1"));
        assert_eq!(archive.status, 200);
        assert!(!archive.text().contains("/hub"), "{}", archive.text());
        let topic = format!("{}/feeds/aa/{name}/1", server.base);
        let answer = subscribe(&server, "aa", &topic, &callback.url("/"), &[]);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let topic = format!("{}/feeds/part/{name}", server.base);
        assert_eq!(subscribe(&server, "part", &topic, &callback.url("/"), &[]).status, 400);
        let topic = format!("{}/feeds/private/{name}", server.base);
        // A reader with a filter sees `/items` only, so these are no topics for it.
        for (token, status) in [("all", 202), ("some", 400), ("none", 401)] {
            let authorization = format!("Bearer {token}");
            let headers = [("Authorization", authorization.as_str())];
            let answer = subscribe(&server, "private", &topic, &callback.url("/"), &headers);
            assert_eq!(answer.status, status, "{token}: {}", answer.text());
        }
    }
}
