//! Other sites' pages in a browser, proxies, and expensive requests.

mod proxies;

use crate::common::waiting::{PollClient, until, waiters};
use crate::common::{TestFolder, TestResponse, TestServer, ask_at, get_from, stderr, tree};

const NOTES: &str = "[[feed]]\nid = \"notes\"\n";

/// nginx with HTTP/1.1 and no further settings: its requests look like a local program's.
#[test]
fn nobody_publishes_through_a_proxy_to_a_public_server_without_tokens() {
    let dir = TestFolder::new(NOTES);
    let (port, base) = tree::address();
    let server = dir.serve_as("http://feeds.example");
    let pass = format!("location / {{ proxy_http_version 1.1; proxy_pass {}; }}", server.base);
    let _nginx = tree::nginx(port, "", &pass);
    for (method, status) in [("PUT", 403), ("DELETE", 403), ("GET", 404)] {
        let answer = ask_at(&base, method, "/feeds/notes/items/a", &[], b"x").unwrap();
        assert_eq!(answer.status, status, "{method}: {}", answer.text());
        assert!(method == "GET" || answer.text().contains("set [server] tokens"), "{}", answer.text());
    }
    assert_eq!(get_from(&base, "/feeds/notes/items?timeout=0", &[]).status, 200);
    assert!(dir.log().contains("nobody can publish"), "{}", dir.log());
}

/// Sends a request as it is, with `Host` and all.
fn send(server: &TestServer, head: &str, body: &str) -> TestResponse {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(server.base.strip_prefix("http://").unwrap()).unwrap();
    let rest = format!("Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(format!("{head}{rest}").as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    TestResponse::parse(&bytes).unwrap()
}

/// DNS rebinding: evil.example resolves to 127.0.0.1 after its page was loaded, so its page reads from here.
#[test]
fn a_rebound_name_reads_nothing_from_a_local_server() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[], b"secret").status, 201);
    let own = server.base.strip_prefix("http://").unwrap().to_owned();
    for path in ["/feeds/notes/items?timeout=0", "/diff/notes/head.json", "/feeds", "/feeds/notes/items/a"] {
        // Twice: the second answer to an own name comes from memory.
        for _ in 0..2 {
            for host in [own.as_str(), "localhost", "10.0.0.7:8080"] {
                let answer = send(&server, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n"), "");
                assert_eq!(answer.status, 200, "{path} {host}: {}", answer.text());
            }
            let answer = send(&server, &format!("GET {path} HTTP/1.1\r\nHost: evil.example:8080\r\n"), "");
            assert_eq!(answer.status, 403, "{path}: {}", answer.text());
            assert!(answer.text().contains("base_url") && !answer.text().contains("secret"));
        }
    }
    let old = send(&server, "GET /feeds HTTP/1.0\r\n", "");
    assert_eq!(old.status, 200, "HTTP/1.0 needs no Host");
    let public = dir_at("http://feeds.example");
    let answer = send(&public.1, "GET /feeds HTTP/1.1\r\nHost: any.example\r\n", "");
    assert_eq!(answer.status, 200);
}

fn dir_at(base_url: &str) -> (TestFolder, TestServer) {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve_as(base_url);
    (dir, server)
}

/// Requests that a page of any site can have a browser send: scripts, images, forms, and fetches that it cannot read.
#[test]
fn another_sites_page_reaches_nothing_on_a_local_server() {
    let dir = TestFolder::new(NOTES);
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[], b"x").status, 201);
    let status = |method, path, headers: &[_], body: &[u8]| server.ask(method, path, headers, body).status;
    let topic = format!("{}/feeds/notes/items", server.base);
    let subscription = format!("hub.mode=subscribe&hub.callback=https://evil.example/take&hub.topic={topic}");
    let form = ("content-type", "application/x-www-form-urlencoded");
    for origin in ["https://evil.example", "null"] {
        let answer =
            server.ask("POST", "/feeds/notes/hub", &[form, ("origin", origin)], subscription.as_bytes());
        assert_eq!(answer.status, 403, "{}", answer.text());
        assert!(answer.text().contains("cors_origins"), "{}", answer.text());
        assert_eq!(status("GET", "/feeds", &[("origin", origin)], b""), 403);
        let preflight = [("origin", origin), ("access-control-request-method", "GET")];
        assert_eq!(status("OPTIONS", "/feeds/notes/items", &preflight, b""), 403);
    }
    let script = "/feeds/notes/items?timeout=0&callback=take";
    // Once for a program, so that the answer is in memory.
    assert_eq!(status("GET", script, &[], b""), 200);
    let element =
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "script")];
    assert_eq!(status("GET", script, &element, b""), 403);
    assert_eq!(status("GET", script, &[("sec-fetch-site", "same-origin")], b""), 200);
    // A link on another site's page may be followed.
    let link =
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    assert_eq!(status("GET", "/feeds/notes", &link, b""), 200);
}

const ALLOW_ORIGIN: &str = "access-control-allow-origin";

/// Pages of every site read a public server: documents from memory and made anew, 304, problems, long polls, events.
#[test]
fn pages_read_public_servers_across_origins() {
    let (_dir, server) = with_an_item("", "http://feeds.example");
    let origin = [("origin", "https://app.example")];
    for path in [
        "/feeds/notes/items?timeout=0",
        "/diff/notes/head.json",
        "/feeds/notes/items/a",
        "/feeds",
        "/feeds/none",
    ] {
        for _ in 0..2 {
            let answer = server.ask("GET", path, &origin, b"");
            assert_eq!(answer.headers(ALLOW_ORIGIN), ["*"], "{path}");
            let exposed = answer.header("access-control-expose-headers").unwrap();
            assert!(
                ["ETag", "Link", "Retry-After", "Towpath-Position"].iter().all(|name| exposed.contains(name))
            );
            assert_eq!(answer.header("access-control-allow-credentials"), None);
        }
    }
    let tag = server.get("/diff/notes/head.json").header("etag").unwrap().to_owned();
    let unchanged = server.ask("GET", "/diff/notes/head.json", &[("if-none-match", &tag)], b"");
    assert_eq!((unchanged.status, unchanged.headers(ALLOW_ORIGIN)), (304, vec!["*"]));
    let ask = [
        origin[0],
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", "if-none-match"),
    ];
    let preflight = server.ask("OPTIONS", "/diff/notes/head.json", &ask, b"");
    assert_eq!((preflight.status, preflight.headers(ALLOW_ORIGIN)), (204, vec!["*"]));
    assert_eq!(preflight.header("access-control-allow-methods"), Some("GET, HEAD"));
    assert!(preflight.header("access-control-allow-headers").unwrap().contains("If-None-Match"));
    assert_eq!(
        server.ask("OPTIONS", "/feeds/notes/items", &[], b"").header("allow"),
        Some("GET, HEAD, OPTIONS, POST")
    );
    // Publishing is for programs, whatever the preflight asks for.
    let put =
        server.ask("PUT", "/feeds/notes/items/a", &[origin[0], ("authorization", "Bearer secret")], b"x");
    assert_eq!((put.status, put.header(ALLOW_ORIGIN)), (200, None));
    assert_eq!(long_polled(&server, "https://app.example"), ["*"]);
}

/// Only listed origins read, and caches in between are told that answers differ.
#[test]
fn only_listed_origins_read_where_origins_are_listed() {
    let (_dir, server) = with_an_item("cors_origins = [\"https://app.example\"]\n", "http://feeds.example");
    let ask = |path, origin| server.ask("GET", path, &[("origin", origin)], b"");
    for path in ["/feeds/notes/items?timeout=0", "/diff/notes/head.json", "/feeds/notes/items/a", "/feeds"] {
        for _ in 0..2 {
            let listed = ask(path, "https://app.example");
            assert_eq!(listed.headers(ALLOW_ORIGIN), ["https://app.example"], "{path}");
            let other = ask(path, "https://evil.example");
            assert_eq!((other.status, other.header(ALLOW_ORIGIN)), (200, None), "{path}");
            assert!(other.headers("vary").contains(&"origin"), "{path}");
        }
    }
    assert_eq!(long_polled(&server, "https://app.example"), ["https://app.example"]);
    assert_eq!(long_polled(&server, "https://evil.example"), [""; 0]);
    let (_dir, local) = with_an_item("", "http://127.0.0.1:1");
    assert_eq!(local.get("/diff/notes/head.json").header(ALLOW_ORIGIN), None);
}

/// Requests of a page that publishes: a preflight, an item, an upload. Another origin's page, or one without a token, gets
/// nowhere, and no cookie counts.
#[test]
fn pages_of_listed_origins_publish_with_a_token() {
    let config = "publish_origins = [\"https://cms.example\"]\n";
    let (cms, bearer) = (("origin", "https://cms.example"), ("authorization", "Bearer secret"));
    let evil = ("origin", "https://evil.example");
    let item = "/feeds/notes/items/b";
    for base_url in ["http://127.0.0.1:1", "http://feeds.example"] {
        let is_local = base_url.contains("127");
        let (_dir, server) = with_an_item(config, base_url);
        let preflight = |origin, method| {
            let asks = ("access-control-request-method", method);
            server.ask("OPTIONS", item, &[origin, asks], b"")
        };
        let may = preflight(cms, "PUT");
        assert_eq!((may.status, may.headers(ALLOW_ORIGIN)), (204, vec!["https://cms.example"]));
        assert!(may.header("access-control-allow-methods").unwrap().contains("PUT"));
        let named = may.headers("access-control-allow-headers").join(", ");
        for name in
            ["Authorization", "Content-Type", "If-Match", "If-None-Match", "Upload-Offset", "Tus-Resumable"]
        {
            assert!(named.contains(name), "{named}");
        }
        assert_eq!(may.header("access-control-allow-credentials"), None);
        let other = preflight(evil, "PUT");
        assert!(!other.headers(ALLOW_ORIGIN).contains(&"https://evil.example"));
        assert!(!other.header("access-control-allow-methods").is_some_and(|methods| methods.contains("PUT")));
        // Reading is for those of cors_origins.
        assert_eq!(preflight(cms, "GET").status, if is_local { 403 } else { 204 });
        assert!(!preflight(cms, "GET").headers("access-control-allow-methods").contains(&"PUT"));
        assert_eq!(server.ask("GET", "/feeds", &[cms], b"").status, if is_local { 403 } else { 200 });

        let put = server.ask("PUT", item, &[cms, bearer], b"x");
        assert_eq!((put.status, put.headers(ALLOW_ORIGIN)), (201, vec!["https://cms.example"]));
        assert!(put.header("access-control-expose-headers").unwrap().contains("Location"));
        assert!(put.headers("vary").contains(&"origin"));
        let put = server.ask("PUT", item, &[evil, bearer], b"y");
        assert_eq!((put.status, put.header(ALLOW_ORIGIN)), (if is_local { 403 } else { 200 }, None));
        for cookie in [None, Some(("cookie", "towpath_session=00"))] {
            let headers: Vec<_> = [cms].into_iter().chain(cookie).collect();
            let refused = server.ask("PUT", item, &headers, b"z");
            assert_eq!((refused.status, refused.headers(ALLOW_ORIGIN)), (401, vec!["https://cms.example"]));
        }
        let create =
            [cms, bearer, ("tus-resumable", "1.0.0"), ("upload-length", "1"), ("upload-metadata", "id Yw==")];
        let made = server.ask("POST", "/feeds/notes/uploads", &create, b"");
        assert_eq!((made.status, made.headers(ALLOW_ORIGIN)), (201, vec!["https://cms.example"]));
        let exposed = made.headers("access-control-expose-headers").join(", ");
        assert!(exposed.contains("Location") && exposed.contains("Upload-Offset"), "{exposed}");
        let path = made.header("location").unwrap().strip_prefix(base_url).unwrap().to_owned();
        let asked = server.ask("HEAD", &path, &create[..3], b"");
        assert_eq!((asked.status, asked.headers(ALLOW_ORIGIN)), (200, vec!["https://cms.example"]));
        // Settings of feeds are for programs.
        let removed = server.ask("DELETE", "/feeds/notes", &[cms, bearer], b"");
        assert_eq!(removed.header(ALLOW_ORIGIN), None);
        assert!(!is_local || removed.status == 403);
    }
    // Where no token is set, a page has none to send.
    let dir = TestFolder::new(&format!("[server]\n{config}{NOTES}"));
    let refused = dir.serve().ask("PUT", item, &[cms], b"x");
    assert_eq!(refused.status, 403, "{}", refused.text());
}

fn with_an_item(server: &str, base_url: &str) -> (TestFolder, TestServer) {
    let dir = TestFolder::new(&format!("[server]\ntokens = [\"secret\"]\n{server}{NOTES}"));
    let server = dir.serve_as(base_url);
    let put = server.ask("PUT", "/feeds/notes/items/a", &[("authorization", "Bearer secret")], b"x");
    assert_eq!(put.status, 201, "{}", put.text());
    (dir, server)
}

/// Returns the allowed origins of the answer to a long poll of a page.
fn long_polled(server: &TestServer, origin: &str) -> Vec<String> {
    let mut client = PollClient::new(server);
    let page = server.json("/feeds/notes/items?timeout=0");
    let cursor = page["last_cursor"].as_str().unwrap();
    client.send(
        &format!("/feeds/notes/items?since=cursor:{cursor}&timeout=60"),
        &format!("Origin: {origin}\r\n"),
    );
    until("a waiting client", || waiters(server) == 1);
    let put =
        server.ask("PUT", "/feeds/notes/items/b", &[("authorization", "Bearer secret")], cursor.as_bytes());
    assert!(put.status < 300, "{}", put.text());
    let (head, _) = client.answer();
    let lines = head.lines().filter_map(|line| line.strip_prefix("access-control-allow-origin: "));
    lines.map(str::to_owned).collect()
}

/// The generated configuration of nginx sends what the server sends.
#[test]
fn pages_read_exported_trees_across_origins() {
    for (origins, own, other) in [
        ("[\"*\"]", &["*"][..], &["*"][..]),
        ("[\"https://app.example\", \"https://b.example\"]", &["https://app.example"], &[]),
    ] {
        let dir = TestFolder::new(&format!("[server]\ncors_origins = {origins}\n{NOTES}"));
        assert!(dir.run(&["put", "notes", "a"]).status.success());
        let (port, base) = tree::address();
        let done = dir.run(&["export", "tree", "--base-url", &base]);
        assert!(done.status.success(), "{}", stderr(&done));
        let _nginx = tree::nginx_of(port, &dir.path("tree"));
        for path in ["/diff/notes/head.json", "/feeds/notes/atom", "/feeds/notes/replication", "/feeds"] {
            let ask = |method, origin| ask_at(&base, method, path, &[("origin", origin)], b"").unwrap();
            for method in ["GET", "OPTIONS"] {
                let answer = ask(method, "https://app.example");
                assert_eq!(answer.headers(ALLOW_ORIGIN), own, "{method} {path} {}", answer.status);
                assert!(answer.header("access-control-expose-headers").unwrap().contains("ETag"));
                assert_eq!(
                    ask(method, "https://evil.example").headers(ALLOW_ORIGIN),
                    other,
                    "{method} {path}"
                );
            }
            let preflight = ask("OPTIONS", "https://app.example");
            assert_eq!(preflight.status, 204);
            assert!(preflight.header("access-control-allow-headers").unwrap().contains("If-None-Match"));
        }
    }
}

/// Configuration of a public server with limits that a test reaches soon, behind a proxy on this machine.
const LIMITED: &str = "[server]\ntokens = [\"secret\"]\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
                       [server.rate_limit]\nper_second = 1\nburst = 100\n";

/// A client that has every page made anew is told to wait, while others are served.
#[test]
fn a_client_that_has_pages_made_anew_is_told_to_wait() {
    let dir = TestFolder::new(&format!("{LIMITED}{NOTES}"));
    let server = dir.serve_as("http://feeds.example");
    let bearer = ("authorization", "Bearer secret");
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &[bearer], b"x").status, 201);
    let mut clients = 0;
    let mut client = || {
        clients += 1;
        format!("192.0.2.{clients}")
    };
    let pages = |n: usize| format!("/feeds/notes/items?timeout=0&since=time:{n}");
    let scripts = |n: usize| format!("/feeds/notes/items?timeout=0&callback=f{n}");
    let lists = |_: usize| "/feeds?status".to_owned();
    for path in [&pages as &dyn Fn(usize) -> String, &scripts, &lists] {
        let address = client();
        // What the client itself wrote to the list's beginning does not count.
        let from = |n: usize| format!("203.0.113.{}, {address}", n % 200);
        let mut refused = None;
        for n in 0..super::size(300, 3000) {
            let answer = server.ask("GET", &path(n), &[("x-forwarded-for", &from(n))], b"");
            if answer.status == 429 {
                refused = Some((n, answer));
                break;
            }
        }
        let (n, answer) = refused.expect("the client is refused at last");
        // 100 points, and one more for each second that the test takes.
        assert!((100..290).contains(&n), "{n}");
        assert!(answer.text().contains("[server.rate_limit]"), "{}", answer.text());
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=100).contains(&seconds), "{seconds}");
        // Documents in memory are still free for the client, and all is for others.
        let own = [("x-forwarded-for", address.as_str())];
        assert_eq!(server.ask("GET", "/diff/notes/head.json", &own, b"").status, 200);
        assert_eq!(server.ask("GET", &path(n), &[("x-forwarded-for", &client())], b"").status, 200);
        // A token has an account of its own; an invented one has none.
        assert_eq!(server.ask("GET", &path(9999), &[own[0], bearer], b"").status, 200);
        assert_eq!(server.ask("GET", &path(9998), &[own[0], ("authorization", "Bearer x")], b"").status, 429);
    }
}

/// A snapshot copies a whole feed, so one is all that this burst pays for.
#[test]
fn snapshots_are_limited_by_token() {
    let dir = TestFolder::new(&format!("{LIMITED}{NOTES}"));
    let server = dir.serve_as("http://feeds.example");
    let headers = [("authorization", "Bearer secret"), ("x-forwarded-for", "192.0.2.1")];
    assert_eq!(server.ask("PUT", "/feeds/notes/items/a", &headers, b"x").status, 201);
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &headers, b"").status, 201);
    let second =
        server.ask("POST", "/feeds/notes/snapshots", &[headers[0], ("x-forwarded-for", "192.0.2.2")], b"");
    assert_eq!(second.status, 429, "{}", second.text());
    // Publishing is not limited by this.
    assert_eq!(server.ask("PUT", "/feeds/notes/items/b", &headers, b"x").status, 201);
}
