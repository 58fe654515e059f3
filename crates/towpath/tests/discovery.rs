//! Discovery of `follow URL`: the protocol that an address offers, and its endpoint.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use towpath_client::{DiscoverError, FetchOptions, Fetcher, FollowPace, Offer, Protocol, discover};

use crate::raw_server::{RawServer, ReceivedRequest, ScriptStep, answer, redirect, send};

const ATOM: &str = "<feed xmlns='http://www.w3.org/2005/Atom'><title>t</title><entry/></feed>";
const ARCHIVED: &str =
    "<feed xmlns='http://www.w3.org/2005/Atom'><link rel='prev-archive' href='/1'/><entry/></feed>";
const RSS: &str = "<?xml version='1.0'?><rss version='2.0'><channel><title>t</title></channel></rss>";
const SMART: &str = r#"{"items":[],"last_cursor":"1"}"#;
const MANIFEST: &str = r#"{"endpoints":{"diff_latest":"/diff/latest.json"}}"#;

fn typed(media_type: &str, body: impl AsRef<[u8]>) -> Vec<ScriptStep> {
    answer("200 OK", &format!("Content-Type: {media_type}\r\n"), body)
}

fn page(head: &str) -> Vec<ScriptStep> {
    typed(
        "text/html; charset=utf-8",
        format!("<!DOCTYPE html><html><head>{head}</head><body>x</body></html>"),
    )
}

/// A site with valid and invalid documents of every kind.
fn site(asked: &ReceivedRequest) -> Vec<ScriptStep> {
    match asked.path.as_str() {
        "/atom" => typed("application/atom+xml", ATOM),
        // Many servers send feeds as text/html, so the document decides.
        "/atom-as-html" => typed("text/html", ATOM),
        "/archived" => typed("application/atom+xml", ARCHIVED),
        "/archived-by-header" => answer("200 OK", "Link: </1>; rel=\"prev-archive\"\r\n", ATOM),
        "/rss" | "/deep/rss" => typed("application/rss+xml", RSS),
        path if path == "/smart" || path.starts_with("/smart?") => typed("application/json", SMART),
        // The cursor is behind a megabyte of items.
        "/smart-large" => {
            let items = format!(r#"{{"items":[{{"content":"{}"}}],"last_cursor":"1"}}"#, "x".repeat(1 << 20));
            typed("application/json", items)
        }
        // An address silent for two seconds may be a long poll, and is asked not to wait.
        "/held?timeout=0" => {
            let empty = format!(r#"{{"count":0,"totalItems":0,"url":"{}","items":[]}}"#, "http://x/held");
            typed("application/json", empty)
        }
        "/held" => vec![ScriptStep::Pause(Duration::from_secs(300))],
        // As silent as a long poll, and yet none: the first response must still count.
        path if path.starts_with("/slow") => {
            [vec![ScriptStep::Pause(Duration::from_secs(4))], typed("application/rss+xml", RSS)].concat()
        }
        "/pages" => answer("200 OK", "Content-Type: multipart/mixed; boundary=a\r\n", "--a--"),
        "/empty/replication" => answer("404 Nothing", "Content-Type: application/problem+json\r\n", "{}"),
        "/sup.json" => typed("application/json", r#"{"updates":[],"since_time":"","updated_time":""}"#),
        // Without cursors, Activity Streams cannot be followed exactly once.
        "/activities" => typed("application/json", r#"{"items":[{"verb":"post"}],"totalItems":1}"#),
        "/feeds/x" => typed(
            "application/json",
            r#"{"id":"x","addresses":[{"name":"atom","url":"/archived"},{"name":"smart","url":"/smart"}]}"#,
        ),
        "/moved" => redirect(301, "/smart"),
        // HTML pages.
        "/blog" => page(
            "<link rel=alternate type=application/rss+xml href=/rss><link rel=alternate type=application/atom+xml href=archived>",
        ),
        "/equals" => page(
            "<link rel=alternate type=application/atom+xml href=/atom><link rel=alternate type=application/rss+xml href=/rss>",
        ),
        "/based" => page("<base href='/deep/'><link rel='alternate' type='application/rss+xml' href='rss'>"),
        "/by-header" => answer(
            "200 OK",
            "Content-Type: text/html\r\nLink: </smart>; rel=alternate; type=\"application/json\"\r\n",
            "<!doctype html>",
        ),
        "/dead-links" => page(
            "<link rel=alternate type=application/rss+xml href=/gone><link rel=alternate type=application/rss+xml href=/rss>",
        ),
        // Pages that a page names are not followed, or discovery would become a crawl.
        "/itself" => page(
            "<link rel=alternate type=application/atom+xml href=/itself><link rel=alternate type=application/atom+xml href=/blog>",
        ),
        "/no-feed" => page("<link rel=stylesheet href=a.css><a href=/rss>feed</a>"),
        "/many" => page(
            &(0..1000)
                .map(|n| format!("<link rel=alternate type=application/rss+xml href=/gone/{n}>"))
                .collect::<String>(),
        ),
        // Invalid documents.
        "/empty" => typed("application/json", ""),
        "/text" => typed("text/plain", "hello"),
        "/opml" => typed("text/xml", "<opml version='2.0'/>"),
        // Deep enough to overflow the stack of a recursive parser.
        "/deep-xml" => typed("text/xml", "<a>".repeat(100_000)),
        "/deep-json" => typed("application/json", "{\"a\":".repeat(100_000)),
        "/endless" => vec![
            send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"a\":\""),
            ScriptStep::Flood(vec![b'x'; 1 << 16]),
        ],
        "/broken" => answer("500 Broken", "Retry-After: 7\r\n", SMART),
        "/hang-up" => vec![ScriptStep::Close],
        _ => answer("404 Nothing", "", "nothing"),
    }
}

async fn found(server: &RawServer, path: &str) -> Result<Offer, DiscoverError> {
    let fetcher = Fetcher::new(FetchOptions::default()).unwrap().with_named([server.base.as_str()]);
    discover(&fetcher, &server.url(path), FollowPace::Held).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_strongest_offered_protocol_is_chosen() {
    let server = RawServer::start(site).await;
    for (path, protocol, endpoint, why) in [
        ("/atom", Protocol::Rss, "/atom", "it is an Atom feed (best effort)"),
        ("/atom-as-html", Protocol::Rss, "/atom-as-html", "it is an Atom feed"),
        (
            "/archived",
            Protocol::History,
            "/archived",
            "it links to its archives (at least once; weaker: rss)",
        ),
        ("/archived-by-header", Protocol::History, "/archived-by-header", "it links to its archives"),
        ("/rss", Protocol::Rss, "/rss", "it is an RSS feed"),
        ("/smart", Protocol::Smart, "/smart", "last_cursor (exactly once)"),
        ("/smart-large", Protocol::Smart, "/smart-large", "last_cursor"),
        ("/held", Protocol::Smart, "/held", "an empty collection with its totalItems"),
        ("/slow", Protocol::Rss, "/slow", "it is an RSS feed"),
        ("/pages", Protocol::Replication, "/pages", "multipart"),
        ("/empty/replication", Protocol::Replication, "/empty/replication", "empty"),
        ("/sup.json", Protocol::Sup, "/sup.json", "SUP document"),
        ("/feeds/x", Protocol::Smart, "/smart", "list of addresses names it (exactly once; weaker: history)"),
        ("/moved", Protocol::Smart, "/smart", "last_cursor"),
        ("/blog", Protocol::History, "/archived", "the page names it: it links to its archives"),
        ("/equals", Protocol::Rss, "/atom", "the page names it: it is an Atom feed"),
        ("/based", Protocol::Rss, "/deep/rss", "the page names it"),
        ("/by-header", Protocol::Smart, "/smart", "the page names it"),
        ("/dead-links", Protocol::Rss, "/rss", "the page names it"),
    ] {
        let offer = found(&server, path).await.unwrap();
        assert_eq!((offer.protocol, offer.url), (protocol, server.url(endpoint)), "{path}");
        assert!(offer.why.contains(why), "{path}: {}", offer.why);
    }
}

/// DiffDelta, section 8: a site's manifest is at a well-known address.
#[tokio::test(flavor = "multi_thread")]
async fn a_sites_root_is_discovered_by_its_manifest() {
    let server = RawServer::start(|asked| match asked.path.as_str() {
        "/.well-known/diffdelta.json" => typed("application/json", MANIFEST),
        _ => page("<link rel=alternate type=application/rss+xml href=/rss>"),
    })
    .await;
    let offer = found(&server, "/").await.unwrap();
    assert_eq!(offer.protocol, Protocol::DiffDelta);
    assert_eq!(offer.url, server.url("/.well-known/diffdelta.json"));
    assert!(offer.why.starts_with("the site has a DiffDelta manifest (exactly once"), "{}", offer.why);
    // Without a manifest the page's own links count.
    let without = RawServer::start(|asked| match asked.path.as_str() {
        "/" => page("<link rel=alternate type=application/rss+xml href=/rss>"),
        _ => site(asked),
    })
    .await;
    assert_eq!(found(&without, "/").await.unwrap().url, without.url("/rss"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_is_no_feed_is_named_soon() {
    let server = RawServer::start(site).await;
    let begun = Instant::now();
    for (path, what) in [
        ("/itself", "a page that links to no feed"),
        ("/no-feed", "a page that links to no feed"),
        ("/many", "a page that links to no feed"),
        ("/empty", "an empty document"),
        ("/text", "text/plain"),
        ("/opml", "text/xml"),
        ("/deep-xml", "text/xml"),
        ("/deep-json", "application/json"),
        ("/endless", "application/json"),
        ("/activities", "a collection without Smart Feeds' cursors"),
        ("/gone", "the server answers 404"),
        ("/broken", "the server answers 500"),
        ("/hang-up", "closed the connection"),
    ] {
        let error = found(&server, path).await.unwrap_err();
        assert!(error.to_string().contains(what), "{path}: {error}");
        assert!(error.to_string().contains(&server.url(path)), "{path}: {error}");
        if let DiscoverError::Status { status: 500, retry_after, .. } = error {
            assert_eq!(retry_after, Some(Duration::from_secs(7)));
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let asked = server.asked().iter().filter(|asked| asked.path.starts_with("/gone/")).count();
    assert!(asked <= 6, "{asked} of a page's thousand links are looked at");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_says_what_it_chose_and_why() {
    let server = RawServer::start(site).await;
    let run = |args: Vec<String>| {
        tokio::task::spawn_blocking(move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_towpath"));
            let output = command.args(&args).stdin(Stdio::null()).output().unwrap();
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        })
    };
    let args = |command: &str, path: &str, more: &[&str]| {
        let mut args = vec![command.to_owned(), server.url(path)];
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        args
    };
    let (code, printed) = run(args("follow", "/by-header", &["--once"])).await.unwrap();
    let expected = format!(
        "towpath: following {} by smart, because the page names it: its JSON is a collection with a last_cursor \
         (exactly once)\n",
        server.url("/smart")
    );
    assert_eq!((code, printed), (Some(0), expected));
    let (code, printed) = run(args("follow", "/sup.json", &["--once"])).await.unwrap();
    assert!(code == Some(2) && printed.contains("follow the feeds themselves"), "{code:?} {printed}");
    let (code, printed) = run(args("check", "/sup.json", &[])).await.unwrap();
    assert!(
        code == Some(1) && printed.contains("for sup, because it is a SUP document"),
        "{code:?} {printed}"
    );
}

/// `[feed.source] follow` discovers as `towpath follow` does.
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_follows_the_feed_that_a_page_links() {
    let item = "<item><guid>urn:1</guid><title>one</title></item>";
    let rss = RSS.replace("</channel>", &format!("{item}</channel>"));
    let server = RawServer::start(move |asked| match asked.path.as_str() {
        "/rss" => typed("application/rss+xml", &rss),
        _ => page("<link rel=alternate type=application/rss+xml href=/rss>"),
    })
    .await;
    let config = format!("[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{}\"\n", server.url("/blog"));
    let seq = tokio::task::spawn_blocking(move || {
        let dir = crate::common::TestFolder::new(&config);
        let copy = dir.serve();
        let state = copy.wait_for("/feeds/copy", |feed| feed["seq"].as_u64() == Some(1));
        assert!(dir.log().contains("protocol=rss because=\"the page names it"), "{}", dir.log());
        state["seq"].clone()
    });
    assert_eq!(seq.await.unwrap(), 1);
}
