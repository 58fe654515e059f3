//! The web page, and limits of what is read on behalf of others than sources.

use std::io::{Read as _, Write as _};

use serde_json::json;

use super::{peak_mib, runtime};

use crate::common::{TestFolder, TestResponse, TestServer, ask_at};
use crate::raw_server::{RawServer, answer};

const BEARER: (&str, &str) = ("authorization", "Bearer secret");
const BROWSER: (&str, &str) = ("accept", "text/html");
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const TOKEN: &str = "[server]\ntokens = [\"secret\"]\n";

/// A few megabytes of nested JSON in an item, which are a gigabyte with a line and its indent for each value.
#[test]
fn a_page_of_nested_data_takes_little_memory() {
    let folder = TestFolder::new(&format!("{TOKEN}[[feed]]\nid = \"notes\"\n"));
    let server = folder.serve();
    for version in 1..=2 {
        let nested = format!("{}{}{version}{}", "[".repeat(120), "1,".repeat(1 << 21), "]".repeat(120));
        let line = format!(r#"{{"id":"deep","item":{{"title":"Deep","extra":{{"x":{nested}}}}}}}"#);
        let put = server.ask("POST", "/feeds/notes/items", &[BEARER], line.as_bytes());
        assert_eq!(put.status, 200, "{}", put.text());
    }
    for (path, shown) in [
        ("/feeds/notes/items/deep", "Further data"),
        ("/feeds/notes/items/deep?version=2&with=1", "too long to be compared"),
    ] {
        let page = server.ask("GET", path, &[BROWSER], b"");
        assert!(page.status == 200 && page.text().contains(shown), "{path}: {}", page.text());
        assert!(page.text().len() < 100_000, "{path}: {} bytes", page.text().len());
    }
    let peak = peak_mib(server.pid()).unwrap();
    assert!(peak < 700, "{peak} MiB");
    // Those that wait for their turn hold nothing.
    std::thread::scope(|scope| {
        for _ in 0..6 {
            let path = "/feeds/notes/items/deep?version=2&with=1";
            scope.spawn(|| assert_eq!(server.ask("GET", path, &[BROWSER], b"").status, 200));
        }
    });
    let peak = peak_mib(server.pid()).unwrap();
    assert!(peak < 900, "{peak} MiB for six at once");
}

/// Each guess of a token costs as much as twenty pages, whatever it is sent to.
#[test]
fn tokens_are_not_guessed_quickly() {
    let limits = "trusted_proxies = [\"127.0.0.0/8\"]\n[server.rate_limit]\nper_second = 1\nburst = 100\n[[feed]]\nid = \"notes\"\n";
    let folder = TestFolder::new(&format!("{TOKEN}{limits}"));
    let server = folder.serve_as("http://feeds.example");
    let guess = |number: usize, way: usize, client: &str| {
        let bearer = format!("Bearer guess{number}");
        let headers = [("x-forwarded-for", client), ("authorization", bearer.as_str())];
        match way {
            0 => server.ask("PUT", "/feeds/notes/items/a", &headers, b"x"),
            1 => server.ask("GET", "/feeds/notes/items/a", &headers, b""),
            _ => {
                let body = format!("token=guess{number}");
                server.ask("POST", "/sign-in", &[headers[0], FORM], body.as_bytes())
            }
        }
    };
    for way in 0..3 {
        let client = format!("192.0.2.{way}");
        let refused = (0..50).find(|number| guess(*number, way, &client).status == 429);
        // 5 at once, and one in 20 seconds.
        assert!(refused.is_some_and(|number| number < 10), "way {way}: {refused:?}");
        // The holder of a token is let in from there.
        let headers = [("x-forwarded-for", client.as_str()), BEARER];
        assert!(server.ask("PUT", "/feeds/notes/items/a", &headers, b"x").status < 300);
    }
}

/// A stream that begins with the past costs as much as pages of it.
#[test]
fn streams_cost_what_they_send() {
    let limits = "trusted_proxies = [\"127.0.0.0/8\"]\n[server.rate_limit]\nper_second = 1\nburst = 100\n";
    let folder = TestFolder::new(&format!("{TOKEN}{limits}[[feed]]\nid = \"notes\"\n"));
    let server = folder.serve_as("http://feeds.example");
    let text = "x".repeat(400_000);
    for number in 0..30 {
        let put = server.ask("PUT", &format!("/feeds/notes/items/{number}"), &[BEARER], text.as_bytes());
        assert_eq!(put.status, 201, "{}", put.text());
    }
    for (client, path) in [("192.0.2.1", "/feeds/notes/events"), ("192.0.2.2", "/feeds/events?feed=notes")] {
        let from = [("x-forwarded-for", client)];
        let list = || server.ask("GET", "/feeds?status", &from, b"").status;
        assert_eq!(list(), 200);
        let path = format!("{path}{}last=30", if path.contains('?') { '&' } else { '?' });
        let mut stream = std::net::TcpStream::connect(server.base.strip_prefix("http://").unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: feeds.example\r\nX-Forwarded-For: {client}\r\n\r\n")
            .unwrap();
        std::io::copy(&mut stream.take(30 * 400_000), &mut std::io::sink()).unwrap();
        assert_eq!(list(), 429, "{path}");
    }
}

fn sign_in(server: &TestServer) -> (String, String) {
    let signed_in = server.ask("POST", "/sign-in", &[FORM], b"token=secret");
    let cookie = signed_in.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let shown = server.ask("GET", "/check", &[("cookie", &cookie)], b"").text();
    let secret = shown.split("name=\"form_secret\" value=\"").nth(1).and_then(|rest| rest.split('"').next());
    (cookie, secret.unwrap().to_owned())
}

/// The page's check reads less than the command line's.
#[test]
fn a_check_of_the_page_reads_no_more_than_its_limit() {
    let large = format!("<rss><channel><title>{}</title></channel></rss>", "x".repeat(17 << 20));
    let origin = runtime();
    let origin_server = origin.block_on(RawServer::start(move |_| answer("200 OK", "", &large)));
    let folder = TestFolder::new(&format!("{TOKEN}private_fetches = \"all\"\n"));
    let server = folder.serve();
    let (cookie, secret) = sign_in(&server);
    let body = format!("form_secret={secret}&url={}", origin_server.url("/rss"));
    let page: TestResponse =
        ask_at(&server.base, "POST", "/check", &[FORM, ("cookie", &cookie)], body.as_bytes()).unwrap();
    assert!(page.status == 200 && page.text().contains("(limit: max_mib)"), "{}", page.text());
}

/// A sink that follows another server's feed keeps to its limits, and names them.
#[test]
fn a_sink_reads_no_more_than_its_limits() {
    let origin = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let publisher = origin.serve();
    let lines: String = (0..3).map(|n| json!({ "id": n.to_string() }).to_string() + "\n").collect();
    assert_eq!(publisher.ask("POST", "/feeds/notes/items", &[], lines.as_bytes()).status, 200);
    let sink = |name: &str, items: u32| {
        format!(
            "[[sink]]\nname = \"{name}\"\nurl = \"{}/feeds/notes/items\"\nprotocol = \"smart\"\ninto = \"sqlite:{name}.db\"\n\
             [sink.limits]\nitems = {items}\n",
            publisher.base
        )
    };
    let folder = TestFolder::new(&format!("{}{}", sink("few", 2), sink("enough", 3)));
    let server = folder.serve();
    server.wait_for("/sinks/few", |view| view.to_string().contains("(limit: items)"));
    server.wait_for("/sinks/enough", |view| view["delivered"] == 3);
}

/// Whoever could not read a private feed must not learn, from the way it is absent, that it was there.
#[test]
fn the_name_of_a_removed_private_feed_is_not_told() {
    let tokens = format!(
        "{TOKEN}[[token]]\nname = \"reader\"\nhash = \"{}\"\nrights = [\"read\"]\nfeeds = [\"sec*\"]\n",
        towpath::config::TokenDigest::of("read3r").to_config()
    );
    let feeds = "[[feed]]\nid = \"secret\"\nreaders = [\"its-own\"]\n[[feed]]\nid = \"open\"\n";
    let folder = TestFolder::new(&format!("{tokens}{feeds}"));
    let server = folder.serve();
    for feed in ["secret", "open"] {
        let put = server.ask("PUT", &format!("/feeds/{feed}/items/a"), &[BEARER], b"x");
        assert_eq!(put.status, 201, "{}", put.text());
    }
    server.wait_for("/diff/open/head.json", |head| head["changed"].is_boolean());
    folder.write("towpath.toml", tokens.as_bytes());
    assert!(folder.run(&["reload"]).status.success());
    let check = |server: &TestServer| {
        let ask = |method: &str, path: &str, feed: &str, headers: &[(&str, &str)]| {
            let answer = server.ask(method, &path.replace("FEED", feed), headers, b"x");
            (answer.status, answer.text().replace(feed, "FEED"))
        };
        for (method, path) in [
            ("GET", "/feeds/FEED"),
            ("GET", "/feeds/FEED/items"),
            ("GET", "/feeds/FEED/items/a"),
            ("GET", "/feeds/FEED/events"),
            ("GET", "/feeds/events?feed=FEED"),
            ("GET", "/feeds/FEED/atom"),
            ("GET", "/feeds/FEED/replication"),
            ("GET", "/feeds/FEED/snapshots"),
            ("GET", "/feeds/FEED/nonsense"),
            ("GET", "/diff/FEED/head.json"),
            ("GET", "/archive/FEED/index.json"),
            ("POST", "/feeds/FEED/hub"),
            ("POST", "/feeds/FEED/callback"),
            ("POST", "/feeds/FEED/read-links"),
            ("PUT", "/feeds/FEED/items/b"),
            ("POST", "/feeds/FEED/items"),
        ] {
            // A stranger, the feed's former reader, and a wait for a position of its log.
            for headers in
                [&[][..], &[("authorization", "Bearer its-own")], &[("towpath-position", "1")], &[BROWSER]]
            {
                let hidden = ask(method, path, "secret", headers);
                let absent = ask(method, path, "absent", headers);
                assert_eq!(hidden, absent, "{method} {path} {headers:?}");
            }
        }
        let reader = ("authorization", "Bearer read3r");
        for (feed, headers, status) in [
            ("secret", &[reader][..], 410),
            ("absent", &[reader], 404),
            ("open", &[], 410),
            ("open", &[reader], 410),
        ] {
            assert_eq!(ask("GET", "/feeds/FEED/items", feed, headers).0, status, "{feed} {headers:?}");
        }
    };
    check(&server);
    // The configuration knows nothing of it any more.
    assert_eq!(server.stop(), Some(0));
    check(&folder.serve());
}
