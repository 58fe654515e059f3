//! Hubs of others that feeds and exported trees name: each is told of changes, and its subscribers get them.

use serde_json::{Value, json};

use crate::callback::CallbackServer;
use crate::callback::hub::TestHub;
use crate::callback::push_follow::PushFollow;
use crate::common::tree::{address, nginx_of};
use crate::common::{TestFolder, TestServer, ask_at, stderr, wait_until};

const DOCUMENTS: [&str; 3] = ["atom", "rss", "feed.json"];

fn publish(server: &TestServer, id: &str) {
    let line = json!({ "id": id, "item": { "title": id } }).to_string();
    let answer = server.ask("POST", "/feeds/aa/items", &[], line.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn topics(server: &TestServer) -> [String; 3] {
    DOCUMENTS.map(|name| format!("{}/feeds/aa/{name}", server.base))
}

fn has_all(pings: &[String], topics: &[String]) -> bool {
    topics.iter().all(|topic| pings.contains(topic))
}

/// Subscribes a callback at a hub.
fn subscribe(hub: &TestHub, topic: &str, callback: &str) {
    let parameters = [("hub.mode", "subscribe"), ("hub.topic", topic), ("hub.callback", callback)];
    let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let url = url::Url::parse(&hub.url()).unwrap();
    let base = format!("http://127.0.0.1:{}", url.port().unwrap());
    assert_eq!(ask_at(&base, "POST", url.path(), &[], form.as_bytes()).unwrap().status, 202);
    hub.wait_for_subscribers(1);
}

/// The hubs of a feed, as its status shows them.
fn hubs(server: &TestServer) -> Value {
    server.json("/feeds/aa")["hubs"].clone()
}

/// WebSub 4: documents name every hub. A change is told at once, and many go together.
#[test]
fn a_feeds_hubs_are_named_and_told() {
    let (hub, subscriber) = (TestHub::start(), CallbackServer::good());
    let (own, url) = (format!("hubs = [{:?}]\n", hub.url()), hub.url());
    let dir = TestFolder::new(&format!(
        "[server]\nhubs = [\"http://127.0.0.1:9/never\"]\n[[feed]]\nid = \"aa\"\n{own}[[feed]]\nid = \"none\"\nhubs = []\n\
         [[feed]]\nid = \"private\"\nreaders = [\"secret\"]\n"
    ));
    let server = dir.serve();
    let topics = topics(&server);
    subscribe(&hub, &topics[0], &subscriber.url("/"));
    publish(&server, "first");
    wait_until("told", || has_all(&hub.pings(), &topics));
    for name in DOCUMENTS {
        let fetched = server.get(&format!("/feeds/aa/{name}"));
        for hub in [format!("{}/feeds/aa/hub", server.base), url.clone()] {
            let link = format!("<{hub}>; rel=\"hub\"");
            assert!(fetched.headers("link").contains(&link.as_str()), "{:?}", fetched.headers("link"));
            assert!(fetched.text().contains(&hub), "{}", fetched.text());
        }
        for other in ["none", "private"] {
            let headers = [("Authorization", "Bearer secret")];
            let fetched = server.ask("GET", &format!("/feeds/{other}/{name}"), &headers, b"");
            assert!(fetched.status == 200 && !fetched.text().contains("/never"), "{}", fetched.text());
        }
    }
    let pushed = subscriber.wait_for_deliveries(1);
    assert!(String::from_utf8_lossy(&pushed[0].body).contains("first"));
    // Fifty appends within the pause between two pings, and a last one.
    for n in 0..50 {
        publish(&server, &format!("i{n}"));
    }
    publish(&server, "last");
    let has_last = |body: &[u8]| String::from_utf8_lossy(body).contains(">last<");
    subscriber.wait_for("the last change", |calls| calls.iter().any(|call| has_last(&call.body)));
    let pings = hub.pings().len();
    assert!(pings <= 4 * topics.len(), "{pings} pings for 52 changes");
    wait_until("stored", || hubs(&server)[0]["seq"] == 52);
    let told = hubs(&server);
    assert_eq!((&told[0]["url"], &told[0]["error"]), (&Value::from(url), &Value::Null), "{told}");
}

/// A hub that fails is seen in the status, delays nothing, and is told later, also by the next process. What was
/// confirmed is not told again.
#[test]
fn a_failing_hub_is_told_later() {
    let hub = TestHub::start();
    hub.answer_pings_with(503);
    let dir = TestFolder::new(&format!("[[feed]]\nid = \"aa\"\nhubs = [{:?}]\n", hub.url()));
    let server = dir.serve();
    publish(&server, "first");
    wait_until("seen", || hubs(&server)[0]["error"] == "it answered 503");
    assert_eq!(hubs(&server)[0]["seq"], 0);
    assert_eq!(server.json("/readyz")["parts"]["hubs"]["failing"], 1);
    let metrics = server.get("/metrics").text();
    for line in ["towpath_other_hubs 1", "towpath_other_hubs_failing 1"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // More than one on a machine that is slow: it is tried again.
    assert!(!metrics.contains("towpath_hub_pings_failed_total 0"), "{metrics}");
    let status = dir.run(&["status"]);
    let told = crate::common::stdout(&status);
    assert!(status.status.success() && told.contains("is not told: it answered 503"), "{told}");
    let home = server.ask("GET", "/", &[("Accept", "text/html")], b"");
    assert!(home.text().contains("cannot be told of changes"), "{}", home.text());
    assert_eq!(server.stop(), Some(0));
    let failed = hub.pings().len();
    hub.answer_pings_with(204);
    let server = dir.serve();
    wait_until("told by the next process", || hubs(&server)[0]["seq"] == 1);
    assert_eq!(hubs(&server)[0]["error"], Value::Null);
    assert_eq!(hub.pings().len(), failed + DOCUMENTS.len());
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    publish(&server, "second");
    wait_until("told", || hubs(&server)[0]["seq"] == 2);
    assert_eq!(hub.pings().len(), failed + 2 * DOCUMENTS.len(), "the first change is told once");
}

/// A hub that comes up again is told without another change.
#[test]
fn a_hub_is_told_after_its_failure() {
    let hub = TestHub::start();
    hub.answer_pings_with(500);
    let dir = TestFolder::new(&format!("[server]\nhubs = [{:?}]\ncreate_feeds = true\n", hub.url()));
    let server = dir.serve();
    publish(&server, "first");
    wait_until("tried", || !hub.pings().is_empty());
    hub.answer_pings_with(204);
    wait_until("told", || hubs(&server)[0]["seq"] == 1);
    // 4xx: the same ping would be refused again.
    hub.answer_pings_with(403);
    publish(&server, "second");
    wait_until("refused", || hubs(&server)[0]["error"] == "it refused the ping with 403");
    assert_eq!(hubs(&server)[0]["seq"], 2);
}

/// A tree names the hubs of others only. Followers of its documents by push get changes through such a hub, from a
/// server that keeps the tree and from an export by hand.
#[test]
fn an_exported_tree_is_followed_through_its_hub() {
    let hub = TestHub::start();
    let (port, base) = address();
    let dir = TestFolder::new(&format!(
        "[[feed]]\nid = \"aa\"\n[export]\nto = \"tree\"\nbase_url = {base:?}\nevery = \"1s\"\nhubs = [{:?}]\n",
        hub.url()
    ));
    let server = dir.serve();
    publish(&server, "first");
    let topics = DOCUMENTS.map(|name| format!("{base}/feeds/aa/{name}"));
    wait_until("told", || has_all(&hub.pings(), &topics));
    let nginx = nginx_of(port, &dir.path("tree"));
    for name in DOCUMENTS {
        let text = crate::common::get_from(&nginx.base, &format!("/feeds/aa/{name}"), &[]).text();
        assert!(text.contains(&hub.url()) && !text.contains("/feeds/aa/hub"), "{text}");
    }
    let subscriber = TestFolder::new("");
    let following = PushFollow::start(&subscriber, &topics[0]);
    following.wait_for("first");
    hub.wait_for_subscribers(1);
    publish(&server, "second");
    following.wait_for("second");
    assert_eq!(server.stop(), Some(0));
    let told = hub.pings().len();
    assert!(dir.run(&["put", "aa", "third", "--title", "Third"]).status.success());
    let done = dir.run(&["export"]);
    assert!(done.status.success(), "{}", stderr(&done));
    assert_eq!(hub.pings().len(), told + DOCUMENTS.len());
    following.wait_for("third");
    // Nothing is new.
    assert!(dir.run(&["export"]).status.success());
    assert_eq!(hub.pings().len(), told + DOCUMENTS.len());
    hub.answer_pings_with(503);
    assert!(dir.run(&["put", "aa", "fourth", "--title", "Fourth"]).status.success());
    let done = dir.run(&["export"]);
    assert!(done.status.success() && stderr(&done).contains("it answered 503"), "{}", stderr(&done));
}
