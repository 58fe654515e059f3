//! Tests of requests whose client goes while a write is under way: hyper drops their futures.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt as _, duplex};
use tokio::sync::watch;
use tokio::time::timeout;
use towpath_proto::{FeedId, Item, NewChange};

use super::StreamServer;
use crate::engine::{Engine, scheduled};
use crate::protocols::failing_store;

/// Time after which a test gives up.
const LIMIT: Duration = Duration::from_secs(30);

/// Sends a request whose client goes once a write with this part of a key is made, and before its answer.
async fn leave_at(part: &'static str, request: String) -> Arc<Engine> {
    let (engine, store) = failing_store::engine("[[feed]]\nid = \"notes\"\n").await;
    let far = "2999-01-01T00:00:00Z".parse().unwrap();
    let later = vec![(NewChange::put(Item::new("a")), far)];
    scheduled::schedule(&engine, &FeedId::new("notes").unwrap(), later).await.unwrap();
    let held = store.hold(part);
    let (stop, stopping) = watch::channel(false);
    let (mut client, stream) = duplex(64 << 10);
    let server = StreamServer::new(engine.clone(), stopping);
    let serving = tokio::spawn(async move { server.serve(stream, "127.0.0.1:9".parse().unwrap()).await });
    client.write_all(request.as_bytes()).await.unwrap();
    timeout(LIMIT, held.made.notified()).await.unwrap_or_else(|_| panic!("no write of {part}: {request}"));
    drop(client);
    timeout(LIMIT, serving).await.expect("the connection ends").unwrap();
    held.released.notify_one();
    drop(stop);
    engine
}

fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} /feeds/notes/{path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
}

/// Waits until the item `a` is published, and until nothing is scheduled for it.
async fn is_published(engine: &Engine) {
    let (store, feed) = (engine.store.as_ref(), FeedId::new("notes").unwrap());
    let published = async {
        assert_eq!(store.wait(&feed, 0).await.unwrap().seq, 1);
        while !scheduled::list(store, &feed, 10).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, published).await.expect("the request goes on to its end");
    assert_eq!(store.latest(&feed, "a").await.unwrap().unwrap().seq, 1);
}

#[tokio::test]
async fn a_change_whose_client_goes_replaces_what_was_scheduled() {
    let put = request("PUT", "items/a?title=Now", "Content-Type: text/plain\r\n", "now");
    let batch = request(
        "POST",
        "items",
        "Content-Type: application/json\r\n",
        "[{\"id\":\"a\",\"content\":\"now\"}]",
    );
    for request in [put, batch] {
        let engine = leave_at("publish-at/item/", request).await;
        is_published(&engine).await;
    }
}

#[tokio::test]
async fn a_form_whose_client_goes_publishes_the_item_of_its_file() {
    let part = |name: &str, more: &str, text: &str| {
        format!("--b1\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{text}\r\n")
    };
    let body = part("id", "", "a") + &part("file", "; filename=\"f.txt\"", "text") + "--b1--\r\n";
    let form = request("POST", "items", "Content-Type: multipart/form-data; boundary=b1\r\n", &body);
    let engine = leave_at("attachment-names/", form).await;
    is_published(&engine).await;
}

#[tokio::test]
async fn an_upload_whose_client_goes_publishes_its_item() {
    // The id "a", in Base 64.
    let headers = "Tus-Resumable: 1.0.0\r\nUpload-Length: 0\r\nUpload-Metadata: id YQ==\r\n";
    let engine = leave_at("attachment-names/", request("POST", "uploads", headers, "")).await;
    is_published(&engine).await;
}
