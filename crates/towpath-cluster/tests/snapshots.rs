//! Snapshots of replicas, from which new nodes begin, and removal of the messages that they cover.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream::Stream};
use bytes::Bytes;
use futures_util::StreamExt;
use tempfile::TempDir;
use towpath_cluster::{
    ClusterAddress, ClusterError, ClusterOptions, ClusterStore, SUPPORTED, SnapshotOptions,
};
use towpath_proto::change::NewChange;
use towpath_proto::item::{Content, Item};
use towpath_store::Store;
use towpath_store::backup::{BackupStorage, MemoryStorage};
use towpath_store::conformance::{append, feed, log, put};
use towpath_store::lease::Lease;

/// Nodes of one log, with the storage of its snapshots.
struct TestNodes {
    url: String,
    folders: TempDir,
    storage: Arc<MemoryStorage>,
}

impl TestNodes {
    fn new() -> Self {
        Self { url: common::fresh_stream(), folders: tempfile::tempdir().unwrap(), storage: Arc::default() }
    }

    fn path(&self, node: &str) -> std::path::PathBuf {
        self.folders.path().join(node)
    }

    fn options(&self) -> ClusterOptions {
        let mut options = ClusterOptions {
            timeout: Duration::from_secs(20),
            snapshots: Some(SnapshotOptions {
                storage: Arc::clone(&self.storage) as Arc<dyn BackupStorage>,
                every: Duration::ZERO,
                keep: Duration::ZERO,
                max_stream_bytes: None,
            }),
            ..ClusterOptions::default()
        };
        options.replica.reserve = 0;
        options
    }

    async fn try_open(&self, node: &str, options: ClusterOptions) -> Result<ClusterStore, ClusterError> {
        ClusterStore::open(&ClusterAddress::parse(&self.url).unwrap(), self.path(node), options).await
    }

    async fn open(&self, node: &str) -> ClusterStore {
        self.try_open(node, self.options()).await.unwrap()
    }

    async fn stream(&self) -> Stream {
        let client = async_nats::connect(self.server()).await.unwrap();
        jetstream::new(client).get_stream(self.name()).await.unwrap()
    }

    async fn first(&self) -> u64 {
        self.stream().await.cached_info().state.first_sequence
    }

    fn server(&self) -> &str {
        self.url.split('?').next().unwrap()
    }

    fn name(&self) -> &str {
        self.url.split("name=").nth(1).unwrap()
    }

    /// Snapshots in the storage, by the sequence numbers in their names.
    fn snapshots(&self) -> Vec<u64> {
        let paths = self.storage.paths();
        let lists = paths.iter().filter(|path| path.contains("/backups/"));
        lists
            .map(|path| path.rsplit('/').next().unwrap().trim_end_matches(".json").parse().unwrap())
            .collect()
    }

    /// Replaces a file by what `change` makes of it.
    async fn damage(&self, part: &str, change: impl Fn(&[u8]) -> Vec<u8>) -> usize {
        let paths = self.storage.paths();
        let files: Vec<_> = paths.iter().filter(|path| path.contains(part)).collect();
        for path in &files {
            let bytes = self.storage.get(path).await.unwrap().unwrap();
            self.storage.put(path, Bytes::from(change(&bytes))).await.unwrap();
        }
        files.len()
    }
}

async fn role(store: &ClusterStore) -> Lease {
    let mut handle = store.acquire_lease("log");
    let lease = tokio::time::timeout(Duration::from_secs(20), handle.held()).await.unwrap();
    // Held until the test ends.
    std::mem::forget(handle);
    lease
}

/// Waits until nodes have applied the same messages, and asserts that their replicas are equal byte by byte.
async fn assert_equal(nodes: &[&ClusterStore]) {
    let begun = Instant::now();
    loop {
        let position = nodes.iter().map(|node| node.position()).max().unwrap();
        let digests: Vec<_> =
            nodes.iter().map(|node| node.copy_replica().unwrap().digest().unwrap()).collect();
        if nodes.iter().all(|node| node.position() == position) && digests.iter().all(|d| *d == digests[0]) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the replicas differ at {position}: {digests:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn large(id: &str) -> NewChange {
    // Larger than a message, so that the log has it in parts.
    let content = Some(Content::new("text/plain", "x".repeat(1_200_000)));
    NewChange::put(Item { content, ..Item::new(id) })
}

async fn fill(store: &ClusterStore, ids: std::ops::Range<u32>) {
    for id in ids {
        append(store, &feed(if id % 2 == 0 { "f1" } else { "f2" }), vec![put(&(id % 13).to_string(), "1")])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_begins_from_a_snapshot_and_the_log_loses_what_it_covers() {
    let nodes = TestNodes::new();
    let one = nodes.open("one").await;
    fill(&one, 0..20).await;
    append(&one, &feed("f1"), vec![large("large")]).await;
    let lease = role(&one).await;
    one.keep_log(&lease).await.unwrap();
    assert_eq!(nodes.snapshots().len(), 1);
    assert_eq!(nodes.first().await, 1, "the newest snapshot is not enough to remove messages");
    one.keep_log(&lease).await.unwrap();
    assert_eq!(nodes.snapshots().len(), 1, "nothing happened but the snapshot itself");
    fill(&one, 20..30).await;
    one.keep_log(&lease).await.unwrap();
    let made = nodes.snapshots();
    assert_eq!((made.len(), nodes.first().await), (2, made[0] + 1));
    fill(&one, 30..40).await;
    one.keep_log(&lease).await.unwrap();
    let kept = nodes.snapshots();
    assert_eq!((kept.len(), kept[0], nodes.first().await), (2, made[1], made[1] + 1), "the oldest one went");

    let status = one.log_status().await.unwrap();
    assert_eq!(status.snapshot.unwrap().sequence, kept[1]);
    let two = nodes.open("two").await;
    fill(&two, 40..50).await;
    assert_equal(&[&one, &two]).await;
    assert!(two.verify().await.unwrap().is_sound());
    assert_eq!(two.replica_status().unwrap().problem, None);
    // Without the snapshots a new node has nothing to begin from, and says what to do.
    let refused = nodes.try_open("three", ClusterOptions { snapshots: None, ..nodes.options() }).await;
    let refused = refused.err().unwrap().to_string();
    assert!(
        refused.contains("what is between was deleted") && refused.contains("[cluster.snapshots]"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_too_long_begins_anew() {
    let nodes = TestNodes::new();
    let (one, two) = (nodes.open("one").await, nodes.open("two").await);
    fill(&one, 0..10).await;
    two.close().await;
    drop(two);
    remove_consumers(&nodes).await;
    let lease = role(&one).await;
    for part in [10..20, 20..30] {
        fill(&one, part).await;
        one.keep_log(&lease).await.unwrap();
    }
    assert!(nodes.first().await > 10);
    // Without snapshots it goes on with reads, and names the gap.
    let old = nodes.try_open("two", ClusterOptions { snapshots: None, ..nodes.options() }).await.unwrap();
    problem(&old, "[cluster.snapshots]").await;
    assert!(log(&old, &feed("f1")).await.len() <= 5);
    old.close().await;
    drop(old);
    let two = nodes.open("two").await;
    fill(&two, 30..35).await;
    assert_equal(&[&one, &two]).await;
}

/// Removes the consumers of nodes that are gone, which JetStream would keep for a minute.
async fn remove_consumers(nodes: &TestNodes) {
    let stream = nodes.stream().await;
    let names: Vec<_> = stream.consumer_names().collect().await;
    for name in names {
        // Nodes that live create another one.
        stream.delete_consumer(&name.unwrap()).await.unwrap();
    }
}

async fn problem(store: &ClusterStore, part: &str) {
    let begun = Instant::now();
    while !store.replica_status().unwrap().problem.is_some_and(|problem| problem.contains(part)) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", store.replica_status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_and_missing_snapshots_are_passed_over() {
    let nodes = TestNodes::new();
    let one = nodes.open("one").await;
    let lease = role(&one).await;
    // Without removal, so that each snapshot could be enough.
    for part in [0..20, 20..40, 40..60] {
        fill(&one, part).await;
        one.keep_log(&lease).await.ok();
    }
    let made = nodes.snapshots();
    let newest = format!("{:020}", made[made.len() - 1]);
    nodes.damage(&newest, |list| list[..list.len() / 2].to_vec()).await;
    let two = nodes.open("two").await;
    assert_equal(&[&one, &two]).await;
    two.close().await;
    // All pieces are damaged: no snapshot is left.
    assert!(nodes.damage("/pieces/", |piece| piece.iter().map(|byte| !byte).collect()).await > 3);
    let refused = nodes.try_open("three", nodes.options()).await.err().unwrap().to_string();
    assert!(refused.contains("it is damaged") && refused.contains("copy of another node's"), "{refused}");
    assert!(refused.contains(&format!("snapshot {}", made[0])), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_removed_up_to_a_snapshot_that_cannot_be_read_back() {
    let nodes = TestNodes::new();
    let one = nodes.open("one").await;
    let lease = role(&one).await;
    fill(&one, 0..20).await;
    one.keep_log(&lease).await.unwrap();
    nodes.damage("/pieces/", |piece| piece[..piece.len() - 1].to_vec()).await;
    fill(&one, 20..30).await;
    let error = one.keep_log(&lease).await.unwrap_err().to_string();
    assert!(error.contains("nothing was removed") && error.contains("cannot be read back"), "{error}");
    assert_eq!(nodes.first().await, 1);
    // The next snapshots have all of their pieces again.
    for part in [30..40, 40..50] {
        fill(&one, part).await;
        one.keep_log(&lease).await.ok();
    }
    let begun = Instant::now();
    while nodes.first().await == 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", nodes.snapshots());
        fill(&one, 0..3).await;
        one.keep_log(&lease).await.ok();
    }
    let two = nodes.open("two").await;
    assert_equal(&[&one, &two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_removed_that_a_live_node_has_not_applied() {
    let nodes = TestNodes::new();
    let one = nodes.open("one").await;
    let lease = role(&one).await;
    fill(&one, 0..20).await;
    // A node that is behind: it answers, and has applied three messages.
    let client = async_nats::connect(nodes.server()).await.unwrap();
    let mut questions = client.subscribe(format!("{}.nodes", nodes.name())).await.unwrap();
    let description = nodes.stream().await.cached_info().config.description.clone().unwrap();
    let id = description.rsplit("id ").next().unwrap().to_owned();
    let answering = tokio::spawn(async move {
        while let Some(question) = questions.next().await {
            let answer =
                format!(r#"{{"node":"0000000000000007","log":"{id}","level":{SUPPORTED},"applied":3}}"#);
            client.publish(question.reply.unwrap(), answer.into()).await.unwrap();
        }
    });
    one.keep_log(&lease).await.unwrap();
    fill(&one, 20..30).await;
    one.keep_log(&lease).await.unwrap();
    assert_eq!(nodes.first().await, 4);
    answering.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_feature_level_rises_when_all_nodes_have_it() {
    let nodes = TestNodes::new();
    let older = || ClusterOptions { supported_level: 1, ..nodes.options() };
    let one = nodes.open("one").await;
    let two = nodes.try_open("two", older()).await.unwrap();
    let lease = role(&one).await;
    one.keep_log(&lease).await.unwrap();
    fill(&two, 0..6).await;
    let level = async |store: &ClusterStore| store.log_status().await.unwrap().level;
    assert_eq!(
        (level(&one).await, level(&two).await),
        (1, 1),
        "one of two nodes does not have the next level"
    );
    assert_equal(&[&one, &two]).await;
    two.close().await;
    drop(two);
    // A node that is gone counts for as long as JetStream has its consumer: it may come back.
    one.keep_log(&lease).await.unwrap();
    assert_eq!(level(&one).await, 1);
    remove_consumers(&nodes).await;
    let held = ClusterOptions { max_level: 1, ..nodes.options() };
    let three = nodes.try_open("three", held).await.unwrap();
    three.keep_log(&lease).await.unwrap();
    assert_eq!(level(&three).await, 1, "an operator keeps it");
    one.keep_log(&lease).await.unwrap();
    assert_eq!(level(&one).await, 2);
    fill(&one, 6..10).await;
    assert_equal(&[&one, &three]).await;
    assert_eq!(level(&three).await, 2);
    three.close().await;

    // Nodes that are too old refuse to start: with a replica from before the raise, a new one, and one of the level.
    drop(three);
    for node in ["two", "four", "three"] {
        let refused = nodes.try_open(node, older()).await.err().unwrap();
        assert!(
            matches!(refused, ClusterError::TooOld { .. } | ClusterError::Unusable { .. }),
            "{refused:?}"
        );
        let refused = refused.to_string();
        assert!(
            refused.contains("feature level 2") && refused.contains("upgrade this node"),
            "{node}: {refused}"
        );
    }
    let again = nodes.open("three").await;
    assert_eq!(level(&again).await, 2, "the level is part of the replica");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_the_streams_own_limits_removed_are_told() {
    let nodes = TestNodes::new();
    let one = nodes.open("one").await;
    fill(&one, 0..10).await;
    let stream = nodes.stream().await;
    let config = jetstream::stream::Config {
        discard: jetstream::stream::DiscardPolicy::Old,
        max_messages: 5,
        ..stream.cached_info().config.clone()
    };
    let context = jetstream::new(async_nats::connect(nodes.server()).await.unwrap());
    context.update_stream(config).await.unwrap();
    fill(&one, 10..20).await;
    let refused = nodes.try_open("two", nodes.options()).await.err().unwrap().to_string();
    assert!(refused.contains("removes messages by limits of its own: max_msgs is 5"), "{refused}");
}

/// Two storages of one log: the folder of another log is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_share_a_storage() {
    let nodes = TestNodes::new();
    let others = TestNodes { storage: Arc::clone(&nodes.storage), ..TestNodes::new() };
    let (one, other) = (nodes.open("one").await, others.open("one").await);
    fill(&one, 0..10).await;
    fill(&other, 0..3).await;
    one.keep_log(&role(&one).await).await.unwrap();
    other.keep_log(&role(&other).await).await.unwrap();
    assert_eq!(nodes.snapshots().len(), 2);
    let (two, another) = (nodes.open("two").await, others.open("two").await);
    assert_equal(&[&one, &two]).await;
    assert_equal(&[&other, &another]).await;
    assert_eq!(log(&another, &feed("f1")).await.len(), 2);
}
