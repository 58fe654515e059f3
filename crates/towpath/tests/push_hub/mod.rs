//! The WebSub hub: the public conformance tests for hubs, and bad subscribers.

mod deliveries;
mod foreign;
mod refusals;
mod request_order;
mod subscriptions;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::json;
use towpath_proto::push::websub::signature;

use crate::callback::{CallbackRequest, CallbackServer, good};
use crate::common::{TestFolder, TestResponse, TestServer, free_port, wait_until};

const CONFIG: &str =
    "[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\n";

const PRIVATE: &str = r#"
[server]
allow_private_callbacks = true
[[feed]]
id = "aa"
readers = ["all", { token = "some", filter = { tags = ["open"] } }]
"#;

fn hub_folder() -> TestFolder {
    TestFolder::new(CONFIG)
}

fn topic(server: &TestServer, query: &str) -> String {
    format!("{}/feeds/aa/items{query}", server.base)
}

fn form(parameters: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

fn post(server: &TestServer, feed: &str, parameters: &[(&str, &str)]) -> TestResponse {
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    server.ask("POST", &format!("/feeds/{feed}/hub"), &headers, form(parameters).as_bytes())
}

fn ask(server: &TestServer, mode: &str, topic: &str, callback: &str, more: &[(&str, &str)]) -> TestResponse {
    let mut parameters = vec![("hub.mode", mode), ("hub.topic", topic), ("hub.callback", callback)];
    parameters.extend(more);
    post(server, "aa", &parameters)
}

/// Subscribes and waits for the verification.
fn subscribe(
    server: &TestServer,
    callback: &CallbackServer,
    path: &str,
    topic: &str,
    more: &[(&str, &str)],
) -> CallbackRequest {
    let before = questions(callback, path).len();
    // 503 until the server is ready.
    let subscribers = || server.get("/readyz").json()["parts"]["hub"]["total"].as_u64();
    let subscribers_before = subscribers();
    let answer = ask(server, "subscribe", topic, &callback.url(path), more);
    assert_eq!(answer.status, 202, "{}", answer.text());
    callback.wait_for("a question", |_| questions(callback, path).len() > before);
    // The subscription starts once the response to the verification has arrived.
    if before == 0 {
        wait_until("it is subscribed", || subscribers() > subscribers_before);
    } else {
        // A renewal shows nowhere.
        std::thread::sleep(Duration::from_millis(200));
    }
    questions(callback, path).pop().unwrap()
}

fn questions(callback: &CallbackServer, path: &str) -> Vec<CallbackRequest> {
    let path = path.split('?').next().unwrap();
    callback.calls().into_iter().filter(|call| call.method == "GET" && call.path == path).collect()
}

fn publish(server: &TestServer, feed: &str, id: &str, title: &str) {
    let line = json!({ "id": id, "item": { "title": title } }).to_string();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], line.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Asserts that nothing more is delivered for a while.
fn nothing_more(callback: &CallbackServer, count: usize) {
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(callback.deliveries().len(), count);
}
