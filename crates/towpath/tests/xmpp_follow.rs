//! `towpath follow xmpp:…` beside Debian's Prosody and ejabberd: the same output as over HTTP, by push, over restarts
//! of every part.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::xmpp::{HOSTS, PASSWORD, SERVICE, Software, XmppServer, beside_xmpp_servers};
use crate::common::{PATIENCE, TestFolder, TestServer, lines, stderr};

beside_xmpp_servers!(
    both: [
        the_output_equals_that_of_pulling_over_http,
        a_service_that_began_anew,
        an_encrypted_stream,
        pushes_over_restarts,
        a_removed_feed_is_told
    ],
    prosody: [unfollowable_addresses_are_reported, a_node_is_checked, files_of_a_node_are_downloaded]
);

const FEEDS: &str = "[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"toc\"\ncursor = \"toc\"\n";

fn publish(server: &TestServer, feed: &str, lines: &[Value]) {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Items with every field, and every kind of content that a stanza can hold.
fn items() -> Vec<Value> {
    vec![
        json!({ "id": "plain", "content": "a < b & \"c\" \n\n\t é😀 " }),
        json!({ "id": "html", "content_type": "text/html", "content": "<p>x &amp; y</p>" }),
        json!({ "id": "json", "content_type": "application/json", "content": "{\"a\": [1, null]}" }),
        json!({ "id": "binary", "content_type": "image/png", "content_base64": "iVBORwD/AQ==" }),
        json!({ "id": "odd \u{1} \n id", "content": "x" }),
        json!({ "id": "all", "content": "x", "item": { "title": " T ", "summary": "<b>S</b>", "url": "https://a.example/?b&c",
            "authors": [{ "name": "Ann", "email": "a@b.c" }], "tags": ["x", "y z"], "published": "2024-01-01T00:00:00Z",
            "updated": "2024-01-02T00:00:00.5Z", "extra": { "n": 1.5, "deep": { "z": [] } } } }),
        json!({ "id": "plain", "content": "again" }),
        json!({ "op": "delete", "id": "html" }),
    ]
}

/// A line without the feed's address, which differs between the transports.
fn comparable(mut line: Value) -> Value {
    line.as_object_mut().unwrap().remove("feed");
    line
}

fn address(feed: &str) -> String {
    format!("xmpp:{SERVICE}?;node={feed}%3Forder%3Dmodified")
}

fn account(xmpp_server: &XmppServer) -> Vec<String> {
    account_as(xmpp_server, "once")
}

fn account_as(xmpp_server: &XmppServer, resource: &str) -> Vec<String> {
    let jid = format!("alice@{}/{resource}", HOSTS[0]);
    let server = format!("127.0.0.1:{}", xmpp_server.client_port);
    ["--jid", &jid, "--xmpp-server", &server].map(str::to_owned).into()
}

fn started(xmpp_server: &XmppServer) -> (TestFolder, TestServer) {
    let dir = TestFolder::new(&format!("{}{FEEDS}", xmpp_server.component()));
    let server = dir.serve();
    wait_until("the component is connected", || dir.log().contains("is connected to"));
    (dir, server)
}

/// A node's items name files on HTTP servers, here the one that publishes the node.
fn files_of_a_node_are_downloaded(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let (dir, server) = started(&xmpp_server);
    publish(&server, "aa", &[json!({"id": "file", "content": "The content"})]);
    let sha256 = "f4ab9ac633f78d4f1e1585daa726a37b80a3f83b4b993183c292ae0e17f08810";
    let file = json!({"url": format!("{}/feeds/aa/items/file", server.base), "size": 11, "sha256": sha256});
    publish(&server, "aa", &[json!({"id": "film", "item": {"attachments": [file]}})]);
    let output = follow_once(&dir, &xmpp_server, "aa", &["--large-content", "large"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let film = lines(&output).into_iter().find(|line| line["id"] == "film").unwrap();
    let url = film["item"]["attachments"][0]["url"].as_str().unwrap();
    assert!(url.starts_with("file://") && url.ends_with(sha256), "{film}: {}", stderr(&output));
    assert_eq!(std::fs::read(dir.path("large").join(sha256)).unwrap(), b"The content");
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    // The backoff between two connection attempts may be a minute.
    let end = Instant::now() + 3 * PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn follow_once(
    dir: &TestFolder,
    xmpp_server: &XmppServer,
    feed: &str,
    more: &[&str],
) -> std::process::Output {
    let mut command = dir.command(&["follow", &address(feed), "--once"]);
    command.args(account(xmpp_server)).args(more).env("TOWPATH_XMPP_PASSWORD", PASSWORD);
    command.stdin(Stdio::null()).output().unwrap()
}

fn the_output_equals_that_of_pulling_over_http(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let (dir, server) = started(&xmpp_server);
    for feed in ["aa", "toc"] {
        publish(&server, feed, &items());
        let url = format!("{}/feeds/{feed}/items", server.base);
        let http = dir.run(&["follow", &url, "--protocol", "smart", "--once"]);
        let xmpp = follow_once(&dir, &xmpp_server, feed, &["--state", &format!("{feed}.json")]);
        assert_eq!(xmpp.status.code(), Some(0), "{}", stderr(&xmpp));
        let [http, printed] =
            [&http, &xmpp].map(|output| lines(output).into_iter().map(comparable).collect::<Vec<_>>());
        assert_eq!((printed.len(), &printed), (6, &http));
        // From its state on there is nothing, and then the new items.
        let again = follow_once(&dir, &xmpp_server, feed, &["--state", &format!("{feed}.json")]);
        assert!(again.stdout.is_empty(), "{again:?}");
        publish(&server, feed, &[json!({ "id": "new", "content": "x" })]);
        let again = follow_once(&dir, &xmpp_server, feed, &["--state", &format!("{feed}.json")]);
        assert_eq!(lines(&again).len(), 1);
    }
    let now = follow_once(&dir, &xmpp_server, "aa", &["--from", "now"]);
    assert_eq!((now.status.code(), now.stdout.len()), (Some(0), 0), "{}", stderr(&now));
    // Each line has a position to resume from.
    let all = lines(&follow_once(&dir, &xmpp_server, "aa", &[]));
    for (index, line) in all.iter().enumerate() {
        let position = line["position"].as_str().unwrap();
        let rest = lines(&follow_once(&dir, &xmpp_server, "aa", &["--from", position]));
        assert_eq!(rest, all[index + 1..], "{position}");
    }
}

/// The service has a new data folder: the follower prints a reset before the items, once.
fn a_service_that_began_anew(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let (first, server) = started(&xmpp_server);
    publish(
        &server,
        "aa",
        &[json!({ "id": "gone", "content": "x" }), json!({ "id": "both", "content": "x" })],
    );
    let run = || follow_once(&first, &xmpp_server, "aa", &["--state", "aa.json"]);
    assert_eq!(lines(&run()).len(), 2);
    assert_eq!(server.stop(), Some(0));
    let (_second, server) = started(&xmpp_server);
    publish(&server, "aa", &[json!({ "id": "both", "content": "x" })]);
    let anew = run();
    assert_eq!(anew.status.code(), Some(3), "{}", stderr(&anew));
    let told = lines(&anew);
    assert_eq!(
        (told.len(), &told[0]["op"], &told[1]["id"]),
        (2, &json!("reset"), &json!("both")),
        "{told:?}"
    );
    let again = run();
    assert_eq!((again.status.code(), again.stdout.len()), (Some(0), 0), "{}", stderr(&again));
}

fn unfollowable_addresses_are_reported(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let (dir, _server) = started(&xmpp_server);
    let unknown = follow_once(&dir, &xmpp_server, "nothing", &[]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("item-not-found"), "{}", stderr(&unknown));
    let mut wrong = dir.command(&["follow", &address("aa"), "--once", "--password", "wrong"]);
    let wrong = wrong.args(account(&xmpp_server)).stdin(Stdio::null()).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        stderr(&wrong).contains("not-authorized") && !stderr(&wrong).contains("wrong"),
        "{}",
        stderr(&wrong)
    );
    for (args, needle) in [
        (vec!["follow", "xmpp:feeds.localhost", "--jid", "a@b.c", "--password", "x"], "no node"),
        (vec!["follow", "xmpp:feeds.localhost?;node=aa"], "--jid"),
        (vec!["follow", "xmpp:feeds.localhost?;node=aa", "--jid", "a@b.c"], "--password"),
        (
            vec!["follow", "xmpp:feeds.localhost?;node=aa", "--jid", "b.c", "--password", "x"],
            "not an account",
        ),
    ] {
        let output = dir.run(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(needle), "{args:?}: {}", stderr(&output));
    }
}

/// RFC 6120, 5: the stream is encrypted before any stanza is sent, with a server whose certificate a known authority
/// signed.
fn an_encrypted_stream(software: Software) {
    let xmpp_server = XmppServer::start_encrypted(software, &["alice"]);
    let (dir, server) = started(&xmpp_server);
    publish(&server, "aa", &[json!({ "id": "i0", "content": "0" })]);
    let follow = |trusted: &std::path::Path, account: &str| {
        let mut command = dir.command(&["follow", &address("aa"), "--once", "--jid", account]);
        command.args(["--xmpp-server", &format!("127.0.0.1:{}", xmpp_server.client_port)]);
        command.env("TOWPATH_XMPP_PASSWORD", PASSWORD).env("SSL_CERT_FILE", trusted);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let alice = format!("alice@{}", HOSTS[0]);
    let printed = follow(&xmpp_server.authority(), &alice);
    assert_eq!(
        (printed.status.code(), lines(&printed).len()),
        (Some(0), 1),
        "{}{}",
        stderr(&printed),
        xmpp_server.log()
    );
    // A server with another authority's certificate gets no stanza, and no password.
    let other = XmppServer::start_encrypted(software, &["alice"]);
    let printed = follow(&other.authority(), &alice);
    assert_eq!((printed.status.code(), printed.stdout.len()), (Some(1), 0), "{}", stderr(&printed));
    assert!(stderr(&printed).contains("certificate"), "{}", stderr(&printed));
    assert!(!xmpp_server.log().contains("not-authorized"), "{}", xmpp_server.log());
}

/// A running follow, and the lines that it printed.
struct XmppFollow {
    child: Child,
    printed: Arc<Mutex<Vec<Value>>>,
}

impl XmppFollow {
    fn start(dir: &TestFolder, xmpp_server: &XmppServer, feed: &str) -> Self {
        // Editors end a file with a line feed, which is no part of the password.
        dir.write("password", format!("{PASSWORD}\n").as_bytes());
        let state = format!("{feed}.json");
        let mut command =
            dir.command(&["follow", &address(feed), "--state", &state, "--password-file", "password"]);
        let log = dir.path(&format!("{feed}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        // A resource of its own: servers end a session whose address logs in again.
        command.args(account_as(xmpp_server, feed));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let printed = Arc::new(Mutex::new(Vec::new()));
        let sink = printed.clone();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, printed }
    }

    fn ids(&self) -> Vec<String> {
        self.printed
            .lock()
            .unwrap()
            .iter()
            .map(|line: &Value| line["id"].as_str().unwrap().to_owned())
            .collect()
    }

    fn stop(mut self) {
        std::process::Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// Every part is restarted, and the output is the log: each change once, in order.
fn pushes_over_restarts(software: Software) {
    let mut xmpp_server = XmppServer::start(software, &["alice"]);
    let (dir, mut server) = started(&xmpp_server);
    publish(&server, "aa", &[json!({ "id": "i0", "content": "0" })]);
    let mut following = XmppFollow::start(&dir, &xmpp_server, "aa");
    wait_until("the first is printed", || following.ids() == ["i0"]);
    let mut expected = vec!["i0".to_owned()];
    let mut told_before = Vec::new();
    for round in 1..=4 {
        let id = format!("i{round}");
        publish(&server, "aa", &[json!({ "id": id, "content": round.to_string() })]);
        expected.push(id);
        let all = |following: &XmppFollow, before: &[String]| [before, &following.ids()].concat();
        wait_until(&format!("{expected:?} is printed"), || all(&following, &told_before) == expected);
        match round {
            1 => {
                xmpp_server.stop();
                xmpp_server.run();
            }
            2 => {
                assert_eq!(server.stop(), Some(0));
                server = dir.serve();
            }
            3 => {
                told_before = all(&following, &told_before);
                following.stop();
                following = XmppFollow::start(&dir, &xmpp_server, "aa");
            }
            _ => {}
        }
    }
    following.stop();
    assert!(server.get("/metrics").text().contains("pushes"));
}

/// XEP-0060, 8.4.2: a follow that waits says at once that its feed was removed, and why. So do those that begin later,
/// with and without a state. A long-running one goes on, as over HTTP: the feed may come back.
fn a_removed_feed_is_told(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let (dir, server) = started(&xmpp_server);
    assert_eq!(server.ask("PUT", "/feeds/made", &[], b"").status, 201);
    let feeds = [("made", ": moved to aa"), ("toc", " was removed from the configuration")];
    let mut following = feeds.map(|(feed, _)| {
        publish(&server, feed, &[json!({ "id": "first", "content": "x" })]);
        let following = XmppFollow::start(&dir, &xmpp_server, feed);
        wait_until("the first is printed", || following.ids() == ["first"]);
        let page = format!("/feeds/{feed}/subscribers");
        let page = || server.ask("GET", &page, &[("accept", "text/html")], b"").text();
        wait_until("it is subscribed", || page().contains("alice@"));
        following
    });
    let removed = server.ask("DELETE", "/feeds/made?reason=moved+to+aa", &[], b"");
    assert_eq!(removed.status, 200, "{}", removed.text());
    let without = FEEDS.replace("[[feed]]\nid = \"toc\"\ncursor = \"toc\"\n", "");
    dir.write("towpath.toml", format!("{}{without}", xmpp_server.component()).as_bytes());
    let reloaded = dir.run(&["reload"]);
    assert!(reloaded.status.success(), "{}", stderr(&reloaded));
    for ((feed, reason), following) in feeds.into_iter().zip(&mut following) {
        let told = || std::fs::read_to_string(dir.path(&format!("{feed}.log"))).unwrap();
        let deleted = format!("the service deleted the node: feed {feed:?}");
        let is_told = |begin: &str| told().lines().any(|line| line.contains(begin) && line.contains(reason));
        wait_until("the removal is told", || is_told(&deleted));
        let refused = format!("the service answers item-not-found: feed {feed:?}");
        wait_until("the answer is told", || is_told(&refused));
        assert!(following.child.try_wait().unwrap().is_none(), "{}", told());
        // The follow that runs has the state itself.
        let state = format!("copy-of-{feed}.json");
        std::fs::copy(dir.path(&format!("{feed}.json")), dir.path(&state)).unwrap();
        for more in [&["--state", &state][..], &[]] {
            let ended = follow_once(&dir, &xmpp_server, feed, more);
            let told = stderr(&ended);
            assert!(told.contains(&refused) && told.contains(reason), "{more:?}: {told}");
            assert_eq!((ended.status.code(), ended.stdout.len()), (Some(1), 0), "{more:?}");
        }
    }
    for (following, (feed, reason)) in following.into_iter().zip(feeds) {
        following.stop();
        // One that was not there when the feed was removed.
        let log = dir.path(&format!("{feed}.log"));
        std::fs::remove_file(&log).unwrap();
        let following = XmppFollow::start(&dir, &xmpp_server, feed);
        wait_until("it is told later", || std::fs::read_to_string(&log).unwrap().contains(reason));
        following.stop();
    }
}

/// `towpath check`: our own node conforms; a service without nodes does not.
fn a_node_is_checked(software: Software) {
    let xmpp_server = XmppServer::start(software, &["alice"]);
    let (dir, server) = started(&xmpp_server);
    publish(&server, "aa", &items());
    let check = |url: &str, more: &[&str]| {
        let mut command = dir.command(&["check", url]);
        command.args(account(&xmpp_server)).args(more).env("TOWPATH_XMPP_PASSWORD", PASSWORD);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let good = check(&address("aa"), &["--format", "json"]);
    let report: Value =
        serde_json::from_slice(&good.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&good)));
    assert_eq!((good.status.code(), &report["conforms"]), (Some(0), &json!(true)), "{report}");
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.len() >= 12 && findings.iter().all(|finding| finding["outcome"] == "pass"), "{report}");

    let bad = check(&address("aa").replace(SERVICE, HOSTS[1]), &[]);
    assert_eq!(bad.status.code(), Some(1));
    let text = String::from_utf8_lossy(&bad.stdout);
    assert!(
        text.contains("does not conform") && text.contains("FAIL  MUST    items can be asked for"),
        "{text}"
    );

    let wrong = check(&address("aa"), &["--password", "wrong"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(stderr(&wrong).contains("not-authorized"), "{}", stderr(&wrong));
}
