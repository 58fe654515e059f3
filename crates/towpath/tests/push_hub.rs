//! The hub: the public checks for hubs restated, and what bad subscribers do to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod callback;
mod common;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use callback::{Call, Callback, good};
use common::{Answer, Place, Server, free_port};
use serde_json::json;
use towpath_proto::push::websub::signature;

const CONFIG: &str =
    "[server]\nallow_private_callbacks = true\n[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\n";

const PRIVATE: &str = r#"
[server]
allow_private_callbacks = true
[[feed]]
id = "aa"
readers = ["all", { token = "some", filter = { tags = ["open"] } }]
"#;

fn place() -> Place {
    Place::new(CONFIG)
}

fn topic(server: &Server, query: &str) -> String {
    format!("{}/feeds/aa/items{query}", server.base)
}

fn form(parameters: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

fn post(server: &Server, feed: &str, parameters: &[(&str, &str)]) -> Answer {
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    server.ask("POST", &format!("/feeds/{feed}/hub"), &headers, form(parameters).as_bytes())
}

fn ask(server: &Server, mode: &str, topic: &str, callback: &str, more: &[(&str, &str)]) -> Answer {
    let mut parameters = vec![("hub.mode", mode), ("hub.topic", topic), ("hub.callback", callback)];
    parameters.extend(more);
    post(server, "aa", &parameters)
}

/// Subscribes and waits until that is verified.
fn subscribe(server: &Server, callback: &Callback, path: &str, topic: &str, more: &[(&str, &str)]) -> Call {
    let before = questions(callback, path).len();
    let answer = ask(server, "subscribe", topic, &callback.url(path), more);
    assert_eq!(answer.status, 202, "{}", answer.text());
    callback.wait_for("a question", |_| questions(callback, path).len() > before);
    // The subscription begins once the answer has arrived.
    std::thread::sleep(Duration::from_millis(200));
    questions(callback, path).pop().unwrap()
}

fn questions(callback: &Callback, path: &str) -> Vec<Call> {
    let path = path.split('?').next().unwrap();
    callback.calls().into_iter().filter(|call| call.method == "GET" && call.path == path).collect()
}

fn publish(server: &Server, feed: &str, id: &str, title: &str) {
    let line = json!({ "id": id, "item": { "title": title } }).to_string();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], line.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Nothing more is delivered for a while.
fn nothing_more(callback: &Callback, count: usize) {
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(callback.deliveries().len(), count);
}

/// Hub tests 100 and 106. WebSub 5.1.2: 202. 5.3: hub.mode, hub.topic, hub.challenge and hub.lease_seconds are there.
/// 7: "MUST have a Content-Type Header corresponding to the Content-Type of the topic", "MUST include at least one
/// Link Header with rel=hub", "MUST also include one Link Header with rel=self". Without a secret, no signature.
#[test]
fn a_subscription_is_verified_and_delivered_to() {
    let (server, callback) = (place().serve(), Callback::good());
    let topic = topic(&server, "?order=modified");
    let question = subscribe(&server, &callback, "/push?mine=1", &topic, &[("hub.lease_seconds", "3600")]);
    assert!(question.query.starts_with("mine=1&hub.mode=subscribe&"), "{}", question.query);
    assert_eq!(question.argument("hub.topic").as_deref(), Some(topic.as_str()));
    assert_eq!(question.argument("hub.lease_seconds").as_deref(), Some("3600"));
    publish(&server, "aa", "one", "One");
    publish(&server, "bb", "other", "Other");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    assert_eq!((delivery.path.as_str(), delivery.query.as_str()), ("/push", "mine=1"));
    let fetched = server.get("/feeds/aa/items?order=modified");
    assert_eq!(delivery.header("content-type"), fetched.header("content-type"));
    let links = format!("<{0}/feeds/aa/hub>; rel=\"hub\", <{topic}>; rel=\"self\"", server.base);
    assert_eq!(delivery.header("link"), Some(links.as_str()));
    assert_eq!(fetched.header("link"), Some(links.as_str()));
    assert_eq!(delivery.header(signature::HEADER), None);
    // The first push ever has no previous cursor, and is the topic's content.
    assert_eq!(delivery.json(), fetched.json());
    nothing_more(&callback, 1);
}

/// Hub test 101. WebSub 7.1: with a secret, a signature by it; for each text its own method.
#[test]
fn deliveries_are_signed() {
    let (server, callback) = (place().serve(), Callback::good());
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/new", &topic, &[("hub.secret", "geheim")]);
    let old = [("hub.secret", "geheim"), ("hub.verify", "async")];
    subscribe(&server, &callback, "/old", &topic, &old);
    publish(&server, "aa", "one", "One");
    for delivery in callback.wait_for_deliveries(2) {
        let header = delivery.header(signature::HEADER);
        assert_eq!(signature::check(header, b"geheim", &delivery.body), Ok(()));
        let method = if delivery.path == "/new" { "sha256=" } else { "sha1=" };
        assert!(header.unwrap().starts_with(method), "{header:?}");
    }
}

/// Hub test 102. WebSub 5.1: "Hubs MUST ignore additional request parameters they do not understand".
#[test]
fn unknown_parameters_are_ignored() {
    let (server, callback) = (place().serve(), Callback::good());
    subscribe(&server, &callback, "/", &topic(&server, ""), &[("foo", "bar"), ("hub.foo", "hub.bar")]);
    publish(&server, "aa", "one", "One");
    assert_eq!(callback.wait_for_deliveries(1)[0].ids(), ["one"]);
}

/// Hub test 103. WebSub 5.1: "Hubs MUST allow subscribers to re-request subscriptions that are already activated";
/// the new secret counts once that is verified, and "If verification fails, the subscription state MUST be left
/// unchanged".
#[test]
fn to_subscribe_again_renews() {
    let answer = |call: &Call| match call.argument("hub.lease_seconds").as_deref() {
        Some("999") => (404, String::new(), Vec::new()),
        _ => good(call),
    };
    let (server, callback) = (place().serve(), Callback::start(answer));
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/", &topic, &[("hub.secret", "first")]);
    subscribe(&server, &callback, "/", &topic, &[("hub.secret", "second")]);
    subscribe(&server, &callback, "/", &topic, &[("hub.secret", "third"), ("hub.lease_seconds", "999")]);
    publish(&server, "aa", "one", "One");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    let header = delivery.header(signature::HEADER);
    assert_eq!(signature::check(header, b"second", &delivery.body), Ok(()));
    nothing_more(&callback, 1);
}

/// Hub test 104. WebSub 3.1: "MUST support unsubscription requests"; verified as well.
#[test]
fn to_unsubscribe_ends_deliveries() {
    let (server, callback) = (place().serve(), Callback::good());
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/", &topic, &[]);
    assert_eq!(ask(&server, "unsubscribe", &topic, &callback.url("/"), &[]).status, 202);
    let is_asked = |calls: &[Call]| calls.iter().any(|c| c.query.contains("hub.mode=unsubscribe"));
    callback.wait_for("a question", is_asked);
    std::thread::sleep(Duration::from_millis(200));
    publish(&server, "aa", "one", "One");
    nothing_more(&callback, 0);
}

/// 0.3 section 6.1.2: synchronous, "the verification MUST be completed before the hub returns a response", 204; the
/// token is echoed (6.2); "HTTP Push": an Atom document.
#[test]
fn the_old_text_synchronously() {
    let (server, callback) = (place().serve(), Callback::good());
    let topic = topic(&server, "?order=created");
    let more = [("hub.verify", "sync"), ("hub.verify_token", "t=1")];
    let answer = ask(&server, "subscribe", &topic, &callback.url("/"), &more);
    assert_eq!(answer.status, 204, "{}", answer.text());
    assert_eq!(callback.calls()[0].argument("hub.verify_token").as_deref(), Some("t=1"));
    publish(&server, "aa", "one", "One");
    publish(&server, "aa", "one", "One, edited");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    assert_eq!(delivery.header("content-type"), Some("application/atom+xml; charset=utf-8"));
    let body = String::from_utf8(delivery.body).unwrap();
    for part in ["rel=\"hub\"", "<fo:total>1</fo:total>", "<fo:last_cursor>", "<fo:id>one</fo:id>"] {
        assert!(body.contains(part), "{part} in {body}");
    }
    assert!(!body.contains("rel=\"next\""), "{body}");
    // An edit is nothing new in the order of creation.
    nothing_more(&callback, 1);
    let no = Callback::start(|_| (404, String::new(), Vec::new()));
    let refused = ask(&server, "subscribe", &topic, &no.url("/"), &more);
    assert_eq!(refused.status, 409, "{}", refused.text());
}

/// "Push Interface": in order, one at a time, what comes meanwhile together in the next; each with the cursor of the
/// last item before it.
#[test]
fn deliveries_follow_on_one_another() {
    let slow = |call: &Call| {
        if call.is_delivery() {
            std::thread::sleep(Duration::from_millis(300));
        }
        good(call)
    };
    let (server, callback) = (place().serve(), Callback::start(slow));
    subscribe(&server, &callback, "/", &topic(&server, "?order=modified"), &[]);
    for number in 0..10 {
        publish(&server, "aa", &format!("item-{number}"), "x");
        std::thread::sleep(Duration::from_millis(20));
    }
    let is_last = |call: &Call| call.is_delivery() && call.ids().last().is_some_and(|id| id == "item-9");
    callback.wait_for("the last", |calls| calls.iter().any(is_last));
    let deliveries = callback.deliveries();
    assert!(deliveries.len() < 6, "{}", deliveries.len());
    let mut last = serde_json::Value::Null;
    for (index, delivery) in deliveries.iter().enumerate() {
        assert_eq!(delivery.json()["prev_cursor"], last);
        last = delivery.json()["last_cursor"].clone();
        if index > 0 {
            assert!(delivery.at - deliveries[index - 1].at >= Duration::from_millis(290), "two at a time");
        }
    }
    let ids: Vec<String> = deliveries.iter().flat_map(Call::ids).collect();
    assert_eq!(ids, (0..10).map(|number| format!("item-{number}")).collect::<Vec<_>>());
}

/// WebSub 7: "Hubs SHOULD retry"; 410 "MAY terminate the subscription"; redirects are failures.
#[test]
fn failures_are_retried_and_gone_is_gone() {
    let tries = std::sync::atomic::AtomicUsize::new(0);
    let flaky = move |call: &Call| {
        if !call.is_delivery() {
            return good(call);
        }
        match (call.path.as_str(), tries.fetch_add(1, std::sync::atomic::Ordering::SeqCst)) {
            ("/gone", _) => (410, String::new(), Vec::new()),
            (_, 0) => (302, "Location: /elsewhere\r\n".to_owned(), Vec::new()),
            _ => good(call),
        }
    };
    let callback = Callback::start(flaky);
    let server = place().serve();
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/flaky", &topic, &[]);
    publish(&server, "aa", "one", "One");
    let deliveries = callback.wait_for_deliveries(2);
    assert_eq!(deliveries[0].body, deliveries[1].body);
    assert!(deliveries[1].at - deliveries[0].at >= Duration::from_millis(1900));
    assert!(callback.calls().iter().all(|call| call.path != "/elsewhere"));
    subscribe(&server, &callback, "/gone", &topic, &[]);
    publish(&server, "aa", "two", "Two");
    callback.wait_for_deliveries(4);
    publish(&server, "aa", "three", "Three");
    callback.wait_for_deliveries(5);
    nothing_more(&callback, 5);
    assert_eq!(callback.deliveries().iter().filter(|call| call.path == "/gone").count(), 1);
}

/// Subscriptions survive a restart, whatever ended the server before, and go on where they stood.
#[test]
fn subscriptions_survive_restarts() {
    let (place, callback) = (place(), Callback::good());
    let port = free_port();
    let server = place.serve_at(port);
    subscribe(&server, &callback, "/", &topic(&server, "?order=modified"), &[("hub.secret", "s")]);
    publish(&server, "aa", "one", "One");
    callback.wait_for_deliveries(1);
    assert_eq!(server.stop(), Some(0));
    // Appended while nobody delivers.
    let appended = place.run(&["put", "aa", "two", "--title", "Two"]);
    assert!(appended.status.success(), "{}", common::stderr(&appended));
    let server = place.serve_at(port);
    let deliveries = callback.wait_for_deliveries(2);
    assert_eq!(deliveries[1].ids(), ["two"]);
    assert_eq!(deliveries[1].json()["prev_cursor"], deliveries[0].json()["last_cursor"]);
    server.kill();
    let server = place.serve_at(port);
    publish(&server, "aa", "three", "Three");
    let is_last = |call: &Call| call.is_delivery() && call.ids().last().is_some_and(|id| id == "three");
    callback.wait_for("the third", |calls| calls.iter().any(is_last));
    drop(server);
}

/// WebSub 5.3.1: "Hubs MUST enforce lease expirations"; 0.3 section 6.3: "Before a subscription expires … Hubs MUST
/// recheck with subscribers".
#[test]
fn leases_end_and_old_subscriptions_are_refreshed() {
    let (server, callback) = (place().serve(), Callback::good());
    let topic = topic(&server, "");
    subscribe(&server, &callback, "/new", &topic, &[("hub.lease_seconds", "1")]);
    assert_eq!(questions(&callback, "/new")[0].argument("hub.lease_seconds").as_deref(), Some("10"));
    subscribe(&server, &callback, "/old", &topic, &[("hub.lease_seconds", "10"), ("hub.verify", "async")]);
    callback.wait_for("a second question", |_| questions(&callback, "/old").len() >= 2);
    std::thread::sleep(Duration::from_secs(4));
    publish(&server, "aa", "one", "One");
    let deliveries = callback.wait_for_deliveries(1);
    assert_eq!(deliveries[0].path, "/old");
    nothing_more(&callback, 1);
}

/// What bad input gets: each its error, in plain text (WebSub 5.1.2), and nobody is called.
#[test]
fn bad_requests_are_refused() {
    let (server, callback) = (place().serve(), Callback::good());
    let (topic, good) = (topic(&server, "?order=modified"), callback.url("/"));
    let long = "s".repeat(200);
    let foreign = "http://elsewhere.example/feeds/aa/items".to_owned();
    let other_feed = topic.replace("/aa/", "/bb/");
    let ranged = format!("{topic}&since=cursor%3A1");
    let unknown_order = topic.replace("modified", "popular");
    for (parameters, status) in [
        (vec![("hub.mode", "subscribe"), ("hub.topic", &topic)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.callback", &good)], 400),
        (vec![("hub.topic", &topic), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "dance"), ("hub.topic", &topic), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", "ftp://127.0.0.1/")], 400),
        (
            vec![("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", "http://a:b@127.0.0.1/")],
            400,
        ),
        (
            vec![("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", "http://127.0.0.1/#a")],
            400,
        ),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &foreign), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &other_feed), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &ranged), ("hub.callback", &good)], 400),
        (vec![("hub.mode", "subscribe"), ("hub.topic", &unknown_order), ("hub.callback", &good)], 400),
        (
            vec![
                ("hub.mode", "subscribe"),
                ("hub.topic", &topic),
                ("hub.callback", &good),
                ("hub.secret", &long),
            ],
            400,
        ),
        (
            vec![
                ("hub.mode", "subscribe"),
                ("hub.topic", &topic),
                ("hub.callback", &good),
                ("hub.lease_seconds", "-1"),
            ],
            400,
        ),
    ] {
        let answer = post(&server, "aa", &parameters);
        assert_eq!(answer.status, status, "{parameters:?}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"), "{parameters:?}");
        assert!(answer.text().contains("hub."), "{}", answer.text());
    }
    assert_eq!(
        server.ask("POST", "/feeds/aa/hub", &[("Content-Type", "application/json")], b"{}").status,
        415
    );
    assert_eq!(server.get("/feeds/aa/hub").status, 405);
    assert_eq!(post(&server, "none", &[]).status, 404);
    let large = server.try_ask("POST", "/feeds/aa/hub", &[], &vec![b'a'; 100_000]);
    assert!(large.is_err() || large.is_ok_and(|answer| answer.status == 413 || answer.status == 415));
    assert!(callback.calls().is_empty());
    let huge = [("hub.lease_seconds", "1000000000000")];
    let question = subscribe(&server, &callback, "/", &topic, &huge);
    assert_eq!(question.argument("hub.lease_seconds").as_deref(), Some("2592000"));
}

/// 0.3 section 7.1: a publisher's ping is answered 204; there is nothing to fetch ("HTTP Push").
#[test]
fn a_ping_changes_nothing() {
    let server = place().serve();
    let own = topic(&server, "");
    assert_eq!(post(&server, "aa", &[("hub.mode", "publish"), ("hub.url", &own)]).status, 204);
    let foreign = [("hub.mode", "publish"), ("hub.url", "http://elsewhere.example/")];
    assert_eq!(post(&server, "aa", &foreign).status, 400);
}

/// Nothing private is called unless that is allowed, however it is named, and a redirect leads nowhere.
#[test]
fn private_addresses_are_not_called() {
    let server = Place::new("[[feed]]\nid = \"aa\"\n").serve();
    let callback = Callback::good();
    let topic = topic(&server, "");
    let port = callback.base.rsplit(':').next().unwrap();
    for host in
        ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"]
    {
        let answer = ask(&server, "subscribe", &topic, &format!("http://{host}:{port}/"), &[]);
        assert_eq!(answer.status, 400, "{host}: {}", answer.text());
    }
    // A name is resolved when it is called, each time.
    let sync = [("hub.verify", "sync")];
    let answer = ask(&server, "subscribe", &topic, &format!("http://localhost:{port}/"), &sync);
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(answer.text().contains("loopback"), "{}", answer.text());
    assert!(callback.calls().is_empty());
}

/// A callback that redirects has not confirmed (WebSub 5.3.1).
#[test]
fn a_redirect_does_not_confirm() {
    let server = place().serve();
    let target = Callback::good();
    let location = format!("Location: {}\r\n", target.url("/"));
    let callback = Callback::start(move |_| (302, location.clone(), Vec::new()));
    let answer =
        ask(&server, "subscribe", &topic(&server, ""), &callback.url("/"), &[("hub.verify", "sync")]);
    assert_eq!(answer.status, 409);
    assert!(target.calls().is_empty());
}

/// A callback that answers for an hour byte by byte delays nobody.
#[test]
fn a_slow_callback_delays_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).unwrap();
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                if let Some(challenge) = text.split("hub.challenge=").nth(1).and_then(|rest| rest.get(..32)) {
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n{challenge}");
                    return stream.write_all(answer.as_bytes()).unwrap();
                }
                for byte in
                    b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".iter().chain([b'.'; 3600].iter())
                {
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
        }
    });
    let (server, callback) = (place().serve(), Callback::good());
    let topic = topic(&server, "");
    assert_eq!(ask(&server, "subscribe", &topic, &slow, &[]).status, 202);
    subscribe(&server, &callback, "/", &topic, &[]);
    for number in 1..=5 {
        publish(&server, "aa", &format!("item-{number}"), "x");
        let deliveries = callback.wait_for_deliveries(number);
        assert_eq!(deliveries[number - 1].ids(), [format!("item-{number}")]);
    }
}

/// "Implementations SHOULD restrict access to (or filter) feeds and items based on authorization of the entity …
/// receiving pushes".
#[test]
fn a_feed_that_is_not_for_everybody_is_pushed_as_its_reader_may_see_it() {
    let server = Place::new(PRIVATE).serve();
    let callback = Callback::good();
    let topic = topic(&server, "");
    assert_eq!(ask(&server, "subscribe", &topic, &callback.url("/"), &[]).status, 401);
    for token in ["all", "some"] {
        let (authorization, url) = (format!("Bearer {token}"), callback.url(&format!("/{token}")));
        let headers = [
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Authorization", authorization.as_str()),
        ];
        let body = form(&[("hub.mode", "subscribe"), ("hub.topic", &topic), ("hub.callback", &url)]);
        assert_eq!(server.ask("POST", "/feeds/aa/hub", &headers, body.as_bytes()).status, 202);
    }
    callback.wait_for("questions", |calls| calls.len() == 2);
    std::thread::sleep(Duration::from_millis(200));
    for (id, tag) in [("one", "closed"), ("two", "open")] {
        let line = json!({ "id": id, "item": { "tags": [tag] } }).to_string();
        assert_eq!(server.ask("POST", "/feeds/aa/items", &[], line.as_bytes()).status, 200);
    }
    let is_last = |call: &Call, path: &str| {
        call.path == path && call.is_delivery() && call.ids().contains(&"two".into())
    };
    callback.wait_for("the last", |calls| {
        ["/all", "/some"].iter().all(|path| calls.iter().any(|c| is_last(c, path)))
    });
    let told = |path: &str| -> Vec<String> {
        callback.deliveries().iter().filter(|call| call.path == path).flat_map(Call::ids).collect()
    };
    assert_eq!(told("/all"), ["one", "two"]);
    assert_eq!(told("/some"), ["two"]);
}

/// An address that fixes its format is one representation (WebSub 4.1), and is what is pushed.
#[test]
fn a_topic_may_fix_its_format() {
    let (server, callback) = (place().serve(), Callback::good());
    let topic = topic(&server, "?order=modified&format=atom");
    subscribe(&server, &callback, "/", &topic, &[]);
    publish(&server, "aa", "one", "One");
    let delivery = callback.wait_for_deliveries(1).remove(0);
    assert_eq!(delivery.header("content-type"), Some("application/atom+xml; charset=utf-8"));
    let negotiated =
        server.ask("GET", "/feeds/aa/items?order=modified", &[("Accept", "application/atom+xml")], b"");
    assert!(negotiated.header("link").unwrap().contains(&format!("<{topic}>; rel=\"self\"")));
    let fixed =
        server.ask("GET", "/feeds/aa/items?order=modified&format=atom", &[("Accept", "text/html")], b"");
    assert_eq!(fixed.header("content-type"), Some("application/atom+xml; charset=utf-8"));
}
