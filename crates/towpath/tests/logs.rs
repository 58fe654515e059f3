//! Logs: one line per event with fields, as text and as JSON, for the journal, without repeats and without secrets.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{TestFolder, TestServer, stderr, wait_until};

const FAILING: &str = "[[feed]]\nid = \"news\"\n[feed.source]\nurl = \"http://127.0.0.1:1/x?key=hush\"\n[[feed]]\nid = \"own\"\n";

fn serve_with(dir: &TestFolder, args: &[&str], variables: &[(&str, &str)]) -> TestServer {
    let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.args(args).envs(variables.iter().copied());
    dir.start(command)
}

/// The lines of the log with this message.
fn events(dir: &TestFolder, message: &str) -> Vec<Value> {
    let log = dir.log();
    let lines = log.lines().map(|line| serde_json::from_str(line).expect(line));
    lines.filter(|line: &Value| line["message"] == message).collect()
}

#[test]
fn each_line_is_an_object_with_fields() {
    let dir = TestFolder::new(FAILING);
    let server = serve_with(&dir, &["--log-format", "json"], &[]);
    wait_until("the poll fails", || !events(&dir, "the poll failed").is_empty());
    let failed = &events(&dir, "the poll failed")[0];
    assert_eq!((&failed["level"], &failed["feed"]), (&"warn".into(), &"news".into()));
    assert!(failed["time"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("127.0.0.1:1/x?…"), "{failed}");
    drop(server);
}

#[test]
fn filters_are_options_and_a_variable() {
    let dir = TestFolder::new(FAILING);
    let lines = |args: &[&str], variable: Option<&str>| {
        let mut command = dir
            .command(&[&["follow", "http://127.0.0.1:1/", "--once", "--protocol", "smart"], args].concat());
        stderr(&command.envs(variable.map(|levels| ("TOWPATH_LOG", levels))).output().unwrap())
    };
    let debug = "sending request";
    for detailed in [lines(&["--log", "towpath_client=debug"], None), lines(&[], Some("debug"))] {
        assert!(detailed.contains(debug), "{detailed}");
    }
    for quiet in [lines(&[], None), lines(&[], Some("")), lines(&["--log=info"], Some("debug"))] {
        assert!(!quiet.contains(debug), "{quiet}");
    }
    let wrong = dir.run(&["run", "--log", "towpath=loud"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("--log"), "{}", stderr(&wrong));
}

#[test]
fn the_journal_gets_priorities_without_times() {
    let dir = TestFolder::new(FAILING);
    dir.write("log", b"");
    let file = std::fs::metadata(dir.path("log")).unwrap();
    let stream = format!("{}:{}", file.dev(), file.ino());
    let server = serve_with(&dir, &[], &[("JOURNAL_STREAM", &stream)]);
    wait_until("the poll fails", || dir.log().contains("<4>the poll failed feed=news"));
    assert!(
        dir.log().lines().all(|line| line.starts_with('<') && line[2..].starts_with('>')),
        "{}",
        dir.log()
    );
    drop(server);
}

#[test]
fn requests_are_logged_where_that_is_configured() {
    let config = "[server.access_log]\n[[feed]]\nid = \"own\"\n";
    let dir = TestFolder::new(config);
    let server = serve_with(&dir, &["--log-format", "json"], &[]);
    assert_eq!(server.ask("PUT", "/feeds/own/items/a", &[], b"first").status, 201);
    for _ in 0..2 {
        assert_eq!(server.get("/feeds/own/atom").status, 200);
    }
    assert_eq!(server.get("/feeds/own/items?timeout=0&link=hush").status, 200);
    assert_eq!(server.get("/nowhere?hush").status, 404);
    let requests = || events(&dir, "request");
    wait_until("all requests are logged", || requests().len() >= 5);
    let shown: Vec<(String, String, u64)> = requests()
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("method"), text("path"), line["status"].as_u64().unwrap())
        })
        .collect();
    let expected = [
        ("PUT", "/feeds/own/items/a", 201),
        ("GET", "/feeds/own/atom", 200),
        ("GET", "/feeds/own/atom", 200),
        ("GET", "/feeds/own/items?timeout=0&link=…", 200),
        ("GET", "/nowhere?…", 404),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(method, path, status)| (method.to_string(), path.to_string(), *status))
        .collect();
    assert_eq!(shown, expected);
    let atom = &requests()[2];
    let length = server.get("/feeds/own/atom").body.len() as u64;
    assert_eq!((atom["bytes"].as_u64(), &atom["client"]), (Some(length), &"127.0.0.1".into()));
    assert!(atom["ms"].as_f64().is_some() && atom["head_ms"].as_f64().is_some(), "{atom}");
}

/// A parked connection is answered past hyper, and asks again with bytes that are not parsed.
#[test]
fn long_polls_are_logged_with_their_own_addresses() {
    let dir = TestFolder::new("[server]\nthreads = 1\n[server.access_log]\n[[feed]]\nid = \"own\"\n");
    let server = serve_with(&dir, &["--log-format", "json"], &[]);
    let follow = dir.command(&["follow", &format!("{}/feeds/own/items", server.base), "--from", "beginning"]);
    let mut follow = { follow }.stdout(std::process::Stdio::null()).spawn().unwrap();
    let polls = || {
        let lines = events(&dir, "request");
        let items = lines.into_iter().filter(|line| line["route"] == "items" && line["status"] == 200);
        items.map(|line| line["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for n in 0..4 {
        wait_until("the follower asks", || server.get("/metrics").text().contains("towpath_waiters 1"));
        let before = polls().len();
        assert_eq!(server.ask("PUT", &format!("/feeds/own/items/{n}"), &[], b"x").status, 201);
        wait_until("the poll is logged", || polls().len() > before);
    }
    follow.kill().unwrap();
    follow.wait().unwrap();
    let polls = polls();
    let since: std::collections::BTreeSet<_> = polls.iter().filter(|path| path.contains("since=")).collect();
    assert!(since.len() >= 3, "{polls:?}");
}

#[test]
fn slow_requests_are_logged_whatever_the_sample() {
    let quiet = TestFolder::new("[server.access_log]\nsample = 0\n[[feed]]\nid = \"own\"\n");
    let slow = TestFolder::new("[server.access_log]\nsample = 0\nslow = 0\n[[feed]]\nid = \"own\"\n");
    for (dir, count) in [(&quiet, 0), (&slow, 2)] {
        let server = serve_with(dir, &["--log-format", "json"], &[]);
        assert_eq!(server.get("/feeds/own").status, 200);
        assert_eq!(server.get("/feeds").status, 200);
        assert_eq!(server.stop(), Some(0));
        assert_eq!(events(dir, "request").len(), count, "{}", dir.log());
    }
}

/// Everything that has a secret is used at the highest level of detail, and no line shows one.
#[test]
fn no_line_has_a_secret() {
    let config = "[server]\ntokens = [\"hush-admin\"]\n[server.access_log]\n\
        [xmpp]\nserver = \"127.0.0.1:1\"\njid = \"feeds.example\"\nsecret = \"hush-xmpp\"\n\
        [[feed]]\nid = \"own\"\nreaders = [\"hush-reader\"]\n\
        [[feed]]\nid = \"polled\"\n[feed.source]\nurl = \"http://me:hush-url@127.0.0.1:1/x?key=hush-query\"\n\
        headers = { Authorization = \"Bearer hush-header\" }\n\
        [[feed]]\nid = \"mirror\"\n[feed.source]\nfollow = \"http://me:hush-url@127.0.0.1:1/y?key=hush-query\"\n\
        [[sink]]\nname = \"hook\"\nfeeds = [\"own\"]\ninto = \"webhook:http://me:hush-url@127.0.0.1:1/z?key=hush-query\"\n\
        allow_private = true\nsecrets = [\"whsec_aHVzaC1zZWNyZXQtaHVzaC1zZWNyZXQtaHVzaA==\"]\n\
        [[sink]]\nname = \"db\"\nfeeds = [\"own\"]\ninto = \"postgres://me:hush-url@127.0.0.1:1/db\"\n\
        [alerts]\nsource_failing = \"1s\"\nwait = 0\n[alerts.webhook]\nurl = \"http://me:hush-url@127.0.0.1:1/?key=hush-query\"\n\
        allow_private = true\nsecrets = [\"whsec_aHVzaC1zZWNyZXQtaHVzaC1zZWNyZXQtaHVzaA==\"]\n\
        [alerts.email]\nserver = \"smtp://me:hush-mail@127.0.0.1:1\"\nfrom = \"a@example.com\"\nto = [\"b@example.com\"]\n";
    let dir = TestFolder::new(config);
    let server = serve_with(&dir, &["--log", "trace", "--log-format", "json"], &[]);
    let bearer = |token: &str| format!("Bearer {token}");
    for (token, status) in [("hush-admin", 201), ("hush-wrong", 401)] {
        let put = server.ask("PUT", "/feeds/own/items/a", &[("Authorization", &bearer(token))], b"x");
        assert_eq!(put.status, status, "{}", put.text());
    }
    let read = server.ask(
        "GET",
        "/feeds/own/items?timeout=0&link=hush-link",
        &[("Authorization", &bearer("hush-reader")), ("Cookie", "towpath=hush-cookie")],
        b"",
    );
    assert!(read.status < 500, "{}", read.text());
    let log = || dir.log();
    wait_until("sources, sinks and the component fail", || {
        let parts = ["\"polled\"", "\"mirror\"", "\"hook\"", "\"db\"", "XMPP", "\"webhook\"", "\"email\""];
        parts.iter().all(|part| log().contains(part))
    });
    drop(server);
    let log = log();
    for line in log.lines() {
        assert!(!line.contains("hush") && !line.contains("aHVzaC1"), "{line}");
    }
}

#[test]
fn a_start_without_nats_says_what_it_waits_for() {
    let dir = TestFolder::new("[server]\ncluster = \"nats://node:hush@127.0.0.1:1\"\n");
    let mut command = dir.command(&["serve", "--listen", "127.0.0.1:0"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(dir.path("log")).unwrap());
    let mut server = command.spawn().unwrap();
    wait_until("the log says so", || dir.log().contains("waiting for NATS"));
    server.kill().unwrap();
    server.wait().unwrap();
    let log = dir.log();
    assert!(log.contains("nats://127.0.0.1:1") && log.contains("seconds_left"), "{log}");
    assert!(!log.contains("hush"), "{log}");
}
