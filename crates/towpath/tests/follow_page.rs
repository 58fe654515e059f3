//! `towpath follow` on a feed's page: which protocol it takes, where it finds a named one, and how soon it tells.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::common::{PATIENCE, TestFolder, TestServer, lines, stderr};

const CONFIG: &str = "[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\n";
const PROTOCOLS: [&str; 5] = ["smart", "replication", "diffdelta", "history", "rss"];

fn put(server: &TestServer, feed: &str, id: &str) {
    let path = format!("/feeds/{feed}/items/{id}");
    let answer = server.ask("PUT", &path, &[("content-type", "text/plain")], id.as_bytes());
    assert!(answer.status < 300, "{}", answer.text());
}

/// A running follower, which ends with the test.
struct RunningFollow {
    child: Child,
    printed: Receiver<String>,
    said: Receiver<String>,
}

impl RunningFollow {
    fn start(dir: &TestFolder, args: &[&str]) -> Self {
        let mut command = dir.command(&[&["follow"], args].concat());
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let printed = lines_of(child.stdout.take().unwrap());
        let said = lines_of(child.stderr.take().unwrap());
        Self { child, printed, said }
    }
}

impl Drop for RunningFollow {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines_of(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    lines
}

/// DiffDelta, which promises the same, would tell the second item after its `ttl` of five minutes.
#[test]
fn a_feeds_page_is_followed_by_the_protocol_with_the_least_delay() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let page = format!("{}/feeds/aa", server.base);
    put(&server, "aa", "first");
    // With an interval of its own the follower takes the cheapest one, and keeps the interval.
    for (more, protocol) in [(vec![], "smart"), (vec!["--every", "1s"], "diffdelta")] {
        let follow = RunningFollow::start(&dir, &[&[page.as_str()], more.as_slice()].concat());
        let said = follow.said.recv_timeout(PATIENCE).unwrap();
        assert!(said.contains(&format!(" by {protocol}, because ")), "{said}");
        assert!(follow.printed.recv_timeout(PATIENCE).unwrap().contains("\"first\""));
        put(&server, "aa", &format!("then-{protocol}"));
        loop {
            let line = follow.printed.recv_timeout(PATIENCE).unwrap();
            if line.contains(&format!("then-{protocol}")) {
                break;
            }
        }
    }
    let shown = server.get("/feeds/aa/follow").text();
    assert!(
        shown.contains(&format!("towpath follow {page}<")) && shown.contains("By Smart Feeds"),
        "{shown}"
    );
}

/// `--every` also replaces the long poll of Smart Feeds.
#[test]
fn an_interval_of_its_own_replaces_the_long_poll() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    put(&server, "aa", "first");
    let items = format!("{}/feeds/aa/items", server.base);
    let follow = RunningFollow::start(&dir, &[&items, "--protocol", "smart", "--every", "1s"]);
    assert!(follow.printed.recv_timeout(PATIENCE).unwrap().contains("\"first\""));
    put(&server, "aa", "second");
    assert!(follow.printed.recv_timeout(PATIENCE).unwrap().contains("\"second\""));
    assert!(server.get("/metrics").text().contains("towpath_waiters 0"));
}

/// At the end of its pages a follower listens to the events. Three polls of 30 seconds would be too late.
#[test]
fn replication_is_told_of_a_change_by_the_event_stream() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    put(&server, "aa", "first");
    let begun = std::time::Instant::now();
    let follow = RunningFollow::start(&dir, &[&format!("{}/feeds/aa/replication", server.base)]);
    assert!(follow.printed.recv_timeout(PATIENCE).unwrap().contains("\"first\""));
    for n in 0..3 {
        // By now it waits, unless the machine is slow.
        std::thread::sleep(std::time::Duration::from_millis(500));
        put(&server, "aa", &format!("next-{n}"));
        assert!(follow.printed.recv_timeout(2 * PATIENCE).unwrap().contains(&format!("next-{n}")));
    }
    assert!(begun.elapsed() < 2 * PATIENCE, "{:?}", begun.elapsed());
}

#[test]
fn a_named_protocol_is_found_from_the_page() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    for feed in ["aa", "bb"] {
        put(&server, feed, "one");
        server.wait_for_first(feed);
    }
    let (one, other) = (format!("{}/feeds/aa", server.base), format!("{}/feeds/bb", server.base));
    for (published, protocol) in (1..).zip(PROTOCOLS) {
        let args = ["follow", &one, "--protocol", protocol, "--once", "--state", protocol];
        let followed = dir.run(&args);
        assert_eq!(followed.status.code(), Some(0), "{protocol}: {}", stderr(&followed));
        let count = lines(&followed).len();
        // DiffDelta mints a moment after the item was published.
        let is_whole = if protocol == "diffdelta" { count >= 1 } else { count == published };
        assert!(is_whole, "{protocol}: {count} of {published}: {}", stderr(&followed));
        assert!(
            stderr(&followed).contains(&format!(" by {protocol}, which {one} names")),
            "{}",
            stderr(&followed)
        );
        // The state names the address that was found.
        put(&server, "aa", &format!("after-{protocol}"));
        if protocol != "diffdelta" {
            let again = dir.run(&args);
            assert_eq!(
                (again.status.code(), lines(&again).len()),
                (Some(0), 1),
                "{protocol}: {}",
                stderr(&again)
            );
        }
        let both = dir.run(&["follow", &one, &other, "--protocol", protocol, "--once"]);
        assert_eq!(both.status.code(), Some(0), "{protocol}: {}", stderr(&both));
        let of_other = lines(&both).into_iter().filter(|line| line["feed"] == other.as_str()).count();
        assert_eq!(of_other, 1, "{protocol}: {}", stderr(&both));
    }
    // A page that names no such protocol: the failure is told as ever.
    let none = dir.run(&["follow", &format!("{}/", server.base), "--protocol", "smart", "--once"]);
    assert_eq!(none.status.code(), Some(1), "{}", stderr(&none));
}

/// User and password of a URL are for its origin only. Nothing shows them: lines, messages, errors, reports.
#[test]
fn a_password_in_a_url_is_never_printed() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    put(&server, "aa", "one");
    server.wait_for_first("aa");
    let named = |path: &str| format!("{}{path}", server.base.replacen("://", "://user:sekret@", 1));
    let (page, other, atom, none) =
        (named("/feeds/aa"), named("/feeds/bb"), named("/feeds/aa/atom"), named("/feeds/none"));
    let mut runs: Vec<Vec<&str>> = vec![
        vec!["follow", &page, "--once"],
        vec!["follow", &page, "--once", "--into", "dir:copy"],
        vec!["follow", &atom, "--protocol", "history", "--once", "--state", "state"],
        vec!["follow", &page, "--protocol", "history", "--once"],
        vec!["follow", &none, "--once"],
        vec!["follow", &none, "--protocol", "replication", "--once"],
        vec!["follow", &page, &other, &page, &none, "--once"],
        vec!["check", &none],
    ];
    for format in ["text", "json", "junit", "sarif"] {
        runs.push(vec!["check", &atom, "--format", format]);
    }
    for args in &runs {
        let output = dir.run(args);
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(!text.is_empty() && !text.contains("sekret"), "{args:?}: {text}");
    }
}

/// Several changes share a document of DiffDelta or Feed History; each line still has a position of its own.
#[test]
fn every_line_is_a_place_to_resume_from() {
    let dir = TestFolder::new(CONFIG);
    let server = dir.serve();
    let batch: String = (0..20).map(|n| format!("{{\"id\":\"i{n:02}\",\"content\":\"x\"}}\n")).collect();
    let imported = dir.run_with(&["import", "--server", &server.base, "aa", "-"], batch.as_bytes());
    assert_eq!(imported.status.code(), Some(0), "{}", stderr(&imported));
    server.wait_for_first("aa");
    for protocol in ["smart", "replication", "diffdelta", "history", "rss"] {
        let page = format!("{}/feeds/aa", server.base);
        let args = ["follow", page.as_str(), "--protocol", protocol, "--once"];
        let all = lines(&dir.run(&args));
        assert_eq!(all.len(), 20, "{protocol}");
        for (index, line) in all.iter().enumerate() {
            let position = line["position"].as_str().unwrap();
            let rest = lines(&dir.run(&[args.as_slice(), &["--from", position]].concat()));
            assert_eq!(rest, all[index + 1..], "{protocol} {position}");
        }
    }
}
