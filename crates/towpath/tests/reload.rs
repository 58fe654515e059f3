//! Settings of a running server that a reload replaces: limits, origins, logs and alerts.

use std::io::{Read as _, Write as _};

use serde_json::Value;

use crate::callback::CallbackServer;
use crate::common::waiting::{PollClient, metric, publish, put, until, waiters};
use crate::common::{TestFolder, TestServer, stderr, stdout, wait_until};

/// Reloads a configuration that needs no restart. Returns the message.
fn reload(dir: &TestFolder, config: &str) -> String {
    dir.write("towpath.toml", config.as_bytes());
    let reloaded = dir.run(&["reload"]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    let message = stdout(&reloaded);
    assert!(!message.contains("needs a restart"), "{message}");
    message
}

/// Configuration of a feed, with these lines of `[server]`.
fn with(server: &str) -> String {
    format!("[server]\n{server}\n[[feed]]\nid = 'notes'\n")
}

/// Asks for `/livez` on a connection, and returns the head of the answer.
fn livez(client: &mut PollClient) -> String {
    client.send("/livez", "");
    client.answer_bytes()
}

#[test]
fn limits_of_connections() {
    let dir = TestFolder::new(&with(""));
    let server = dir.serve();
    let mut first = PollClient::new(&server);
    assert!(livez(&mut first).starts_with("HTTP/1.1 200"));
    let message = reload(&dir, &with("max_connections = 1\nmax_connections_per_address = 5"));
    assert!(message.contains("server.max_connections, server.max_connections_per_address"), "{message}");
    // The connection that is open stays open, and there is no second one.
    let mut second = PollClient::new(&server);
    let refused = livez(&mut second);
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("too many open connections"),
        "{refused}"
    );
    assert!(livez(&mut first).starts_with("HTTP/1.1 200"));
    reload(&dir, &with("max_connections = 2"));
    let mut second = PollClient::new(&server);
    assert!(livez(&mut second).starts_with("HTTP/1.1 200"));
    assert!(livez(&mut PollClient::new(&server)).starts_with("HTTP/1.1 503"));
    // More than the open files leave room for.
    reload(&dir, &with("max_connections = 1000000000"));
    assert!(livez(&mut PollClient::new(&server)).starts_with("HTTP/1.1 200"));
    assert!(
        dir.log().contains("max_connections is more than the open files leave room for"),
        "{}",
        dir.log()
    );
    assert!(livez(&mut first).starts_with("HTTP/1.1 200"));
}

/// An upload that stops half-way is cut by the grace that is in effect when it begins.
#[test]
fn limits_of_slow_clients() {
    let dir = TestFolder::new(&with("rate_grace = '1h'"));
    let server = dir.serve();
    let upload = |id: &str| {
        let mut client = PollClient::new(&server);
        let head = format!(
            "PUT /feeds/notes/items/{id} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\
             expect: 100-continue\r\n\r\n"
        );
        client.0.write_all(head.as_bytes()).unwrap();
        // The server has begun to read the body.
        let begun = client.read_until(|text| text.ends_with("\r\n\r\n"));
        assert!(begun.starts_with("HTTP/1.1 100"), "{begun}");
        client.1.clear();
        client.0.write_all(b"only this").unwrap();
        client
    };
    let mut patient = upload("patient");
    let message = reload(&dir, &with("rate_grace = '1s'\nmin_rate = 7000"));
    assert!(message.contains("changed: server.min_rate, server.rate_grace"), "{message}");
    let cut = upload("cut").answer_bytes();
    assert!(cut.starts_with("HTTP/1.1 408") && cut.contains("7000 bytes per second"), "{cut}");
    // The other one began under the earlier limits, and ends well.
    patient.0.write_all(&[b'x'; 100_000 - "only this".len()]).unwrap();
    let done = patient.answer_bytes();
    assert!(done.starts_with("HTTP/1.1 201"), "{done}");
}

#[test]
fn limits_of_memory() {
    const SIZE: usize = 6 << 20;
    let settings = |more: &str| with(&format!("rate_grace = '1h'\n{more}"));
    let dir = TestFolder::new(&settings(""));
    let server = dir.serve();
    let path = "/feeds/notes/items/large";
    assert_eq!(server.ask("PUT", path, &[], &vec![b'x'; SIZE]).status, 201);
    let mut unread = PollClient::new(&server);
    unread.send(path, "connection: close\r\n");
    until("its response waits", || metric(&server, "towpath_connections") == 2);
    assert_eq!(server.get(path).body.len(), SIZE);
    let message = reload(&dir, &settings("response_mib = 1\ncache_mib = 0"));
    assert!(message.contains("changed: server.cache_mib, server.response_mib"), "{message}");
    // The limit, not the grace of an hour, cuts the client that does not read.
    until("it is cut", || metric(&server, "towpath_connections") == 1);
    let mut read = Vec::new();
    let _ = unread.0.read_to_end(&mut read);
    assert!(read.len() < SIZE, "{} bytes", read.len());
    // Nothing is answered from prebuilt documents.
    let fast = || {
        let before = metric(&server, "towpath_requests_fast_total");
        for _ in 0..3 {
            assert_eq!(server.get("/diff/notes/head.json").status, 200);
        }
        metric(&server, "towpath_requests_fast_total") - before
    };
    assert_eq!(fast(), 0);
    reload(&dir, &settings("cache_mib = 8"));
    assert!(fast() >= 2);
}

/// Logs without a `[[feed]]` are served while publishing creates feeds, and only then.
#[test]
fn feeds_that_publishing_creates() {
    let dir = TestFolder::new(&with("").replace("'notes'", "'old'"));
    let server = dir.serve();
    let publish = |feed: &str| server.ask("PUT", &format!("/feeds/{feed}/items/a"), &[], b"x").status;
    let read = |feed: &str| server.get(&format!("/feeds/{feed}/items/a"));
    assert_eq!((publish("old"), publish("new")), (201, 404));
    let message = reload(&dir, &with(""));
    assert!(message.contains("1 removed (old)"), "{message}");
    assert_eq!(read("old").status, 410);
    let message = reload(&dir, &with("create_feeds = true"));
    assert!(message.contains("1 added (old)") && message.contains("server.create_feeds"), "{message}");
    assert_eq!((publish("new"), read("old").status), (201, 200));
    let reloaded = reload(&dir, &with("create_feeds = true\nwaiters = 7"));
    assert!(reloaded.contains("no feed changed"), "{reloaded}");
    let message = reload(&dir, &with(""));
    assert!(message.contains("2 removed (new, old)"), "{message}");
    let gone = read("new");
    assert!(
        gone.status == 410 && gone.text().contains("was removed from the configuration"),
        "{}",
        gone.text()
    );
    assert_eq!((publish("new"), publish("other"), publish("notes")), (410, 404, 201));
    // A feed that was removed for good stays so.
    assert_eq!(server.ask("PUT", "/feeds/made", &[], b"").status, 201);
    assert_eq!(publish("made"), 201);
    assert_eq!(server.ask("DELETE", "/feeds/made?reason=over", &[], b"").status, 200);
    reload(&dir, &with("create_feeds = true"));
    assert_eq!((read("made").status, publish("made")), (410, 410));
}

/// A private feed is not shown to strangers because the file does not name it any more.
#[test]
fn a_private_feed_that_leaves_the_file_stays_private() {
    let tokens = "create_feeds = true\ntokens = ['t0ken']";
    let named = format!("{}[[feed]]\nid = 'secret'\nvisibility = 'private'\n", with(tokens));
    let dir = TestFolder::new(&named);
    let server = dir.serve();
    let token = ("Authorization", "Bearer t0ken");
    assert_eq!(server.ask("PUT", "/feeds/secret/items/a", &[token], b"x").status, 201);
    let read = |server: &TestServer| {
        [&[][..], &[token]].map(|headers| server.ask("GET", "/feeds/secret/items/a", headers, b"").status)
    };
    assert_eq!(read(&server), [401, 200]);
    let message = reload(&dir, &with(tokens));
    assert!(message.contains("1 changed (secret)"), "{message}");
    assert_eq!(read(&server), [401, 200]);
    drop(server);
    let server = dir.serve();
    assert_eq!(read(&server), [401, 200]);
    // Gone, and back because publishing creates feeds again.
    reload(&dir, &with("tokens = ['t0ken']"));
    assert_eq!(server.ask("GET", "/feeds/secret/items/a", &[], b"").status, 404);
    reload(&dir, &with(tokens));
    assert_eq!(read(&server), [401, 200]);
}

/// The source of a feed that leaves the file is polled no more, also where its log is served on.
#[test]
fn a_source_that_leaves_the_file_is_polled_no_more() {
    let source = "[[feed]]\nid = 'polled'\n[feed.source]\nurl = 'source.xml'\nevery = 1\n";
    let named = format!("{}{source}", with("create_feeds = true"));
    let dir = TestFolder::new(&named);
    let document = |id: &str| {
        format!("<rss version='2.0'><channel><title>t</title><item><guid>{id}</guid></item></channel></rss>")
    };
    dir.write("source.xml", document("a").as_bytes());
    let server = dir.serve();
    wait_until("the source is polled", || server.get("/feeds/polled/items/a").status == 200);
    let message = reload(&dir, &with("create_feeds = true"));
    assert!(message.contains("1 changed (polled)"), "{message}");
    dir.write("source.xml", document("b").as_bytes());
    // Another source of the same interval shows that the time for a poll has passed.
    let other = source.replace("'polled'", "'other'");
    reload(&dir, &format!("{}{other}", with("create_feeds = true")));
    wait_until("another source is polled", || server.get("/feeds/other/items/b").status == 200);
    dir.write("source.xml", document("c").as_bytes());
    wait_until("it is polled again", || server.get("/feeds/other/items/c").status == 200);
    assert_eq!(
        [200, 404, 404],
        ["a", "b", "c"].map(|id| server.get(&format!("/feeds/polled/items/{id}")).status)
    );
}

#[test]
fn origins_that_may_read() {
    let dir = TestFolder::new(&with(""));
    let server = dir.serve_as("https://feeds.example.com");
    let allowed = |path: &str, origin: &str| {
        let answer = server.ask("GET", path, &[("Origin", origin)], b"");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.header("access-control-allow-origin").map(str::to_owned)
    };
    let check = |expected: [Option<&str>; 2]| {
        for path in ["/diff/notes/head.json", "/feeds/notes/atom", "/feeds/notes/items?timeout=0"] {
            // The second answer comes from a prebuilt document.
            for _ in 0..3 {
                let found = ["https://a.example", "https://b.example"].map(|origin| allowed(path, origin));
                assert_eq!(found.each_ref().map(Option::as_deref), expected, "{path}");
            }
        }
    };
    check([Some("*"); 2]);
    let message = reload(&dir, &with("cors_origins = ['https://a.example']"));
    assert!(message.contains("changed: server.cors_origins"), "{message}");
    check([Some("https://a.example"), None]);
    reload(&dir, &with("cors_origins = []"));
    check([None; 2]);
    reload(&dir, &with(""));
    check([Some("*"); 2]);
}

/// Number of lines of the access log that match.
fn logged(dir: &TestFolder, matches: impl Fn(&Value) -> bool) -> usize {
    let log = dir.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == "request" && matches(line)).count()
}

#[test]
fn the_access_log_comes_and_goes() {
    let settings = |more: &str| with(&format!("threads = 1\n{more}"));
    let dir = TestFolder::new(&settings(""));
    let server = dir.serve_with(&["--log-format", "json"]);
    let mut clients = [PollClient::new(&server), PollClient::new(&server)];
    // Two clients with equal requests: the second one's are not parsed again.
    let mut poll_once = |id: &str| {
        let cursor = server.json("/feeds/notes/items?timeout=0")["last_cursor"].as_str().unwrap().to_owned();
        for (client, count) in clients.iter_mut().zip(1..) {
            client.send(&format!("/feeds/notes/items?since=cursor:{cursor}&timeout=60"), "");
            until("it waits", || waiters(&server) == count);
        }
        publish(&server, "notes", &[put(id)]);
        for client in &mut clients {
            assert!(client.answer_bytes().starts_with("HTTP/1.1 200"));
        }
    };
    let polls = || logged(&dir, |line| line["path"].as_str().is_some_and(|path| path.contains("timeout=60")));
    publish(&server, "notes", &[put("first")]);
    poll_once("second");
    let message = reload(&dir, &settings("trusted_proxies = ['127.0.0.1']\n[server.access_log]"));
    assert!(message.contains("changed: server.trusted_proxies, [server.access_log]"), "{message}");
    server.ask("GET", "/feeds/notes/atom", &[("X-Forwarded-For", "192.0.2.7")], b"");
    let is_of_proxy = |line: &Value| line["path"] == "/feeds/notes/atom" && line["client"] == "192.0.2.7";
    until("the request is logged", || logged(&dir, is_of_proxy) == 1);
    // The connections were parked before there was a log, then with records.
    for (id, count) in [("third", 2), ("fourth", 4)] {
        poll_once(id);
        until("both polls are logged", || polls() == count);
    }
    let message = reload(&dir, &settings("[server.access_log]\nsample = 0"));
    assert!(message.contains("server.access_log.sample"), "{message}");
    poll_once("fifth");
    let message = reload(&dir, &settings(""));
    assert!(message.contains("changed: [server.access_log]"), "{message}");
    poll_once("sixth");
    assert_eq!(server.stop(), Some(0));
    assert_eq!(polls(), 4, "{}", dir.log());
}

/// Alerts come with their destinations, change, and go.
#[test]
fn alerts_come_change_and_go() {
    let receiver = CallbackServer::good();
    let config = |alerts: &str| {
        format!(
            "[server]\ntokens = ['admin']\n{alerts}[[feed]]\nid = 'prices'\n[feed.source]\nurl = 'prices.json'\nevery = '1s'\n\
             json = {{ id = '/id' }}\n"
        )
    };
    let alerts = |more: &str, allow_private: bool| {
        format!(
            "[alerts]\nsource_failing = '1s'\nwait = 0\npause = 0\n{more}\n[alerts.webhook]\n\
             url = '{}/hook'\nallow_private = {allow_private}\n",
            receiver.base
        )
    };
    let dir = TestFolder::new(&config(""));
    let server = dir.serve();
    wait_until("the source fails", || server.json("/feeds/prices")["source"]["error"].is_object());
    // A destination that cannot be used refuses the whole reload.
    let refused_feed = "[[feed]]\nid = 'more'\n";
    dir.write("towpath.toml", (config(&alerts("", false)) + refused_feed).as_bytes());
    let refused = dir.run(&["reload"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(stderr(&refused).contains("nothing changes: [alerts.webhook]"), "{}", stderr(&refused));
    assert_eq!(server.get("/feeds/more").status, 404);

    let message = reload(&dir, &config(&alerts("", true)));
    assert!(message.contains("changed: [alerts]"), "{message}");
    let calls = receiver.wait_for("told of the failure", |calls| !calls.is_empty());
    assert_eq!(calls[0].json()["type"], "alert.source_failing");
    assert_eq!(calls[0].json()["data"]["server"], server.base);
    let open = "towpath_alerts{kind=\"source_failing\"}";
    wait_until("the alert is counted", || server.get("/metrics").text().contains(&format!("{open} 1")));

    // The same alert is not told again, and the recovery goes to the new destination as well.
    let message = reload(&dir, &config(&alerts("feed = true", true)));
    assert!(message.contains("1 added (_events)") && message.contains("alerts.feed"), "{message}");
    dir.write("prices.json", b"[{\"id\": \"tea\"}]");
    receiver.wait_for("told of the recovery", |calls| calls.len() == 2);
    wait_until("the feed of events has the recovery", || {
        let events = server.ask("GET", "/feeds/_events", &[("Authorization", "Bearer admin")], b"");
        events.json()["seq"] == 1
    });

    let message = reload(&dir, &config(""));
    assert!(message.contains("[alerts]") && message.contains("removed (_events)"), "{message}");
    std::fs::remove_file(dir.path("prices.json")).unwrap();
    wait_until("the source fails again", || server.json("/feeds/prices")["source"]["error"].is_object());
    wait_until("nothing is open", || metric(&server, open) == 0);
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert_eq!((receiver.calls().len(), metric(&server, open)), (2, 0));
}
