//! `/metrics` by feed, source, route and process.

use std::io::Write as _;
use std::process::Stdio;

use crate::common::waiting::PollClient;
use crate::common::{TestFolder, TestServer, wait_until};

fn metrics(server: &TestServer) -> String {
    server.get("/metrics").text()
}

/// Returns the value of a series; fails without one.
fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{metrics}")).parse().unwrap()
}

#[test]
fn feeds_and_requests_are_counted() {
    let dir = TestFolder::new("[[feed]]\nid = 'news'\n[[feed]]\nid = 'empty'\n");
    let server = dir.serve();
    for (method, path, body) in [
        ("PUT", "/feeds/news/items/a", "one"),
        ("PUT", "/feeds/news/items/b", "two"),
        ("PUT", "/feeds/news/items/a", "three"),
        ("DELETE", "/feeds/news/items/b", ""),
    ] {
        let answer = server.ask(method, path, &[], body.as_bytes());
        assert!(answer.status < 300, "{method} {path}: {}", answer.text());
    }
    assert_eq!(server.get("/feeds/news/items?timeout=0").status, 200);
    assert_eq!(server.get("/feeds/none/items").status, 404);
    let seen = metrics(&server);
    for (series, expected) in [
        (r#"towpath_feed_position{feed="news"}"#, 4.0),
        (r#"towpath_feed_items{feed="news"}"#, 1.0),
        (r#"towpath_feed_changes_total{feed="news",op="put"}"#, 3.0),
        (r#"towpath_feed_changes_total{feed="news",op="delete"}"#, 1.0),
        (r#"towpath_feed_position{feed="empty"}"#, 0.0),
        ("towpath_feeds", 2.0),
        (r#"towpath_http_requests_total{route="item",status="201"}"#, 2.0),
        (r#"towpath_http_requests_total{route="items",status="404"}"#, 1.0),
        (r#"towpath_http_request_duration_seconds_count{route="item"}"#, 4.0),
    ] {
        assert!((value(&seen, series) - expected).abs() < 1e-9, "{series}: {}", value(&seen, series));
    }
    let changed = value(&seen, r#"towpath_feed_last_change_timestamp_seconds{feed="news"}"#);
    assert!((changed - jiff::Timestamp::now().as_duration().as_secs_f64()).abs() < 600.0, "{changed}");
    let started = value(&seen, "process_start_time_seconds");
    assert!((0.0..600.0).contains(&(changed - started)), "{started} {changed}");
    assert!(value(&seen, "process_resident_memory_bytes") > 1e6);
    assert!(value(&seen, "process_max_fds") >= value(&seen, "process_open_fds"));
    let asked =
        server.ask("GET", "/metrics", &[("Accept", "application/openmetrics-text; version=1.0.0")], b"");
    let openmetrics = asked.text();
    assert!(asked.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(openmetrics.ends_with("# EOF\n") && openmetrics.matches("# EOF").count() == 1, "{openmetrics}");
    // The head of the feed is prebuilt from its second request on.
    for _ in 0..3 {
        assert_eq!(server.get("/diff/news/head.json").status, 200);
    }
    assert!(value(&metrics(&server), r#"towpath_http_requests_total{route="diff",status="200"}"#) >= 3.0);
}

/// Names, units and helps keep Prometheus' conventions, by Debian's promtool, which `cargo xtask setup` installs.
#[test]
fn promtool_finds_nothing() {
    let config = "[[feed]]\nid = 'news'\n[[feed]]\nid = 'polled'\nsource = { url = 'none.json', every = '1s' }\n\
                  [[sink]]\nname = 'copy'\nfeeds = ['news']\ninto = 'dir:copy'\n[alerts]\nfeed = true\n";
    let dir = TestFolder::new(config);
    let server = dir.serve();
    assert_eq!(server.ask("PUT", "/feeds/news/items/a", &[], b"one").status, 201);
    wait_until("the source fails", || metrics(&server).contains("towpath_source_failures_total{"));
    let scraped = server.get("/metrics");
    assert_eq!(scraped.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let mut promtool = std::process::Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("`cargo xtask setup` installs promtool");
    promtool.stdin.take().unwrap().write_all(&scraped.body).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", crate::common::stderr(&checked));
    assert!(checked.stderr.is_empty() && checked.stdout.is_empty(), "{checked:?}");
}

#[test]
fn a_parked_long_poll_is_counted_when_it_is_answered() {
    let server_dir = TestFolder::new("[[feed]]\nid = 'news'\n");
    let server = server_dir.serve();
    server.ask("PUT", "/feeds/news/items/a", &[], b"one");
    let cursor = server.json("/feeds/news/items?timeout=0")["last_cursor"].as_str().unwrap().to_owned();
    let series = r#"towpath_http_requests_total{route="items",status="200"}"#;
    let before = value(&metrics(&server), series);
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| server.get(&format!("/feeds/news/items?since=cursor:{cursor}&timeout=60")));
        wait_until("it waits", || metrics(&server).contains("towpath_waiters 1"));
        server.ask("PUT", "/feeds/news/items/b", &[], b"two");
        assert_eq!(waiting.join().unwrap().status, 200);
    });
    wait_until("it is counted", || value(&metrics(&server), series) > before + 0.5);
    let delivered = r#"towpath_deliveries_total{kind="long_poll"}"#;
    assert!((value(&metrics(&server), delivered) - 1.0).abs() < 1e-9);
    // A stream that begins after the first change has a page of the second.
    let mut stream = PollClient::new(&server);
    let head = format!("GET /feeds/news/events?since=cursor:{cursor} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.0.write_all(head.as_bytes()).unwrap();
    wait_until("the page is sent", || {
        value(&metrics(&server), r#"towpath_deliveries_total{kind="events"}"#) > 0.5
    });
    for kind in ["websub", "xmpp"] {
        assert!(value(&metrics(&server), &format!("towpath_deliveries_total{{kind=\"{kind}\"}}")) < 0.5);
    }
}

#[test]
fn a_source_shows_its_failures_and_its_last_success_after_a_restart() {
    let config = "[[feed]]\nid = 'news'\n[feed.source]\nurl = 'news.json'\nevery = '1s'\n";
    let dir = TestFolder::new(config);
    dir.write("news.json", br#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1"}]}"#);
    let server = dir.serve();
    let up = r#"towpath_source_up{feed="news"}"#;
    wait_until("it is polled", || metrics(&server).contains(up));
    let seen = metrics(&server);
    assert!(value(&seen, up) > 0.5 && value(&seen, r#"towpath_sources{state="up"}"#) > 0.5, "{seen}");
    let success = r#"towpath_source_last_success_timestamp_seconds{feed="news"}"#;
    assert!(value(&seen, success) > 1e9);
    assert!((value(&seen, r#"towpath_source_interval_seconds{feed="news"}"#) - 1.0).abs() < 1e-9);
    assert!(value(&seen, r#"towpath_source_polls_total{feed="news"}"#) > 0.5);
    dir.write("news.json", b"{");
    let failed = r#"towpath_source_failures_total{feed="news",code="TRUNCATED"}"#;
    wait_until("it fails", || metrics(&server).contains(failed));
    assert!(value(&metrics(&server), up) < 0.5);
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    wait_until("it is polled again", || metrics(&server).contains(up));
    assert!(value(&metrics(&server), up) < 0.5);
    assert!((value(&metrics(&server), success) - value(&seen, success)).abs() < 60.0);
}

/// A feed's name may be a secret: its series are for those who may publish to it.
#[test]
fn strangers_see_no_series_of_feeds() {
    let config = "[server]\ntokens = ['operator']\nmetrics_feeds = 1\n[[feed]]\nid = 'a_secret'\n[[feed]]\nid = 'bb'\n";
    let dir = TestFolder::new(config);
    let server = dir.serve();
    let stranger = server.get("/metrics");
    let text = stranger.text();
    assert!(!text.contains("a_secret") && !text.contains("feed=\""), "{text}");
    assert!(value(&text, "towpath_feeds") > 1.5);
    let operator = server.ask("GET", "/metrics", &[("authorization", "Bearer operator")], b"");
    assert!(
        operator.header("cache-control").is_some_and(|value| value.contains("private")),
        "{}",
        operator.text()
    );
    let text = operator.text();
    assert!(text.contains(r#"towpath_feed_position{feed="a_secret"}"#), "{text}");
    // `metrics_feeds` limits them.
    assert!(!text.contains(r#"feed="bb""#), "{text}");
}

#[test]
fn the_node_shows_its_store_its_disk_and_its_parts() {
    let config = "[server]\nreserve_mib = 1\n[[feed]]\nid = 'news'\n[[feed]]\nid = 'polled'\nsource = { url = 'none.json', every = '1s' }\n";
    let dir = TestFolder::new(config);
    let server = dir.serve();
    for n in 0..3 {
        assert_eq!(server.ask("PUT", &format!("/feeds/news/items/{n}"), &[], b"one").status, 201);
    }
    let seen = metrics(&server);
    assert!(value(&seen, "towpath_store_commits_total") >= 3.0, "{seen}");
    assert!(
        value(&seen, "towpath_store_commit_requests_total") >= value(&seen, "towpath_store_commits_total")
    );
    assert!(value(&seen, "towpath_store_commit_seconds_total") > 0.0);
    assert!(value(&seen, "towpath_store_bytes") > 0.0 && value(&seen, "towpath_disk_free_bytes") > 1e6);
    assert!(value(&seen, "towpath_store_commit_errors_total") < 0.5);
    assert!(!seen.contains("towpath_certificate_expiry"), "plain HTTP has no certificate");

    let part = |path: &str, part: &str| {
        server.json(path)["parts"][part]["status"].as_str().unwrap_or_default().to_owned()
    };
    wait_until("the source fails", || part("/readyz", "sources") == "degraded");
    assert_eq!((part("/readyz", "store"), part("/readyz", "disk")), ("ok".into(), "ok".into()));
    wait_until("the reader's document has the parts", || part("/healthz.json", "sources") == "degraded");
    let health = server.json("/healthz.json");
    assert!(
        health["sources_total"].is_u64() && health["service"].is_string(),
        "the text's fields stay: {health}"
    );
    assert_eq!(health["parts"]["sources"]["failing"], 1);
}
