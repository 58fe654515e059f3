//! A publisher that began anew at its address: every follower learns of it, once, before the changes.

use std::process::Output;

use crate::common::waiting::PollClient;
use crate::common::{TestFolder, TestServer, free_port, lines, stderr};

const CONFIG: &str = "[[feed]]\nid = \"aa\"\npage_items = 3\n";

fn put(server: &TestServer, id: &str) {
    let answer = server.ask("PUT", &format!("/feeds/aa/items/{id}"), &[("content-type", "text/plain")], b"x");
    assert!(answer.status < 300, "{}", answer.text());
}

/// Two publishers of one feed at one address, one after the other.
struct TwoPublishers {
    first: TestFolder,
    second: TestFolder,
    port: u16,
}

impl TwoPublishers {
    fn new() -> Self {
        Self { first: TestFolder::new(CONFIG), second: TestFolder::new(CONFIG), port: free_port() }
    }

    /// Runs the first publisher with these items.
    fn first(&self, ids: &[&str]) -> TestServer {
        let server = self.first.serve_at(self.port);
        ids.iter().for_each(|id| put(&server, id));
        server
    }

    /// Runs its successor, whose data folder is new.
    fn second(&self, ids: &[&str]) -> TestServer {
        let server = self.second.serve_at(self.port);
        ids.iter().for_each(|id| put(&server, id));
        server
    }
}

/// Ids of the printed lines; a reset is `!`.
fn printed(output: &Output) -> Vec<String> {
    let text = |line: &serde_json::Value| match line["op"].as_str() {
        Some("reset") => "!".to_owned(),
        _ => line["id"].as_str().unwrap().to_owned(),
    };
    lines(output).iter().map(text).collect()
}

#[test]
fn a_reset_is_a_line_before_the_changes_and_exit_code_3() {
    for (protocol, path) in
        [("smart", "/feeds/aa/items"), ("replication", "/feeds/aa/replication"), ("diffdelta", "/diff/aa")]
    {
        let publishers = TwoPublishers::new();
        let minted = |server: &TestServer, items: u64| {
            let counts = |head: &serde_json::Value| head["cursor"].is_string();
            if protocol == "diffdelta" {
                server.wait_for_first("aa");
                server.wait_for("/diff/aa/head.json", counts);
                server.wait_for("/archive/aa/index.json", |index| {
                    index["snapshots"].as_array().is_some_and(|list| list.len() as u64 >= items.min(1))
                });
            }
        };
        let server = publishers.first(&["a", "b", "c", "d"]);
        minted(&server, 4);
        let url = format!("{}{path}", server.base);
        let args = ["follow", &url, "--protocol", protocol, "--once", "--state", "state"];
        let run = || publishers.first.run(&args);
        // DiffDelta may have minted a part of them so far.
        let mut before = Vec::new();
        for _ in 0..1000 {
            before.extend(printed(&run()));
            if before.len() == 4 {
                break;
            }
        }
        assert_eq!(before, ["a", "b", "c", "d"], "{protocol}");
        assert_eq!(server.stop(), Some(0));
        let server = publishers.second(&["c", "z1", "z2", "z3", "z4"]);
        minted(&server, 5);
        let anew = run();
        assert_eq!(anew.status.code(), Some(3), "{protocol}: {}", stderr(&anew));
        let line = String::from_utf8(anew.stdout.clone()).unwrap();
        assert!(line.starts_with("{\"feed\":\"aa\""), "{protocol}: {line}");
        assert!(stderr(&anew).contains("the publisher began anew"), "{}", stderr(&anew));
        let mut after = printed(&anew);
        for _ in 0..1000 {
            if after.len() == 6 {
                break;
            }
            after.extend(printed(&run()));
        }
        assert_eq!(after, ["!", "c", "z1", "z2", "z3", "z4"], "{protocol}");
        let again = run();
        assert_eq!((again.status.code(), again.stdout.len()), (Some(0), 0), "{protocol}: {}", stderr(&again));
    }
}

/// Server-Sent Events, and the headers that a client of any protocol sees.
#[test]
fn the_server_says_that_it_began_anew() {
    let publishers = TwoPublishers::new();
    let server = publishers.first(&["a", "b"]);
    let cursor = server.json("/feeds/aa/items")["last_cursor"].as_str().unwrap().to_owned();
    assert_eq!(server.stop(), Some(0));
    let server = publishers.second(&["z"]);
    let page = server.get(&format!("/feeds/aa/items?since=cursor:{cursor}"));
    assert_eq!((page.status, page.header("towpath-reset")), (200, Some("position-unknown")));
    let own = page.json()["last_cursor"].as_str().unwrap().to_owned();
    assert_eq!(
        server.get(&format!("/feeds/aa/items?timeout=0&since=cursor:{own}")).header("towpath-reset"),
        None
    );
    for (page, says_so) in [(1, false), (2, true), (99, true)] {
        let answer = server.get(&format!("/feeds/aa/replication/pages/{page}"));
        assert_eq!(answer.header("towpath-reset").is_some(), says_so, "{page}: {}", answer.status);
    }
    let mut events = PollClient::new(&server);
    events.send("/feeds/aa/events", &format!("Last-Event-ID: {cursor}\r\n"));
    let text = events.read_until(|text| text.contains("event: put"));
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(events, ["reset", "put"], "{text}");
}

/// `towpath follow A | towpath import B -` goes on, and warns about what it cannot know.
#[test]
fn an_import_reads_over_a_reset() {
    let publishers = TwoPublishers::new();
    let server = publishers.first(&[]);
    let input = b"{\"feed\":\"f\",\"op\":\"reset\"}\n{\"id\":\"a\",\"content\":\"x\"}\n";
    let imported = publishers.first.run_with(&["import", "--server", &server.base, "aa", "-"], input);
    assert_eq!(imported.status.code(), Some(0), "{}", stderr(&imported));
    assert!(
        stderr(&imported).contains("line 1: warning: the followed feed began anew"),
        "{}",
        stderr(&imported)
    );
    assert_eq!(server.json("/feeds/aa/items")["totalItems"], 1);
}
