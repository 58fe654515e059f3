//! Feeds that are made, changed and removed over HTTP through any node of a cluster.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{TestResponse, TestServer};
use crate::nodes::{NODES, TestCluster, wait_until};

/// Continues the nodes' `[server]`.
const CONFIG: &str = "tokens = [\"admin\"]\n[[feed]]\nid = \"of-file\"\n";

fn ask(node: &TestServer, method: &str, path: &str, body: &Value) -> TestResponse {
    let headers = [("Authorization", "Bearer admin"), ("Content-Type", "application/json")];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    node.ask(method, path, &headers, body.as_bytes())
}

fn publish(node: &TestServer, feed: &str, id: &str) -> TestResponse {
    ask(node, "POST", &format!("/feeds/{feed}/items"), &json!([{ "id": id, "item": {} }]))
}

#[test]
fn a_feed_is_made_through_one_node_and_removed_through_another() {
    let mut cluster = TestCluster::start(CONFIG);
    let waits = |cluster: &TestCluster, what: &str, is_so: &dyn Fn(&TestServer) -> bool| {
        let all = || (0..NODES).all(|node| is_so(cluster.node(node)));
        wait_until(what, all, || cluster.logs());
    };
    let made = ask(cluster.node(0), "PUT", "/feeds/team", &json!({ "title": "The team" }));
    assert_eq!(made.status, 201, "{}", made.text());
    waits(&cluster, "all nodes serve it", &|node| {
        node.get("/feeds/team").status == 200 && node.json("/feeds/team")["title"] == "The team"
    });
    let published = publish(cluster.node(1), "team", "a");
    assert_eq!(published.status, 200, "{}", published.text());
    waits(&cluster, "all nodes have the item", &|node| {
        node.get("/feeds/team/items?timeout=0").text().contains("\"a\"")
    });
    let changed = ask(cluster.node(1), "PUT", "/feeds/team", &json!({ "title": "Our team" }));
    assert_eq!(changed.status, 200, "{}", changed.text());
    waits(&cluster, "all nodes have the title", &|node| node.json("/feeds/team")["title"] == "Our team");

    // A long poll on one node, which the removal through another one ends.
    let cursor =
        cluster.node(2).json("/feeds/team/items?timeout=0")["last_cursor"].as_str().unwrap().to_owned();
    let polled = std::thread::scope(|scope| {
        let path = format!("/feeds/team/items?since=cursor:{cursor}&timeout=60");
        let cluster = &cluster;
        let waiting = scope.spawn(move || cluster.node(2).get(&path));
        wait_until("it waits", || cluster.metric(2, "towpath_waiters") == 1, || cluster.logs());
        let removed = ask(cluster.node(1), "DELETE", "/feeds/team?reason=moved+to+crew", &Value::Null);
        assert_eq!(removed.status, 200, "{}", removed.text());
        waiting.join().unwrap()
    });
    let is_gone = |answer: &TestResponse| answer.status == 410 && answer.text().contains("moved to crew");
    assert!(is_gone(&polled), "{} {}", polled.status, polled.text());
    waits(&cluster, "it is gone everywhere", &|node| is_gone(&node.get("/feeds/team/items")));
    assert!(is_gone(&publish(cluster.node(0), "team", "b")), "publishing does not bring it back");
    // After a restart as well, with the replica and with a new one.
    for node in [0, 2] {
        cluster.kill(node);
        if node == 2 {
            std::fs::remove_dir_all(cluster.dirs[node].path("data")).unwrap();
        }
        cluster.serve(node);
    }
    waits(&cluster, "it stays gone", &|node| is_gone(&node.get("/feeds/team/items")));
    // The name is a feed again, on its old log.
    assert_eq!(ask(cluster.node(2), "PUT", "/feeds/team", &Value::Null).status, 201);
    waits(&cluster, "it is back", &|node| node.get("/feeds/team").status == 200);
    assert_eq!(publish(cluster.node(0), "team", "b").status, 200);
    waits(&cluster, "all have both items", &|node| node.json("/feeds/team")["seq"] == 2);
}

/// A private feed is published to as soon as it is made: no node shows it, though publishing creates public feeds.
#[test]
fn no_node_shows_a_private_feed_for_a_moment() {
    let cluster = TestCluster::start(CONFIG);
    let private = json!({ "visibility": "private" });
    for number in 0..10 {
        let feed = format!("secret-{number}");
        std::thread::scope(|scope| {
            let watching: Vec<_> = (1..NODES)
                .map(|node| {
                    let (node, path) = (cluster.node(node), format!("/feeds/{feed}/items?timeout=0"));
                    scope.spawn(move || {
                        let end = Instant::now() + Duration::from_millis(500);
                        while Instant::now() < end {
                            let answer = node.get(&path);
                            assert!(answer.status >= 400, "{path}: {}", answer.text());
                        }
                    })
                })
                .collect();
            assert_eq!(ask(cluster.node(0), "PUT", &format!("/feeds/{feed}"), &private).status, 201);
            assert_eq!(publish(cluster.node(0), &feed, "a").status, 200);
            watching.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let read =
            |node: usize| ask(cluster.node(node), "GET", &format!("/feeds/{feed}/items"), &Value::Null);
        let all = || (0..NODES).all(|node| read(node).text().contains("\"a\""));
        wait_until("its readers see it on all nodes", all, || cluster.logs());
    }
}
