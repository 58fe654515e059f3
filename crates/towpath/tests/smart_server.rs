//! Smart Feeds over a running server: pulls in every order, long polls, events, filters, readers, bad input.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::waiting::{PollClient, ids, publish, put, until, waiters};
use crate::common::{TestFolder, TestResponse, TestServer};

const OPEN: &str = "[server]\nheartbeat = \"1s\"\nwaiters = 8\n[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"toc\"\ncursor = \"toc\"\n";

fn tagged(id: &str, tags: &[&str]) -> Value {
    json!({ "id": id, "item": { "title": id, "tags": tags } })
}

fn delete(id: &str) -> Value {
    json!({ "op": "delete", "id": id })
}

/// All pages, by their `next` links.
fn pages(server: &TestServer, first: &str) -> Vec<Value> {
    let mut pages = vec![server.json(first)];
    while let Some(next) = pages.last().unwrap()["next"].as_str() {
        let path = next.strip_prefix(&server.base).unwrap().to_owned();
        pages.push(server.json(&format!("{path}&timeout=0")));
    }
    pages
}

/// Pull Interface: both orders, both directions, `next`, totals and tombstones ("As Abstract").
#[test]
fn pulls_in_every_order() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    for feed in ["aa", "toc"] {
        for id in ["a", "b", "c", "d"] {
            publish(&server, feed, &[put(id)]);
        }
        publish(&server, feed, &[put("b"), delete("c")]);
        for (order, expected) in [
            ("created", ["a", "b", "c", "d"]),
            ("-created", ["d", "c", "b", "a"]),
            ("modified", ["a", "d", "b", "c"]),
            ("-modified", ["c", "b", "d", "a"]),
        ] {
            for max in [1, 2, 3, 50] {
                let all = pages(&server, &format!("/feeds/{feed}/items?order={order}&max={max}&timeout=0"));
                let seen: Vec<_> = all.iter().flat_map(ids).collect();
                assert_eq!(seen, expected, "{feed} {order} {max}");
                assert!(all.iter().all(|page| page["totalItems"] == 4), "tombstones count");
                assert!(all.iter().all(|page| page["count"].as_u64().unwrap() <= max));
                assert_eq!(all[0]["url"], format!("{}/feeds/{feed}/items?order={order}", server.base));
            }
        }
        let page = server.json(&format!("/feeds/{feed}/items?order=created&since=id:b&until=id:d"));
        assert_eq!(ids(&page), ["c"]);
        assert_eq!(page["items"][0]["objectType"], "tombstone", "{page}");
        assert!(page["items"][0].get("displayName").is_none(), "stripped of content");
    }
}

/// HTTP Pull: Accept decides the format, with a JSONP callback too; repeated requests are answered from memory.
#[test]
fn formats_and_repeated_answers() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let get = |path: &str, accept: &str| server.ask("GET", path, &[("Accept", accept)], b"");
    let path = "/feeds/aa/items?order=created";
    for _ in 0..3 {
        let atom = get(path, "application/atom+xml");
        assert_eq!(atom.header("content-type"), Some("application/atom+xml; charset=utf-8"));
        assert!(atom.text().contains("fo:id"), "{}", atom.text());
        let json = get(path, "*/*");
        assert_eq!(json.header("content-type"), Some("application/json; charset=utf-8"));
        assert!(json.header("vary").unwrap().to_ascii_lowercase().contains("accept"));
        let script = get(&format!("{path}&callback=a.b"), "application/javascript");
        // `/**/` and nosniff: a callback's name must not become the start of another file type.
        assert!(script.text().starts_with("/**/a.b({"), "{}", script.text());
        assert_eq!(script.header("x-content-type-options"), Some("nosniff"));
        let etag = json.header("etag").unwrap();
        assert_eq!(server.ask("GET", path, &[("If-None-Match", etag)], b"").status, 304);
        assert_eq!(get(path, "text/html").status, 406);
        assert_eq!(get(path, "text/html").header("content-type"), Some("application/problem+json"));
        assert_eq!(get(&format!("{path}&callback=f"), "application/atom+xml").text()[..8], *"/**/f(\"<");
    }
    let fast = |server: &TestServer| {
        let text = server.get("/metrics").text();
        let line =
            text.lines().find(|line| line.starts_with("towpath_requests_fast_total ")).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let before = fast(&server);
    server.get(path);
    assert_eq!(fast(&server), before + 1, "the same answer is made once");
    publish(&server, "aa", &[put("b")]);
    assert_eq!(ids(&server.json(path)), ["a", "b"], "and not kept when the feed moves");
    let head = server.ask("HEAD", "/feeds/toc/items", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0), "a HEAD is not held");
}

/// Long polls are woken by the append, in every order; their connections can be used again.
#[test]
fn long_polls_are_woken() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let cursor = server.json("/feeds/aa/items")["last_cursor"].as_str().unwrap().to_owned();
    let path = format!("/feeds/aa/items?since=cursor:{cursor}");
    let mut clients: Vec<PollClient> = (0..5).map(|_| PollClient::new(&server)).collect();
    for client in &mut clients {
        client.send(&path, "");
    }
    // One client has sent its next request already; another one's request has a body, so it cannot leave hyper.
    clients[0].send("/feeds/aa/items?order=-created&max=1", "");
    let mut with_body = PollClient::new(&server);
    write!(with_body.0, "GET {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi").unwrap();
    let mut created = PollClient::new(&server);
    // The same position in another order has another cursor, and so another shared poll.
    created.send(&format!("{path}&order=created").replace("cursor:m", "cursor:c"), "");
    until("six wait", || waiters(&server) >= 6);
    publish(&server, "aa", &[put("a"), put("b")]);
    for client in clients.iter_mut().chain([&mut with_body]) {
        let (head, page) = client.answer();
        assert!(head.starts_with("http/1.1 200"));
        assert_eq!(ids(&page), ["a", "b"]);
    }
    assert_eq!(ids(&clients[0].answer().1), ["b"], "what was pipelined is answered next");
    until("no request waits", || waiters(&server) == 0);
    // The next poll on the same connection.
    let (client, path) = (&mut clients[1], "/feeds/toc/items?timeout=55");
    // Without keep-alive the response goes through hyper, which adds the header.
    client.send(path, "Connection: close\r\n");
    until("it waits", || waiters(&server) == 1);
    publish(&server, "toc", &[put("x")]);
    let (head, page) = client.answer();
    assert_eq!(ids(&page), ["x"]);
    assert!(head.contains("connection: close"), "{head}");
    assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0, "closed as asked for");
}

/// A disconnected client leaves at once; beyond the limit there is a clear error.
#[test]
fn disconnects_and_the_limit() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    let mut clients: Vec<PollClient> = (0..8).map(|_| PollClient::new(&server)).collect();
    clients[..7].iter_mut().for_each(|client| client.send("/feeds/aa/items?timeout=55", ""));
    clients[7].send("/feeds/aa/events", "");
    until("eight wait", || waiters(&server) == 8);
    let refused = server.get("/feeds/aa/items?timeout=55");
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.json()["type"], "urn:towpath:problem:busy");
    // A browser's stream comes back only after a 200.
    let later = server.get("/feeds/aa/events");
    assert!(later.status == 200 && later.text().starts_with("retry: "), "{}", later.text());
    // The limit counts waiting requests only.
    assert_eq!(server.get("/feeds/aa/items?timeout=0").status, 200, "requests that do not wait are served");
    let begun = Instant::now();
    clients.pop();
    clients.pop();
    clients[0].0.shutdown(Shutdown::Both).unwrap();
    until("five are left", || waiters(&server) == 5);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    drop(clients);
    until("no request is left", || waiters(&server) == 0);
}

/// A server that stops answers every waiting request at once.
#[test]
fn stopping_answers_every_request() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    publish(&server, "aa", &[put("a")]);
    let cursor = server.json("/feeds/aa/items")["last_cursor"].as_str().unwrap().to_owned();
    let mut clients: Vec<PollClient> = (0..5).map(|_| PollClient::new(&server)).collect();
    for client in &mut clients {
        client.send(&format!("/feeds/aa/items?since=cursor:{cursor}"), "");
    }
    let mut events = PollClient::new(&server);
    events.send("/feeds/aa/events", "");
    until("six wait", || waiters(&server) == 6);
    let begun = Instant::now();
    assert_eq!(server.stop(), Some(0));
    // Far below the 55 seconds for which these requests would wait.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    for client in &mut clients {
        let (head, page) = client.answer();
        assert!(head.starts_with("http/1.1 200"));
        assert_eq!((ids(&page).len(), page["last_cursor"].as_str()), (0, Some(cursor.as_str())));
    }
    events.read_until(|text| text.ends_with("0\r\n\r\n"));
}

/// Event streams resume from the last event id, and send comments while there are no events.
#[test]
fn events_resume() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    publish(&server, "aa", &[put("old")]);
    let mut client = PollClient::new(&server);
    client.send("/feeds/aa/events", "");
    let head = client.read_until(|text| text.contains("id: "));
    assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
    publish(&server, "aa", &[put("a")]);
    client.read_until(|text| text.contains("title of a"));
    publish(&server, "aa", &[put("b"), delete("a")]);
    let text = client.read_until(|text| text.contains("event: delete") && text.contains("\n:\n\n"));
    assert!(!text.contains("title of old") && text.contains("title of b"));
    let seen: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(seen.len(), 4, "where it began, and three events: {text}");
    drop(client);
    publish(&server, "aa", &[put("c")]);
    let mut again = PollClient::new(&server);
    again.send("/feeds/aa/events", &format!("Last-Event-ID: {}\r\n", seen[1]));
    let text = again.read_until(|text| text.contains("title of c"));
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(events, ["put", "delete", "put"], "each once: b, the deletion of a, c");
    // An unknown id degrades: all events come again.
    let mut lost = PollClient::new(&server);
    lost.send("/feeds/aa/events", "Last-Event-ID: m7-0000000000\r\n");
    lost.read_until(|text| text.contains("title of old") && text.contains("title of c"));
    let refused = server.get("/feeds/aa/events?order=created");
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().contains("events come in the order modified, and not in created"),
        "{}",
        refused.text()
    );
    assert_eq!(server.get("/feeds/none/events").status, 404);
}

const PRIVATE: &str = r#"
[server]
tokens = ["publisher"]
[[feed]]
id = "mine"
readers = ["all", { token = "some", filter = { tags = ["open"] } }]
[[feed]]
id = "rust"
filter = { of = "mine", tags = ["rust"] }
visibility = "public"
"#;

fn ask(server: &TestServer, path: &str, token: &str) -> TestResponse {
    server.ask("GET", path, &[("Authorization", &format!("Bearer {token}"))], b"")
}

/// "The same feed may be presented differently depending on who is consuming it, but only by filtering."
#[test]
fn readers_see_their_filtered_view() {
    let dir = TestFolder::new(PRIVATE);
    let server = dir.serve();
    let lines: String = [
        tagged("a", &["rust"]),
        tagged("b", &["open", "rust"]),
        tagged("c", &[]),
        tagged("d", &["open"]),
        tagged("b", &["open"]),
    ]
    .iter()
    .map(|line| format!("{line}\n"))
    .collect();
    let posted =
        server.ask("POST", "/feeds/mine/items", &[("Authorization", "Bearer publisher")], lines.as_bytes());
    assert_eq!(posted.status, 200, "{}", posted.text());
    for path in [
        "/feeds/mine",
        "/feeds/mine/items",
        "/feeds/mine/items/a",
        "/feeds/mine/events",
        "/diff/mine/head.json",
        "/diff/mine/latest.json",
        "/diff/source/mine/head.json",
        "/archive/mine/index.json",
        // Encoded spellings must not slip past the check of readers.
        "/feeds/%6Dine/items",
        "/archive/%6Dine/index.json",
        "/diff/%6Dine/head.json",
    ] {
        // Twice, because no reader's response may be cached for others.
        for _ in 0..2 {
            assert_eq!(server.get(path).status, 401, "{path}");
            assert_eq!(ask(&server, path, "wrong").status, 401, "{path}");
            if !path.ends_with("events") {
                let read = ask(&server, path, "all");
                assert_eq!(read.status, 200, "{path}");
                assert_eq!(read.header("cache-control"), Some("private, no-store"), "{path}");
            }
        }
    }
    let pull = |token: &str, order: &str| {
        let path = format!("/feeds/mine/items?order={order}&timeout=0");
        let page = ask(&server, &path, token).json();
        (ids(&page), page["totalItems"].as_u64().unwrap())
    };
    for _ in 0..2 {
        for token in ["all", "publisher"] {
            assert_eq!(pull(token, "created"), (["a", "b", "c", "d"].map(str::to_owned).to_vec(), 4));
        }
        assert_eq!(pull("some", "created"), (["b", "d"].map(str::to_owned).to_vec(), 2));
        assert_eq!(pull("some", "-modified"), (["b", "d"].map(str::to_owned).to_vec(), 2), "never reordered");
    }
    assert_eq!(ask(&server, "/diff/mine/latest.json", "some").status, 403, "it would show everything");
    // The other filter of the same log: b was visible once, and is reported as deleted.
    let page = server.json("/feeds/rust/items?order=created&timeout=0");
    assert_eq!((ids(&page), page["totalItems"].as_u64()), (["a", "b"].map(str::to_owned).to_vec(), Some(2)));
    assert_eq!((&page["items"][0]["deleted"], &page["items"][1]["deleted"]), (&Value::Null, &json!(true)));
    for path in
        ["/feeds", "/diff/latest.json", "/diff/sources.json", "/healthz.json", "/.well-known/diffdelta.json"]
    {
        assert!(!server.get(path).text().contains("mine"), "{path}");
    }
    let publishing = server.ask("PUT", "/feeds/rust/items/x", &[("Authorization", "Bearer publisher")], b"x");
    assert_eq!(publishing.status, 409, "a filter is not published to");
    assert!(publishing.text().contains("feed rust shows items of feed mine"), "{}", publishing.text());
}

/// Software that looks for a feed's hub asks its plain address, with a few seconds of patience. What it is told leads on
/// to long polls.
#[test]
fn a_plain_request_of_an_empty_feed_is_answered_at_once() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    for feed in ["aa", "toc"] {
        let path = format!("/feeds/{feed}/items?order=created&max=7");
        for accept in ["application/json", "application/atom+xml"] {
            let answer = server.ask("GET", &path, &[("accept", accept)], b"");
            assert_eq!((answer.status, waiters(&server)), (200, 0), "{path}");
            let links = answer.header("link").unwrap_or_default();
            assert!(links.contains("rel=\"hub\"") && links.contains("rel=\"self\""), "{links}");
            let head = server.ask("HEAD", &path, &[("accept", accept)], b"");
            assert_eq!((head.status, head.header("etag")), (200, answer.header("etag")));
        }
        let page = server.json(&path);
        assert_eq!((&page["totalItems"], &page["items"]), (&json!(0), &json!([])));
        // A client that goes on from the cursor is held, so it does not ask without pause.
        let mut client = PollClient::new(&server);
        client.send(&format!("{path}&since=cursor:{}", page["last_cursor"].as_str().unwrap()), "");
        until("it waits", || waiters(&server) == 1);
        publish(&server, feed, &[put("a")]);
        assert_eq!(ids(&client.answer().1), ["a"]);
    }
}

/// An append wakes a filter's requests only if the filter shows the item.
#[test]
fn filters_wake_matching_requests_only() {
    let dir = TestFolder::new(
        "[[feed]]\nid = \"all\"\n[[feed]]\nid = \"rust\"\nfilter = { of = \"all\", tags = [\"rust\"] }\n",
    );
    let server = dir.serve();
    let mut client = PollClient::new(&server);
    client.send("/feeds/rust/items?timeout=55", "");
    until("it waits", || waiters(&server) == 1);
    publish(&server, "all", &[tagged("a", &["go"])]);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(waiters(&server), 1);
    publish(&server, "all", &[tagged("b", &["rust"])]);
    let (_, page) = client.answer();
    assert_eq!((ids(&page), page["totalItems"].as_u64()), (vec!["b".to_owned()], Some(1)));
    let cursor = page["last_cursor"].as_str().unwrap().to_owned();
    client.send(&format!("/feeds/rust/items?since=cursor:{cursor}"), "");
    until("it waits", || waiters(&server) == 1);
    publish(&server, "all", &[tagged("b", &[])]);
    let (_, page) = client.answer();
    assert_eq!((ids(&page), &page["items"][0]["deleted"]), (vec!["b".to_owned()], &json!(true)));
}

/// Bad input gets a problem document that names the parameter, never a 500.
#[test]
fn bad_input_is_refused() {
    let dir = TestFolder::new(OPEN);
    let server = dir.serve();
    publish(&server, "aa", &[put("a"), put("b")]);
    publish(&server, "toc", &[put("z")]);
    let long = format!("callback={}", "a".repeat(10_000));
    for (query, parameter) in [
        ("since=nothing", "since"),
        ("since=version:1", "since"),
        ("since=id:a", "since"),
        ("until=time:soon", "until"),
        ("order=random", "order"),
        ("max=0", "max"),
        ("max=-1", "max"),
        ("timeout=soon", "timeout"),
        ("timeout=-1", "timeout"),
        ("callback=alert(1)//", "callback"),
        // Escapes and line separators of JavaScript would end the name.
        ("callback=%5Cu0061lert", "callback"),
        ("callback=a%E2%80%A8b", "callback"),
        (&long, "callback"),
    ] {
        let answer = server.get(&format!("/feeds/aa/items?{query}"));
        assert_eq!(answer.status, 400, "{query:.60}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.json()["parameter"], parameter, "{query:.60}");
    }
    assert_eq!(server.get("/feeds/aa/items?order=created&since=id:none").status, 404);
    assert_eq!(server.ask("DELETE", "/feeds/aa/items", &[], b"").status, 405);
    let ours = server.json("/feeds/aa/items?max=1")["last_cursor"].as_str().unwrap().to_owned();
    let theirs = server.json("/feeds/toc/items")["last_cursor"].as_str().unwrap().to_owned();
    // Of another feed, truncated, from the future, and no cursors at all.
    for cursor in [&theirs[..], &ours[..ours.len() - 1], "m99999999-0000000000", "x", "%00", "🐟"] {
        let page = server.json(&format!("/feeds/aa/items?since=cursor:{cursor}&timeout=0"));
        assert_eq!(ids(&page), ["a", "b"], "{cursor} degrades to the start");
    }
    for (cursor, expected) in [("1000000000_0_1", &["a", "b"][..]), ("4000000000_0_1", &[])] {
        let page = server.json(&format!("/feeds/aa/items?since=cursor:{cursor}&timeout=0"));
        assert_eq!(ids(&page), expected, "{cursor} degrades to its time");
    }
    let huge =
        server.try_ask("GET", &format!("/feeds/aa/items?since=cursor:{}", "c".repeat(1 << 20)), &[], b"");
    // The head exceeds the limit; the server may close the connection while it is still being sent.
    assert!(huge.is_err() || huge.is_ok_and(|answer| (400..500).contains(&answer.status)));
    let large = server.get(&format!("/feeds/aa/items?since=cursor:{}", "c".repeat(30_000)));
    assert!((400..500).contains(&large.status), "{}", large.status);
}
