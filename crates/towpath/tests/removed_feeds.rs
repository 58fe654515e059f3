//! Feeds that are removed while clients wait for them: each learns of it at once, with the reason.

use std::io::{Read as _, Write as _};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::callback::CallbackServer;
use crate::common::waiting::{PollClient, publish, put, until, waiters};
use crate::common::{TestFolder, TestServer, stdout};

const CONFIG: &str = "
[server]
allow_private_callbacks = true
[[feed]]
id = 'kept'
[[feed]]
id = 'gone'
";

/// Words of the removal over HTTP, in an address and as they are shown.
const REASON: (&str, &str) = ("moved+to+kept", "moved to kept");

/// Makes the feed `made` over HTTP, beside the feed `gone` of the file.
fn server(dir: &TestFolder) -> TestServer {
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/made", &[], b"").status, 201);
    for feed in ["kept", "gone", "made"] {
        publish(&server, feed, &[put("first")]);
    }
    server
}

/// Address of a request that waits at the head of a feed.
fn at_head(server: &TestServer, feed: &str, more: &str) -> String {
    let cursor =
        server.json(&format!("/feeds/{feed}/items?timeout=0"))["last_cursor"].as_str().unwrap().to_owned();
    format!("/feeds/{feed}/items?since=cursor:{cursor}&timeout=300{more}")
}

/// Removes a feed: `made` over HTTP, `gone` by a reload.
fn remove(server: &TestServer, dir: &TestFolder, feed: &str) -> &'static str {
    if feed == "made" {
        assert_eq!(server.ask("DELETE", &format!("/feeds/made?reason={}", REASON.0), &[], b"").status, 200);
        return REASON.1;
    }
    dir.write("towpath.toml", CONFIG.replace("[[feed]]\nid = 'gone'\n", "").as_bytes());
    let reloaded = dir.run(&["reload"]);
    assert!(reloaded.status.success(), "{reloaded:?}");
    "was removed from the configuration"
}

/// Parked long polls in each format, also ones that were answered and parked again, get 410 at once. Others wait on.
#[test]
fn long_polls_are_answered() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    for feed in ["made", "gone"] {
        let mut clients: Vec<_> = ["", "&format=atom", "&as=line"]
            .into_iter()
            .map(|more| {
                let mut client = PollClient::new(&server);
                client.send(&at_head(&server, feed, more), "");
                client
            })
            .collect();
        let mut other = PollClient::new(&server);
        other.send(&at_head(&server, "kept", ""), "");
        until("all wait", || waiters(&server) == 4);
        // The first is answered with an item, and waits again.
        publish(&server, feed, &[put("second")]);
        for client in &mut clients {
            assert!(client.answer_bytes().starts_with("HTTP/1.1 200"));
        }
        clients[0].send(&at_head(&server, feed, ""), "");
        clients[1].send(&at_head(&server, feed, ""), "");
        until("they wait again", || waiters(&server) == 3);
        let reason = remove(&server, &dir, feed);
        for client in &mut clients[..2] {
            let (head, problem) = client.answer();
            assert!(head.starts_with("http/1.1 410") && head.contains("application/problem+json"), "{head}");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains(reason), "{detail}");
            // The connection is as good as before.
            client.send(&format!("/feeds/{feed}/items/first"), "");
            let (head, problem) = client.answer();
            assert!(head.starts_with("http/1.1 410") && problem["detail"] == detail, "{head}");
        }
        assert_eq!(waiters(&server), 1);
        publish(&server, "kept", &[put("later")]);
        assert!(other.answer_bytes().starts_with("HTTP/1.1 200"));
    }
}

/// Requests over TLS wait with their connection, and are answered alike.
#[test]
fn long_polls_over_tls_are_answered() {
    let pair = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let dir = TestFolder::new(&CONFIG.replace(
        "[[feed]]\nid = 'kept'",
        "[server.tls]\ncert = 'cert.pem'\nkey = 'key.pem'\n[[feed]]\nid = 'kept'",
    ));
    dir.write("cert.pem", pair.cert.pem().as_bytes());
    dir.write("key.pem", pair.signing_key.serialize_pem().as_bytes());
    let server = dir.serve();
    let curl = &|path: &str, args: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "--max-time", "60", "--cacert"]).arg(dir.path("cert.pem"));
        curl.args(["-w", " %{http_version} %{http_code}"]).args(args).arg(format!("{}{path}", server.base));
        stdout(&curl.output().unwrap())
    };
    assert!(curl("/feeds/made", &["-X", "PUT"]).ends_with(" 201"));
    std::thread::scope(|scope| {
        let waiting = ["--http1.1", "--http2"].map(|version| {
            scope.spawn(move || curl("/feeds/made/items?timeout=300&since=time:2020", &[version]))
        });
        until("both wait", || curl("/metrics", &[]).contains("\ntowpath_waiters 2\n"));
        let removed = curl(&format!("/feeds/made?reason={}", REASON.0), &["-X", "DELETE"]);
        assert!(removed.ends_with(" 200"), "{removed}");
        for (waiting, version) in waiting.into_iter().zip(["1.1", "2"]) {
            let answer = waiting.join().unwrap();
            assert!(answer.ends_with(&format!(" {version} 410")) && answer.contains(REASON.1), "{answer}");
        }
    });
}

/// Event streams end with an event that has the reason, and a client that comes back gets 410.
#[test]
fn event_streams_end_with_the_reason() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    for feed in ["made", "gone"] {
        let paths = [
            format!("/feeds/{feed}/events"),
            format!("/feeds/{feed}/events?as=line"),
            format!("/feeds/events?feed=kept&feed={feed}"),
        ];
        let mut streams: Vec<_> = paths
            .iter()
            .map(|path| {
                let mut client = PollClient::new(&server);
                client
                    .0
                    .write_all(
                        format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes(),
                    )
                    .unwrap();
                client
            })
            .collect();
        // The stream of two feeds waits in both.
        until("all wait", || waiters(&server) == 4);
        let reason = remove(&server, &dir, feed);
        for (client, path) in streams.iter_mut().zip(&paths) {
            let mut text = String::new();
            client.0.read_to_string(&mut text).unwrap();
            let (_, event) = text.split_once("event: gone").unwrap_or_else(|| panic!("{path}: {text}"));
            assert!(event.contains("urn:towpath:problem:gone") && event.contains(reason), "{path}: {text}");
            assert!(!event.contains("\nid:"), "the client keeps its position: {text}");
            let again = server.get(path);
            assert!(again.status == 410 && again.text().contains(reason), "{path}: {}", again.text());
        }
        until("nobody waits", || waiters(&server) == 0);
    }
}

/// `towpath follow` says why, over each protocol: one that waits, and ones that come back, with and without a state.
#[test]
fn followers_print_the_reason() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    for feed in ["made", "gone"] {
        let addresses = [
            ("smart", format!("{}/feeds/{feed}/items", server.base)),
            ("replication", format!("{}/feeds/{feed}/replication", server.base)),
            ("history", format!("{}/feeds/{feed}/atom", server.base)),
            ("history", format!("{}/feeds/{feed}/feed.json", server.base)),
            ("diffdelta", format!("{}/diff/{feed}/latest.json", server.base)),
            ("auto", format!("{}/feeds/{feed}", server.base)),
        ];
        let follow = |number: usize, more: &[&str]| {
            let (protocol, url) = &addresses[number];
            dir.run(&[&["follow", url, "--protocol", protocol, "--once"], more].concat())
        };
        let states: Vec<_> = (0..addresses.len()).map(|number| format!("{feed}-{number}.state")).collect();
        for (number, state) in states.iter().enumerate() {
            until("it has the item", || stdout(&follow(number, &["--state", state])).contains("first"));
        }
        let mut waiting = dir.command(&["follow", &addresses[0].1, "--from", "now"]);
        let file = std::fs::File::create(dir.path("waiting")).unwrap();
        let mut waiting = waiting.stdout(std::process::Stdio::null()).stderr(file).spawn().unwrap();
        until("it waits", || waiters(&server) == 1);
        let reason = remove(&server, &dir, feed);
        let told = || std::fs::read_to_string(dir.path("waiting")).unwrap();
        until("the one that waits is told", || told().contains("answers 410") && told().contains(reason));
        waiting.kill().unwrap();
        waiting.wait().unwrap();
        for (number, state) in states.iter().enumerate() {
            for more in [&["--state", state][..], &[]] {
                let refused = follow(number, more);
                let told = crate::common::stderr(&refused);
                let is_told = told.contains("answers 410") && told.contains(reason);
                assert!(is_told && refused.status.code() == Some(1), "{:?}: {told}", addresses[number]);
            }
        }
    }
}

/// Page that says how many subscribers there are.
fn facts(server: &TestServer) -> String {
    server.ask("GET", "/", &[("Accept", "text/html")], b"").text()
}

/// WebSub 5.2: "If (and when) the subscription is denied, the hub MUST inform the subscriber".
#[test]
fn subscriptions_at_the_hub_end() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    let callback = CallbackServer::good();
    for (feed, topic) in [("made", "items?order=created"), ("gone", "atom")] {
        let path = format!("/{feed}");
        let topic = format!("{}/feeds/{feed}/{topic}", server.base);
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs([
                ("hub.mode", "subscribe"),
                ("hub.topic", &topic),
                ("hub.callback", &callback.url(&path)),
            ])
            .finish();
        let headers = [("Content-Type", "application/x-www-form-urlencoded")];
        let asked = server.ask("POST", &format!("/feeds/{feed}/hub"), &headers, form.as_bytes());
        assert_eq!(asked.status, 202, "{}", asked.text());
        until("the subscription is there", || facts(&server).contains("1 WebSub subscriber"));
        let hub = server.json("/readyz")["parts"]["hub"].clone();
        assert_eq!(hub, serde_json::json!({ "status": "ok", "total": 1, "failing": 0 }));
        let metrics = server.get("/metrics").text();
        assert!(metrics.contains("towpath_hub_subscribers 1\n"), "{metrics}");
        assert!(metrics.contains("towpath_hub_subscribers_failing 0\n"), "{metrics}");
        let reason = remove(&server, &dir, feed);
        callback.wait_for("a denial", |calls| {
            calls.iter().any(|call| {
                let is_denied = call.argument("hub.mode").as_deref() == Some("denied");
                let is_of_topic = call.path == path && call.argument("hub.topic").as_deref() == Some(&topic);
                is_denied
                    && is_of_topic
                    && call.argument("hub.reason").is_some_and(|text| text.contains(reason))
            })
        });
        until("no subscription is left", || facts(&server).contains("0 WebSub subscribers"));
    }
}

/// A subscriber that confirms after its feed was removed: nothing is stored, and it is told why.
#[test]
fn a_subscription_that_is_being_verified_ends() {
    let dir = TestFolder::new(CONFIG);
    let server = server(&dir);
    let is_removed = Arc::new(AtomicBool::new(false));
    let confirms = is_removed.clone();
    let callback = CallbackServer::start(move |call| {
        if call.argument("hub.challenge").is_some() {
            until("the feed is removed", || confirms.load(Ordering::Acquire));
        }
        crate::callback::good(call)
    });
    let topic = format!("{}/feeds/made/items", server.base);
    let form = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([
            ("hub.mode", "subscribe"),
            ("hub.topic", &topic),
            ("hub.callback", &callback.url("/late")),
        ])
        .finish();
    let headers = [("Content-Type", "application/x-www-form-urlencoded")];
    assert_eq!(server.ask("POST", "/feeds/made/hub", &headers, form.as_bytes()).status, 202);
    let reason = remove(&server, &dir, "made");
    is_removed.store(true, Ordering::Release);
    callback.wait_for("a denial", |calls| {
        calls.iter().any(|call| {
            call.argument("hub.mode").as_deref() == Some("denied")
                && call.argument("hub.reason").is_some_and(|text| text.contains(reason))
        })
    });
    assert!(facts(&server).contains("0 WebSub subscribers"), "{}", facts(&server));
}
