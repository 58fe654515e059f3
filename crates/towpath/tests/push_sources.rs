//! Polled sources with a hub (`push = true`).

use serde_json::json;
use towpath_proto::push::websub::signature::{self, Algorithm};

use crate::callback::hub::{self, TestHub};
use crate::callback::{CallbackRequest, CallbackServer};
use crate::common::{TestFolder, TestServer, free_port, wait_until};

const CONFIG: &str = "[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"aa\"\n";

fn source(id: &str, url: &str, every: &str) -> String {
    format!("[[feed]]\nid = {id:?}\n[feed.source]\nurl = {url:?}\nevery = {every:?}\npush = true\n")
}

fn push_state(server: &TestServer, feed: &str) -> serde_json::Value {
    server.json(&format!("/feeds/{feed}"))["source"]["push"].clone()
}

fn publish(server: &TestServer, title: &str) {
    let line = json!({ "id": "news", "item": { "title": title } }).to_string();
    assert_eq!(server.ask("POST", "/feeds/aa/items", &[], line.as_bytes()).status, 200);
}

/// A polled document with a hub is polled when the hub delivers, long before its interval ends. One without a hub is polled
/// as ever, and its status says why it is not pushed.
#[test]
fn a_polled_source_is_pushed() {
    let publisher = TestFolder::new(CONFIG);
    let server = publisher.serve();
    publish(&server, "One");
    let plain = CallbackServer::start(|_: &CallbackRequest| {
        let rss =
            "<rss version=\"2.0\"><channel><title>A</title><item><guid>only</guid></item></channel></rss>";
        (200, "Content-Type: application/rss+xml\r\n".to_owned(), rss.as_bytes().to_vec())
    });
    let atom = source("copy", &format!("{}/feeds/aa/atom", server.base), "1h");
    let dir = TestFolder::new(&format!("{atom}{}", source("alone", &plain.url("/feed"), "1s")));
    let copy = dir.serve_at(free_port());
    let push = |feed: &str| push_state(&copy, feed);
    wait_until("subscribed", || push("copy")["state"] == "subscribed");
    // The polls at the start and at the begin of the subscription.
    let titles = || copy.get("/feeds/copy/items").text();
    wait_until("polled", || titles().contains("One"));
    for title in ["Two", "Three", "Four"] {
        publish(&server, title);
        wait_until("pushed", || titles().contains(title));
    }
    wait_until("seen", || push("alone")["problem"].as_str().is_some_and(|text| text.contains("has no hub")));
    let asked = plain.calls().len();
    wait_until("polled on", || plain.calls().len() > asked + 2);
    let status = crate::common::stdout(&dir.run(&["status"]));
    assert!(status.contains(", pushed") && status.contains("not pushed: "), "{status}");
    // Deliveries without the key are refused.
    assert_eq!(copy.ask("POST", "/feeds/copy/callback", &[], b"{}").status, 410);
}

/// WebSub 4: "Subscribers MUST check for HTTP Link headers first", then for links in the document. Neither depends on the
/// size of the document, as long as the source's limit allows it.
#[test]
fn a_large_source_is_pushed() {
    let hub = TestHub::start();
    let at = hub.url();
    let publisher = CallbackServer::start(move |call: &CallbackRequest| {
        let link = |rel: &str, href: &str| format!("<link rel=\"{rel}\" href=\"{href}\"/>");
        let (headers, links) = match call.path.as_str() {
            "/headers" => (format!("Link: <{at}>; rel=hub, </headers>; rel=self\r\n"), String::new()),
            _ => (String::new(), link("hub", &at) + &link("self", "/document")),
        };
        let text = "x".repeat(5_000_000);
        let atom = format!(
            "<feed xmlns=\"http://www.w3.org/2005/Atom\"><id>urn:a</id><title>A</title>{links}<entry><id>urn:b</id>\
             <title>B</title><updated>2024-01-01T00:00:00Z</updated><content>{text}</content></entry></feed>"
        );
        (200, format!("Content-Type: application/atom+xml\r\n{headers}"), atom.into_bytes())
    });
    let sources = ["headers", "document"].map(|name| source(name, &publisher.url(&format!("/{name}")), "1h"));
    let dir = TestFolder::new(&sources.concat());
    let server = dir.serve_at(free_port());
    for name in ["headers", "document"] {
        wait_until("subscribed", || push_state(&server, name)["state"] == "subscribed");
    }
}

/// WebSub 7.1.2: a delivery with a wrong signature MUST be ignored. That ends no subscription, and the log does not say so.
#[test]
fn an_ignored_delivery_ends_no_subscription() {
    let hub = TestHub::start();
    let at = hub.url();
    let publisher = CallbackServer::start(move |_: &CallbackRequest| {
        let rss =
            "<rss version=\"2.0\"><channel><title>A</title><item><guid>one</guid></item></channel></rss>";
        let links = format!("Link: <{at}>; rel=hub, </feed>; rel=self\r\n");
        (200, format!("Content-Type: application/rss+xml\r\n{links}"), rss.as_bytes().to_vec())
    });
    let dir = TestFolder::new(&source("copy", &publisher.url("/feed"), "1h"));
    let server = dir.serve_at(free_port());
    wait_until("subscribed", || push_state(&server, "copy")["state"] == "subscribed");
    let forged = signature::sign(Algorithm::Sha256, b"guessed", b"body");
    let headers = [("X-Hub-Signature", forged.as_str())];
    let answer = hub::ask("POST", &hub.callbacks()[0], &headers, b"body").unwrap();
    assert_eq!(answer.status, 202);
    wait_until("logged", || dir.log().contains("a delivery was ignored"));
    assert!(!dir.log().contains("the source is not pushed"), "{}", dir.log());
    assert_eq!(push_state(&server, "copy")["state"], "subscribed");
}
