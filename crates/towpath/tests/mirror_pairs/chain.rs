//! A chain of five mirrors, each by another protocol, whose servers are killed while the feed changes.

use serde_json::json;

use crate::common::{TestFolder, TestServer, free_port};
use crate::mirror_pairs::{Items, fold, lines, publish, transports, wait_for};

/// Paths by which each mirror follows the one before.
const PATHS: [&str; 5] = [
    "/diff/origin/head.json",
    "/feeds/origin/replication",
    "/feeds/origin/atom",
    "/feeds/origin/feed.json",
    "/feeds/origin/items",
];

/// A server that starts again at its address.
struct Link {
    folder: TestFolder,
    port: u16,
    server: Option<TestServer>,
}

impl Link {
    fn start(source: &str) -> Self {
        let folder = TestFolder::new(&format!("[[feed]]\nid = \"origin\"\nttl = 1\n{source}"));
        let port = free_port();
        let server = Some(folder.serve_at(port));
        Self { folder, port, server }
    }

    fn server(&self) -> &TestServer {
        self.server.as_ref().expect("it runs")
    }

    /// Kills the server, and starts it again.
    fn restart(&mut self) {
        self.server.take().expect("it runs").kill();
        self.server = Some(self.folder.serve_at(self.port));
    }
}

#[test]
fn five_mirrors_in_a_row_keep_every_item_whichever_is_killed() {
    let mut chain = vec![Link::start("")];
    for path in PATHS {
        let before = &chain[chain.len() - 1].server().base;
        let source = format!("[feed.source]\nfollow = \"{before}{path}\"\nevery = \"1s\"\n");
        chain.push(Link::start(&source));
    }
    let mut published = Vec::new();
    for round in 0..chain.len() {
        let mut batch = lines().concat();
        batch.extend(
            (0..40).map(|n| json!({ "id": format!("{round}/{n}"), "item": { "title": format!("{n}") } })),
        );
        // Told apart from the round before, in which the same items came and went.
        batch.push(json!({ "id": "plain", "content_type": "text/plain", "content": round.to_string() }));
        publish(chain[0].server(), &batch);
        published.extend(batch);
        // The publisher first, then each mirror, while the changes pass it.
        chain[round].restart();
    }
    let original = live(fold(&published));
    let last = chain.last().expect("the chain has an end").server();
    wait_for("the last mirror", &original, || live(fold(&transports::native(last, "origin"))));
}

/// Leaves out what was deleted: a mirror may never have seen what came and went while it was down.
fn live(mut items: Items) -> Items {
    items.retain(|_, fields| !fields.is_empty());
    items
}
