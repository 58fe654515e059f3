//! `towpath follow --push` has the same output as pulling, whatever happens to the pushes; and the public conformance
//! tests for subscribers that need a network.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::callback::hub::TestHub;
use crate::callback::push_follow::PushFollow;
use crate::callback::{CallbackRequest, CallbackServer};
use crate::common::{PATIENCE, TestFolder, TestServer, clustered, free_port};

const CONFIG: &str = "[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"aa\"\n";

fn publish(server: &TestServer, line: &Value) {
    let answer = server.ask("POST", "/feeds/aa/items", &[], line.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn put(id: &str, title: &str) -> Value {
    json!({ "id": id, "item": { "title": title, "tags": ["x"] }, "content_type": "text/plain", "content": title })
}

fn counter(server: &TestServer, name: &str) -> u64 {
    let text = server.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// "Updates/Synchronization via Push", steps 1 and 2: existing items are pulled, new ones are pushed. The output
/// equals that of pulling, byte for byte, across restarts of both sides.
#[test]
fn the_output_equals_that_of_pulling() {
    let dir = TestFolder::new(CONFIG);
    let port = free_port();
    let server = dir.serve_at(port);
    let url = format!("{}/feeds/aa/items", server.base);
    publish(&server, &put("before", "Before"));
    let following = PushFollow::start(&dir, &url);
    following.wait_for("before");
    until("subscribed", || {
        // Another title each time: publishing what is there changes nothing.
        publish(&server, &put("probe", &format!("Probe {}", fastrand::u64(..))));
        std::thread::sleep(Duration::from_millis(100));
        counter(&server, "towpath_pushes_ok_total") > 0
    });
    let routed = || counter(&server, "towpath_requests_routed_total");
    following.wait_for("probe");
    std::thread::sleep(Duration::from_millis(300));
    let before = routed();
    for number in 0..20 {
        publish(&server, &put(&format!("item-{}", number % 7), &format!("Title {number}")));
    }
    publish(&server, &json!({ "id": "item-3", "op": "delete" }));
    following.wait_for("item-3");
    // 21 publications and the metrics: the follower polled nothing.
    assert!(routed() - before <= 23, "{}", routed() - before);
    // The server is restarted; items appended meanwhile are pushed then.
    assert_eq!(server.stop(), Some(0));
    assert!(dir.run(&["put", "aa", "meanwhile", "--title", "Meanwhile"]).status.success());
    let server = dir.serve_at(port);
    following.wait_for("meanwhile");
    let mut received = following.lines();
    // Lines are printed before the state that covers them is persisted.
    let position = received.last().unwrap()["position"].as_str().unwrap().to_owned();
    until("kept", || {
        std::fs::read_to_string(dir.path("state.json")).is_ok_and(|state| state.contains(&position))
    });
    // The follower is restarted, and continues where its output ended.
    drop(following);
    publish(&server, &put("missed", "Missed"));
    let following = PushFollow::start(&dir, &url);
    following.wait_for("missed");
    publish(&server, &put("last", "Last"));
    following.wait_for("last");
    received.extend(following.lines());
    let pulled = dir.run(&["follow", &url, "--protocol", "smart", "--once"]);
    let pulled = crate::common::lines(&pulled);
    // Pulling shows only the latest version of a replaced item.
    let latest: Vec<&Value> = received
        .iter()
        .enumerate()
        .filter(|(at, line)| !received[at + 1..].iter().any(|later| later["id"] == line["id"]))
        .map(|(_, line)| line)
        .collect();
    assert_eq!(latest, pulled.iter().collect::<Vec<_>>());
    let positions: Vec<&str> = received.iter().map(|line| line["position"].as_str().unwrap()).collect();
    let distinct: std::collections::HashSet<&str> = positions.iter().copied().collect();
    assert_eq!(distinct.len(), positions.len(), "nothing twice: {positions:?}");
}

/// WebSub 8.2: a callback's URL is unguessable; a request without its key, or for another topic, gets 404 (subscriber
/// test 205), and a delivery 410 (WebSub 7).
#[test]
fn a_callback_answers_only_its_hub() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, &put("one", "One"));
    let following = PushFollow::start(&dir, &format!("{}/feeds/aa/items", server.base));
    following.wait_for("one");
    let host = following.callback.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
    let topic = "http%3A%2F%2Felsewhere%2F";
    for query in ["", "?towpath-key=0", "?hub.mode=subscribe&hub.topic=x&hub.challenge=c"] {
        let status =
            status_of(&host, &format!("GET /pushed{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert_eq!(status, 404, "{query}");
    }
    let post = format!(
        "POST /pushed?hub.topic={topic} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    );
    assert_eq!(status_of(&host, &post), 410);
}

/// A server's callbacks read large bodies only from clients that know a mirror's key.
#[test]
fn a_callback_reads_no_body_without_the_key() {
    let origin = TestFolder::new(CONFIG);
    let origin = origin.serve();
    let follow = format!("{}/feeds/aa/items", origin.base);
    let dir = TestFolder::new(&format!(
        "[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{follow}\"\npush = true\n"
    ));
    let server = dir.serve();
    let host = server.base.strip_prefix("http://").unwrap();
    // The body never comes.
    let head = "HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\nConnection: close\r\n\r\n";
    for path in ["/feeds/aa/callback", "/feeds/copy/callback?towpath-key=0", "/feeds/none/callback"] {
        let began = Instant::now();
        let status = status_of(host, &format!("POST {path} {head}"));
        // In a cluster no node knows the key before one has started to follow.
        let is_unknown = clustered::is_on() && path.contains("copy");
        let is_refused = status == if path.contains("none") { 404 } else { 410 };
        assert!(is_refused || is_unknown && status == 503, "{path}: {status}");
        assert!(began.elapsed() < Duration::from_secs(20), "{path}");
    }
}

fn status_of(host: &str, request: &str) -> u16 {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Subscriber tests 201 to 204: a moved topic is followed to its new address and subscribed there. A hub that
/// redirects (307, 308) is asked at the target. WebSub 5.1.2: "The subscriber is expected to retry the subscription".
#[test]
fn topics_and_hubs_may_move() {
    let publisher = CallbackServer::start(|call: &CallbackRequest| {
        let page = br#"{"url":"x","items":[],"last_cursor":"c1"}"#.to_vec();
        let json = "Content-Type: application/json\r\n";
        match (call.method.as_str(), call.path.as_str()) {
            ("POST", "/hub") => (307, "Location: /second\r\n".to_owned(), Vec::new()),
            ("POST", "/second") => (308, "Location: /third\r\n".to_owned(), Vec::new()),
            ("POST", _) => (202, String::new(), Vec::new()),
            (_, "/feed") => (302, format!("Location: /moved?{}\r\n", call.query), Vec::new()),
            (_, "/moved") => (301, format!("Location: /final?{}\r\n", call.query), Vec::new()),
            _ => {
                let links = "Link: </hub>; rel=\"hub\", </final?self=other>; rel=\"self\"\r\n";
                (200, format!("{json}{links}"), page)
            }
        }
    });
    let dir = TestFolder::new("");
    let _following = PushFollow::start(&dir, &publisher.url("/feed"));
    let is_there = |call: &CallbackRequest| call.method == "POST" && call.path == "/third";
    let calls = publisher.wait_for("asked at the third address", |calls| calls.iter().any(is_there));
    let asked = calls.iter().find(|call| is_there(call)).unwrap();
    let parameters: Vec<(String, String)> =
        url::form_urlencoded::parse(&asked.body).map(|(n, v)| (n.into_owned(), v.into_owned())).collect();
    let value = |name: &str| parameters.iter().find(|(known, _)| known == name).map(|(_, v)| v.clone());
    // WebSub 4: the topic is what `self` names, not the address that was requested.
    assert_eq!(value("hub.topic"), Some(publisher.url("/final?self=other")));
    assert_eq!(value("hub.mode").as_deref(), Some("subscribe"));
    // Unguessable, and below the 200 bytes of WebSub 5.1.
    assert!(value("hub.secret").is_some_and(|secret| secret.len() >= 32 && secret.len() < 200));
    assert!(value("hub.callback").unwrap().contains("towpath-key="));
}

/// Atom, RSS and JSON Feed documents that name a hub are followed by push: by their address, by that of a page that links
/// to them, and by a mirror. The history beneath tells what came before. Without a push the next poll would come after a
/// minute, longer than the test waits.
#[test]
fn documents_with_a_hub_are_followed_by_push() {
    let publisher = TestFolder::new(CONFIG);
    let server = publisher.serve();
    for n in 0..60 {
        publish(&server, &put(&format!("old{n}"), "Old"));
    }
    let feed = format!("{}/feeds/aa/atom", server.base);
    let page = CallbackServer::start(move |_: &CallbackRequest| {
        let link = format!("<!doctype html><link rel=alternate type=application/atom+xml href=\"{feed}\">");
        (200, "Content-Type: text/html\r\n".to_owned(), link.into_bytes())
    });
    let addresses = ["atom", "rss", "feed.json"].map(|name| format!("{}/feeds/aa/{name}", server.base));
    let addresses = addresses.into_iter().chain([page.url("/page")]);
    let follows: Vec<(TestFolder, PushFollow)> = addresses
        .map(|url| {
            let dir = TestFolder::new("");
            let follow = PushFollow::start(&dir, &url);
            (dir, follow)
        })
        .collect();
    let source = format!("follow = \"{}/feeds/aa/rss\"\npush = true\n", server.base);
    let mirror = TestFolder::new(&format!("[[feed]]\nid = \"copy\"\n[feed.source]\n{source}"));
    let copy = mirror.serve_at(free_port());
    // One may come with the first pull, and one with that at the begin of the subscription.
    let new = ["first", "second", "third", "fourth"];
    for id in new {
        publish(&server, &put(id, "New"));
        for (_, follow) in &follows {
            follow.wait_for(id);
        }
        until("mirrored", || copy.get(&format!("/feeds/copy/items/{id}")).status == 200);
    }
    for (_, follow) in &follows {
        let ids: Vec<String> =
            follow.lines().iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids.len(), 64);
        assert_eq!(ids[60..], new);
    }
}

/// Data Replication whose newest page names a hub. The page may be cached for an hour, so without a push the next poll would
/// come long after the test.
#[test]
fn replication_with_a_hub_is_followed_by_push() {
    let (hub, count) = (TestHub::start(), Arc::new(Mutex::new(1)));
    let (at, shown) = (hub.url(), Arc::clone(&count));
    let publisher = CallbackServer::start(move |call: &CallbackRequest| {
        if call.method != "GET" {
            return (405, String::new(), Vec::new());
        }
        let count = *shown.lock().unwrap();
        let time = "Last-Modified: Tue, 14 Nov 2023 22:13:20 GMT\r\n";
        let entity = |n: i32| {
            let names = format!("Content-ID: <{n}@news>\r\nOperation-Type: http-equiv=PUT\r\n");
            format!("--b\r\nContent-Type: text/plain\r\n{names}{time}\r\nentity {n}\r\n")
        };
        let body = (1..=count).map(entity).collect::<String>() + "--b--\r\n";
        let links =
            format!("Link: </news>; rel=self\r\nLink: <{at}>; rel=hub\r\nCache-Control: max-age=3600\r\n");
        (200, format!("Content-Type: multipart/mixed; boundary=b\r\n{time}{links}"), body.into_bytes())
    });
    let (dir, url) = (TestFolder::new(""), publisher.url("/news"));
    let following = PushFollow::start_with(&dir, &url, &["--protocol", "replication"]);
    until("followed", || following.lines().len() == 1);
    hub.wait_for_subscribers(1);
    for number in 2..=4 {
        *count.lock().unwrap() = number;
        hub.distribute(&url);
        until("told", || following.lines().len() == usize::try_from(number).unwrap());
    }
    let lines = following.lines();
    let contents: Vec<&str> = lines.iter().map(|line| line["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["entity 1", "entity 2", "entity 3", "entity 4"]);
}

/// A mirror gets pushes, too (`[feed.source]` push = true).
#[test]
fn a_mirror_gets_pushes() {
    let (publisher, mirror) = (TestFolder::new(CONFIG), free_port());
    let server = publisher.serve();
    publish(&server, &put("one", "One"));
    let dir = TestFolder::new(&format!(
        "[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{}/feeds/aa/items\"\npush = true\n",
        server.base
    ));
    let copy = dir.serve_at(mirror);
    let has = |id: &str| copy.get(&format!("/feeds/copy/items/{id}")).status == 200;
    until("mirrored", || has("one"));
    until("pushed", || {
        publish(&server, &put("two", &format!("Two {}", fastrand::u64(..))));
        std::thread::sleep(Duration::from_millis(100));
        counter(&server, "towpath_pushes_ok_total") > 0
    });
    publish(&server, &put("three", "Three"));
    until("mirrored", || has("two") && has("three"));
    // Deliveries without the key are refused.
    assert_eq!(copy.ask("POST", "/feeds/copy/callback", &[], b"{}").status, 410);
    assert_eq!(copy.get("/feeds/copy/callback?towpath-key=0").status, 404);
}

/// WebSub 7: "The subscriber's callback URL MAY return an HTTP 410 code to indicate that the subscription has been deleted".
/// A follower that starts again has another callback, so the hub would keep a dead subscription for each start.
#[test]
fn a_mirror_that_starts_again_leaves_no_subscription() {
    let (publisher, mirror) = (TestFolder::new(CONFIG), free_port());
    let server = publisher.serve();
    let dir = TestFolder::new(&format!(
        "[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{}/feeds/aa/items\"\npush = true\n",
        server.base
    ));
    let subscribers = || server.get("/readyz").json()["parts"]["hub"]["total"].as_u64().unwrap_or(0);
    let copy = dir.serve_at(mirror);
    until("subscribed", || subscribers() == 1);
    assert_eq!(copy.stop(), Some(0));
    let _copy = dir.serve_at(mirror);
    until("subscribed again", || subscribers() == 2);
    publish(&server, &put("one", "One"));
    until("the first ended", || subscribers() == 1);
    until("the second is pushed", || counter(&server, "towpath_pushes_ok_total") == 1);
}

/// An HTML page that names a hub and no feed is followed as one item. Without a push the next poll would come after a minute,
/// longer than the test waits.
#[test]
fn a_page_with_a_hub_is_followed_by_push() {
    let (hub, text) = (TestHub::start(), Arc::new(Mutex::new("first")));
    let (at, shown) = (hub.url(), Arc::clone(&text));
    let page = CallbackServer::start(move |_: &CallbackRequest| {
        let words = *shown.lock().unwrap();
        let html = format!(
            "<!doctype html><html><head><title>Page</title><link rel=hub href={at}></head><body><p>{words} <a href=/x>x</a>"
        );
        (200, "Content-Type: text/html\r\n".to_owned(), html.into_bytes())
    });
    let (dir, url) = (TestFolder::new(""), page.url("/page"));
    let refused = dir.run(&["follow", &url, "--once"]);
    assert!(
        !refused.status.success() && crate::common::stderr(&refused).contains("--protocol page"),
        "{refused:?}"
    );
    let following = PushFollow::start(&dir, &url);
    following.wait_for(&url);
    hub.wait_for_subscribers(1);
    for words in ["second", "third"] {
        *text.lock().unwrap() = words;
        hub.distribute(&url);
        until("told", || following.lines().last().unwrap().to_string().contains(words));
    }
    let lines = following.lines();
    assert_eq!(lines.len(), 3, "once for each change: {lines:#?}");
    assert_eq!((&lines[2]["id"], &lines[2]["item"]["title"]), (&json!(url), &json!("Page")));
    assert!(lines[2].to_string().contains(&page.url("/x")), "{}", lines[2]);
    // What was told is not told again.
    drop(following);
    let again = dir.run(&["follow", &url, "--protocol", "page", "--once", "--state", "state.json"]);
    assert!(again.status.success() && again.stdout.is_empty(), "{again:?}");
}

/// `towpath check` for a hub: ours meets the requirements of the texts.
#[test]
fn our_hub_passes_its_check() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    publish(&server, &put("one", "One"));
    let topic = format!("{}/feeds/aa/items?order=modified", server.base);
    let callback = format!("http://127.0.0.1:{}/", free_port());
    let mut checking = dir.command(&["check", &topic, "--callback", &callback, "--format", "json"]);
    let output = std::thread::scope(|scope| {
        let output = scope.spawn(move || checking.output());
        // The check waits for pushes, so the feed has to move.
        for number in 0..30 {
            publish(&server, &put("probe", &format!("{number}")));
            std::thread::sleep(Duration::from_millis(100));
        }
        output.join().unwrap().unwrap()
    });
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["conforms"], true, "{report:#}");
    for finding in report["findings"].as_array().unwrap() {
        assert_eq!(finding["outcome"], "pass", "{finding}");
    }
}
