//! The web page's forms and refusals: dead letters, mirrors, snapshots, subscribers, and pages for what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::json;

use crate::callback::CallbackServer;
use crate::common::web_session::{BROWSER, FORM, Session};
use crate::common::{TestFolder, TestResponse, TestServer, free_port, wait_until};
use crate::nodes::TestCluster;

const TOKENS: &str = "[server]\ntokens = [\"t0ken\"]\n\n";

fn publish(server: &TestServer, feed: &str, id: &str) {
    let line = json!({"id": id, "item": {"title": format!("Title of {id}")}}).to_string();
    let bearer = [("authorization", "Bearer t0ken")];
    let answer = server.ask("POST", &format!("/feeds/{feed}/items"), &bearer, line.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn page(server: &TestServer, path: &str) -> TestResponse {
    server.ask("GET", path, &[BROWSER], b"")
}

#[test]
fn dead_letters_are_sent_again_or_dropped_one_by_one() {
    let status = Arc::new(AtomicU16::new(422));
    let answers = status.clone();
    // It takes others meanwhile: a receiver that refuses everything is waited for.
    let receiver = CallbackServer::start(move |call| {
        let is_bad = String::from_utf8_lossy(&call.body).contains("\"id\":\"bad");
        (if is_bad { answers.load(Ordering::Relaxed) } else { 204 }, String::new(), Vec::new())
    });
    let sink = format!(
        "[[feed]]\nid = \"news\"\n[[sink]]\nname = \"hook\"\nfeeds = [\"news\"]\ninto = \"webhook:{}\"\n\
         secrets = [\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]\nallow_private = true\n",
        receiver.url("/hook")
    );
    let folder = TestFolder::new(&format!("{TOKENS}{sink}"));
    let server = folder.serve();
    let session = Session::begin(&server);
    let letters = || session.page("/sinks/hook").matches("name=\"letter\"").count();
    for number in 1..=3 {
        publish(&server, "news", &format!("bad-{number}"));
        publish(&server, "news", &format!("good-{number}"));
        wait_until("it is set aside", || letters() == number);
    }
    let shown = session.page("/sinks/hook");
    assert!(
        shown.contains("422") && shown.contains("Title of bad-2"),
        "the reason and the change are shown: {shown}"
    );
    let order = |action: &str, letter: u32| {
        let sent = session.send("/sinks/hook", &format!("action={action}&letter={letter}"));
        assert_eq!(sent.status, 303, "{}", sent.text());
        sent.header("location").unwrap().to_owned()
    };
    assert_eq!(order("drop-letter", 1), "/sinks/hook?done=drop");
    assert_eq!(letters(), 2);
    assert_eq!(order("drop-letter", 1), "/sinks/hook?done=gone", "nothing is dropped twice");
    status.store(204, Ordering::Relaxed);
    let before = receiver.calls().len();
    assert_eq!(order("resend-letter", 3), "/sinks/hook?done=resend");
    wait_until("the third is sent", || letters() == 1);
    let sent: Vec<_> = receiver.calls().split_off(before);
    let ids: Vec<_> = sent.iter().map(|call| call.json()["data"]["changes"][0]["id"].clone()).collect();
    assert_eq!(ids, [json!("bad-3")], "the second stays where it is");
    assert!(session.page("/sinks/hook").contains("Title of bad-2"));
    assert_eq!(session.send("/sinks/hook", "action=drop-letter&letter=x").status, 400);
    assert!(!page(&server, "/sinks/hook").text().contains("Title of bad"), "strangers see no letters");
}

#[test]
fn a_mirror_is_paused_and_synced() {
    let port = free_port();
    let origin = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let publisher = origin.serve_at(port);
    let source = format!("[feed.source]\nfollow = \"http://127.0.0.1:{port}/feeds/notes\"\n");
    let folder = TestFolder::new(&format!("{TOKENS}[[feed]]\nid = \"copy\"\n{source}"));
    let server = folder.serve();
    let put = |id: &str| {
        let line = json!({"id": id, "item": {"title": id}}).to_string();
        assert_eq!(publisher.ask("POST", "/feeds/notes/items", &[], line.as_bytes()).status, 200);
    };
    put("first");
    server.wait_for("/feeds/copy", |feed| feed["seq"] == 1);
    wait_until("it waits for more", || publisher.get("/metrics").text().contains("towpath_waiters 1"));
    let session = Session::begin(&server);
    let order = |action: &str| assert_eq!(session.send(&format!("/feeds/copy/{action}"), "").status, 303);
    order("pause");
    wait_until("its state is shown", || session.page("/feeds/copy/source").contains(">paused<"));
    // The follow ends beside the answer: what it still takes comes before the pause.
    wait_until("it waits no more", || publisher.get("/metrics").text().contains("towpath_waiters 0"));
    put("second");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(server.json("/feeds/copy")["seq"], 1, "nothing is copied meanwhile");
    order("resume");
    server.wait_for("/feeds/copy", |feed| feed["seq"] == 2);
    // A publisher that was away is asked again at once, and not after minutes.
    publisher.stop();
    // By itself it asks 30 s after its stream broke off, which is as long as this test waits.
    order("poll");
    wait_until("it fails", || session.page("/feeds/copy/source").contains(">failing<"));
    let publisher = origin.serve_at(port);
    order("poll");
    let line = json!({"id": "third", "item": {"title": "third"}}).to_string();
    assert_eq!(publisher.ask("POST", "/feeds/notes/items", &[], line.as_bytes()).status, 200);
    server.wait_for("/feeds/copy", |feed| feed["seq"] == 3);
    assert!(session.page("/feeds/copy/source").contains("Sync now"));
}

#[test]
fn snapshots_are_made_by_administrators() {
    let tokens = "[server]\ntokens = [\"t0ken\"]\n[[token]]\nname = \"writer\"\ntoken = \"wr1ter\"\nrights = [\"read\", \"publish\"]\n";
    let folder = TestFolder::new(&format!("{tokens}[[feed]]\nid = \"notes\"\n"));
    let server = folder.serve();
    publish(&server, "notes", "a");
    let session = Session::begin(&server);
    assert!(session.page("/feeds/notes/follow").contains("Make a snapshot"));
    assert!(!page(&server, "/feeds/notes/follow").text().contains("Make a snapshot"));
    let made = session.send("/feeds/notes/snapshot", "");
    assert_eq!((made.status, made.header("location")), (303, Some("/feeds/notes/follow?done=snapshot")));
    assert_eq!(server.get("/feeds/notes/snapshots/latest").status, 200);
    assert!(session.page("/feeds/notes/follow?done=snapshot").contains("The snapshot is made"));
    let signed_in = server.ask("POST", "/sign-in", &[FORM], b"token=wr1ter");
    let cookie = signed_in.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let writer = Session { server: &server, cookie };
    assert!(!writer.page("/feeds/notes/follow").contains("Make a snapshot"));
    assert_eq!(writer.send("/feeds/notes/snapshot", "").status, 403);
}

/// A proxy passes on a host without its port, or its own address. The page's address is that of `base_url`.
#[test]
fn forms_work_behind_a_proxy_that_changes_the_host() {
    let folder = TestFolder::new(&format!("{TOKENS}[[feed]]\nid = \"notes\"\n"));
    let server = folder.serve_as("https://feeds.example.com:8443");
    let sign_in = |origin: &str, site: &str| {
        let headers = [FORM, ("origin", origin), ("sec-fetch-site", site)];
        server.ask("POST", "/sign-in", &headers, b"token=t0ken").status
    };
    assert_eq!(sign_in("https://feeds.example.com:8443", "same-origin"), 303);
    assert_eq!(sign_in("https://feeds.example.com:8443", "none"), 303);
    assert_eq!(sign_in("https://evil.example", "cross-site"), 403);
    assert_eq!(sign_in("https://evil.example", "none"), 403);
}

/// The form takes no address that the API refuses.
#[test]
fn a_form_with_an_address_that_is_not_of_the_web_is_refused() {
    let folder = TestFolder::new(&format!("{TOKENS}[[feed]]\nid = \"notes\"\n"));
    let server = folder.serve();
    let session = Session::begin(&server);
    for url in ["javascript:alert(1)", "foo"] {
        let refused = session.send("/feeds/notes/publish", &format!("id=a&title=A&url={url}&action=publish"));
        assert!(refused.status == 400 && refused.text().contains("Not published."), "{}", refused.text());
    }
    let sent = session.send("/feeds/notes/publish", "id=a&title=A&url=https://a.example&action=publish");
    assert_eq!(sent.status, 303, "{}", sent.text());
}

/// The commands of the page "Follow" are for its own addresses, and name the token that they need.
#[test]
fn the_commands_to_follow_a_feed_are_complete() {
    let private = "[[feed]]\nid = \"items\"\n[[feed]]\nid = \"private\"\nvisibility = \"private\"\n";
    let folder = TestFolder::new(&format!("{TOKENS}{private}"));
    let server = folder.serve();
    let base = &server.base;
    let open = page(&server, "/feeds/items/follow").text();
    let topic = format!("{base}/feeds/items/items");
    assert!(open.contains(&format!("hub.topic={topic} ")), "{open}");
    assert!(open.contains(&format!("curl --no-buffer {base}/feeds/items/events<")), "{open}");
    assert!(!open.contains("TOKEN"), "{open}");
    let unknown = server.ask("POST", "/feeds/items/hub", &[FORM], b"hub.mode=subscribe&hub.topic=x");
    assert_eq!(unknown.status, 400);
    let hidden = Session::begin(&server).page("/feeds/private/follow");
    for command in [
        format!("curl --no-buffer -H 'Authorization: Bearer TOKEN' {base}/feeds/private/events"),
        format!(
            "towpath.follow(&quot;{base}/feeds/private&quot;, state=&quot;feed.state&quot;, token=&quot;TOKEN&quot;)"
        ),
        format!("follow(&quot;{base}/feeds/private&quot;, {{ token: &quot;TOKEN&quot; }})"),
        format!("curl --header 'Authorization: Bearer TOKEN' {base}/feeds/private/hub -d hub.mode=subscribe"),
    ] {
        assert!(hidden.contains(&command), "{command}: {hidden}");
    }
}

#[test]
fn browsers_get_pages_for_refusals_and_programs_problems() {
    let folder = TestFolder::new(&format!("{TOKENS}[[feed]]\nid = \"notes\"\ntitle = \"The notes\"\n"));
    let server = folder.serve();
    publish(&server, "notes", "a");
    for (method, path, status, words) in [
        ("GET", "/nowhere", 404, "Not found"),
        ("GET", "/feeds/notes/nowhere", 404, "The notes"),
        ("GET", "/feeds/notes/replication/pages/99", 404, "The notes"),
        ("POST", "/feeds/notes/changes", 405, "Not done this way"),
        ("DELETE", "/", 405, "Not done this way"),
        ("GET", "/feeds/notes/items?since=%00", 400, "That did not work"),
        ("PUT", "/feeds/notes/items/b", 401, "Sign in"),
        ("GET", "/feeds/%ff", 400, "All feeds"),
    ] {
        let refused = server.ask(method, path, &[BROWSER], b"");
        let text = refused.text();
        assert_eq!(
            refused.header("content-type"),
            Some("text/html; charset=utf-8"),
            "{method} {path}: {text}"
        );
        assert!(
            refused.status == status && text.contains(words),
            "{method} {path}: {} {text}",
            refused.status
        );
        assert!(refused.header("content-security-policy").is_some() && text.contains("All feeds"), "{path}");
        let program = server.ask(method, path, &[("accept", "*/*")], b"");
        assert_eq!(program.header("content-type"), Some("application/problem+json"), "{method} {path}");
        assert_eq!(program.status, status, "{method} {path}");
    }
    let large = server.ask("POST", "/sign-in", &[FORM, BROWSER], &vec![b'x'; 20 << 10]);
    assert!(large.status == 413 && large.text().contains("Too large"), "{}", large.text());
    // A form that was sent without a session leads back to the feed's page.
    let expired = server.ask("POST", "/feeds/notes/poll", &[FORM, BROWSER], b"form_secret=x");
    assert!(
        expired.status == 403 && expired.text().contains("next=%2Ffeeds%2Fnotes\""),
        "{}",
        expired.text()
    );
}

/// Sends the beginning of a request, and reads the answer to its end.
fn raw(server: &TestServer, request: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server.base.trim_start_matches("http://")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_request_head_that_is_too_long_gets_a_page() {
    let folder = TestFolder::new(&format!("{TOKENS}[[feed]]\nid = \"notes\"\ntitle = \"The notes\"\n"));
    let server = folder.serve();
    let long = "x".repeat(1 << 20);
    let html = "Accept: text/html,*/*;q=0.8";
    for request in [
        // A search of a megabyte: the type that is asked for comes after it.
        format!("GET /feeds/notes/changes?q={long} HTTP/1.1\r\nHost: x\r\n{html}\r\n\r\n"),
        format!("GET /feeds/notes/changes HTTP/1.1\r\n{html}\r\nHost: x\r\nCookie: {long}\r\n\r\n"),
        // The second request of its connection.
        format!(
            "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /feeds/notes/changes HTTP/1.1\r\nHost: x\r\n{html}\r\nX: {long}\r\n\r\n"
        ),
    ] {
        let answer = raw(&server, &request);
        let (_, refusal) = answer.split_once("HTTP/1.1 431 ").unwrap_or_else(|| panic!("{answer}"));
        assert!(refusal.contains("Too large") && refusal.contains("All feeds"), "{refusal}");
        assert!(refusal.contains("32 KiB") && refusal.contains("The notes"), "{refusal}");
        assert!(refusal.contains("content-security-policy: default-src 'none'"), "{refusal}");
        assert!(refusal.ends_with("</html>"), "it is whole: {refusal}");
    }
    let program =
        raw(&server, &format!("GET /feeds/notes?q={long} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"));
    assert!(
        program.contains("application/problem+json")
            && program.contains("urn:towpath:problem:head-too-large")
    );
    // A head without an end is not waited for.
    let endless = raw(&server, &format!("GET / HTTP/1.1\r\n{html}\r\nX: {long}"));
    assert!(endless.starts_with("HTTP/1.1 431 ") && endless.contains("Too large"), "{endless}");
    let head = raw(&server, &format!("HEAD /?q={long} HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert!(head.starts_with("HTTP/1.1 431 ") && head.ends_with("\r\n\r\n"), "{head}");
}

/// Every protocol that a feed offers is checked, and each report leads into its text.
#[test]
fn a_check_reports_on_every_protocol() {
    let folder = TestFolder::new(
        "[server]\ntokens = [\"t0ken\"]\nprivate_fetches = \"all\"\n\n[[feed]]\nid = \"notes\"\ntitle = \"Notes\"\n",
    );
    let server = folder.serve();
    for id in ["a", "b", "c"] {
        publish(&server, "notes", id);
    }
    let session = Session::begin(&server);
    let checked = session.send("/check", &format!("url={}/feeds/notes", server.base));
    let text = checked.text();
    assert!(checked.status == 200 && text.contains("5 protocols found"), "{text}");
    for (protocol, link) in [
        ("diffdelta", "diffdelta-feed-spec.md#21-cursor"),
        ("replication", "datareplication.io/spec/print.html#"),
        ("smart", "smartfeeds.html#:~:text="),
        ("history", "feed-history-00#section-"),
        ("rss", "rfc4287#section-"),
    ] {
        let section = text.split(&format!("<section class=\"gap\" id=\"{protocol}\">")).nth(1);
        let section = section.and_then(|rest| rest.split("</section>").next());
        let section = section.unwrap_or_else(|| panic!("{protocol} has no report: {text}"));
        assert!(section.contains("It conforms.") && section.contains(link), "{protocol}: {section}");
    }
    let nothing = session.send("/check", &format!("url={}/healthz.json", server.base)).text();
    assert!(nothing.contains("not a feed that can be recognised"), "{nothing}");
}

#[test]
fn a_browser_that_asks_too_much_gets_a_page() {
    // This machine has no account: the client is behind a proxy on it.
    let limit =
        "[server]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[server.rate_limit]\nper_second = 1\nburst = 100\n";
    let folder = TestFolder::new(&format!("{limit}[[feed]]\nid = \"notes\"\n"));
    let server = folder.serve_as("http://feeds.example");
    // A guess of a token costs as much as twenty pages.
    let client = ("x-forwarded-for", "192.0.2.1");
    let guess = || server.ask("POST", "/sign-in", &[FORM, BROWSER, client], b"token=x");
    let refused = std::iter::repeat_with(guess).take(100).find(|answer| answer.status != 401).unwrap();
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("text/html; charset=utf-8")));
    assert!(refused.text().contains("Too many requests") && refused.header("retry-after").is_some());
}

#[test]
fn readers_that_wait_are_counted_by_feed() {
    let folder = TestFolder::new("[[feed]]\nid = \"notes\"\n[[feed]]\nid = \"other\"\n");
    let server = folder.serve();
    let line = json!({"id": "a", "item": {"title": "A"}}).to_string();
    assert_eq!(server.ask("POST", "/feeds/notes/items", &[], line.as_bytes()).status, 200);
    let page_of_all = server.json("/feeds/notes/items?order=modified");
    let since = page_of_all["last_cursor"].as_str().unwrap().to_owned();
    let address = server.base.trim_start_matches("http://").to_owned();
    let hold = |path: String| {
        use std::io::Write as _;
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        stream
    };
    let _held = [
        hold("/feeds/notes/events".into()),
        hold("/feeds/notes/events?as=line".into()),
        hold(format!("/feeds/notes/items?order=modified&timeout=60&since=cursor:{since}")),
    ];
    let shown = || page(&server, "/feeds/notes/subscribers").text();
    let row = |name: &str, count: u32| {
        format!("{name}</th><td class=\"number\" data-label=\"Readers\">{count}</td>")
    };
    wait_until("both streams wait", || shown().contains(&row("Event streams", 2)));
    wait_until("the long poll waits", || shown().contains(&row("Long polls", 1)));
    assert!(page(&server, "/feeds/other/subscribers").text().contains("Nobody waits"));
}

#[test]
fn a_node_shows_its_cluster() {
    let cluster = TestCluster::start("[[feed]]\nid = \"shown\"\n");
    let node = cluster.node(0);
    wait_until("the leases are shown", || {
        let home = page(node, "/").text();
        home.contains("Cluster: ") && home.contains("upkeep") && home.contains("This node has the whole log")
    });
    wait_until("every role has a node", || !page(node, "/").text().contains("without a node"));
}
