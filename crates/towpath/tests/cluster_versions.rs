//! Nodes of two adjacent versions in one cluster: they decide alike, the feature level rises when the last old node is
//! gone, and an old node stops where it would not understand the log.
//!
//! `TOWPATH_PREVIOUS` names the program of the previous version; `cargo xtask mixed-versions` builds it. With
//! `TOWPATH_RECORD`, the messages that it wrote alone are recorded there, with the digest of what it made of them. The
//! crate of the cluster applies that record in its own tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream::Stream};
use futures_util::StreamExt as _;
use serde_json::json;
use towpath_cluster::{ClusterAddress, ClusterOptions, ClusterStore};
use towpath_store::Store as _;
use towpath_store::embedded::{EmbeddedOptions, EmbeddedStore};

use crate::common::{TestFolder, TestResponse, TestServer, free_port, nats};
use crate::nodes::{publish, try_publish};

const FEEDS: &str = "[[feed]]\nid = \"news\"\npage_items = 4\n[[feed]]\nid = \"other\"\ncursor = \"toc\"\n";
/// Time for what takes passes of the upkeep, or the loss of a node.
const LONG: Duration = Duration::from_secs(100);

/// Node whose program may be of another version.
struct VersionedNode {
    folder: TestFolder,
    port: u16,
}

impl VersionedNode {
    fn new(url: &str, base: &str, more: &str) -> Self {
        let server = format!(
            "[server]\nbase_url = \"{base}\"\ncluster = \"{url}\"\ncreate_feeds = true\n{FEEDS}{more}"
        );
        Self { folder: TestFolder::new(&server), port: free_port() }
    }

    fn serve(&self, program: Option<&Path>) -> TestServer {
        let listen = format!("127.0.0.1:{}", self.port);
        let args = ["serve", "--listen", &listen];
        let mut command = self.folder.command(&args);
        if let Some(program) = program {
            command = Command::new(program);
            command.args(args).current_dir(self.folder.path("."));
            command.env_remove("TOWPATH_TOKEN").env_remove("TOWPATH_READ_TOKEN");
        }
        let mut server = self.folder.start(command);
        server.base = format!("http://{listen}");
        server
    }

    fn data(&self) -> PathBuf {
        self.folder.path("data")
    }
}

fn metric(server: &TestServer, name: &str) -> Option<u64> {
    let text = server.get("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.parse().ok()
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "timeout while waiting: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Position of a feed; zero for one that is not there yet.
fn position_of(server: &TestServer, feed: &str) -> u64 {
    server.get(&format!("/feeds/{feed}")).json()["seq"].as_u64().unwrap_or_default()
}

/// Writes of every kind: items in batches and parts, patches, removals, refused preconditions, subscriptions' rows.
fn write(servers: &[&TestServer], round: usize) {
    let server = |n: usize| servers[n % servers.len()];
    for n in 0..12 {
        publish(server(n), if n % 3 == 0 { "other" } else { "news" }, &format!("r{round}n{}", n % 7));
    }
    let lines: String = (0..40)
        .map(|n| {
            json!({ "id": format!("b{n}"), "item": { "title": format!("Round {round}") }, "content": "text" })
                .to_string()
                + "\n"
        })
        .collect();
    let ask = |n: usize, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| -> TestResponse {
        server(n).ask(method, path, headers, body)
    };
    let ok = |answer: TestResponse| assert!(answer.status < 300, "{}: {}", answer.status, answer.text());
    ok(ask(0, "POST", "/feeds/batch/items", &[], lines.as_bytes()));
    let json = [("content-type", "application/json")];
    ok(ask(0, "PUT", "/feeds/batch/items/b3", &json, format!(r#"{{"round":{round}}}"#).as_bytes()));
    let patch = [("content-type", "application/merge-patch+json")];
    ok(ask(1, "PATCH", "/feeds/batch/items/b3", &patch, br#"{"patched":true}"#));
    ok(ask(2, "DELETE", "/feeds/batch/items/b4", &[], b""));
    // The second of two equal preconditions fails, whichever node it reaches.
    let head = position_of(server(0), "made");
    // Another item each time: one that did not change would append nothing, and so conflict with nothing.
    let line = |text: &str| json!({ "id": format!("c{head}"), "content": text }).to_string();
    let path = format!("/feeds/made/items?expect={head}");
    let expects = |n: usize, text: &str| ask(n, "POST", &path, &[], line(text).as_bytes());
    let (first, second) = (expects(0, "one"), expects(1, "two"));
    assert_eq!((first.status, second.status), (200, 409), "{} {}", first.text(), second.text());
    // Larger than a message of the log.
    let large = "large ".repeat(50_000);
    ok(ask(1, "PUT", "/feeds/made/items/large", &[], large.as_bytes()));
}

async fn stream(url: &str) -> Stream {
    let client = async_nats::connect(url).await.unwrap();
    jetstream::new(client).get_stream("towpath").await.unwrap()
}

/// Removes the consumers of nodes that are gone, which JetStream would keep for a minute.
async fn remove_consumers(url: &str) {
    let stream = stream(url).await;
    let names: Vec<_> = stream.consumer_names().collect().await;
    for name in names {
        stream.delete_consumer(&name.unwrap()).await.unwrap();
    }
}

/// Position and digest of a replica that nobody has open.
async fn replica(folder: &Path) -> (u64, String) {
    // A copy: this version brings a folder to its own format, which the previous one does not open.
    let copied = tempfile::tempdir().unwrap();
    copy(folder, copied.path());
    let (reader, writer) = EmbeddedStore::open_replica(copied.path(), &EmbeddedOptions::default()).unwrap();
    let copy = reader.copy_now().unwrap();
    let position = copy.metadata(b"position").unwrap().unwrap();
    let digest = copy.digest().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    drop((copy, writer));
    reader.close().await;
    (u64::from_be_bytes(position[8..16].try_into().unwrap()), digest)
}

/// Digest of a replica that this version has brought to the log's end.
async fn caught_up(url: &str, folder: &Path) -> (u64, String) {
    let address = ClusterAddress::parse(url).unwrap();
    let copied = tempfile::tempdir().unwrap();
    if folder.exists() {
        copy(folder, copied.path());
    }
    ClusterStore::open(&address, copied.path(), ClusterOptions::default()).await.unwrap().close().await;
    replica(copied.path()).await
}

async fn record(url: &str, to: &Path, position: u64, digest: &str) {
    let stream = stream(url).await;
    let info = stream.cached_info();
    let log = info.config.description.as_deref().unwrap().rsplit("id ").next().unwrap();
    let mut file = Vec::new();
    for at in 1..=position {
        let message = stream.get_raw_message(at).await.unwrap();
        let time = u64::try_from(message.time.unix_timestamp_nanos()).unwrap();
        let length = u32::try_from(message.payload.len()).unwrap();
        for bytes in [&at.to_be_bytes()[..], &time.to_be_bytes(), &length.to_be_bytes(), &message.payload] {
            file.extend_from_slice(bytes);
        }
    }
    std::fs::create_dir_all(to).unwrap();
    std::fs::write(to.join("level-1.messages"), file).unwrap();
    std::fs::write(to.join("level-1.digest"), format!("log {log}\nposition {position}\nsha256 {digest}\n"))
        .unwrap();
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => drop(std::fs::copy(&from, &to).unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_two_versions_decide_alike() {
    let Some(previous) = std::env::var_os("TOWPATH_PREVIOUS").map(PathBuf::from) else {
        println!("skipped: TOWPATH_PREVIOUS names no program; `cargo xtask mixed-versions` builds one");
        return;
    };
    let single = nats::single("");
    let url = single.server.url();
    let shared = tempfile::tempdir().unwrap();
    let snapshots = format!(
        "[cluster.snapshots]\nto = {:?}\nevery = \"1s\"\nkeep = \"0s\"\n",
        shared.path().join("snapshots")
    );
    let base = &format!("http://127.0.0.1:{}", free_port());
    let old = VersionedNode::new(&url, base, "");
    let new = VersionedNode::new(&url, base, &snapshots);

    // The old version alone. This one makes the same of its messages.
    let server = old.serve(Some(&previous));
    write(&[&server], 0);
    assert_eq!(server.stop(), Some(0));
    let (position, digest) = replica(&old.data()).await;
    if let Some(to) = std::env::var_os("TOWPATH_RECORD") {
        record(&url, Path::new(&to), position, &digest).await;
    }
    let begun = shared.path().join("begun");
    assert_eq!(caught_up(&url, &begun).await, (position, digest));

    // Both, while the new one keeps the log.
    let (first, second) = (old.serve(Some(&previous)), new.serve(None));
    for round in 1..4 {
        write(&[&first, &second], round);
        write(&[&second, &first], round);
    }
    wait("a snapshot is made", || metric(&second, "towpath_cluster_snapshot_sequence").is_some());
    write(&[&second, &first], 4);
    assert_eq!(metric(&second, "towpath_cluster_level"), Some(1), "an old node has no higher level");
    for path in [
        "/feeds/news/items?order=created&max=50",
        "/feeds/batch/feed.json",
        "/feeds/made/items?order=modified&max=9",
    ] {
        let told = |server: &TestServer| server.get(path).text();
        wait(&format!("{path} is alike"), || told(&first) == told(&second));
    }
    assert_eq!((second.stop(), first.stop()), (Some(0), Some(0)));
    let before = shared.path().join("before");
    copy(&old.data(), &before);
    assert_eq!(caught_up(&url, &old.data()).await, caught_up(&url, &new.data()).await);

    // The last old node is upgraded.
    remove_consumers(&url).await;
    let (first, second) = (old.serve(None), new.serve(None));
    wait("the level rises", || metric(&first, "towpath_cluster_level") == Some(2));
    write(&[&first, &second], 5);
    let raised = metric(&first, "towpath_cluster_log_applied_sequence").unwrap();

    // The old version comes back, with its folder from before.
    assert_eq!(first.stop(), Some(0));
    let node = VersionedNode::new(&url, base, "");
    copy(&before, &node.data());
    let server = node.serve(Some(&previous));
    publish(&second, "news", "later");
    wait("it stops", || {
        let answer = try_publish(&server, "news", "refused");
        answer.status == 503 && answer.text().contains("newer version")
    });
    assert_eq!(server.stop(), Some(0));
    let (ended, _) = replica(&node.data()).await;
    assert!(ended < raised, "it applied messages of a level that it does not have: {ended}, {raised}");
    let position = publish(&second, "news", "last");
    assert!(position.parse::<u64>().unwrap() > 0);
    assert_eq!(second.stop(), Some(0));
    assert_eq!(caught_up(&url, &old.data()).await, caught_up(&url, &new.data()).await);
}
