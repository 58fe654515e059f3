//! Sources over HTTP, from servers that are correct, faulty, slow or endless.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::common::web_session::Session;
use crate::common::{TestFolder, TestServer, stdout, wait_until};
use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, redirect, send};

/// RSS feed with one item.
fn rss(id: &str, title: &str) -> String {
    format!(
        "<rss version=\"2.0\"><channel><title>t</title><item><guid>{id}</guid><title>{title}</title></item></channel></rss>"
    )
}

/// Scripted server, on a runtime of its own.
fn raw(script: impl Fn(&ReceivedRequest) -> Vec<ScriptStep> + Send + Sync + 'static) -> (Runtime, RawServer) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(RawServer::start(script));
    (runtime, server)
}

/// Folder whose one feed polls `path` of the server.
fn dir(server: &RawServer, path: &str, more: &str) -> TestFolder {
    let url = server.url(path);
    TestFolder::new(&format!("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"{url}\"\nevery = 1\n{more}"))
}

fn pass(dir: &TestFolder) -> String {
    stdout(&dir.run(&["run"])).lines().nth(1).unwrap().to_owned()
}

fn title(server: &TestServer, id: &str) -> String {
    server.json(&format!("/feeds/aa/items/{id}?as=line"))["item"]["title"].as_str().unwrap().to_owned()
}

/// Peak memory of a process, in MiB.
fn peak_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[test]
fn a_document_that_did_not_change_costs_a_304() {
    let (_runtime, origin) = raw(|asked| {
        if asked.head.contains("if-none-match: \"v1\"") {
            return vec![send("HTTP/1.1 304 Not Modified\r\nETag: \"v1\"\r\n\r\n")];
        }
        answer("200 OK", "ETag: \"v1\"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n", rss("1", "One"))
    });
    let dir = dir(&origin, "/feed", "");
    assert!(pass(&dir).contains(" ok"));
    assert!(pass(&dir).ends_with(" ok"));
    let asked = origin.asked();
    assert_eq!(asked.len(), 2);
    assert!(!asked[0].head.contains("if-none-match"));
    assert!(asked[1].head.contains("if-none-match: \"v1\"") && asked[1].head.contains("if-modified-since"));
    assert!(asked[0].head.contains("accept-encoding") && asked[0].head.contains("user-agent: towpath"));
}

#[test]
fn a_permanent_redirect_is_remembered() {
    let (_runtime, origin) = raw(|asked| match asked.path.as_str() {
        "/old" => redirect(301, "/new"),
        "/now" => redirect(302, "/new"),
        "/loop" => redirect(302, "/loop"),
        _ => answer("200 OK", "", rss("1", "One")),
    });
    let asked = |path: &str| {
        let dir = dir(&origin, path, "");
        let before = origin.asked().len();
        let passes = [pass(&dir), pass(&dir)];
        let asked = origin.asked()[before..].iter().map(|asked| asked.path.clone()).collect::<Vec<_>>();
        (asked, passes)
    };
    assert_eq!(asked("/old").0, ["/old", "/new", "/new"]);
    // A temporary redirect is asked for again: its target may change tomorrow.
    assert_eq!(asked("/now").0, ["/now", "/new", "/now", "/new"]);
    assert!(asked("/loop").1[0].contains("REDIRECT"));
}

/// RFC 9110, section 8.8.3: a tag is of one resource. A redirect that leads to another one with the same tag must not end
/// with its 304.
#[test]
fn a_304_of_another_document_is_no_news() {
    let first = std::sync::atomic::AtomicBool::new(true);
    let (_runtime, origin) = raw(move |asked| match asked.path.as_str() {
        "/latest" if first.swap(false, std::sync::atomic::Ordering::Relaxed) => redirect(302, "/a"),
        "/latest" => redirect(302, "/b"),
        "/b" if asked.head.contains("if-none-match: \"1\"") => {
            vec![send("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n")]
        }
        path => answer("200 OK", "ETag: \"1\"\r\n", rss(&path[1..], "One")),
    });
    let dir = dir(&origin, "/latest", "");
    assert!(pass(&dir).ends_with(" ok") && pass(&dir).ends_with(" ok"));
    assert_eq!(title(&dir.serve(), "b"), "One");
}

/// A source that moved for good is asked for at its configured address again once the new one fails for some time.
#[test]
fn a_permanent_redirect_is_reconsidered() {
    let is_moved = std::sync::atomic::AtomicBool::new(true);
    let answers = std::sync::atomic::AtomicBool::new(true);
    let (_runtime, origin) = raw(move |asked| match asked.path.as_str() {
        "/old" if is_moved.swap(false, std::sync::atomic::Ordering::Relaxed) => redirect(301, "/new"),
        "/old" => answer("200 OK", "", rss("2", "Back")),
        _ if answers.swap(false, std::sync::atomic::Ordering::Relaxed) => {
            answer("200 OK", "", rss("1", "One"))
        }
        _ => answer("500 Broken", "", ""),
    });
    let dir = dir(&origin, "/old", "");
    let passes: Vec<String> = (0..5).map(|_| pass(&dir)).collect();
    assert!(passes[0].ends_with(" ok") && passes[4].ends_with(" ok"), "{passes:?}");
    for failed in &passes[1..4] {
        // The address that failed is named.
        assert!(failed.contains("HTTP_500") && failed.contains("which moved to"), "{passes:?}");
    }
    assert_eq!(title(&dir.serve(), "2"), "Back");
}

#[test]
fn codings_and_character_sets() {
    let gzip = |text: &[u8]| {
        let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        coder.write_all(text).unwrap();
        coder.finish().unwrap()
    };
    let mut brotli = Vec::new();
    brotli::CompressorWriter::new(&mut brotli, 4096, 5, 20).write_all(rss("1", "Brötli").as_bytes()).unwrap();
    let declared =
        b"<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><rss version=\"2.0\"><channel><item><guid>1</guid>\
                     <title>caf\xe9</title></item></channel></rss>";
    // Only the header names this charset; the document declares none.
    let cyrillic = b"<rss version=\"2.0\"><channel><item><guid>1</guid><title>\xcf\xf0\xe8\xe2\xe5\xf2</title></item></channel></rss>";
    let wide: Vec<u8> =
        // Only the byte order mark tells that this is UTF-16.
        format!("\u{feff}{}", rss("1", "Ünïcode 😀")).encode_utf16().flat_map(u16::to_le_bytes).collect();
    let zstd = zstd::encode_all(rss("1", "Zstandard").as_bytes(), 3).unwrap();
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("Content-Encoding: gzip\r\n", gzip(rss("1", "Gzip").as_bytes()), "Gzip"),
        ("Content-Encoding: br\r\n", brotli, "Brötli"),
        ("Content-Encoding: zstd\r\n", zstd, "Zstandard"),
        ("Content-Type: text/xml\r\n", declared.to_vec(), "café"),
        ("Content-Type: application/rss+xml; charset=windows-1251\r\n", cyrillic.to_vec(), "Привет"),
        ("Content-Type: application/rss+xml\r\n", wide, "Ünïcode 😀"),
    ];
    for (headers, body, expected) in cases {
        let (_runtime, origin) = raw(move |_| answer("200 OK", headers, &body));
        let dir = dir(&origin, "/feed", "");
        let printed = pass(&dir);
        assert!(printed.ends_with(" ok"), "{headers}{printed}");
        assert_eq!(title(&dir.serve(), "1"), expected, "{headers}");
    }
}

#[test]
fn error_responses_keep_every_item() {
    type Case = (&'static str, fn() -> Vec<ScriptStep>);
    let cases: [Case; 11] = [
        // Nothing that it could mean: the first answer has no validator.
        ("HTTP_304", || vec![send("HTTP/1.1 304 Not Modified\r\n\r\n")]),
        ("HTTP_404", || answer("404 Not Found", "", "no")),
        ("HTTP_500", || answer("500 Oops", "", "no")),
        ("HTTP_503", || answer("503 Later", "Retry-After: 60\r\n", "no")),
        ("TRUNCATED", || vec![send("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n<rss"), ScriptStep::Close]),
        ("TRUNCATED", || answer("200 OK", "Content-Encoding: gzip\r\n", b"\x1f\x8bnot gzip")),
        ("UNKNOWN_CODING", || answer("200 OK", "Content-Encoding: foo\r\n", rss("1", "Two"))),
        ("UNKNOWN_CODING", || {
            answer("200 OK", "Content-Encoding: deflate\r\nContent-Encoding: gzip\r\n", "?")
        }),
        ("NETWORK_ERROR", || vec![send("nonsense\r\n\r\n"), ScriptStep::Close]),
        ("NETWORK_ERROR", || vec![ScriptStep::Close]),
        ("PARSE_ERROR", || answer("200 OK", "Content-Type: text/html\r\n", "<!doctype html><p>Hello</p>")),
    ];
    for (code, steps) in cases {
        let first = std::sync::atomic::AtomicBool::new(true);
        let (_runtime, origin) = raw(move |_| {
            if first.swap(false, std::sync::atomic::Ordering::SeqCst) {
                return answer("200 OK", "Connection: close\r\n", rss("1", "One"));
            }
            steps()
        });
        let dir = dir(&origin, "/feed", "");
        assert!(pass(&dir).ends_with(" ok"), "{code}");
        let printed = pass(&dir);
        assert!(printed.contains(code) && printed.contains(&origin.base), "{code}: {printed}");
        let server = dir.serve();
        assert_eq!(title(&server, "1"), "One", "{code}");
        let source = &server.json("/diff/aa/latest.json")["sources"]["aa"];
        assert_eq!(
            (source["status"].as_str(), source["error"]["code"].as_str()),
            (Some("error"), Some(code))
        );
        let status = code.strip_prefix("HTTP_").map(|status| status.parse::<u64>().unwrap());
        assert_eq!(source["error"]["http_status"].as_u64(), status);
    }
}

#[test]
fn retry_after_is_honoured_and_failures_back_off() {
    let (_runtime, origin) = raw(|asked| match asked.path.as_str() {
        "/busy" => answer("429 Too Many", "Retry-After: 600\r\n", "later"),
        _ => answer("500 Oops", "", "no"),
    });
    let feed = |id: &str| {
        let url = origin.url(&format!("/{id}"));
        format!("[[feed]]\nid = \"{id}\"\n[feed.source]\nurl = \"{url}\"\nevery = 1\n")
    };
    let dir = TestFolder::new(&(feed("busy") + &feed("broken")));
    let server = dir.serve();
    let asked = |path: &str| origin.asked().iter().filter(|asked| asked.path == path).count();
    let end = Instant::now() + crate::common::PATIENCE;
    while asked("/broken") < 3 {
        assert!(Instant::now() < end, "the broken one is asked again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(asked("/busy"), 1);
    // A restart does not poll earlier either.
    server.kill();
    let server = dir.serve();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(asked("/busy"), 1);
    assert_eq!(server.json("/healthz.json")["sources_stale"], serde_json::json!(["broken", "busy"]));
}

#[test]
fn endless_bodies_and_bombs_take_bounded_memory_and_stalls_end() {
    let zeros = vec![0; 1 << 20];
    // 256 MiB decoded, far over the 16 MiB of `max_mib`.
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for _ in 0..256 {
        bomb.write_all(&zeros).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    let (_runtime, origin) = raw(move |asked| match asked.path.as_str() {
        "/announced" => vec![
            send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"),
            ScriptStep::Flood(vec![b' '; 65536]),
        ],
        "/endless" => vec![send("HTTP/1.1 200 OK\r\n\r\n"), ScriptStep::Flood(vec![b' '; 65536])],
        "/endlesshead" => vec![send("HTTP/1.1 200 OK\r\nX: "), ScriptStep::Flood(vec![b'x'; 65536])],
        "/bomb" => answer("200 OK", "Content-Encoding: gzip\r\n", &bomb),
        "/stalled" => vec![
            send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<rss"),
            ScriptStep::Pause(Duration::from_secs(600)),
        ],
        _ => vec![ScriptStep::Pause(Duration::from_secs(600))],
    });
    let names = ["announced", "bomb", "endless", "endlesshead", "silent", "stalled"];
    let feed = |id: &&str| {
        let url = origin.url(&format!("/{id}"));
        format!(
            "[[feed]]\nid = \"{id}\"\n[feed.source]\nurl = \"{url}\"\nevery = 1\nmax_mib = 16\ntimeout = \"5s\"\n"
        )
    };
    let dir = TestFolder::new(&names.iter().map(feed).collect::<String>());
    let server = dir.serve();
    let expected = ["TOO_LARGE", "TOO_LARGE", "TOO_LARGE", "NETWORK_ERROR", "TIMEOUT", "TIMEOUT"];
    server.wait_for("/diff/sources.json", |list| {
        let codes = list["sources"].as_array().unwrap().iter().map(|source| source["error"]["code"].as_str());
        codes.eq(expected.map(Some))
    });
    let peak = peak_mib(server.pid());
    // Six sources with 16 MiB each, and the server itself.
    assert!(peak < 200, "{peak} MiB");
    assert_eq!(server.stop(), Some(0));
}

const SECRETS: &str = "[feed.source.headers]\nAuthorization = \"Bearer s3cret\"\nX-Api-Key = \"s3cret\"\n";

/// Configured headers are sent to their own server only: neither while a redirect is followed, nor by later polls,
/// which start at the redirect's target.
#[test]
fn headers_go_to_the_configured_origin_only() {
    let (_elsewhere, elsewhere) = raw(|_| answer("200 OK", "", rss("1", "One")));
    let away = elsewhere.url("/new");
    let (_runtime, origin) = raw(move |asked| match asked.path.as_str() {
        "/away" => redirect(301, &away),
        "/near" => redirect(301, "/feed"),
        _ => answer("200 OK", "", rss("1", "One")),
    });
    let knows = |asked: &ReceivedRequest| {
        [asked.head.contains("authorization: bearer s3cret"), asked.head.contains("x-api-key: s3cret")]
    };
    for (path, of_origin, of_elsewhere) in [("/away", 1, 2), ("/near", 1 + 3, 2)] {
        let dir = dir(&origin, path, SECRETS);
        for _ in 0..2 {
            let printed = pass(&dir);
            assert!(printed.ends_with(" ok"), "{path}: {printed}");
        }
        assert_eq!((origin.asked().len(), elsewhere.asked().len()), (of_origin, of_elsewhere), "{path}");
    }
    for asked in origin.asked() {
        assert_eq!(knows(&asked), [true, true], "{}", asked.head);
    }
    for asked in elsewhere.asked() {
        assert_eq!(knows(&asked), [false, false], "{}", asked.head);
    }
}

/// Feeds have readers beside the configuration's owner: user names, passwords and keys in an address are the owner's
/// only.
#[test]
fn credentials_in_an_address_are_sent_and_redacted() {
    let (_runtime, origin) = raw(|asked| match asked.path.split('?').next().unwrap() {
        "/feed" => answer(
            "200 OK",
            "",
            "<rss version=\"2.0\"><channel><item><guid>1</guid><link>one</link></item></channel></rss>",
        ),
        "/html" => answer("200 OK", "Content-Type: text/html\r\n", "<!doctype html><p>Hello</p>"),
        "/loop" => redirect(302, &asked.path),
        "/old" => redirect(302, "ftp://ann:pa55@x/?key=s3cret"),
        _ => answer("404 Not Found", "", "no"),
    });
    let host = origin.base.strip_prefix("http://").unwrap().to_owned();
    let source = |(id, how): (&str, &str)| {
        let url = format!("http://ann:pa55@{host}/{id}?key=s3cret");
        format!("[[feed]]\nid = \"{id}\"\n[feed.source]\n{how} = \"{url}\"\nevery = 1\n")
    };
    let feeds = [
        ("feed", "url"),
        ("html", "url"),
        ("loop", "url"),
        ("old", "url"),
        ("none", "url"),
        ("copy", "follow"),
    ];
    let dir = TestFolder::new(&feeds.map(source).concat());
    let mut printed = stdout(&dir.run(&["run"]));
    let asked = origin.asked();
    // ann:pa55
    assert!(asked.iter().any(|asked| asked.head.contains("authorization: basic yw5uonbhntu=")));
    assert!(asked.iter().any(|asked| asked.path == "/feed?key=s3cret"));
    let server = dir.serve();
    server.wait_for("/feeds/copy", |feed| feed["source"]["error"].is_object());
    for (id, _) in feeds {
        let feed = server.json(&format!("/feeds/{id}"));
        assert_eq!(feed["source"]["address"], format!("http://{host}/{id}?…"));
        assert_eq!(feed["source"]["error"].is_object(), id != "feed", "{feed}");
        printed += &feed.to_string();
        printed += &server.ask("GET", &format!("/feeds/{id}"), &[("Accept", "text/html")], b"").text();
        printed += &server.get(&format!("/feeds/{id}/source")).text();
        printed += &server.get(&format!("/feeds/{id}/atom")).text();
        printed += &server.ask("PUT", &format!("/feeds/{id}/items/x"), &[], b"x").text();
    }
    printed += &server.get("/diff/sources.json").text();
    printed += &server.get("/diff/feed/latest.json").text();
    printed += &stdout(&dir.run(&["status", "--server", &server.base]));
    printed += &dir.log();
    assert!(printed.contains("HTTP_404") && printed.contains(&format!("http://{host}/one")), "{printed}");
    // Everything that readers and operators get to see.
    for line in printed.lines() {
        assert!(!line.contains("pa55") && !line.contains("s3cret"), "{line}");
    }
}

/// Language, home, description, image and author of a source arrive in every document of its feed; what the
/// configuration says goes before them.
#[test]
fn a_source_describes_its_feed() {
    let (_runtime, origin) = raw(|_| {
        let text = "<rss version=\"2.0\"><channel><title>t</title><link>/blog/</link><language>pt-br</language>\
            <description>All &amp; more</description><managingEditor>ann@a.example (Ann)</managingEditor>\
            <image><url>/logo.png</url></image>\
            <item><guid>1</guid><title>One</title></item></channel></rss>";
        answer("200 OK", "", text)
    });
    let dir = dir(&origin, "/feed", "");
    let config = std::fs::read_to_string(dir.path("towpath.toml")).unwrap();
    let described = config.replace("[feed.source]", "description = \"Ours\"\n[feed.source]");
    dir.write("towpath.toml", described.as_bytes());
    assert!(pass(&dir).contains(" ok"));
    let server = dir.serve();
    let atom = server.get("/feeds/aa/atom").text();
    assert!(atom.contains("xml:lang=\"pt-br\"") && atom.contains("<subtitle>Ours</subtitle>"), "{atom}");
    let (home, image) = (origin.url("/blog/"), origin.url("/logo.png"));
    assert!(atom.contains(&format!("<link rel=\"alternate\" href=\"{home}\"/>")), "{atom}");
    assert!(atom.contains(&format!("<logo>{image}</logo>")) && atom.contains("<name>Ann</name>"), "{atom}");
    let rss = server.get("/feeds/aa/rss").text();
    assert!(
        rss.contains(&format!("<link>{home}</link>")) && rss.contains("<language>pt-br</language>"),
        "{rss}"
    );
    assert!(rss.contains("<managingEditor>ann@a.example (Ann)</managingEditor>"), "{rss}");
    let json = server.json("/feeds/aa/feed.json");
    assert_eq!((&json["home_page_url"], &json["icon"]), (&home.into(), &image.into()));
    assert_eq!(json["authors"][0]["name"], "Ann");
    let item = server.wait_for("/diff/aa/latest.json", |latest| latest["buckets"]["new"][0].is_object());
    assert_eq!(item["buckets"]["new"][0]["content"]["lang"], "pt");
}

/// Folder whose feed has this source.
fn source(server: &RawServer, path: &str, more: &str) -> TestFolder {
    TestFolder::new(&format!("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"{}\"\n{more}", server.url(path)))
}

const JSON: &str = "Content-Type: application/json\r\n";

#[test]
fn pages_are_read_up_to_a_limit() {
    let (_runtime, origin) = raw(|asked| match asked.path.as_str() {
        "/items" => answer("200 OK", JSON, r#"{"data": [{"id": 1}], "next_url": "/items?page=2"}"#),
        "/items?page=2" => answer("200 OK", JSON, r#"{"data": [{"id": 2}], "next_url": "/items?page=3"}"#),
        "/items?page=3" => answer("200 OK", JSON, r#"{"data": [{"id": 3}], "next_url": null}"#),
        "/cursor" => answer("200 OK", JSON, r#"{"data": [{"id": 1}], "cursor": "a b"}"#),
        "/cursor?c=a+b" => answer("200 OK", JSON, r#"{"data": [{"id": 2}], "cursor": ""}"#),
        "/link" => answer("200 OK", "Link: </link/2>; rel=\"next\"\r\n", r#"{"data": [{"id": 1}]}"#),
        "/link/2" => answer("200 OK", "", r#"{"data": [{"id": 2}]}"#),
        "/still" => answer("200 OK", JSON, r#"{"data": [{"id": 1}], "next_url": "/still"}"#),
        "/broken" => answer("200 OK", JSON, r#"{"data": [{"id": 1}], "next_url": "/missing"}"#),
        _ => answer("404 Not Found", "", ""),
    });
    let polled = |path: &str, paging: &str| {
        let json = "[feed.source.json]\nitems = \"/data\"\nid = \"/id\"\n";
        let more = format!("format = \"json\"\ncomplete = true\n{json}[feed.source.paging]\n{paging}\n");
        let dir = source(&origin, path, &more);
        let row = pass(&dir);
        (row.split_whitespace().nth(1).unwrap().to_owned(), row)
    };
    assert_eq!(polled("/items", "next = \"/next_url\"").0, "3");
    assert_eq!(polled("/cursor", "cursor = \"/cursor\"\nparameter = \"c\"").0, "2");
    assert_eq!(polled("/link", "link = true").0, "2");
    let (new, row) = polled("/items", "next = \"/next_url\"\nmax_pages = 2");
    assert!(new == "2" && row.contains("more than 2 pages"), "{row}");
    let (_, row) = polled("/still", "next = \"/next_url\"");
    assert!(row.contains("PAGING: ") && row.contains("leads back"), "{row}");
    // Half of the pages would look like removed items.
    let (new, row) = polled("/broken", "next = \"/next_url\"");
    assert!(new == "0" && row.contains("HTTP_404"), "{row}");
}

/// An item without an id may be any known one.
#[test]
fn a_complete_listing_removes_nothing_while_an_item_is_left_out() {
    let polls = std::sync::atomic::AtomicUsize::new(0);
    let (_runtime, origin) = raw(move |_| {
        let list = match polls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => r#"[{"id": 1}, {"id": 2}, {"id": 3}]"#,
            1 => r#"[{"id": 1}, {"ID": 2}]"#,
            _ => r#"[{"id": 1}]"#,
        };
        answer("200 OK", JSON, list)
    });
    let dir =
        source(&origin, "/list", "format = \"json\"\ncomplete = true\n[feed.source.json]\nid = \"/id\"\n");
    let removed = |row: &str| row.split_whitespace().nth(3).unwrap().to_owned();
    assert_eq!(removed(&pass(&dir)), "0");
    let row = pass(&dir);
    assert!(
        removed(&row) == "0" && row.contains("1 left out") && row.contains("nothing is removed"),
        "{row}"
    );
    assert_eq!(removed(&pass(&dir)), "2");
}

#[test]
fn the_pages_of_a_feed_are_linked_in_the_feed() {
    let (_runtime, origin) = raw(|asked| {
        let entry = |id: &str, link: &str| {
            format!(
                "<feed xmlns='http://www.w3.org/2005/Atom'><id>urn:f</id>{link}<entry><id>urn:{id}</id></entry></feed>"
            )
        };
        let body = match asked.path.as_str() {
            "/a" => entry("1", "<link rel='next' href='/a?page=2'/>"),
            _ => entry("2", ""),
        };
        answer("200 OK", "Content-Type: application/atom+xml\r\n", body)
    });
    let dir = source(&origin, "/a", "[feed.source.paging]\nlink = true\n");
    assert_eq!(pass(&dir).split_whitespace().nth(1), Some("2"));
}

#[test]
fn a_request_may_have_headers_and_a_body() {
    let (_runtime, origin) = raw(|asked| {
        let is_query = asked.method == "POST"
            && asked.head.contains("content-type: application/graphql+json")
            && asked.head.contains("x-key: k")
            && asked.body == b"{\"query\": \"{ all }\"}";
        match is_query {
            true => answer("200 OK", "ETag: \"1\"\r\n", r#"{"CVE-1": {"t": "One"}, "CVE/2": {"t": "Two"}}"#),
            false => answer("400 Bad Request", "", asked.head.clone()),
        }
    });
    let more = "format = \"json\"\nbody = '{\"query\": \"{ all }\"}'\n\
        headers = { X-Key = \"k\", Content-Type = \"application/graphql+json\" }\n\
        [feed.source.json]\nid = \"#key\"\ntitle = \"/t\"\nurl = \"https://x.example/{#key}\"\n";
    let dir = source(&origin, "/query", more);
    assert!(pass(&dir).ends_with(" ok"), "{}", pass(&dir));
    // A POST has no conditions.
    assert!(pass(&dir).ends_with(" ok"));
    assert!(!origin.asked()[1].head.contains("if-none-match"));
    let server = dir.serve();
    assert_eq!(title(&server, "CVE-1"), "One");
    let line = server.json("/feeds/aa/items/CVE%2F2?as=line");
    assert_eq!(line["item"]["url"], "https://x.example/CVE%2F2");
}

#[test]
fn a_page_without_a_feed_is_read_by_selectors() {
    let (_runtime, origin) = raw(|_| {
        let page = "<!doctype html><title>Notices</title><ul><li><a href=/n/1>Lock closed</a> <time>2026-03-01</time>\
                    <li><a href=/n/2>Ten <b>boats</b></a></ul>";
        answer("200 OK", "Content-Type: text/html\r\n", page)
    });
    let more = "format = \"html\"\n[feed.source.html]\nitems = \"ul > li\"\ntitle = \"a\"\npublished = \"time\"\n\
                content = \"a\"\n";
    let dir = source(&origin, "/notices", more);
    assert!(pass(&dir).ends_with(" ok"));
    assert!(origin.asked()[0].head.contains("accept: text/html"));
    let server = dir.serve();
    let id = origin.url("/n/2");
    let line =
        server.json(&format!("/feeds/aa/items/{}?as=line", id.replace(':', "%3A").replace('/', "%2F")));
    assert_eq!(
        (line["item"]["title"].as_str(), line["item"]["url"].as_str()),
        (Some("Ten boats"), Some(id.as_str()))
    );
    assert_eq!(line["content"], "Ten <b>boats</b>");
}

/// RFC 9110, section 15.5.11: the publisher wants the links removed.
#[test]
fn a_source_that_is_gone_is_not_polled_any_more() {
    let (_runtime, origin) = raw(|asked| match asked.path.as_str() {
        "/moved" => redirect(301, "/gone"),
        _ => answer("410 Gone", "", ""),
    });
    let gone = source(&origin, "/gone", "every = 1\n");
    let server = gone.serve();
    let state = || server.json("/feeds/aa")["source"].clone();
    server.wait_for("/feeds/aa", |feed| feed["source"]["error"]["code"] == "GONE");
    assert!(state()["error"]["message"].as_str().unwrap().contains("has ended"), "{}", state());
    assert!(state()["next"].is_null(), "{}", state());
    // At an interval of a second, a second poll would have come by now.
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(origin.asked().len(), 1);
    drop(server);
    // On demand it is asked for again.
    assert!(pass(&gone).contains("GONE: "));
    assert_eq!(origin.asked().len(), 2);
}

/// Server whose answer to the first request waits until the gate is open. The later ones have another document.
fn gated(first: String, later: String) -> (Runtime, RawServer, Arc<AtomicBool>) {
    let gate = Arc::new(AtomicBool::new(false));
    let (open, is_first) = (gate.clone(), AtomicBool::new(true));
    let (runtime, origin) = raw(move |_| {
        if !is_first.swap(false, Ordering::SeqCst) {
            return answer("200 OK", "", later.clone());
        }
        let gate = open.clone();
        // The server answers others meanwhile.
        let wait = move || {
            tokio::task::block_in_place(|| {
                for _ in 0..12_000 {
                    if gate.load(Ordering::SeqCst) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        };
        [vec![ScriptStep::Do(Arc::new(wait))], answer("200 OK", "", first.clone())].concat()
    });
    (runtime, origin, gate)
}

/// A poll that runs may have read the source as it was before its operator mended it.
#[test]
fn a_poll_that_is_asked_for_during_another_comes_after_it() {
    let (_runtime, origin, gate) = gated(rss("1", "Old"), rss("1", "Mended"));
    let url = origin.url("/feed");
    let dir = TestFolder::new(&format!(
        "[server]\ntokens = [\"t0ken\"]\n[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"{url}\"\nevery = \"1h\"\n"
    ));
    let server = dir.serve();
    wait_until("the first poll has begun", || origin.asked().len() == 1);
    assert_eq!(Session::begin(&server).send("/feeds/aa/poll", "").status, 303);
    gate.store(true, Ordering::SeqCst);
    wait_until("it is polled again", || {
        server.get("/feeds/aa/items/1").status == 200 && title(&server, "1") == "Mended"
    });
}

/// A poll with the settings before a reload must not write over what those after it give.
#[test]
fn a_reload_ends_polls_with_earlier_settings() {
    let (_runtime, origin, gate) = gated(rss("old", "Old"), rss("new", "New"));
    let config = |path: &str| {
        let url = origin.url(path);
        format!("[[feed]]\nid = \"aa\"\n[feed.source]\nurl = \"{url}\"\nevery = \"1h\"\ncomplete = true\n")
    };
    let dir = TestFolder::new(&config("/old"));
    let server = dir.serve();
    wait_until("the first poll has begun", || origin.asked().len() == 1);
    dir.write("towpath.toml", config("/new").as_bytes());
    assert!(stdout(&dir.run(&["reload"])).contains("1 changed"));
    wait_until("the new source is read", || server.get("/feeds/aa/items/new").status == 200);
    gate.store(true, Ordering::SeqCst);
    // Later than the answer of the old one.
    dir.write("towpath.toml", config("/newer").as_bytes());
    dir.run(&["reload"]);
    wait_until("the newer source is read", || origin.asked().len() == 3);
    let lines = server.get("/feeds/aa/items?timeout=0&as=line").text();
    assert_eq!((lines.lines().count(), lines.contains("\"new\"")), (1, true), "{lines}");
}
