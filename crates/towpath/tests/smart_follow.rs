//! Following and mirroring a Smart Feed across restarts, edits and deletions: nothing is missing.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{PATIENCE, TestFolder, TestServer, free_port, lines, stderr};

const FEED: &str = "[[feed]]\nid = \"aa\"\n[[feed]]\nid = \"bb\"\ncursor = \"toc\"\n";

fn publish(server: &TestServer, feed: &str, lines: &[Value]) -> bool {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let answer = server.try_ask("POST", &format!("/feeds/{feed}/items"), &[], body.as_bytes());
    answer.is_ok_and(|answer| answer.status == 200)
}

fn put(id: &str, title: &str) -> Value {
    json!({ "id": id, "item": { "title": title } })
}

/// Current items: title by id, none for a deleted one.
fn state(server: &TestServer, path: &str) -> BTreeMap<String, Option<String>> {
    let mut state = BTreeMap::new();
    let mut next = format!("{path}?order=created&max=1000&timeout=0");
    loop {
        let page = server.json(&next);
        for item in page["items"].as_array().unwrap() {
            let title = item["displayName"].as_str().unwrap_or_default();
            let title = (item["deleted"] != true).then(|| title.to_owned());
            state.insert(item["id"].as_str().unwrap().to_owned(), title);
        }
        let Some(url) = page["next"].as_str() else { return state };
        next = format!("{}&timeout=0", url.strip_prefix(&server.base).unwrap());
    }
}

/// A running `towpath follow`, and the changes that it printed.
struct PullFollow {
    child: Child,
    printed: Arc<Mutex<BTreeMap<String, Option<String>>>>,
}

impl PullFollow {
    fn start(dir: &TestFolder, url: &str) -> Self {
        let args = ["follow", url, "--protocol", "smart", "--state", "state.json"];
        let mut child = dir
            .command(&args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let printed: Arc<Mutex<BTreeMap<_, _>>> = Arc::default();
        let into = printed.clone();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let line: Value = serde_json::from_str(&line).unwrap();
                let title = line["item"]["title"].as_str().unwrap_or_default();
                let title = (line["op"] != "delete").then(|| title.to_owned());
                into.lock().unwrap().insert(line["id"].as_str().unwrap().to_owned(), title);
            }
        });
        Self { child, printed }
    }

    fn kill(mut self) -> BTreeMap<String, Option<String>> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The reading thread empties the pipe.
        std::thread::sleep(Duration::from_millis(50));
        self.printed.lock().unwrap().clone()
    }
}

/// Serves on the same port after each restart.
fn serve_on(dir: &TestFolder, port: u16) -> TestServer {
    dir.serve_at(port)
}

/// Updates/Synchronization via Pull, against a server that is killed while items are edited and deleted: the
/// follower's last line for every item is the feed's version of it.
#[test]
fn nothing_is_missing_after_restarts() {
    for (feed, seed) in [("aa", 1_u64), ("bb", 2)] {
        let dir = TestFolder::new(FEED);
        let port = free_port();
        let mut server = serve_on(&dir, port);
        let url = format!("{}/feeds/{feed}/items", server.base);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut printed = BTreeMap::new();
        let mut following = PullFollow::start(&dir, &url);
        for round in 0..60 {
            let lines: Vec<Value> = (0..random.usize(1..20))
                .map(|n| {
                    let id = format!("item-{}", random.u32(0..60));
                    if random.u8(0..5) == 0 {
                        json!({ "op": "delete", "id": id })
                    } else {
                        put(&id, &format!("{round}.{n}"))
                    }
                })
                .collect();
            // Deleting a missing item refuses the whole batch, which serves the test as well.
            let _ = publish(&server, feed, &lines);
            match random.u8(0..12) {
                0 => {
                    server.kill();
                    server = serve_on(&dir, port);
                }
                1 => {
                    printed.extend(following.kill());
                    following = PullFollow::start(&dir, &url);
                }
                _ => std::thread::sleep(Duration::from_millis(random.u64(0..40))),
            }
        }
        // The last item proves that everything before it was printed, since lines are in log order.
        assert!(publish(&server, feed, &[put("last", "last")]));
        let end = Instant::now() + PATIENCE + Duration::from_secs(60);
        while !following.printed.lock().unwrap().contains_key("last") {
            assert!(Instant::now() < end, "the follower does not catch up");
            std::thread::sleep(Duration::from_millis(20));
        }
        printed.extend(following.kill());
        assert_eq!(printed, state(&server, &format!("/feeds/{feed}/items")), "{feed}, seed {seed}");
    }
}

/// The address alone selects the protocol; the second pass resumes from the cursor.
#[test]
fn a_feed_is_discovered_and_resumed() {
    let dir = TestFolder::new(FEED);
    let server = dir.serve();
    assert!(publish(&server, "aa", &[put("a", "A"), put("b", "B")]));
    let url = format!("{}/feeds/aa/items", server.base);
    let pass = || {
        let output = dir.run(&["follow", &url, "--once", "--state", "s.json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        lines(&output).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(pass(), ["a", "b"]);
    assert_eq!(pass(), [""; 0]);
    assert!(publish(&server, "aa", &[put("a", "A2")]));
    assert_eq!(pass(), ["a"]);
    let output = dir.run(&["check", &url, "--protocol", "smart"]);
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
}

/// An empty feed holds the request for its first item open. It is discovered and followed even so, and so is a feed
/// whose address has an order without edits.
#[test]
fn an_empty_feed_is_discovered() {
    let dir = TestFolder::new(FEED);
    let server = dir.serve();
    let url = format!("{}/feeds/bb/items?order=-modified", server.base);
    let pass = || {
        let begun = Instant::now();
        let output = dir.run(&["follow", &url, "--once", "--state", "s.json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        lines(&output).iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let empty = format!("{}/feeds/bb/items", server.base);
    assert!(dir.run(&["follow", &empty, "--once"]).status.success());
    let checked = dir.run(&["check", &empty]);
    assert!(checked.status.success(), "{}{}", String::from_utf8_lossy(&checked.stdout), stderr(&checked));
    assert!(publish(&server, "bb", &[put("a", "A")]));
    assert_eq!(pass(), ["a"]);
    assert!(publish(&server, "bb", &[put("b", "B"), put("a", "A2")]));
    assert_eq!(pass(), ["b", "a"]);
}

/// `towpath check` finds no violation in feeds with either cursor, with tombstones, and empty ones.
#[test]
fn our_own_feeds_conform() {
    let dir = TestFolder::new(FEED);
    let server = dir.serve();
    for feed in ["aa", "bb"] {
        for n in 0..30 {
            assert!(publish(&server, feed, &[put(&format!("i{n}"), "t")]));
        }
        assert!(publish(&server, feed, &[json!({ "op": "delete", "id": "i3" }), put("i4", "edited")]));
        let url = format!("{}/feeds/{feed}/items", server.base);
        let output = dir.run(&["check", &url, "--protocol", "smart"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", stderr(&output));
    }
}

/// A mirror by pull has the items soon after they are published.
#[test]
fn a_mirror_polls_by_long_polls() {
    let dir = TestFolder::new(FEED);
    let server = dir.serve();
    assert!(publish(&server, "aa", &[put("a", "A")]));
    let config =
        format!("[[feed]]\nid = \"copy\"\n[feed.source]\nfollow = \"{}/feeds/aa/items\"\n", server.base);
    let mirror_place = TestFolder::new(&config);
    let mirror = mirror_place.serve();
    let wait = |title: &str| {
        let begun = Instant::now();
        while state(&mirror, "/feeds/copy/items").get("a") != Some(&Some(title.to_owned())) {
            assert!(begun.elapsed() < PATIENCE, "{}", mirror_place.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        begun.elapsed()
    };
    wait("A");
    // By now it waits at the end of the feed.
    server.wait_for("/feeds/aa", |_| server.get("/metrics").text().contains("towpath_waiters 1"));
    assert!(publish(&server, "aa", &[put("a", "A2")]));
    let took = wait("A2");
    assert!(took < Duration::from_secs(5), "{took:?}");
}
