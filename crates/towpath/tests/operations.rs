//! Tasks of operators: a first configuration, a reload, Unix sockets, health, completions.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};

use crate::common::{TestFolder, TestServer, clustered, free_port, stderr, wait_until};

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The first start with many new feeds answers at once, and says how far it is.
#[test]
fn a_server_answers_while_it_publishes_new_feeds() {
    const FEEDS: usize = 2000;
    if clustered::skips("another node may publish them") {
        return;
    }
    let config: String = (0..FEEDS).map(|n| format!("[[feed]]\nid = \"f{n}\"\n")).collect();
    let dir = TestFolder::new(&config);
    let server = dir.serve();
    let mut starting = Vec::new();
    loop {
        assert_eq!(server.get("/livez").status, 200);
        let ready = server.get("/readyz");
        let publishing = &ready.json()["parts"]["publishing"];
        if ready.status == 200 {
            assert_eq!(publishing["status"], "ok");
            break;
        }
        assert_eq!((ready.status, ready.header("retry-after")), (503, Some("1")), "{}", ready.text());
        assert_eq!((&ready.json()["status"], &publishing["feeds"]), (&"starting".into(), &FEEDS.into()));
        starting.push(publishing["published"].as_u64().unwrap());
        // A feed's own documents do not wait for the others.
        let number = FEEDS - starting.len();
        assert_eq!(server.get(&format!("/diff/f{number}/head.json")).status, 200);
        let site = server.get("/diff/sources.json");
        match site.status {
            200 => assert_eq!(site.json()["sources"].as_array().unwrap().len(), FEEDS),
            status => assert_eq!((status, site.header("retry-after")), (503, Some("1")), "{}", site.text()),
        }
    }
    assert!(starting.first().is_some_and(|published| *published < FEEDS as u64), "{starting:?}");
    assert!(starting.is_sorted(), "{starting:?}");
    assert_eq!(server.json("/diff/sources.json")["sources"].as_array().unwrap().len(), FEEDS);
    assert_eq!(server.json("/diff/f0/head.json")["changed"], true);
}

/// A wrong time server, or an operator, sets the clock a year ahead while a server runs, and back.
#[test]
fn a_clock_a_year_ahead_dates_no_change() {
    if clustered::skips("its nodes have clocks of their own") {
        return;
    }
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let set = |offset: &str| dir.write("clock", offset.as_bytes());
    set("+0");
    let server = dir.start(dir.command_with_clock());
    let logs = |text: &str| wait_until(text, || dir.log().contains(text));
    let put = |id: &str| {
        assert_eq!(server.ask("PUT", &format!("/feeds/notes/items/{id}"), &[], b"x").status, 201);
        let line: serde_json::Value = server.get(&format!("/feeds/notes/items/{id}?as=line")).json();
        line["modified"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    let first = put("a");
    set("+365d");
    let ahead = put("b");
    logs("jumped ahead");
    assert!(ahead >= first && ahead <= jiff::Timestamp::now(), "{first} {ahead}");
    for path in ["/feeds/notes/items/b", "/feeds/notes/replication"] {
        let answer = server.get(path);
        let time =
            |name: &str| towpath_proto::format::http_date::parse(answer.header(name).unwrap()).unwrap();
        assert!(time("last-modified") <= time("date"), "{path}: {:?}", answer.headers);
    }
    set("+0");
    let back = put("c");
    logs("is back");
    assert!(back >= ahead && back <= jiff::Timestamp::now(), "{ahead} {back}");
}

/// The clock is a year ahead when the server starts, with nothing but the stored changes to compare it with, and is set
/// right while it runs.
#[test]
fn a_clock_that_was_ahead_at_the_start_is_told_and_mended() {
    if clustered::skips("its nodes have clocks of their own") {
        return;
    }
    let dir = TestFolder::new("[[feed]]\nid = \"notes\"\n");
    let serve = |offset: &str| {
        dir.write("clock", offset.as_bytes());
        let server = dir.start(dir.command_with_clock());
        (server, dir.log())
    };
    let put = |server: &TestServer, id: &str| {
        assert_eq!(server.ask("PUT", &format!("/feeds/notes/items/{id}"), &[], b"x").status, 201);
        let line: serde_json::Value = server.get(&format!("/feeds/notes/items/{id}?as=line")).json();
        line["modified"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap()
    };
    // Each of them is a document of its own kind, kept as it was made before the clock was set.
    let paths = [
        "/feeds/notes/items/b",
        "/feeds/notes/replication",
        "/feeds/notes/atom",
        "/feeds/notes/snapshots/latest",
    ];
    let is_dated = |server: &TestServer| {
        for path in paths {
            let answer = server.get(path);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            let time =
                |name: &str| Some(towpath_proto::format::http_date::parse(answer.header(name)?).unwrap());
            assert!(time("last-modified") <= time("date"), "{path}: {:?}", answer.headers);
            let is_ahead = time("date") > Some(jiff::Timestamp::now() + std::time::Duration::from_secs(60));
            let clock = std::fs::read(dir.path("clock")).unwrap();
            assert_eq!(is_ahead, clock == b"+365d", "{path}: {:?}", answer.headers);
        }
    };
    let clock = |server: &TestServer| server.json("/readyz")["parts"]["clock"].clone();
    let (server, log) = serve("+0");
    let first = put(&server, "a");
    assert!(!log.contains("clock") && clock(&server).is_null(), "{log}");
    assert_eq!(server.stop(), Some(0));

    let (server, log) = serve("+365d");
    assert!(log.contains("far ahead of the last append") && log.contains("docs/storage.md"), "{log}");
    let ahead = put(&server, "b");
    assert!(ahead.duration_since(first).as_hours() > 8000, "it has to be believed: {first} {ahead}");
    assert_eq!(server.ask("POST", "/feeds/notes/snapshots", &[], b"").status, 201);
    is_dated(&server);
    dir.write("clock", b"+0");
    wait_until("it is noticed", || dir.log().contains("was set back"));
    is_dated(&server);
    assert_eq!(put(&server, "c"), ahead, "times never decrease, nor run on ahead");
    wait_until("health tells", || clock(&server)["status"] == "degraded");
    assert_eq!(server.stop(), Some(0));

    let (server, log) = serve("+0");
    assert!(log.contains("dated ahead of this machine's clock"), "{log}");
    is_dated(&server);
    // As docs/storage.md says.
    let follow = |state: &str| {
        dir.run(&["follow", &format!("{}/feeds/notes", server.base), "--once", "--state", state])
    };
    let lines = follow("state").stdout;
    assert_eq!(server.stop(), Some(0));
    std::fs::rename(dir.path("data"), dir.path("data.ahead")).unwrap();
    let (server, _) = serve("+0");
    dir.write("notes.ndjson", &lines);
    let imported = dir.run(&["import", "notes", "notes.ndjson", "--server", &server.base]);
    assert!(imported.status.success(), "{}", crate::common::stderr(&imported));
    assert!(put(&server, "d") <= jiff::Timestamp::now() && clock(&server).is_null());
    assert_eq!(server.json("/feeds/notes")["seq"], 4);
}

/// With `reload_on_change`, saving a file is enough. One with a mistake changes nothing.
#[test]
fn a_changed_file_is_read_again() {
    let settings = "include = 'feeds.d/*.toml'\n[server]\nreload_on_change = true\n";
    let feeds = |text: &str| format!("{settings}[[feed]]\nid = 'kept'\n{text}");
    let dir = TestFolder::new(&feeds(""));
    std::fs::create_dir(dir.path("feeds.d")).unwrap();
    dir.write("feeds.d/a.toml", b"[[feed]]\nid = 'included'\n");
    let server = dir.serve();
    let is_served = |feed: &str| server.get(&format!("/feeds/{feed}")).status == 200;
    assert!(is_served("kept") && is_served("included") && !is_served("new"));
    dir.write("towpath.toml", feeds("[[feed]]\nid = 'new'\n").as_bytes());
    wait_until("the file is read again", || is_served("new"));
    // A file that an include finds from now on.
    dir.write("feeds.d/b.toml", b"[[feed]]\nid = 'second'\n");
    wait_until("the folder is read again", || is_served("second"));
    dir.write("feeds.d/b.toml", b"[[feed]]\nid = 'third'\nttl = 'soon'\n");
    wait_until("the mistake is logged", || dir.log().contains("feeds.d/b.toml: line 3"));
    assert!(is_served("second") && !is_served("third"));
    assert_eq!(server.stop(), Some(0));
}

/// Feeds are added, changed and removed while a follower waits on another one.
#[test]
fn feeds_change_while_others_are_followed() {
    let feeds = |text: &str| format!("include = 'feeds.d/*.toml'\n[[feed]]\nid = 'kept'\n{text}");
    let dir = TestFolder::new(&feeds("[[feed]]\nid = 'gone'\n"));
    std::fs::create_dir(dir.path("feeds.d")).unwrap();
    let server = dir.serve();
    for feed in ["kept", "gone"] {
        assert_eq!(server.ask("PUT", &format!("/feeds/{feed}/items/a"), &[], b"x").status, 201);
    }
    assert_eq!(server.get("/feeds/gone/items").status, 200);
    assert_eq!(server.get("/feeds/new/items").status, 404);
    let cursor = server.json("/feeds/kept/items?timeout=0")["last_cursor"].as_str().unwrap().to_owned();
    let url = format!("{}/feeds/kept/items?since=cursor:{cursor}&timeout=60", server.base);
    let waiting = std::thread::spawn(move || Command::new("curl").args(["-s", &url]).output().unwrap());
    wait_until("it waits", || server.get("/metrics").text().contains("towpath_waiters 1"));

    let settings = "title = 'Kept feed'\n[server]\nwaiters = 7\nfetches = 3\nmetrics_feeds = 1\nhttp_feeds = 0\n\
                    longest_wait = '1s'\n[server.rate_limit]\nburst = 5000\n";
    dir.write("towpath.toml", feeds(settings).as_bytes());
    dir.write(
        "source.json",
        br#"{"version":"https://jsonfeed.org/version/1.1","items":[{"id":"1","title":"One"}]}"#,
    );
    dir.write(
        "feeds.d/a.toml",
        b"[[feed]]\nid = 'new'\n[[feed]]\nid = 'polled'\n[feed.source]\nurl = 'source.json'\n",
    );
    let message = stdout(&dir.run(&["reload"]));
    for part in [
        "2 added (new, polled)",
        "1 changed (kept)",
        "1 removed (gone)",
        "changed: server.http_feeds, server.waiters, server.longest_wait, server.metrics_feeds, server.rate_limit.burst",
        "needs a restart: server.fetches",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let gone = server.get("/feeds/gone/items");
    assert!(gone.status == 410 && gone.text().contains("was removed"), "{}", gone.text());
    assert_eq!(server.ask("PUT", "/feeds/gone/items/b", &[], b"x").status, 410);
    assert_eq!(server.ask("PUT", "/feeds/new/items/b", &[], b"x").status, 201);
    assert!(server.get("/feeds/kept").text().contains("Kept feed"));
    assert!(server.get("/feeds/kept/atom").text().contains("Kept feed"));
    wait_until("the new source is polled", || server.get("/feeds/polled/items").text().contains("One"));

    // The settings have their effect: no second feed in the metrics, no feed over HTTP, no long poll of a minute.
    let metrics = server.get("/metrics").text();
    assert!(
        metrics.contains("towpath_feed_position{feed=\"kept\"}") && !metrics.contains("feed=\"new\""),
        "{metrics}"
    );
    assert_eq!(server.ask("PUT", "/feeds/made", &[], b"{}").status, 403);
    let end = server.json("/feeds/new/items?timeout=0")["last_cursor"].as_str().unwrap().to_owned();
    let begin = std::time::Instant::now();
    assert_eq!(server.get(&format!("/feeds/new/items?since=cursor:{end}&timeout=60")).status, 200);
    assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{:?}", begin.elapsed());

    // The follower of the other feed has noticed nothing, and still gets its item.
    assert_eq!(server.ask("PUT", "/feeds/kept/items/b", &[], b"late").status, 201);
    let answer = waiting.join().unwrap();
    assert!(String::from_utf8_lossy(&answer.stdout).contains("late"), "{answer:?}");

    // One wrong key changes nothing, and all mistakes are told.
    dir.write("towpath.toml", feeds("[[feed]]\nid = 'more'\nttl = 'x'\nlang = 5\n").as_bytes());
    let refused = dir.run(&["reload"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("2 errors") && error.contains("line 6") && error.contains("line 7"), "{error}");
    assert_eq!(server.get("/feeds/more").status, 404);

    // A signal leads to the same, though nobody looked at the file before.
    let pid = server.pid().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    wait_until("the refusal is logged", || dir.log().contains("the configuration has 2 errors"));
    let log = dir.log();
    assert!(log.contains("line 6") && log.contains("line 7") && log.contains("nothing changes"), "{log}");
    assert_eq!((server.get("/feeds/more").status, server.get("/feeds/kept").status), (404, 200));

    // The log of a removed feed stays, and is served again.
    dir.write("towpath.toml", feeds("[[feed]]\nid = 'gone'\n").as_bytes());
    assert!(stdout(&dir.run(&["reload"])).contains("1 added (gone)"));
    assert!(server.get("/feeds/gone/items").text().contains("\"a\""));
    // After a restart as well.
    dir.write("towpath.toml", feeds("").as_bytes());
    assert_eq!(server.stop(), Some(0));
    let server = dir.serve();
    assert_eq!(server.get("/feeds/gone/items").status, 410);
    assert_eq!(server.get("/feeds/never/items").status, 404);
    drop(server);
    let nobody = dir.run(&["reload"]);
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("no server has the data folder"), "{nobody:?}");
}

#[test]
fn a_unix_socket_is_served_beside_an_address() {
    let dir = TestFolder::new("[[feed]]\nid = 'notes'\n");
    let socket = dir.path("towpath.sock");
    let listen = format!("unix:{}", socket.display());
    let server = dir.serve_with(&["--listen", &listen]);
    let ask = |request: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    // A program on this machine may publish, as over loopback.
    let put = ask(
        "PUT /feeds/notes/items/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
    );
    assert!(put.starts_with("HTTP/1.1 201"), "{put}");
    let get = ask("GET /feeds/notes/items HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(get.starts_with("HTTP/1.1 200") && get.contains("hello"), "{get}");
    assert_eq!(server.get("/feeds/notes/items").status, 200);
    // Another server must not take it over.
    let other = TestFolder::new("");
    let refused = other.run(&["serve", "--listen", &listen, "--base-url", "http://localhost"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("another program listens there"),
        "{refused:?}"
    );
    assert_eq!(server.stop(), Some(0));
    assert!(!socket.exists(), "the socket is removed");
    // A server that was killed leaves it behind.
    let killed = dir.serve_with(&["--listen", &listen]);
    killed.kill();
    assert!(socket.exists());
    let again = dir.serve_with(&["--listen", &listen]);
    assert!(ask("GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").contains("live"));
    drop(again);
}

/// Becomes the program with a listening socket at descriptor 3, as a service manager starts it.
const WITH_SOCKET: &str = "import os, socket, sys
listener = socket.socket()
listener.bind(('127.0.0.1', int(sys.argv[1])))
listener.listen()
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
os.execv(sys.argv[2], sys.argv[2:])";

#[test]
fn sockets_of_the_service_manager_are_served() {
    let port = free_port();
    let dir = TestFolder::new("[[feed]]\nid = 'notes'\n");
    let base = format!("http://127.0.0.1:{port}");
    let mut command = Command::new("python3");
    command.args(["-c", WITH_SOCKET, &port.to_string(), env!("CARGO_BIN_EXE_towpath"), "serve"]);
    command.args(["--listen", "systemd", "--base-url", &base]).current_dir(dir.path("."));
    let server = dir.start(command);
    assert_eq!(server.base, base);
    assert_eq!(server.get("/feeds/notes/items").status, 200);
    assert_eq!(server.stop(), Some(0));
    let refused = dir.run(&["serve", "--listen", "systemd", "--base-url", &base]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("passed no socket"), "{said}");
}

#[test]
fn init_writes_a_configuration_that_works() {
    let dir = TestFolder::new("");
    std::fs::remove_file(dir.path("towpath.toml")).unwrap();
    let opml = br#"<opml version="2.0"><body><outline text="News &amp; more" xmlUrl="https://news.example/rss"/></body></opml>"#;
    dir.write("list.opml", opml);
    let said = stdout(&dir.run(&["init", "--from", "https://www.example.com/feed.xml", "list.opml"]));
    assert!(said.contains("2 feeds"), "{said}");
    assert!(stdout(&dir.run(&["config", "check"])).contains("valid: 2 feeds"));
    let written = std::fs::read_to_string(dir.path("towpath.toml")).unwrap();
    assert!(written.contains("title = \"News & more\""), "{written}");
    let again = dir.run(&["init"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("is there already"), "{again:?}");
}

/// `serve` refuses the same files when it starts.
#[test]
fn a_check_reads_the_files_that_the_configuration_names() {
    let pair = |name: &str| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let (ours, other) = (pair("localhost"), pair("localhost"));
    let dir =
        TestFolder::new("[server.tls]\ncert = \"a.pem\"\nkey = \"a.key\"\n[risk]\nrules = \"rules.toml\"\n");
    dir.write("a.pem", ours.cert.pem().as_bytes());
    dir.write("a.key", other.signing_key.serialize_pem().as_bytes());
    for command in [&["config", "check"][..], &["serve"]] {
        let refused = dir.run(command);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("a.pem") && said.contains("a.key"), "{said}");
    }
    // All faults at once.
    assert!(stderr(&dir.run(&["config", "check"])).contains("rules.toml"));
    let checked = dir.run(&["config", "check", "--format", "json"]);
    let problems: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!((problems["problems"].as_array().map(Vec::len), checked.status.code()), (Some(2), Some(2)));
    dir.write("a.key", ours.signing_key.serialize_pem().as_bytes());
    dir.write("rules.toml", b"");
    assert!(stdout(&dir.run(&["config", "check"])).contains("valid"));
}

#[test]
fn a_check_without_a_file_says_so() {
    let dir = TestFolder::new("");
    std::fs::remove_file(dir.path("towpath.toml")).unwrap();
    let said = stdout(&dir.run(&["config", "check"]));
    assert!(said.contains("there is no towpath.toml here"), "{said}");
}

#[test]
fn a_check_counts_all_tokens() {
    let dir = TestFolder::new(
        "[server]\ntokens = [\"one\", \"two\"]\n[[token]]\nname = \"three\"\ntoken = \"three\"\nrights = [\"publish\"]\n",
    );
    let said = stdout(&dir.run(&["config", "check"]));
    assert!(said.contains("3 tokens"), "{said}");
}

#[test]
fn commands_describe_themselves() {
    let dir = TestFolder::new("");
    let schema: serde_json::Value = serde_json::from_str(&stdout(&dir.run(&["config", "schema"]))).unwrap();
    assert!(schema["properties"]["feed"].is_object());
    dir.write("example.toml", stdout(&dir.run(&["config", "example"])).as_bytes());
    stdout(&dir.run(&["config", "check", "--config", "example.toml"]));
    for shell in ["bash", "zsh", "fish"] {
        assert!(stdout(&dir.run(&["completions", shell])).contains("reload"), "{shell}");
    }
    stdout(&dir.run(&["man", "man1"]));
    let page = std::fs::read_to_string(dir.path("man1/towpath-serve.1")).unwrap();
    assert!(page.contains(".TH") && page.contains("listen"), "{page}");
    let version = stdout(&dir.run(&["--version"]));
    assert!(version.contains("commit") && version.contains("features"), "{version}");
    let status: serde_json::Value =
        serde_json::from_str(&stdout(&dir.run(&["status", "--format", "json"]))).unwrap();
    assert!(status["feeds"].is_array());
    let server = dir.serve();
    let ready = server.get("/readyz");
    assert!(ready.status == 200 && ready.text().contains("\"store\""), "{}", ready.text());
    assert_eq!(server.get("/livez").status, 200);
}
